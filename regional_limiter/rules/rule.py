"""One rule of a document -> a Rule, or its faults."""

from __future__ import annotations

from enum import StrEnum
from typing import TypeVar

from regional_limiter.model.decision import COST_MOST
from regional_limiter.model.rule import (
    Algorithm,
    Distribution,
    MeasuredCost,
    Mode,
    NormalForm,
    OnStoreFailure,
    Priority,
    Rule,
    Scope,
    Shed,
)
from regional_limiter.rules import grammar
from regional_limiter.rules.conditions import read_match
from regional_limiter.rules.faults import Faults, shown
from regional_limiter.rules.fields import (
    below,
    check_fields,
    read_choice,
    read_flag,
    read_integer,
    read_list,
    read_mapping,
    read_name,
    read_text,
)
from regional_limiter.rules.homes import read_homes
from regional_limiter.rules.numbers import ADAPTIVE, NUMBER_FIELDS, Numbers, amount_field, check_split, read_numbers

_Choice = TypeVar("_Choice", bound=StrEnum)
ADAPTIVE_WINDOW_A_REGION = 4
"""So many units a region an adaptive window has at least: of fewer the pool has next to nothing to grant."""
_MEASURED_EXPECTED = "{attribute: size, per: 1024}, which measures it"


def read_rule(faults: Faults, place: str, value: object, domain: str, regions: int | None) -> Rule | None:
    """The rule at ``place``; ``regions``: how many the set names, None when that is itself at fault."""
    before = faults.count
    fields = read_mapping(faults, place, value)
    if faults.count > before:
        return None
    check_fields(faults, place, fields, grammar.RULE_FIELDS)
    name = read_name(faults, below(place, "id"), fields.get("id"), grammar.NAME, grammar.NAME_EXPECTED)
    description = read_text(faults, below(place, "description"), fields.get("description", ""))
    forms = _read_normalise(faults, below(place, "normalise"), fields.get("normalise", {}))
    match = read_match(faults, below(place, "match"), fields.get("match", {}), forms)
    key = _read_key(faults, below(place, "key"), fields.get("key", ["client_key"]))
    replaces = _read_replaces(faults, below(place, "replaces"), fields.get("replaces", []), name)
    cost = _read_cost(faults, below(place, "cost"), fields.get("cost", 0))

    def flag(field: str, default: bool) -> bool:
        return read_flag(faults, below(place, field), fields.get(field, default))

    def choice(field: str, default: _Choice) -> _Choice:
        return read_choice(faults, below(place, field), fields.get(field, default.value), type(default), default)

    stop, unlimited = flag("stop", False), flag("unlimited", False)
    before_algorithm = faults.count
    algorithm = choice("algorithm", Algorithm.TOKEN_BUCKET)
    algorithm_known = faults.count == before_algorithm
    has_numbers = not unlimited or not fields.keys().isdisjoint(NUMBER_FIELDS)
    numbers = read_numbers(faults, place, fields, algorithm) if algorithm_known and has_numbers else Numbers()
    scope, distribution = _read_scope(faults, place, fields, algorithm, numbers.capacity, regions)
    homes = None
    if distribution is Distribution.HOME and scope is Scope.GLOBAL:
        homes = read_homes(faults, below(place, "home"), fields.get("home", {}), key, forms)
    elif "home" in fields:
        faults.add(below(place, "home"), "only a rule of scope: global with distribution: home has homes")
    on_store_failure = choice("on_store_failure", OnStoreFailure.LOCAL)
    charge_denied, hash_key, headers = flag("charge_denied", False), flag("hash_key", False), flag("headers", True)
    priority, shed = choice("priority", Priority.NORMAL), choice("shed", Shed.ALLOW)
    mode = choice("mode", Mode.ENFORCE)
    check_mode(faults, below(place, "mode"), mode, algorithm, stop=stop, unlimited=unlimited)
    split = _read_split(faults, place, fields, algorithm, scope, numbers)
    if charge_denied and algorithm is Algorithm.CONCURRENCY:
        faults.add(below(place, "charge_denied"), "a denied check holds no slot of a concurrency rule: take it out")
    for attribute in forms.keys() - {condition.attribute for condition in match} - set(key):
        faults.add(below(below(place, "normalise"), attribute), "neither match nor key names this attribute")
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
        homes=homes,
        on_store_failure=on_store_failure,
        charge_denied=charge_denied,
        hash_key=hash_key,
        headers=headers,
        stop=stop,
        replaces=replaces,
        unlimited=unlimited,
        priority=priority,
        shed=shed,
        split=split,
        cost=cost,
        normalise=tuple(forms.items()),
        mode=mode,
        description=description,
        source=fields,
    )


def check_mode(
    faults: Faults, place: str, mode: Mode, algorithm: Algorithm, *, stop: bool, unlimited: bool
) -> None:
    """What a mode cannot go with."""
    if mode is Mode.ENFORCE:
        return
    if unlimited:
        faults.add(place, f"an unlimited rule limits nothing: there is nothing to {mode}")
    if algorithm is Algorithm.CONCURRENCY:
        faults.add(place, f"a concurrency rule cannot be {mode}: nobody could release a slot that was not taken")
    if mode is Mode.SHADOW and stop:
        faults.add(place, "a shadow rule changes no answer, but stop would keep later rules away: take stop out")


# ---- what a bucket belongs to


def _read_key(faults: Faults, place: str, value: object) -> tuple[str, ...]:
    names = []
    for index, item in enumerate(read_list(faults, place, value, grammar.KEY_ATTRIBUTES_MOST)):
        at = f"{place}[{index}]"
        name = read_name(faults, at, item, grammar.ATTRIBUTE, f"an attribute: {grammar.ATTRIBUTE_EXPECTED}")
        if name and name in names:
            faults.add(at, f"{name} is named twice")
        names.append(name)
    return tuple(names)


