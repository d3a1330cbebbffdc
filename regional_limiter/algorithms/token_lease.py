"""Token leases: a node takes tokens out of a bucket to spend them without asking, and brings back the rest.  Pure.

A node that dies holds back at most one lease, for at most its life.  A life ends on the second edge
of the store's clock from where it began, so it takes one to two times the span between them, and never goes past
the session that its share belongs to.  ``tokens_out`` says what is out and what that does to the refill.

A lease is given where a bucket can spare it: at most a tenth of what it holds, from buckets that may hold at least
``CAPACITY_LEAST`` in this region.  Only of a whole limit, or of a share by lease of a living session: a region that
is at its base or floor may be there because nobody reaches it.  And since a lease outlives the share that it was
given under by up to TOKEN_LEASE_US_MOST, a point remembers what was leased under which share, and the region's
agent acknowledges a smaller one only after that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from regional_limiter.algorithms.bucket_state import pack
from regional_limiter.algorithms.token_bucket import Looked, look, reset_after_ms, ttl_ms, unit_of
from regional_limiter.algorithms.tokens_out import given, taken_back
from regional_limiter.model.decision import ShareKind
from regional_limiter.model.enforcement import ShareInForce
from regional_limiter.model.rule import Algorithm
from regional_limiter.model.share import ADAPTIVE_EDGE_EVERY_MS, region_capacity
from regional_limiter.store.base import BucketCall, ReturnedLease, Sharing, TokenLease

EDGE_EVERY_MS: Final = 250
CAPACITY_LEAST: Final = 100
LEVEL_PART: Final = 10
"""One lease takes at most a tenth of the level."""
TOKENS_LEAST: Final = 8
"""Fewer tokens are not worth a call of their own."""
RETURNS_MOST: Final = 8
"""Leases that one call can bring back; a node has one a key."""


@dataclass(frozen=True, slots=True)
class Leased:
    """What to answer, and what to store (``state`` None: the store is left as it is)."""

    lease: TokenLease
    state: bytes | None = None
    ttl_ms: int = 0


def may_lease(call: BucketCall) -> bool:
    """Whether buckets of this rule are ever leased from, whatever their share."""
    return (
        call.algorithm is Algorithm.TOKEN_BUCKET
        and call.sharing is not Sharing.STATIC
        and not call.charge_denied
        and call.elsewhere is None
        and call.capacity // call.split >= CAPACITY_LEAST
    )


def spares(call: BucketCall, share: int, kind: ShareKind, floor: int) -> bool:
    """Whether a bucket of such a rule is leased from under this share, where nothing is below ``floor``."""
    if call.sharing is Sharing.ADAPTIVE and (kind is not ShareKind.LEASE or share <= floor):
        return False
    return region_capacity(call.capacity, share, call.regions) >= CAPACITY_LEAST


def lease(
    state: bytes | None,
    call: BucketCall,
    share: ShareInForce,
    now_us: int,
    want: int,
    returned: Sequence[ReturnedLease] = (),
) -> Leased:
    """Take back what is ``returned``, then give at most ``want`` tokens.  ``state`` None: no key."""
    if call.algorithm is not Algorithm.TOKEN_BUCKET:
        raise ValueError("only token buckets are leased from")
    looked = look(state, call, share, now_us // 1000)
    looked, known, credited = _with_returned(looked, returned)
    bucket, unit = looked.bucket, unit_of(looked.bucket)
    tokens = edge_ms = ends_in_us = 0
    if may_lease(call) and spares(call, share.share, share.kind, share.floor):
        tokens = min(want, bucket.level // unit // LEVEL_PART)
    if tokens >= TOKENS_LEAST:
        adaptive = call.sharing is Sharing.ADAPTIVE
        every_ms = ADAPTIVE_EDGE_EVERY_MS if adaptive else EDGE_EVERY_MS
        # By the bucket's time, which a clock that went back a little has yet to reach.
        edge_ms = (bucket.time_ms // every_ms + 2) * every_ms
        ends_in_us = edge_ms * 1000 - max(now_us, bucket.time_ms * 1000)
        if adaptive:
            ends_in_us = min(ends_in_us, share.session_left_us)
        looked = looked.holding(bucket.level - tokens * unit, given(bucket.out, edge_ms, tokens))
    else:
        tokens = 0
    told = _told(looked, share, tokens, edge_ms, ends_in_us, credited)
    if tokens == 0 and not known:
        return Leased(told)
    return Leased(told, pack(looked.bucket), ttl_ms(looked))


def _with_returned(looked: Looked, returned: Sequence[ReturnedLease]) -> tuple[Looked, bool, int]:
    """(the bucket with what it knows to be its own, whether it knew any of it, the tokens that it took back)."""
    known, credited = False, 0
    for back in returned:
        bucket = looked.bucket
        out = taken_back(bucket.out, back.edge_ms, back.tokens)
        if out is not None:
            looked = looked.holding(bucket.level, out)
            looked = looked.holding(min(looked.cap(), bucket.level + back.unspent * unit_of(bucket)))
            known, credited = True, credited + back.unspent
    return looked, known, credited


def _told(
    looked: Looked, share: ShareInForce, tokens: int, edge_ms: int, ends_in_us: int, credited: int
) -> TokenLease:
    return TokenLease(
        tokens=tokens,
        edge_ms=edge_ms,
        ends_in_us=ends_in_us,
        credited=credited,
        remaining=max(0, looked.bucket.level // unit_of(looked.bucket)),
        reset_after_ms=reset_after_ms(looked),
        share=share.share,
        share_kind=share.kind,
        session_left_us=share.session_left_us,
        consent_left_us=share.consent_left_us,
    )
