"""Soft rules: what they deny passes, marked, and costs them nothing.  Pure.

A soft rule is asked in a call of its own (:attr:`regional_limiter.plan.Plan.groups`): in one call with others all
are charged or none, and its denial would spare the others their charge.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from regional_limiter.model.decision import Answer, Reason, Verdict
from regional_limiter.model.rule import Mode
from regional_limiter.plan import Step


def softened(steps: Sequence[Step], verdicts: Sequence[Verdict]) -> list[Verdict]:
    """The verdicts, those by which a soft rule denies made ``soft_limited``.  A shed check stays as it is."""
    return [
        replace(verdict, allowed=True, reason=Reason.SOFT_LIMITED, retry_after_ms=0)
        if step.rule.mode is Mode.SOFT and not verdict.allowed and verdict.reason is not Reason.SHED
        else verdict
        for step, verdict in zip(steps, verdicts, strict=True)
    ]


def marked(answer: Answer) -> Answer:
    """The answer of a check with soft rules: allowed past a soft limit it names that one, whatever is tighter."""
    if not answer.allowed:
        return answer
    passed = next((item for item in answer.verdicts if item.verdict.reason is Reason.SOFT_LIMITED), None)
    if passed is None:
        return answer
    verdict = passed.verdict
    return replace(
        answer,
        reason=Reason.SOFT_LIMITED,
        rule=passed.rule,
        limit=passed.limit,
        remaining=verdict.remaining,
        reset_after_ms=verdict.reset_after_ms,
    )
