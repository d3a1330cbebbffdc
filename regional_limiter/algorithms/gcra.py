"""GCRA: a token bucket that keeps one number.  Pure integers.

The generic cell rate algorithm keeps the theoretical arrival time: when the bucket would be full again.  Its
distance from the last charge is what is used of the bucket, over the rate; so with the time of the last charge and
what was used then it decides as the token bucket does.  That is what is kept here, as one integer: the division by
the rate would lose the fraction of a token, and after it neither a changed rate nor a clock that went back could be
told from a bucket that is used up.  The layout is in ``bucket_state``.

Decisions are those of ``token_bucket`` because they are made there.  Of a limit that is split between regions, or
where the number would leave 64 bits, the state is the token bucket's.
"""

from __future__ import annotations

from regional_limiter.algorithms import token_bucket
from regional_limiter.algorithms.bucket_state import pack_as_number, unpack
from regional_limiter.algorithms.outcome import Ending, Outcome
from regional_limiter.model.enforcement import ShareInForce
from regional_limiter.store.base import BucketCall, Sharing


def decide(state: bytes | None, call: BucketCall, share: ShareInForce, now_ms: int) -> Outcome:
    """As ``token_bucket.decide``."""
    outcome = token_bucket.decide(state, call, share, now_ms)
    if call.sharing is not Sharing.WHOLE:
        return outcome
    charged, left = _smaller(outcome.charged, now_ms), _smaller(outcome.left, now_ms)
    return Outcome(outcome.allowed, charged, left, outcome.costs_denied)


def give_back(state: bytes | None, call: BucketCall, share: ShareInForce, now_ms: int) -> Ending | None:
    """As ``token_bucket.give_back``."""
    ending = token_bucket.give_back(state, call, share, now_ms)
    return ending if ending is None or call.sharing is not Sharing.WHOLE else _smaller(ending, now_ms)


def _smaller(ending: Ending, now_ms: int) -> Ending:
    bucket = unpack(ending.state, now_ms) if ending.state is not None else None
    number = pack_as_number(bucket) if bucket is not None else None
    return ending if number is None else Ending(ending.verdict, number, ending.ttl_ms)
