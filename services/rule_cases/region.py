"""One region in memory that answers checks at the times it is told.  Pure.

It decides as the limiter does, with the same plans, algorithms and combination of answers, but without nodes, token
leases or failures.  A global rule is the whole limit, in one place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from regional_limiter import engine
from regional_limiter.model.decision import Answer, Check, RuleVerdict, Verdict
from regional_limiter.model.rule import Mode, Override, Rule, RuleSet, Scope
from regional_limiter.model.share import ProtocolTimes
from regional_limiter.plan import DomainRules, Plan, Planner, Step
from regional_limiter.rules import compile_rules
from regional_limiter.soft import marked, softened
from regional_limiter.store.base import BucketCall
from regional_limiter.store.memory import MemoryPoint

_SECRET = b"the keys of cases stay in memory"


@dataclass(frozen=True, slots=True)
class Told:
    """``shadows``: the shadow rules that would have denied."""

    answer: Answer
    shadows: tuple[str, ...]

    @property
    def denied_by(self) -> tuple[str, ...]:
        """The rules that deny, in the order of the set."""
        if self.answer.allowed:
            return ()
        denying = tuple(one.rule for one in self.answer.verdicts if not one.verdict.allowed)
        return denying or ((self.answer.rule,) if self.answer.rule else ())


class Region:
    """``rule_set``, of which nothing has been used yet."""

    def __init__(self, rule_set: RuleSet) -> None:
        whole = in_one_place(rule_set)
        self._domain = whole.domain
        self._planner = Planner(_SECRET)
        rules = DomainRules(1, whole, compile_rules(whole), 1, 10_000)
        self._planner.use({whole.domain: rules}, {}, 0, {})
        self._point = MemoryPoint(ProtocolTimes())
        self._asked = 0

    def ask(self, now_ms: int, attributes: dict[str, str], cost: int) -> Told:
        """One check.  Each takes slots of its own.  Raises InvalidCheck."""
        self._asked += 1
        plan = self._planner.plan(Check(self._domain, attributes, cost))
        answer = self._decide(now_ms, plan, cost) if plan.steps else plan.answer_without_store()
        shadows = self._shadows(now_ms, plan, cost) if answer.allowed and cost else ()
        return Told(answer, shadows)

    def _decide(self, now_ms: int, plan: Plan, cost: int) -> Answer:
        calls = plan.calls(cost, f"check {self._asked}")
        verdicts: list[Verdict | None] = [None] * len(calls)
        soft = [place for place, step in enumerate(plan.steps) if step.rule.mode is Mode.SOFT]
        hard = [place for place in range(len(calls)) if place not in soft]
        decided = [group for group in (hard, *([place] for place in soft)) if group]
        for group in decided:
            found = self._point.check(now_ms * 1000, [calls[place] for place in group])
            steps = [plan.steps[place] for place in group]
            for place, verdict in zip(group, softened(steps, found), strict=True):
                verdicts[place] = verdict
        whole = [verdict for verdict in verdicts if verdict is not None]
        if not all(verdict.allowed for verdict in whole):
            back = engine.to_give_back(decided, calls, verdicts)
            if back:
                self._point.refund(now_ms * 1000, [calls[place] for place in back])
        return marked(engine.combine(_told(plan.steps, calls, whole)))

    def _shadows(self, now_ms: int, plan: Plan, cost: int) -> tuple[str, ...]:
        denying = []
        for step in plan.shadows:
            [verdict] = self._point.check(now_ms * 1000, [plan.call_of(step, cost)])
            if not verdict.allowed:
                denying.append(step.rule.id)
        return tuple(denying)


def _told(steps: Sequence[Step], calls: Sequence[BucketCall], verdicts: Sequence[Verdict]) -> list[RuleVerdict]:
    return [
        RuleVerdict(step.rule.id, step.rule.capacity, verdict, step.rule.window_ms)
        for step, verdict in zip(steps, verdicts, strict=True)
    ]


def in_one_place(rule_set: RuleSet) -> RuleSet:
    """The same limits, each whole in one region."""
    overrides = {
        rule_id: {key: Override(_whole(one.in_force), one.why) for key, one in by_key.items()}
        for rule_id, by_key in rule_set.overrides.items()
    }
    return replace(rule_set, rules=tuple(map(_whole, rule_set.rules)), overrides=overrides)


def _whole(rule: Rule) -> Rule:
    canary = rule.canary
    if canary is not None:
        canary = replace(canary, in_force=replace(canary.in_force, scope=Scope.REGION))
    return replace(rule, scope=Scope.REGION, canary=canary)
