"""How a limit is divided among the gateways that have a bucket: what each should be granted.  Pure.

Equal parts, by the number of gateways but at least ``parts_least``, of what is not kept back: of a limit's capacity
a quarter (at least a token, of two or more) and of its rate a tenth stay with the node.  From these it pays for
what it grants when gateways come and go (see ``ledger``).
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from math import gcd
from typing import Final

from services.quota.ledger import DENY, PICO, Grant, Ledger, Limit

FILL_MOST: Final = 2**32 - 1
EVERY_S_MOST: Final = 10**9 - 1
_STEPS: Final = 1000
_PLAIN_S_MOST: Final = 10_000


def kept_back(capacity: int) -> int:
    """Tokens of ``capacity`` that no gateway is granted while nothing changes."""
    return max(1, capacity // 4) if capacity > 1 else 0


@lru_cache(maxsize=4096)
def part_of(limit: Limit, parts: int) -> Grant:
    """One of ``parts`` equal parts; DENY if the limit does not go round."""
    tokens = (limit.capacity - kept_back(limit.capacity)) // parts
    return filling(min(tokens, FILL_MOST), limit.rate * 9 // (10 * parts))


def filling(tokens: int, rate: int) -> Grant:
    """A grant of ``tokens`` at ``rate`` (10^-12 tokens a millisecond), or the next slower one that can be told.

    It is told in whole tokens and whole seconds, which is what gateways reckon with.
    """
    per_s = rate * 1000
    if tokens <= 0 or per_s <= 0:
        return DENY
    exact = Fraction(per_s, PICO)
    plain = exact.limit_denominator(_PLAIN_S_MOST)
    if 0 < plain <= exact and plain.numerator <= FILL_MOST and exact - plain < exact / _STEPS:
        return Grant(tokens, plain.numerator, plain.denominator)
    if per_s >= PICO:
        every_s = _STEPS if per_s * _STEPS // PICO <= FILL_MOST else 1
        fill = min(per_s * every_s // PICO, FILL_MOST)
        common = gcd(fill, every_s)
        return Grant(tokens, fill // common, every_s // common)
    fill = _STEPS
    every_s = -(-fill * PICO // per_s)
    if every_s > EVERY_S_MOST:
        fill, every_s = 1, -(-PICO // per_s)
    common = gcd(fill, every_s)
    return Grant(tokens, fill // common, every_s // common) if every_s <= EVERY_S_MOST else DENY


def next_grant(ledger: Ledger, name: object, parts: int) -> Grant | None:
    """What ``name`` should be sent in place of what it holds; None: nothing, it goes on or waits."""
    limit = ledger.limit
    held = ledger.holder(name).grant
    if limit.capacity == 0:
        return DENY if held != DENY else None
    want = part_of(limit, parts)
    if want == held:
        return None
    tokens = min(want.tokens, ledger.saved, ledger.capacity_left(name))
    fits = tokens >= 1 and want.rate <= ledger.rate_left(name)
    grant = Grant(tokens, want.fill, want.every_s)
    if held is None or held == DENY:
        return grant if fits else None
    if held.tokens > limit.capacity or held.rate > limit.rate:
        return grant if fits else DENY
    if not fits:
        return None
    if want.rate < held.rate or want.tokens < held.tokens:
        return grant if grant != held else None
    # It may grow.  What it has saved up is lost then, so not for less than it holds.
    enough = held.tokens if want.rate > held.rate else want.tokens
    return grant if tokens >= min(enough, want.tokens) and grant != held else None
