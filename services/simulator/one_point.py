"""A rule set decided at one point without any region but its own: what a log's limits would do with no distance, or
split for good.  Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from global_sync.simulation.node import SECRET
from regional_limiter.model.decision import Check, Verdict
from regional_limiter.model.rule import Canary, Distribution, Override, Rule, RuleSet, Scope
from regional_limiter.model.share import ProtocolTimes
from regional_limiter.plan import DomainRules, Plan, Planner
from regional_limiter.rules import compile_rules
from regional_limiter.store.base import BucketCall
from regional_limiter.store.memory import MemoryPoint


class OnePoint:
    """The code that decides in memory, as ``region`` of ``rule_set``; its buckets have the same keys everywhere."""

    def __init__(self, rule_set: RuleSet, region: str) -> None:
        regions = max(1, len(rule_set.regions))
        domain = DomainRules(1, rule_set, compile_rules(rule_set), regions, rule_set.largest_share(region), region)
        self._planner = Planner(SECRET)
        bases = {rule_set.domain: rule_set.bases.get(region, 0)}
        self._planner.use({rule_set.domain: domain}, {}, 1, bases)
        self._point = MemoryPoint(ProtocolTimes())

    def check(self, now_us: int, check: Check) -> tuple[bool, Plan, Sequence[BucketCall], Sequence[Verdict]]:
        """Whether it is allowed, and what each rule says.  Raises InvalidCheck, as a node would answer 422."""
        plan = self._planner.plan(check)
        calls = plan.calls(check.cost)
        if not calls:
            return plan.blocked is None, plan, (), ()
        verdicts = self._point.check(now_us, calls)
        return all(verdict.allowed for verdict in verdicts), plan, calls, verdicts


def undivided(rule_set: RuleSet) -> RuleSet:
    """Every limit whole in one place."""
    return _changed(rule_set, Scope.REGION, None)


def split_for_good(rule_set: RuleSet) -> RuleSet:
    """Every global limit in parts by base."""
    return _changed(rule_set, None, Distribution.STATIC)


def _changed(rule_set: RuleSet, scope: Scope | None, distribution: Distribution | None) -> RuleSet:
    def changed(rule: Rule) -> Rule:
        canary = rule.canary
        return replace(
            rule,
            scope=scope or rule.scope,
            distribution=distribution or rule.distribution,
            canary=Canary(canary.parts, changed(canary.in_force)) if canary is not None else None,
        )

    def overridden(override: Override) -> Override:
        return replace(override, in_force=changed(override.in_force))

    return replace(
        rule_set,
        rules=tuple(map(changed, rule_set.rules)),
        overrides={
            name: {key: overridden(override) for key, override in by_key.items()}
            for name, by_key in rule_set.overrides.items()
        },
    )
