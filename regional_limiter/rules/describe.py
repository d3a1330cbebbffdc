"""A loaded rule as its users should see it: what is held, not only what was asked for."""

from __future__ import annotations

from fractions import Fraction

from regional_limiter.algorithms.concurrency import SLOTS_A_HOLDER
from regional_limiter.algorithms.sliding_window_log import memory_bytes_most
from regional_limiter.model.home import Homes
from regional_limiter.model.rule import (
    CANARY_PARTS,
    Algorithm,
    Canary,
    Condition,
    Distribution,
    MeasuredCost,
    Mode,
    Rate,
    Rule,
    RuleSet,
    Scope,
)
from regional_limiter.model.share import (
    LARGEST_EXACT_INTEGER,
    SHARE_UNITS,
    WINDOW_POOL,
    left_over,
    region_capacity,
    window_static,
)
from regional_limiter.rules.faults import Faults
from regional_limiter.rules.numbers import amount_field, asked_rate
from regional_limiter.sub_buckets import largest_part


def largest_cost(rule: Rule, rule_set: RuleSet, region: str) -> int:
    """The largest cost that one check in ``region`` can ever be allowed; 0 for a region the set does not name."""
    most = SLOTS_A_HOLDER if rule.algorithm is Algorithm.CONCURRENCY else rule.capacity
    if rule.scope is Scope.REGION:
        return min(largest_part(rule.capacity, rule.split), most)
    if region not in rule_set.bases:
        return 0
    if rule.homes is not None:
        return most
    if rule.distribution is Distribution.ADAPTIVE:
        share = rule_set.largest_share(region)
        if rule.refill is None:
            share = window_static(rule_set.bases[region]) + WINDOW_POOL
        return region_capacity(rule.capacity, share, len(rule_set.bases))
    return min(_at_base(rule, rule_set, region), most)


def _at_base(rule: Rule, rule_set: RuleSet, region: str) -> int:
    """What the region may hold at its base; of a static limit in whole units the parts sum to the limit."""
    bases = rule_set.bases
    if rule.distribution is Distribution.ADAPTIVE and rule.refill is None:
        return region_capacity(rule.capacity, window_static(bases.get(region, 0)), len(bases))
    part = region_capacity(rule.capacity, bases.get(region, 0), len(bases))
    whole_units = rule.distribution is Distribution.STATIC and rule.refill is None
    return part + left_over(rule.capacity, bases, region) if whole_units else part


def describe(rule: Rule, rule_set: RuleSet, region: str | None = None) -> dict[str, object]:
    """Plain JSON of the rule in force.  ``region`` adds what it comes to there (``here``).

    ``refill.exact`` (or ``leak.exact``) is False where the nearest lower rate that stays exact is held instead of
    the asked one.  ``in_words``: the limit as a person would say it.  ``memory_bytes_most``: of a
    sliding_window_log, about what a full log takes in Redis for each key.
    """
    described: dict[str, object] = {
        "id": rule.id,
        "domain": rule.domain,
        "description": rule.description,
        "match": {condition.attribute: _condition(condition) for condition in rule.match},
        "key": list(rule.key),
        "algorithm": rule.algorithm.value,
        "in_words": limit_in_words(rule),
        **_numbers(rule),
        "scope": rule.scope.value,
        "on_store_failure": rule.on_store_failure.value,
        "charge_denied": rule.charge_denied,
        "hash_key": rule.hash_key,
        "headers": rule.headers,
        "stop": rule.stop,
        "replaces": list(rule.replaces),
        "unlimited": rule.unlimited,
        "priority": rule.priority.value,
        "shed": rule.shed.value,
        "mode": rule.mode.value,
        "split": rule.split,
        "cost": _cost(rule.cost),
        "normalise": {attribute: [form.value for form in forms] for attribute, forms in rule.normalise},
        "overrides": len(rule_set.overrides.get(rule.id, ())),
    }
    if rule.unlimited:
        return described
    if rule.canary is not None:
        described["canary"] = _canary(rule.canary)
    if rule.scope is Scope.GLOBAL:
        described["distribution"] = rule.distribution.value
        described["regions"] = {name: _in_region(rule, rule_set, name) for name in rule_set.bases}
    if region is not None:
        described["region"] = region
        described["here"] = _in_region(rule, rule_set, region)
    return described


def _canary(canary: Canary) -> dict[str, object]:
    in_force = canary.in_force
    return {
        "percent": canary.parts * 100 / CANARY_PARTS,
        "mode": in_force.mode.value,
        "in_words": limit_in_words(in_force),
        **_numbers(in_force),
    }


