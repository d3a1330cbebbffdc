"""A loaded rule as its users should see it: what is held, not only what was asked for."""

from __future__ import annotations

from fractions import Fraction

from regional_limiter.model.rule import Algorithm, Distribution, Rate, Rule, RuleSet, Scope
from regional_limiter.model.share import LARGEST_EXACT_INTEGER, SHARE_UNITS, floor_of, region_capacity
from regional_limiter.rules.faults import Faults
from regional_limiter.rules.rule import asked_rate


def largest_cost(rule: Rule, rule_set: RuleSet, region: str) -> int:
    """The largest cost that one check in ``region`` can ever be allowed; 0 for a region the set does not name."""
    if rule.scope is Scope.REGION:
        return rule.capacity
    if region not in rule_set.bases:
        return 0
    adaptive = rule.distribution is Distribution.ADAPTIVE
    share = rule_set.largest_share(region) if adaptive else rule_set.bases[region]
    return region_capacity(rule.capacity, share, len(rule_set.bases))


def describe(rule: Rule, rule_set: RuleSet, region: str | None = None) -> dict[str, object]:
    """Plain JSON of the rule in force.  ``region`` adds what it comes to there (``here``).

    ``refill.exact`` is False where the nearest lower rate that stays exact is held instead of the asked one.
    """
    described: dict[str, object] = {
        "id": rule.id,
        "domain": rule.domain,
        "description": rule.description,
        "match": {
            condition.attribute: [*sorted(condition.exact), *condition.wildcards] for condition in rule.match
        },
        "key": list(rule.key),
        "algorithm": rule.algorithm.value,
        "scope": rule.scope.value,
        "on_store_failure": rule.on_store_failure.value,
        "charge_denied": rule.charge_denied,
        "hash_key": rule.hash_key,
        "headers": rule.headers,
    }
    if rule.algorithm is Algorithm.TOKEN_BUCKET and rule.refill is not None:
        described |= {"capacity": rule.capacity, "refill": _refill(rule, rule.refill)}
        described["level"] = _level(rule.capacity, rule.refill)
    else:
        described |= {"limit": rule.capacity, "window_ms": rule.window_ms}
    if rule.scope is Scope.GLOBAL:
        described["distribution"] = rule.distribution.value
        described["regions"] = {name: _in_region(rule, rule_set, name) for name in rule_set.bases}
    if region is not None:
        described["region"] = region
        described["here"] = _in_region(rule, rule_set, region)
    return described


def _refill(rule: Rule, held: Rate) -> dict[str, object]:
    rate = Fraction(held.tokens, held.period_ms)
    asked = asked_rate(Faults(), "", dict(rule.source)) or rate
    return {
        "tokens": held.tokens,
        "period_ms": held.period_ms,
        "per_second": float(rate * 1000),
        "exact": asked == rate,
        "lower_by_ppm": float((asked - rate) / asked * 1_000_000),
    }


def _level(capacity: int, held: Rate) -> dict[str, object]:
    units = held.period_ms * SHARE_UNITS
    return {"units_a_token": units, "largest": capacity * units, "exact_below": LARGEST_EXACT_INTEGER}


def _in_region(rule: Rule, rule_set: RuleSet, region: str) -> dict[str, object]:
    if rule.scope is Scope.REGION:
        return {"capacity": rule.capacity, "largest_cost": rule.capacity}
    base = rule_set.bases.get(region, 0)
    return {
        "base": base,
        "floor": floor_of(base),
        "capacity": region_capacity(rule.capacity, base, len(rule_set.bases)),
        "largest_cost": largest_cost(rule, rule_set, region),
    }
