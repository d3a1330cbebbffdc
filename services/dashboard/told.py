"""Which keys a frame tells of: the nearest to their limits, no more than a page can take.  Pure."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from regional_limiter.model.keys import rule_of

KEYS_A_RULE = 8
KEYS_MOST = 1_000
"""Of one frame."""
KEYS_REMEMBERED = 20_000
"""Of which rule they are: each is asked for every second."""


def keys_told(asked_per_s: Mapping[str, float], even_per_s: Mapping[str, float | None]) -> dict[str, list[str]]:
    """``domain/rule`` -> its keys, the busiest first.

    ``asked_per_s``: cost by key; ``even_per_s``: what a rule lets through for ever, None where there is none.
    """

    def order(key: str) -> tuple[float, float, str]:
        even = even_per_s.get(rule_name(key))
        return -asked_per_s[key] / even if even else 0.0, -asked_per_s[key], key

    left = KEYS_MOST
    found: dict[str, list[str]] = {}
    for key in sorted(asked_per_s, key=order):
        if left == 0:
            break
        keys = found.setdefault(rule_name(key), [])
        if len(keys) < KEYS_A_RULE:
            keys.append(key)
            left -= 1
    return found


@lru_cache(maxsize=KEYS_REMEMBERED)
def rule_name(key: str) -> str:
    """``domain/rule`` of a bucket key, "" for what is none."""
    try:
        return "/".join(rule_of(key))
    except ValueError:
        return ""
