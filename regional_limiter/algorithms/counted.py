"""What the kinds that count whole units have in common: why they deny, and how they say so.  Pure.

Such a kind keeps its state under a key of its own (the bucket key and a letter for the kind and its layout), so a
rule that changes its algorithm, and back again, never meets a state that it cannot read.
"""

from __future__ import annotations

from regional_limiter.model.decision import Reason, Verdict
from regional_limiter.model.enforcement import ShareInForce
from regional_limiter.store.base import BucketCall

REFUSED = (Reason.ZERO_LIMIT, Reason.EXCEEDS_CAPACITY)
"""Denials that no waiting ends: they cost nothing, whatever the rule says."""


def reason_of(call: BucketCall, price: int, held: int, largest: int) -> Reason:
    """``price``: what the cost takes of the ``held`` that is free.  ``largest``: the largest cost that can pass."""
    if call.capacity == 0:
        return Reason.ZERO_LIMIT
    if call.cost > largest:
        return Reason.EXCEEDS_CAPACITY
    if call.cost and price > held:
        return Reason.LIMITED
    return Reason.OK


def verdict_of(share: ShareInForce, reason: Reason, remaining: int, wait_ms: int, reset_after_ms: int) -> Verdict:
    """``wait_ms``: until the same check would be allowed; it counts only if the reason is LIMITED."""
    retry_after_ms: int | None = None
    if reason is Reason.OK:
        retry_after_ms = 0
    elif reason is Reason.LIMITED:
        retry_after_ms = wait_ms
    return Verdict(
        allowed=reason is Reason.OK,
        reason=reason,
        remaining=max(0, remaining),
        retry_after_ms=retry_after_ms,
        reset_after_ms=reset_after_ms,
        share=share.share,
        share_kind=share.kind,
        session_left_us=share.session_left_us,
        consent_left_us=share.consent_left_us,
    )


def is_recent(rebased_ms: int | None, now_ms: int, within_ms: int) -> bool:
    """Whether a state was rebased so short a time ago that it must not be again."""
    return rebased_ms is not None and abs(now_ms - rebased_ms) < within_ms
