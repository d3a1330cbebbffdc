"""One rule of a document -> a Rule, or its faults."""

from __future__ import annotations

from regional_limiter.model.rule import Algorithm, Distribution, OnStoreFailure, Rule, Scope
from regional_limiter.rules import grammar
from regional_limiter.rules.conditions import read_match
from regional_limiter.rules.faults import Faults
from regional_limiter.rules.fields import (
    NOT_BUILT,
    below,
    check_fields,
    read_choice,
    read_flag,
    read_list,
    read_mapping,
    read_name,
    read_text,
    read_word,
)
from regional_limiter.rules.numbers import ADAPTIVE, Numbers, amount_field, read_numbers


def read_rule(faults: Faults, place: str, value: object, domain: str, regions: int | None) -> Rule | None:
    """The rule at ``place``; ``regions``: how many the set names, None when that is itself at fault."""
    before = faults.count
    fields = read_mapping(faults, place, value)
    if faults.count > before:
        return None
    check_fields(faults, place, fields, grammar.RULE_FIELDS, grammar.RULE_NOT_BUILT)
    name = read_name(faults, below(place, "id"), fields.get("id"), grammar.NAME, grammar.NAME_EXPECTED)
    description = read_text(faults, below(place, "description"), fields.get("description", ""))
    read_word(faults, below(place, "mode"), fields.get("mode", "enforce"), grammar.MODES, grammar.MODES_NOT_BUILT)
    match = read_match(faults, below(place, "match"), fields.get("match", {}), {})
    key = _read_key(faults, below(place, "key"), fields.get("key", ["client_key"]))
    before_algorithm = faults.count
    algorithm = read_choice(
        faults,
        below(place, "algorithm"),
        fields.get("algorithm", "token_bucket"),
        Algorithm,
        Algorithm.TOKEN_BUCKET,
    )
    algorithm_known = faults.count == before_algorithm
    numbers = read_numbers(faults, place, fields, algorithm) if algorithm_known else Numbers()
    scope, distribution = _read_scope(faults, place, fields, algorithm, numbers.capacity, regions)
    on_store_failure = read_choice(
        faults,
        below(place, "on_store_failure"),
        fields.get("on_store_failure", "local"),
        OnStoreFailure,
        OnStoreFailure.LOCAL,
    )
    charge_denied = read_flag(faults, below(place, "charge_denied"), fields.get("charge_denied", False))
    if charge_denied and algorithm is Algorithm.CONCURRENCY:
        faults.add(below(place, "charge_denied"), "a denied check holds no slot of a concurrency rule: take it out")
    hash_key = read_flag(faults, below(place, "hash_key"), fields.get("hash_key", False))
    headers = read_flag(faults, below(place, "headers"), fields.get("headers", True))
    if faults.count > before:
        return None
    return Rule(
        id=name,
        domain=domain,
        match=match,
        key=key,
        algorithm=algorithm,
        **numbers._asdict(),
        scope=scope,
        distribution=distribution,
        on_store_failure=on_store_failure,
        charge_denied=charge_denied,
        hash_key=hash_key,
        headers=headers,
        description=description,
        source=fields,
    )


# ---- what a bucket belongs to


def _read_key(faults: Faults, place: str, value: object) -> tuple[str, ...]:
    names = []
    for index, item in enumerate(read_list(faults, place, value, grammar.MAX_KEY_ATTRIBUTES)):
        at = f"{place}[{index}]"
        name = read_name(faults, at, item, grammar.ATTRIBUTE, f"an attribute: {grammar.ATTRIBUTE_EXPECTED}")
        if name and name in names:
            faults.add(at, f"{name} is named twice")
        names.append(name)
    return tuple(names)


# ---- over which regions


def _read_scope(
    faults: Faults,
    place: str,
    fields: dict[str, object],
    algorithm: Algorithm,
    capacity: int,
    regions: int | None,
) -> tuple[Scope, Distribution]:
    before = faults.count
    scope = read_choice(faults, below(place, "scope"), fields.get("scope", "region"), Scope, Scope.REGION)
    at = below(place, "distribution")
    distribution = read_choice(
        faults,
        at,
        fields.get("distribution", "adaptive"),
        Distribution,
        Distribution.ADAPTIVE,
        grammar.DISTRIBUTIONS_NOT_BUILT,
    )
    if faults.count > before:
        return scope, distribution
    if scope is Scope.REGION:
        if "distribution" in fields:
            faults.add(at, "only a rule of scope: global is distributed")
        return scope, distribution
    if distribution is Distribution.ADAPTIVE and algorithm not in ADAPTIVE:
        if algorithm is Algorithm.FIXED_WINDOW:
            faults.add(at, f"an adaptive fixed_window is {NOT_BUILT}: say distribution: static")
        else:
            faults.add(at, f"a {algorithm} cannot be adaptive: say distribution: static (home is {NOT_BUILT})")
    if regions == 0:
        faults.add(below(place, "scope"), "a global rule needs the set's regions")
    else:
        check_for_regions(faults, below(place, amount_field(algorithm)), capacity, regions)
    return scope, distribution


def check_for_regions(faults: Faults, place: str, capacity: int, regions: int | None) -> None:
    """A global limit must leave each region something (``regions`` None: their number is not known)."""
    if regions is not None and 0 < capacity < regions:
        faults.add(
            place,
            f"{capacity} over {regions} regions leaves some with none:"
            f" at least {regions}, or scope: region (distribution: home is {NOT_BUILT})",
        )
