"""Several checks as one request: all of them are charged or none, and each has an answer of its own.  Pure.

A gateway asks about several descriptors of one request at once.  Each of them is a check with its own attributes
and cost; together they meet their rules like one check that meets them all.  Two checks that meet the same bucket
ask it once, for both costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from regional_limiter import engine
from regional_limiter.model.decision import COST_MOST, Answer, Check, RuleVerdict
from regional_limiter.model.errors import InvalidCheck
from regional_limiter.model.rule import Rule
from regional_limiter.plan import Plan, Planner, Step, replaced_by
from regional_limiter.soft import marked
from regional_limiter.store.base import BucketCall


class Asked(NamedTuple):
    """One of the checks.  ``limit``: a rule that stands in for all that the domain has for it, if it is known."""

    check: Check
    limit: Rule | None = None


class Together(NamedTuple):
    """``whole``: the answer to the request.  ``each``: what each check would have been answered, in their order."""

    whole: Answer
    each: list[Answer]


class _Priced:
    """A step that only counts, at the cost of the check that met it."""

    __slots__ = ("_cost", "key", "name", "step")

    def __init__(self, step: Step, cost: int) -> None:
        self.step, self.name, self.key, self._cost = step, step.name, step.key, cost

    def cost_of(self, _cost: int) -> int:
        return self.step.cost_of(self._cost)


class JointPlan(Plan):
    """The steps of several plans, made from the same rules, with one call for each bucket.

    ``cost``: the largest that a bucket is asked for, 0 if all of them are peeked at.  ``turned_away``: the steps
    that block one of the checks, with what it would have cost.
    """

    __slots__ = ("_calls", "_own", "_plans", "_shadow_costs", "cost", "turned_away")

    def __init__(self, plans: Sequence[Plan], costs: Sequence[int]) -> None:
        first = plans[0]
        self.turned_away = [
            (plan.blocked, cost)
            for plan, cost in zip(plans, costs, strict=True)
            if plan.blocked is not None and cost > 0
        ]
        blocked = any(plan.blocked is not None for plan in plans)
        if blocked:
            # Nothing is charged where one is blocked; the others are told how they stand.
            costs = [0] * len(costs)
        replaced = replaced_by(step.rule for plan in plans for step in plan.met)
        calls: dict[str, BucketCall] = {}
        steps: dict[str, Step] = {}
        own: list[list[str]] = []
        counting: list[_Priced] = []
        shadows: dict[str, Step] = {}
        shadow_costs: dict[str, int] = {}
        for plan, cost in zip(plans, costs, strict=True):
            keys = []
            for step, call in zip(plan.steps, plan.calls(cost), strict=True):
                if step.rule.id in replaced:
                    continue
                keys.append(step.key)
                before = calls.get(step.key)
                if before is not None:
                    if before.cost + call.cost > COST_MOST:
                        raise InvalidCheck("cost", f"at most {COST_MOST} for one bucket of a request")
                    call = replace(call, cost=before.cost + call.cost)
                calls[step.key] = call
                steps.setdefault(step.key, step)
            own.append(keys)
            for step in plan.shadows:
                if step.rule.id not in replaced:
                    shadows.setdefault(step.key, step)
                    shadow_costs[step.key] = shadow_costs.get(step.key, 0) + cost
            counting += [_Priced(step, cost) for step in plan.unlimited if step.rule.id not in replaced]
        places = {key: place for place, key in enumerate(calls)}
        super().__init__(list(steps.values()), first.made_from, first.generation)
        self.unlimited = tuple(counting)  # type: ignore[arg-type]
        self.shadows = () if blocked else tuple(shadows.values())
        self.may_be_asked_again = False
        self.may_be_shed = all(plan.may_be_shed for plan in plans)
        self.is_plain = False
        self._shadow_costs = shadow_costs
        self._plans = plans
        self._calls = list(calls.values())
        self._own = [[places[key] for key in keys] for keys in own]
        self.cost = max((call.cost for call in self._calls), default=max(costs))

    def calls(self, cost: int, holder: str = "") -> list[BucketCall]:
        """The calls at their own costs; 0 peeks at all of them."""
        if cost == 0:
            return [replace(call, cost=0) for call in self._calls]
        if not self.has_holders:
            return self._calls
        return [
            replace(call, holder=holder) if step.has_holders else call
            for call, step in zip(self._calls, self.steps, strict=True)
        ]

    def call_of(self, step: Step, cost: int) -> BucketCall:
        """At the costs of the checks that met it."""
        return super().call_of(step, self._shadow_costs[step.key])

    def told(self, answer: Answer) -> Together:
        """``answer``, and what it says about each of the checks."""
        each = [
            self._told_one(plan, [answer.verdicts[place] for place in own])
            for plan, own in zip(self._plans, self._own, strict=True)
        ]
        denied = next((one for one in each if not one.allowed), None)
        # A block is no step: nobody asked about it.
        whole = denied if denied is not None and answer.allowed else answer
        return Together(whole, each)

    @staticmethod
    def _told_one(plan: Plan, verdicts: list[RuleVerdict]) -> Answer:
        if plan.blocked is not None or not plan.steps:
            return plan.answer_without_store()
        answer = engine.combine(verdicts)
        return marked(answer) if plan.has_variants else answer


def joint_plan(planner: Planner, asked: Sequence[Asked]) -> JointPlan:
    """The plan of ``asked``, at least one.  Raises InvalidCheck and RulesUnavailable."""
    plans = [
        planner.plan(one.check) if one.limit is None else planner.plan_by(one.limit, one.check) for one in asked
    ]
    return JointPlan(plans, [one.check.cost for one in asked])
