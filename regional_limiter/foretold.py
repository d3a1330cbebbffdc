"""What the next check would be told, from how its buckets stand now.  Pure.

A look at a bucket is a check of cost 0; what it has left says whether a cost would be taken.  The wait is exact for
what refills evenly and for fixed windows; of the other kinds a look does not tell it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from regional_limiter.algorithms.outcome import RETRY_FOR_LARGER_SHARE_MS
from regional_limiter.model.decision import Reason, Verdict
from regional_limiter.model.rule import Algorithm, Mode
from regional_limiter.model.share import SHARE_UNITS, region_capacity
from regional_limiter.plan import Plan, Step
from regional_limiter.store.base import BucketCall, Sharing


@dataclass(frozen=True, slots=True)
class Foretold:
    """Of one rule, or of the whole check (``rule`` then names the one that decides).

    ``retry_after_ms``: 0 when allowed; None: no wait helps, or a look does not tell it (``in_words`` says which).
    """

    allowed: bool
    reason: Reason
    rule: str | None
    retry_after_ms: int | None
    in_words: str


def foretold_of(step: Step, call: BucketCall, verdict: Verdict) -> Foretold:
    """``call``: of the check to come, at its cost; ``verdict``: of a look at the same bucket now."""
    rule, cost, left = step.rule.id, call.cost, verdict.remaining
    if call.capacity == 0:
        return Foretold(False, Reason.ZERO_LIMIT, rule, None, "its limit is 0: no wait helps")
    if cost == 0:
        return Foretold(True, Reason.OK, rule, 0, "a check of cost 0 only looks")
    if cost > call.largest:
        words = f"the check costs {cost:,}, and at most {call.largest:,} can ever pass here at once"
        return Foretold(False, Reason.EXCEEDS_CAPACITY, rule, None, words)
    words = f"{left:,} of {call.capacity:,} left here, the check costs {cost:,}"
    if cost <= left:
        return Foretold(True, Reason.OK, rule, 0, words)
    if step.rule.mode is Mode.SOFT:
        return Foretold(True, Reason.SOFT_LIMITED, rule, 0, f"{words}: a soft rule lets it pass, marked")
    wait_ms = wait_of(call, verdict)
    if wait_ms is None:
        words += "; when it would pass, a look does not tell"
    return Foretold(False, Reason.LIMITED, rule, wait_ms, words)


def foretold(plan: Plan, each: Sequence[Foretold]) -> Foretold:
    """The whole check.  ``each``: of its steps."""
    if plan.blocked is not None:
        rule = plan.blocked.rule.id
        return Foretold(False, Reason.BLOCKED, rule, None, f"an override of {rule} blocks this key")
    denying = [one for one in each if not one.allowed]
    if denying:
        return max(denying, key=lambda one: float("inf") if one.retry_after_ms is None else one.retry_after_ms)
    passing = [one for one in each if one.reason is Reason.SOFT_LIMITED] or list(each)
    if passing:
        return passing[0]
    if plan.unlimited:
        rule = plan.unlimited[0].rule.id
        return Foretold(True, Reason.OK, rule, 0, f"{rule} counts and never limits")
    return Foretold(True, Reason.NO_RULE, None, 0, "no enforced rule applies")


def wait_of(call: BucketCall, verdict: Verdict) -> int | None:
    """Until a check that does not fit now would, in ms.  None: a look does not tell."""
    adaptive = call.sharing is Sharing.ADAPTIVE
    top = region_capacity(call.capacity, verdict.share, call.regions) if adaptive else call.part
    if call.cost > top:
        return RETRY_FOR_LARGER_SHARE_MS
    if call.algorithm is Algorithm.FIXED_WINDOW:
        return min(RETRY_FOR_LARGER_SHARE_MS, verdict.reset_after_ms) if adaptive else verdict.reset_after_ms
    if call.refill is None:
        return None
    # It is full after reset_after_ms; what it gains beyond the cost, it gains in the last part of that.
    share = SHARE_UNITS if call.sharing is Sharing.WHOLE else verdict.share
    gain = call.refill.tokens * share
    if gain == 0:
        return None
    beyond_ms = (top - call.cost) * call.refill.period_ms * SHARE_UNITS // gain
    return max(1, verdict.reset_after_ms - beyond_ms)
