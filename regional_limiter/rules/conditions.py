"""The ``match`` of a rule: whom it is about."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from ipaddress import IPv4Network, IPv6Network, ip_network

from regional_limiter.model.rule import Condition, Network, NormalForm
from regional_limiter.rules import grammar
from regional_limiter.rules.faults import Faults, nearest, shown
from regional_limiter.rules.fields import below, read_list, read_mapping, read_text
from regional_limiter.rules.normal import normalised

_KINDS = {"cidr": "cidr", "min": "range", "max": "range", "not": "not"}
_TEXT_OR_MAPPING = "text, with * as wildcard, a list of it, or one of {cidr: …}, {min: …, max: …}, {not: …}"
_NETWORK = re.compile(r"[0-9A-Fa-f:.]{2,45}(?:/[0-9]{1,3})?", re.ASCII)
_NETWORK_EXPECTED = 'a network such as "203.0.113.0/24" or "2001:db8::/32", or an address'

Forms = Mapping[str, Sequence[NormalForm]]


def read_match(faults: Faults, place: str, value: object, forms: Forms) -> tuple[Condition, ...]:
    """The conditions at ``place``; ``forms``: the normal forms in which the rule sees its attributes."""
    mapping = read_mapping(faults, place, value)
    if len(mapping) > grammar.MATCH_ATTRIBUTES_MOST:
        faults.add(place, f"at most {grammar.MATCH_ATTRIBUTES_MOST} attributes, not {len(mapping)}")
        return ()
    return tuple(
        _read_condition(faults, below(place, name), name, item, forms.get(name, ()))
        for name, item in mapping.items()
    )


def values_in(condition: Condition) -> int:
    """How many values the condition names."""
    return len(condition.exact) + len(condition.wildcards) + len(condition.networks)


def _read_condition(
    faults: Faults, place: str, attribute: str, value: object, forms: Sequence[NormalForm]
) -> Condition:
    if not grammar.ATTRIBUTE.fullmatch(attribute):
        faults.add(place, f"an attribute is named by {grammar.ATTRIBUTE_EXPECTED}")
    if not isinstance(value, dict):
        return _read_texts(faults, place, attribute, value, forms)
    before = faults.count
    if not value:
        faults.add(place, f"must be {_TEXT_OR_MAPPING}, not an empty mapping")
    mapping = read_mapping(faults, place, value) if value else {}
    for name in mapping:
        if name not in _KINDS:
            close = nearest(name, _KINDS)
            hint = f"did you mean {close}?" if close else f"a condition is {_TEXT_OR_MAPPING}"
            faults.add(below(place, name), f"unknown condition; {hint}")
    if faults.count > before:
        return Condition(attribute)
    kinds = {_KINDS[name] for name in mapping}
    if len(kinds) > 1:
        faults.add(place, f"only one of cidr, min and max, or not: here are {', '.join(mapping)}")
        return Condition(attribute)
    if "cidr" in kinds:
        return _read_networks(faults, below(place, "cidr"), attribute, mapping["cidr"])
    if "range" in kinds:
        return _read_range(faults, place, attribute, mapping)
    return _read_texts(faults, below(place, "not"), attribute, mapping["not"], forms, negated=True)


# ---- texts


def _read_texts(
    faults: Faults,
    place: str,
    attribute: str,
    value: object,
    forms: Sequence[NormalForm],
    *,
    negated: bool = False,
) -> Condition:
    values = []
    for at, item in _one_or_list(faults, place, value, "excludes" if negated else "matches"):
        before = faults.count
        text = read_text(faults, at, item)
        if text.count("*") > grammar.STARS_MOST:
            faults.add(at, f"at most {grammar.STARS_MOST} wildcards in one text, in {shown(text)}")
        elif faults.count == before:
            _check_form(faults, at, text, forms)
        values.append(text)
    return Condition(
        attribute,
        exact=frozenset(text for text in values if "*" not in text),
        wildcards=tuple(dict.fromkeys(text for text in values if "*" in text)),
        negated=negated,
    )


def _one_or_list(faults: Faults, place: str, value: object, verb: str) -> list[tuple[str, object]]:
    """The places and values of a list, or of the one value that stands for it."""
    if not isinstance(value, list):
        return [(place, value)]
    if not value:
        faults.add(place, f"an empty list {verb} nothing: name a value, or leave the attribute out")
    items = read_list(faults, place, value, grammar.MATCH_VALUES_MOST)
    return [(f"{place}[{index}]", item) for index, item in enumerate(items)]


def _check_form(faults: Faults, place: str, text: str, forms: Sequence[NormalForm]) -> None:
    """A text that no value can equal once it is in its normal form would match nothing, silently."""
    if not forms:
        return
    # What a wildcard stands for is not known, so only what cannot depend on it is held against the text.
    checked = forms if "*" not in text else [form for form in forms if form is NormalForm.LOWER]
    normal = normalised(text, checked)
    if normal != text:
        faults.add(place, f"fits nothing in the normal form of this attribute: write {shown(normal)}")


# ---- networks


def _read_networks(faults: Faults, place: str, attribute: str, value: object) -> Condition:
    found = [_read_network(faults, at, item) for at, item in _one_or_list(faults, place, value, "matches")]
    return Condition(attribute, networks=tuple(dict.fromkeys(network for network in found if network is not None)))


def _read_network(faults: Faults, place: str, value: object) -> Network | None:
    """A network without bits beyond its prefix; one of IPv4-mapped addresses is the IPv4 network."""
    loose = None
    if isinstance(value, str) and _NETWORK.fullmatch(value):
        try:
            loose = ip_network(value, strict=False)
        except ValueError:
            pass
    if loose is None:
        faults.add(place, f"must be {_NETWORK_EXPECTED}, not {shown(value)}")
        return None
    address = str(value).partition("/")[0]
    if ip_network(address).network_address != loose.network_address:
        faults.add(place, f"has bits beyond /{loose.prefixlen}: write {shown(str(loose))}")
        return None
    if isinstance(loose, IPv6Network) and loose.prefixlen >= 96 and (mapped := loose.network_address.ipv4_mapped):
        return IPv4Network((int(mapped), loose.prefixlen - 96))
    return loose


# ---- ranges


def _read_range(faults: Faults, place: str, attribute: str, mapping: Mapping[str, object]) -> Condition:
    low, high = (
        _read_bound(faults, below(place, name), mapping[name]) if name in mapping else None
        for name in ("min", "max")
    )
    if low is not None and high is not None and low > high:
        faults.add(below(place, "max"), f"must be at least min ({low}), not {high}")
    return Condition(attribute, low=low, high=high)


def _read_bound(faults: Faults, place: str, value: object) -> Decimal | None:
    """A whole or decimal number; the shortest decimal of a double is what its author wrote."""
    if type(value) is int and abs(value) < 10**18:
        return Decimal(value)
    if isinstance(value, float) and math.isfinite(value):
        return Decimal(repr(value))
    hint = ": write it without quotes" if isinstance(value, str) else ""
    faults.add(place, f"must be a number of at most 18 digits, not {shown(value)}{hint}")
    return None
