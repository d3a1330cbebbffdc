"""Which keys a limit may deny at all: found with far less work than deciding each check.  Pure.

A key that is not named here is surely not denied.  Buckets are followed in floating point with a token less than
they have, windows by their counts.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from regional_limiter.model.rule import Algorithm, Rule

MARGIN: Final = 1.0
"""In tokens: more than rounding could ever come to."""
_SLIDING: Final = (Algorithm.SLIDING_WINDOW_COUNTER, Algorithm.SLIDING_WINDOW_LOG)

Asked = Iterable[tuple[int, int, int]]
"""(time in ms, hash of the key, cost), times never going back."""


def suspects(rule: Rule, asked: Asked, only: set[int] | None, keys_most: int) -> set[int] | None:
    """The keys (of ``only``; None: of all) that ``rule`` may deny something.  None: not to be found out so."""
    if rule.refill is not None:
        every_ms = rule.refill.period_ms / rule.refill.tokens
        return _of_bucket(asked, only, every_ms, (rule.capacity - MARGIN) * every_ms, keys_most)
    if rule.window_ms is not None:
        return _of_windows(asked, only, rule.window_ms, rule.capacity, keys_most, both=rule.algorithm in _SLIDING)
    return None


def _of_bucket(
    asked: Asked, only: set[int] | None, every_ms: float, room_ms: float, keys_most: int
) -> set[int] | None:
    """``every_ms``: a token comes back.  Kept by key: when its bucket will be full again."""
    found: set[int] = set()
    full_at: dict[int, float] = {}
    began_ms: int | None = None
    for at_ms, key, cost in asked:
        if key in found or (only is not None and key not in only):
            continue
        if began_ms is None:
            began_ms = at_ms
        now = float(at_ms - began_ms)
        full = max(full_at.get(key, 0.0), now) + cost * every_ms
        if full - now > room_ms:
            found.add(key)
            full_at.pop(key, None)
            continue
        full_at[key] = full
        if len(full_at) > keys_most:
            full_at = {one: until for one, until in full_at.items() if until > now}
            if 2 * len(full_at) > keys_most:
                return None
    return found


def _of_windows(
    asked: Asked, only: set[int] | None, window_ms: int, limit: int, keys_most: int, *, both: bool
) -> set[int] | None:
    """``both``: what was asked in the window before may count too."""
    found: set[int] = set()
    before: dict[int, int] = {}
    now: dict[int, int] = {}
    number = -1
    for at_ms, key, cost in asked:
        if at_ms // window_ms != number:
            before = now if both and at_ms // window_ms == number + 1 else {}
            number, now = at_ms // window_ms, {}
        if key in found or (only is not None and key not in only):
            continue
        count = now[key] = now.get(key, 0) + cost
        if count + before.get(key, 0) > limit:
            found.add(key)
        if len(now) > keys_most:
            return None
    return found
