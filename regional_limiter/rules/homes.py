"""``home`` of a rule and ``addresses`` of a set: one bucket for each key, in one region that the others ask."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from regional_limiter.model.home import Homes
from regional_limiter.model.rule import NormalForm, Rule
from regional_limiter.rules import grammar
from regional_limiter.rules.faults import Faults, shown
from regional_limiter.rules.fields import below, check_fields, read_mapping, read_name, read_text, read_word
from regional_limiter.rules.normal import normalised

_BY_HASH = "hash"
_BY_EXPECTED = "hash, the name of a region, or {attribute: tenant, regions: {acme: eu-west}, otherwise: us-east}"


Forms = Mapping[str, Sequence[NormalForm]]


def read_homes(faults: Faults, place: str, value: object, key: Sequence[str], forms: Forms) -> Homes:
    """``key``: the attributes of the rule's key.  ``forms``: in which the rule sees attributes."""
    fields = read_mapping(faults, place, value)
    check_fields(faults, place, fields, ("by", "unreachable"))
    unreachable = fields.get("unreachable", "deny")
    read_word(faults, below(place, "unreachable"), unreachable, ("deny", "allow"))
    at, by, allows = below(place, "by"), fields.get("by", _BY_HASH), unreachable == "allow"
    if by == _BY_HASH:
        return Homes(allows_unreachable=allows)
    if isinstance(by, dict):
        return _by_attribute(faults, at, by, key, forms, allows)
    return Homes(read_name(faults, at, by, grammar.NAME, _BY_EXPECTED), allows_unreachable=allows)


def _by_attribute(
    faults: Faults, place: str, value: dict[object, object], key: Sequence[str], forms: Forms, allows: bool
) -> Homes:
    fields = read_mapping(faults, place, value)
    check_fields(faults, place, fields, ("attribute", "regions", "otherwise"))
    attribute = fields.get("attribute")
    if attribute not in key:
        known = ", ".join(key) or "nothing"
        problem = f"must be of the key of the rule, which is {known}: a bucket has one home, not {shown(attribute)}"
        faults.add(below(place, "attribute"), problem)
    regions = read_mapping(faults, below(place, "regions"), fields.get("regions"))
    if len(regions) > grammar.HOME_VALUES_MOST:
        problem = f"at most {grammar.HOME_VALUES_MOST:,} values, not {len(regions):,}"
        faults.add(below(place, "regions"), problem)
        regions = {}
    by_value: dict[str, str] = {}
    written: dict[str, str] = {}
    for name, region in regions.items():
        at = below(below(place, "regions"), name)
        value_seen = normalised(read_text(faults, below(place, "regions"), name), forms.get(str(attribute), ()))
        if value_seen in written:
            faults.add(at, f"is {value_seen} in the normal form, as {written[value_seen]} is: keep one of them")
        written[value_seen] = name
        by_value[value_seen] = read_name(faults, at, region, grammar.NAME, "the name of a region")
    otherwise = fields.get("otherwise")
    region = read_name(faults, below(place, "otherwise"), otherwise, grammar.NAME, "the name of a region")
    return Homes(region, str(attribute), by_value, allows)


def read_addresses(faults: Faults, place: str, value: object) -> dict[str, str]:
    """By region, also of such as are no part of the set yet, or any more."""
    mapping = read_mapping(faults, place, value)
    if len(mapping) > grammar.REGIONS_MOST:
        faults.add(place, f"at most {grammar.REGIONS_MOST} regions, not {len(mapping)}")
        return {}
    for name in mapping:
        read_name(faults, below(place, name), name, grammar.NAME, grammar.NAME_EXPECTED)
    return {
        name: read_name(faults, below(place, name), address, grammar.ADDRESS, grammar.ADDRESS_EXPECTED).rstrip("/")
        for name, address in mapping.items()
    }


def check_homes(
    faults: Faults,
    rules: Sequence[Rule],
    source: object,
    regions: Mapping[str, int],
    addresses: Mapping[str, str],
) -> None:
    """Every region that has keys is one of the set, and others know where to ask it."""
    items = source if isinstance(source, list) else []
    ids = [item.get("id") if isinstance(item, dict) else None for item in items]
    places = {rule_id: place for place, rule_id in enumerate(ids) if isinstance(rule_id, str)}
    for rule in rules:
        homes = rule.homes
        if homes is None or not regions:
            continue
        at = f"rules[{places.get(rule.id)}].home.by"
        named = homes.named() or {name for name, weight in regions.items() if weight}
        for name in sorted(named - regions.keys()):
            faults.add(at, f"names {name}, which is no region of the set: {', '.join(regions)}")
        if len(regions) == 1:
            continue
        for name in sorted((named & regions.keys()) - addresses.keys()):
            place = below("addresses", name)
            faults.add(place, f"missing: the other regions ask there for keys of {rule.id}, by a URL")
