"""Leaky bucket: what is poured in leaks out evenly; what does not fit is denied.  Pure integers.

What has leaked out of it is what has been refilled in a token bucket, so as a meter it is one, in state and in
every decision.  With ``queue`` an allowed request is told its turn as well: ``wait_ms``, until all that is in the
bucket before it has leaked out.  Whoever waits so long sends at the rate of the leak, evenly, and no request waits
longer than a full bucket takes to leak.  While a share moves, waits are reckoned at the share in force, and a
bucket of which less is known than of a full one counts as that much used: a turn is rather too late than too early.
"""

from __future__ import annotations

from dataclasses import replace

from regional_limiter.algorithms import token_bucket
from regional_limiter.algorithms.outcome import Ending, Outcome
from regional_limiter.model.enforcement import ShareInForce
from regional_limiter.store.base import BucketCall


def numbers(call: BucketCall, now_ms: int) -> tuple[int, ...]:
    """What the function library has to know of the rule: its leak, and whether it is a queue."""
    return *token_bucket.numbers(call, now_ms), int(call.queue)


def decide(state: bytes | None, call: BucketCall, share: ShareInForce, now_ms: int) -> Outcome:
    """As ``token_bucket.decide``; a queue's check of cost 0 tells the wait of one that would come now."""
    outcome = token_bucket.decide(state, call, share, now_ms)
    if not (call.queue and outcome.allowed):
        return outcome
    wait_ms = outcome.left.verdict.reset_after_ms
    return replace(outcome, charged=_told(outcome.charged, wait_ms), left=_told(outcome.left, wait_ms))


def _told(ending: Ending, wait_ms: int) -> Ending:
    return replace(ending, verdict=replace(ending.verdict, wait_ms=wait_ms))