def _condition(condition: Condition) -> object:
    """As a rule would write it."""
    if condition.networks:
        return {"cidr": [str(network) for network in condition.networks]}
    if condition.is_range:
        bounds = {"min": condition.low, "max": condition.high}
        return {
            name: int(bound) if bound == bound.to_integral_value() else float(bound)
            for name, bound in bounds.items()
            if bound is not None
        }
    texts = [*sorted(condition.exact), *condition.wildcards]
    return {"not": texts} if condition.negated else texts


# ---- numbers


def _cost(cost: int | MeasuredCost) -> object:
    if isinstance(cost, int):
        return cost
    return {"attribute": cost.attribute, "per": cost.per, "at_least": cost.at_least}


def _numbers(rule: Rule) -> dict[str, object]:
    if rule.unlimited and rule.refill is None and not rule.capacity:
        return {}
    numbers: dict[str, object] = {amount_field(rule.algorithm): rule.capacity}
    if rule.refill is not None:
        leaks = rule.algorithm is Algorithm.LEAKY_BUCKET
        numbers["leak" if leaks else "refill"] = _rate(rule, rule.refill)
        numbers["level"] = _level(rule.capacity, rule.refill)
        if leaks:
            numbers["queue"] = rule.queue
    if rule.window_ms is not None:
        numbers["window_ms"] = rule.window_ms
        if rule.algorithm is Algorithm.SLIDING_WINDOW_LOG:
            numbers["memory_bytes_most"] = memory_bytes_most(rule.capacity, rule.window_ms)
    if rule.calendar is not None:
        numbers["window"] = {"calendar": rule.calendar.unit.value, "zone": rule.calendar.zone}
    if rule.lease_ms is not None:
        numbers["lease_ms"] = rule.lease_ms
    return numbers


def _rate(rule: Rule, held: Rate) -> dict[str, object]:
    rate = Fraction(held.tokens, held.period_ms)
    asked = asked_rate(Faults(), "", rule.source) or rate
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
        return {"capacity": rule.capacity, "largest_cost": largest_cost(rule, rule_set, region)}
    if rule.homes is not None:
        return _at_home(rule, rule.homes, rule_set, region)
    base = rule_set.bases.get(region, 0)
    return {
        "base": base,
        "floor": rule_set.floor(region),
        "capacity": _at_base(rule, rule_set, region),
        "largest_cost": largest_cost(rule, rule_set, region),
    }


def _at_home(rule: Rule, homes: Homes, rule_set: RuleSet, region: str) -> dict[str, object]:
    """The region has the whole of some keys, and nothing of the others.

    ``home_of.values``: of the rule's attribute; ``home_of.part``: of the keys whose value no region names, 0 to 1.
    """
    part = float(homes.region == region) if homes.region else rule_set.bases.get(region, 0) / SHARE_UNITS
    by_value = sorted(value for value, home in homes.regions.items() if home == region)
    return {
        "home_of": {"part": part, "values": by_value},
        "capacity": rule.capacity,
        "largest_cost": largest_cost(rule, rule_set, region),
    }


# ---- words


def override_in_words(in_force: Rule) -> str:
    """What an override makes of its rule: ``blocked``; ``200 at once, then 100/s``."""
    words = "blocked" if in_force.blocked else limit_in_words(in_force)
    return f"{words} (in shadow: denies nobody)" if in_force.mode is Mode.SHADOW else words


def limit_in_words(rule: Rule) -> str:
    """The limit as a person would say it: ``20 at once, then 10/s``; ``100 in 60 s``; ``1,000 a month (UTC)``."""
    if rule.unlimited:
        return "unlimited"
    amount = f"{rule.capacity:,}"
    if rule.refill is not None:
        rate = _rate_in_words(rule.refill.tokens * 1000 / rule.refill.period_ms)
        return f"{amount} waiting, {rate} let through" if rule.queue else f"{amount} at once, then {rate}"
    if rule.calendar is not None:
        article = "an" if rule.calendar.unit.value == "hour" else "a"
        return f"{amount} {article} {rule.calendar.unit} ({rule.calendar.zone})"
    if rule.lease_ms is not None:
        return f"{amount} at the same time, each for {rule.lease_ms / 1000:,g} s at most"
    sliding = rule.algorithm in (Algorithm.SLIDING_WINDOW_COUNTER, Algorithm.SLIDING_WINDOW_LOG)
    return f"{amount} in {'any ' if sliding else ''}{(rule.window_ms or 0) / 1000:,g} s"


def _rate_in_words(per_s: float) -> str:
    for unit, seconds in (("s", 1), ("min", 60), ("h", 3600)):
        if per_s * seconds >= 1:
            return f"{per_s * seconds:,.4g}/{unit}"
    return f"{per_s * 86_400:,.4g}/day"
