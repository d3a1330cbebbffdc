"""One rule of a document -> a Rule, or its faults."""

from __future__ import annotations

from fractions import Fraction

from regional_limiter.model.rule import Algorithm, Condition, Distribution, OnStoreFailure, Rate, Rule, Scope
from regional_limiter.rules import grammar
from regional_limiter.rules.faults import Faults, shown
from regional_limiter.rules.fields import (
    NOT_BUILT,
    below,
    check_fields,
    read_choice,
    read_flag,
    read_integer,
    read_list,
    read_mapping,
    read_name,
    read_text,
    read_word,
)
from regional_limiter.rules.quantities import (
    hold_rate,
    largest_capacity,
    read_refill,
    read_refill_per_second,
    read_window_ms,
)


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
    match = _read_match(faults, below(place, "match"), fields.get("match", {}))
    key = _read_key(faults, below(place, "key"), fields.get("key", ["client_key"]))
    algorithm = read_choice(
        faults,
        below(place, "algorithm"),
        fields.get("algorithm", "token_bucket"),
        Algorithm,
        Algorithm.TOKEN_BUCKET,
        grammar.ALGORITHMS_NOT_BUILT,
    )
    capacity, refill, window_ms = _read_numbers(faults, place, fields, algorithm)
    scope, distribution = _read_scope(faults, place, fields, algorithm, capacity, regions)
    on_store_failure = read_choice(
        faults,
        below(place, "on_store_failure"),
        fields.get("on_store_failure", "local"),
        OnStoreFailure,
        OnStoreFailure.LOCAL,
    )
    charge_denied = read_flag(faults, below(place, "charge_denied"), fields.get("charge_denied", False))
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
        capacity=capacity,
        refill=refill,
        window_ms=window_ms,
        scope=scope,
        distribution=distribution,
        on_store_failure=on_store_failure,
        charge_denied=charge_denied,
        hash_key=hash_key,
        headers=headers,
        description=description,
        source=fields,
    )


# ---- whom it matches, what a bucket belongs to


def _read_match(faults: Faults, place: str, value: object) -> tuple[Condition, ...]:
    mapping = read_mapping(faults, place, value)
    if len(mapping) > grammar.MAX_MATCH_ATTRIBUTES:
        faults.add(place, f"at most {grammar.MAX_MATCH_ATTRIBUTES} attributes, not {len(mapping)}")
        return ()
    return tuple(_read_condition(faults, below(place, name), name, item) for name, item in mapping.items())


def _read_condition(faults: Faults, place: str, attribute: str, value: object) -> Condition:
    if not grammar.ATTRIBUTE.fullmatch(attribute):
        faults.add(place, f"an attribute is named by {grammar.ATTRIBUTE_EXPECTED}")
    if isinstance(value, dict):
        for name in value:
            word = NOT_BUILT if name in grammar.CONDITIONS_NOT_BUILT else "unknown"
            faults.add(below(place, str(name)), f"{word}: a condition is text, with * as wildcard, or a list of it")
        if not value:
            faults.add(place, "must be text, with * as wildcard, or a list of it, not an empty mapping")
        return Condition(attribute)
    if isinstance(value, list):
        if not value:
            faults.add(place, "an empty list matches nothing: name a value, or leave the attribute out")
        items = read_list(faults, place, value, grammar.MAX_MATCH_VALUES)
        values = [read_text(faults, f"{place}[{index}]", item) for index, item in enumerate(items)]
    else:
        values = [read_text(faults, place, value)]
    for text in values:
        if text.count("*") > grammar.MAX_STARS:
            faults.add(place, f"at most {grammar.MAX_STARS} wildcards in one text, in {shown(text)}")
    return Condition(
        attribute,
        exact=frozenset(text for text in values if "*" not in text),
        wildcards=tuple(dict.fromkeys(text for text in values if "*" in text)),
    )


def _read_key(faults: Faults, place: str, value: object) -> tuple[str, ...]:
    names = []
    for index, item in enumerate(read_list(faults, place, value, grammar.MAX_KEY_ATTRIBUTES)):
        at = f"{place}[{index}]"
        name = read_name(faults, at, item, grammar.ATTRIBUTE, f"an attribute: {grammar.ATTRIBUTE_EXPECTED}")
        if name and name in names:
            faults.add(at, f"{name} is named twice")
        names.append(name)
    return tuple(names)


# ---- numbers


def _read_numbers(
    faults: Faults, place: str, fields: dict[str, object], algorithm: Algorithm
) -> tuple[int, Rate | None, int | None]:
    """(capacity, refill, window_ms) by the algorithm's own fields; another algorithm's fields are faults."""
    bucket = ("capacity", "refill", "refill_per_second")
    window = ("limit", "window")
    takes, foreign = (bucket, window) if algorithm is Algorithm.TOKEN_BUCKET else (window, bucket)
    for name in foreign:
        if name in fields:
            says = "capacity and refill" if takes is bucket else "limit and window"
            faults.add(below(place, name), f"a {algorithm} takes {says}")
    number = takes[0]
    capacity = 0
    if number in fields:
        capacity = read_integer(faults, below(place, number), fields[number], 0, grammar.MAX_CAPACITY)
    else:
        faults.add(below(place, number), f"missing: a {algorithm} needs it")
    if algorithm is Algorithm.FIXED_WINDOW:
        if "window" not in fields:
            faults.add(below(place, "window"), f"missing: a {algorithm} needs it")
            return capacity, None, None
        return capacity, None, read_window_ms(faults, below(place, "window"), fields["window"])
    asked = asked_rate(faults, place, fields)
    if asked is None:
        return capacity, None, None
    rate = hold_rate(asked, capacity)
    if rate is None:
        name = "refill" if "refill" in fields else "refill_per_second"
        most = largest_capacity(asked)
        hint = f"a capacity of at most {most:,}, or " if most > 0 else ""
        faults.add(
            below(place, name),
            f"with capacity {capacity:,} this rate cannot be held exactly below 2^53:"
            f" choose {hint}a rate of few digits over a short span",
        )
    return capacity, rate, None


def asked_rate(faults: Faults, place: str, fields: dict[str, object]) -> Fraction | None:
    """The refill as its author wrote it, in tokens over milliseconds."""
    if "refill" in fields and "refill_per_second" in fields:
        faults.add(below(place, "refill_per_second"), "refill is given too: keep one of them")
    if "refill" in fields:
        return read_refill(faults, below(place, "refill"), fields["refill"])
    if "refill_per_second" in fields:
        return read_refill_per_second(faults, below(place, "refill_per_second"), fields["refill_per_second"])
    faults.add(below(place, "refill"), "missing: a token_bucket needs refill or refill_per_second")
    return None


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
    if algorithm is Algorithm.FIXED_WINDOW and distribution is Distribution.ADAPTIVE:
        faults.add(at, f"an adaptive fixed_window is {NOT_BUILT}: say distribution: static")
    if regions == 0:
        faults.add(below(place, "scope"), "a global rule needs the set's regions")
    elif regions is not None and 0 < capacity < regions:
        number = "capacity" if algorithm is Algorithm.TOKEN_BUCKET else "limit"
        faults.add(
            below(place, number),
            f"{capacity} over {regions} regions leaves some with none:"
            f" at least {regions}, or scope: region (distribution: home is {NOT_BUILT})",
        )
    return scope, distribution
