"""``distribution: home`` and ``addresses``: what is taken, what is refused, and where keys are."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from regional_limiter.model.errors import InvalidRules
from regional_limiter.model.home import Homes
from regional_limiter.model.share import bases_by_weight
from regional_limiter.rules import parse_document
from regional_limiter.rules.describe import describe

REGIONS = {"us": 2, "eu": 1, "ap": 1}
ADDRESSES = {"us": "https://us.example", "eu": "http://10.0.0.1:8080/limits/", "ap": "https://[2001:db8::1]:8443"}
RULE = {"id": "a", "algorithm": "fixed_window", "limit": 2, "window": "1h", "scope": "global"}


def document(home: Any = None, /, **fields: Any) -> dict[str, Any]:
    rule = {**RULE, "distribution": "home", "key": ["tenant"]} | ({} if home is None else {"home": home})
    return {"regions": REGIONS, "addresses": ADDRESSES, "rules": [rule], **fields}


BY_TENANT = {"attribute": "tenant", "regions": {"acme": "eu"}, "otherwise": "us"}


@pytest.mark.parametrize(
    ("home", "read"),
    [
        (None, Homes()),
        ({"by": "hash", "unreachable": "allow"}, Homes(allows_unreachable=True)),
        ({"by": "eu"}, Homes("eu")),
        ({"by": BY_TENANT}, Homes("us", "tenant", {"acme": "eu"})),
    ],
)
def test_it_says_where_keys_are(home: Any, read: Homes) -> None:
    rule_set = parse_document(document(home))
    assert rule_set.rules[0].homes == read
    assert rule_set.addresses["eu"] == "http://10.0.0.1:8080/limits"


def test_values_are_in_the_normal_forms_in_which_the_rule_sees_its_key() -> None:
    lower = {**RULE, "distribution": "home", "key": ["tenant"], "normalise": {"tenant": ["trim", "lower"]}}
    by = {"attribute": "tenant", "regions": {" ACME": "eu"}, "otherwise": "us"}
    (rule,) = parse_document(document(rules=[{**lower, "home": {"by": by}}])).rules
    assert rule.homes == Homes("us", "tenant", {"acme": "eu"})
    twice = {**by, "regions": {"ACME": "eu", "Acme": "ap"}}
    with pytest.raises(InvalidRules) as refused:
        parse_document(document(rules=[{**lower, "home": {"by": twice}}]))
    (fault,) = refused.value.faults
    assert fault.place == "rules[0].home.by.regions.Acme"
    assert "as ACME is" in fault.problem


@pytest.mark.parametrize(
    ("wrong", "place", "words"),
    [
        (document({"by": "mars"}), "rules[0].home.by", "no region of the set"),
        (document({"by": 3}), "rules[0].home.by", "hash, the name of a region"),
        (document({"by": {**BY_TENANT, "attribute": "tier"}}), "rules[0].home.by.attribute", "tenant"),
        (document({"by": {**BY_TENANT, "regions": {"acme": "mars"}}}), "rules[0].home.by", "mars"),
        (document({"by": {"attribute": "tenant", "regions": {}}}), "rules[0].home.by.otherwise", "a region"),
        (document({"unreachable": "maybe"}), "rules[0].home.unreachable", "allow"),
        (document({"buy": "eu"}), "rules[0].home.buy", "did you mean by"),
        (document(addresses={}), "addresses.ap", "missing"),
        (document(addresses={**ADDRESSES, "us": "us.example"}), "addresses.us", "URL"),
        (document(addresses={**ADDRESSES, "us": "https://u:p@us.example"}), "addresses.us", "without user"),
        (document({"by": "eu"}, addresses={}), "addresses.eu", "missing"),
        ({"regions": REGIONS, "rules": [{**RULE, "limit": 9, "home": {"by": "us"}}]}, "rules[0].home", "home"),
        ({"regions": REGIONS, "rules": [{**RULE, "limit": 2}]}, "rules[0].limit", "distribution: home"),
        ({"regions": REGIONS, "rules": [{**RULE, "id": ["a"]}]}, "rules[0].id", "must be"),
    ],
)
def test_what_is_wrong_is_named(wrong: dict[str, Any], place: str, words: str) -> None:
    with pytest.raises(InvalidRules) as refused:
        parse_document(wrong)
    faults = {fault.place: fault.problem for fault in refused.value.faults}
    assert words in faults[place]


def test_a_set_of_one_region_needs_no_address() -> None:
    assert parse_document(document(regions=["us"], addresses={})).rules[0].homes == Homes()


def test_a_region_without_weight_has_no_keys_and_needs_no_address() -> None:
    rule_set = parse_document(document(regions={"us": 1, "eu": 0}, addresses={"us": "https://us.example"}))
    assert rule_set.bases == {"us": 10_000, "eu": 0}


def test_keys_are_spread_by_weight_and_where_one_is_depends_on_nothing_else() -> None:
    bases = bases_by_weight(REGIONS)
    hashes = [number.to_bytes(4) + (number * 2_654_435_761 % 2**32).to_bytes(4) for number in range(10_000)]
    homes = [Homes().of({}, key_hash, bases) for key_hash in hashes]
    assert homes == [Homes().of({}, key_hash, dict(reversed(bases.items()))) for key_hash in hashes]
    counted = Counter(homes)
    assert all(abs(counted[region] - base) < 300 for region, base in bases.items())


def test_the_loaded_rule_shows_what_a_region_has() -> None:
    rule_set = parse_document(document({"by": BY_TENANT}))
    (rule,) = rule_set.rules
    shown = describe(rule, rule_set)["regions"]
    assert shown == {
        "us": {"home_of": {"part": 1.0, "values": []}, "capacity": 2, "largest_cost": 2},
        "eu": {"home_of": {"part": 0.0, "values": ["acme"]}, "capacity": 2, "largest_cost": 2},
        "ap": {"home_of": {"part": 0.0, "values": []}, "capacity": 2, "largest_cost": 2},
    }
    by_hash = parse_document(document())
    assert describe(by_hash.rules[0], by_hash)["regions"]["us"]["home_of"] == {  # type: ignore[index]
        "part": 0.5,
        "values": [],
    }
