"""The answer to a check out of the verdicts of its rules, and what is counted of it.

Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from regional_limiter.model.decision import Answer, Reason, Verdict
from regional_limiter.node_counts import NodeCounts
from regional_limiter.plan import Asking, Plan
from regional_limiter.soft import marked, softened
from regional_limiter.store.base import BucketCall
from regional_limiter.usage import SOFT


class CountedAnswers:
    """Combines, and counts in ``counts`` what was no peek."""

    def __init__(self, counts: NodeCounts) -> None:
        self._counts = counts

    def without_store(self, plan: Plan, cost: int) -> Answer:
        if cost > 0:
            self._counts.unlimited(plan, cost)
            if (blocked := plan.blocked) is not None:
                self._counts.blocked(blocked, cost)
        return plan.answer_without_store()

    def of(self, asking: Asking, verdicts: Sequence[Verdict]) -> Answer:
        plan, cost = asking.plan, asking.cost
        if plan.has_variants:
            return self._with_variants(plan, cost, asking.calls, softened(plan.steps, verdicts))
        answer = plan.combined(verdicts)
        if cost > 0:
            self._counts.decided(plan.steps, asking.calls, verdicts, answer.allowed)
            if answer.allowed and plan.unlimited:
                self._counts.unlimited(plan, cost)
            if answer.allowed and plan.has_holders:
                answer = _with_lease(answer, asking.calls)
        return answer

    def _with_variants(
        self, plan: Plan, cost: int, calls: Sequence[BucketCall], verdicts: Sequence[Verdict]
    ) -> Answer:
        answer = marked(plan.combined(verdicts))
        if cost == 0:
            return answer
        passed = [place for place, verdict in enumerate(verdicts) if verdict.reason is Reason.SOFT_LIMITED]
        for place in passed:
            self._counts.row(plan.steps[place], SOFT, calls[place], replace(verdicts[place], allowed=False))
        others = [place for place in range(len(verdicts)) if place not in passed]
        steps, counted = [plan.steps[place] for place in others], [calls[place] for place in others]
        self._counts.decided(steps, counted, [verdicts[place] for place in others], answer.allowed)
        if answer.allowed:
            self._counts.unlimited(plan, cost)
            if plan.has_holders:
                answer = _with_lease(answer, calls)
        return answer


def _with_lease(answer: Answer, calls: Sequence[BucketCall]) -> Answer:
    """The answer to a check that has taken slots."""
    taken = [call for call in calls if call.holder and call.cost]
    if not taken:
        return answer
    return replace(answer, lease_id=taken[0].holder, lease_ms=min(call.lease_ms or 0 for call in taken))