def _read_replaces(faults: Faults, place: str, value: object, own: str) -> tuple[str, ...]:
    names = []
    for index, item in enumerate(read_list(faults, place, value, grammar.REPLACED_MOST)):
        at = f"{place}[{index}]"
        name = read_name(faults, at, item, grammar.NAME, f"the id of a rule: {grammar.NAME_EXPECTED}")
        if name and name == own:
            faults.add(at, "is this rule itself")
        names.append(name)
    return tuple(names)


# ---- how it sees a check


def _read_normalise(faults: Faults, place: str, value: object) -> dict[str, tuple[NormalForm, ...]]:
    """Normal forms by attribute, in the order in which they are applied."""
    forms: dict[str, tuple[NormalForm, ...]] = {}
    for name, words in read_mapping(faults, place, value).items():
        at = below(place, name)
        if not grammar.ATTRIBUTE.fullmatch(name):
            faults.add(at, f"an attribute is named by {grammar.ATTRIBUTE_EXPECTED}")
        if words == []:
            faults.add(at, f"names no normal form: {', '.join(NormalForm)}")
        forms[name] = tuple(
            read_choice(faults, f"{at}[{index}]", item, NormalForm, NormalForm.TRIM)
            for index, item in enumerate(read_list(faults, at, words, grammar.NORMAL_FORMS_MOST))
        )
    return forms


def _read_cost(faults: Faults, place: str, value: object) -> int | MeasuredCost:
    if not isinstance(value, dict):
        if type(value) is not int or not 0 <= value <= COST_MOST:
            faults.add(
                place,
                f"must be a whole number from 0 to {COST_MOST:,}, which is added to the cost of a check,"
                f" or {_MEASURED_EXPECTED}, not {shown(value)}",
            )
            return 0
        return value
    fields = read_mapping(faults, place, value)
    check_fields(faults, place, fields, ("attribute", "per", "at_least"))
    name = read_name(
        faults,
        below(place, "attribute"),
        fields.get("attribute"),
        grammar.ATTRIBUTE,
        f"an attribute: {grammar.ATTRIBUTE_EXPECTED}",
    )
    per = read_integer(faults, below(place, "per"), fields.get("per", 1), 1, COST_MOST)
    return MeasuredCost(
        name, per, read_integer(faults, below(place, "at_least"), fields.get("at_least", 1), 1, COST_MOST)
    )


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
    # Windows in escrow are asked for by name: after a reset of a store they are shut longer than static ones.
    usual = Distribution.STATIC if algorithm is Algorithm.FIXED_WINDOW else Distribution.ADAPTIVE
    distribution = read_choice(
        faults,
        at,
        fields.get("distribution", usual.value),
        Distribution,
        usual,
    )
    if faults.count > before:
        return scope, distribution
    if scope is Scope.REGION:
        if "distribution" in fields:
            faults.add(at, "only a rule of scope: global is distributed")
        return scope, distribution
    if distribution is Distribution.ADAPTIVE and algorithm not in ADAPTIVE:
        faults.add(at, f"a {algorithm} cannot be adaptive: say distribution: static or home")
    if regions == 0:
        faults.add(below(place, "scope"), "a global rule needs the set's regions")
    else:
        at = below(place, amount_field(algorithm))
        check_for_regions(faults, at, capacity, regions, algorithm, distribution)
    return scope, distribution


# ---- over how many sub-buckets


def _read_split(
    faults: Faults, place: str, fields: dict[str, object], algorithm: Algorithm, scope: Scope, numbers: Numbers
) -> int:
    at, before = below(place, "split"), faults.count
    split = read_integer(faults, at, fields.get("split", 1), 1, grammar.SPLIT_MOST)
    if split == 1 or faults.count > before:
        return 1
    if scope is Scope.GLOBAL:
        faults.add(at, "a global limit is in parts by region already: only a rule of scope: region is split")
    if algorithm is Algorithm.CONCURRENCY:
        faults.add(at, "a concurrency rule cannot be split: a holder's slots are in one place")
    if numbers.queue:
        faults.add(at, "a queue cannot be split: its turns come one after another")
    if fields.get("charge_denied") is True:
        faults.add(at, "a rule with charge_denied cannot be split: a denied check asks several sub-buckets")
    if faults.count == before:
        check_split(faults, at, split, numbers, below(place, amount_field(algorithm)))
    return split


def is_in_escrow(algorithm: Algorithm, distribution: Distribution) -> bool:
    """Of a global rule: whether its windows are granted in chunks, on top of a static part."""
    return algorithm is Algorithm.FIXED_WINDOW and distribution is Distribution.ADAPTIVE


def check_for_regions(
    faults: Faults,
    place: str,
    capacity: int,
    regions: int | None,
    algorithm: Algorithm,
    distribution: Distribution,
) -> None:
    """A global limit must leave each region something (``regions`` None: their number is not known)."""
    if regions is None or distribution is Distribution.HOME:
        return
    if 0 < capacity < regions:
        faults.add(
            place,
            f"{capacity} over {regions} regions leaves some with none:"
            f" at least {regions}, or distribution: home, or scope: region",
        )
    elif is_in_escrow(algorithm, distribution) and 0 < capacity < ADAPTIVE_WINDOW_A_REGION * regions:
        faults.add(
            place,
            f"an adaptive window of {capacity} over {regions} regions has too little to move, and all of it may be"
            f" shut after a reset: at least {ADAPTIVE_WINDOW_A_REGION * regions}, or distribution: static",
        )
