"""The compiled matcher says what comparing every rule would say, without comparing every rule."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from ipaddress import ip_address, ip_network
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regional_limiter.model.rule import NormalForm, RuleSet
from regional_limiter.rules import Matcher, compile_rules, parse_document
from regional_limiter.rules.normal import normalised


def network_of(address: str, length: int) -> str:
    return str(ip_network(f"{address}/{length}", strict=False))


FEW_TEXTS = st.text(alphabet="abB/ ", max_size=4)
PATTERNS = st.text(alphabet="ab/*", max_size=5)
TEXTS = st.one_of(PATTERNS, st.lists(PATTERNS, min_size=1, max_size=4))
V4 = st.builds("10.{}.{}.{}".format, *(st.sampled_from([0, 1, 128, 255]) for _ in range(3)))
V6 = st.builds("2001:db8:{:x}::{:x}".format, st.sampled_from([0, 1, 0x8000]), st.sampled_from([0, 1, 0xFFFF]))
ADDRESSES = st.one_of(V4, V6, V4.map("::ffff:{}".format))
NETWORKS = st.one_of(
    st.builds(network_of, V4, st.sampled_from([0, 7, 8, 9, 16, 24, 32])),
    st.builds(network_of, V6, st.sampled_from([0, 32, 33, 48, 64, 128])),
)
NUMBERS = st.one_of(st.integers(-3, 9), st.sampled_from([-0.5, 0.25, 2.5, 8.75]))
RANGES = st.one_of(
    st.builds(lambda low: {"min": low}, NUMBERS),
    st.builds(lambda high: {"max": high}, NUMBERS),
    st.builds(lambda one, other: {"min": min(one, other), "max": max(one, other)}, NUMBERS, NUMBERS),
)
CONDITIONS = st.one_of(
    TEXTS,
    st.builds(lambda texts: {"not": texts}, TEXTS),
    st.builds(lambda networks: {"cidr": networks}, st.lists(NETWORKS, min_size=1, max_size=3)),
    RANGES,
)
VALUES = st.one_of(
    FEW_TEXTS, ADDRESSES, NUMBERS.map(str), st.sampled_from(["", "007", "+2.50", "1e1", "10.0.0", "٣"])
)
NAMES = st.sampled_from(["resource", "tier", "method"])
MATCHES = st.dictionaries(NAMES, CONDITIONS, max_size=3)
CHECKS = st.dictionaries(NAMES, VALUES, max_size=3)


def rule_set_of(*matches: Mapping[str, Any], **of_set: Any) -> RuleSet:
    rules = [
        {"id": f"r{n}", "capacity": 5, "refill": "1/s", "match": dict(match)} for n, match in enumerate(matches)
    ]
    return parse_document({"rules": rules, **of_set})


def matcher_of(*matches: Mapping[str, Any], **of_set: Any) -> Matcher:
    return compile_rules(rule_set_of(*matches, **of_set))


def matched(matcher: Matcher, **attributes: str) -> list[str]:
    return [match.rule.id for match in matcher.match(attributes)]


def naive(match: Mapping[str, Any], attributes: Mapping[str, str]) -> bool:
    """The definition, from the words of the rule: every condition is met."""
    return all(naive_condition(condition, attributes.get(name)) for name, condition in match.items())


def naive_condition(condition: Any, value: str | None) -> bool:
    if isinstance(condition, dict) and "not" in condition:
        return not naive_condition(condition["not"], value)
    if value is None:
        return False
    if isinstance(condition, dict) and "cidr" in condition:
        return any(naive_network(network, value) for network in condition["cidr"])
    if isinstance(condition, dict):
        if not re.fullmatch(r"[-+]?[0-9]+(\.[0-9]+)?", value, re.ASCII):
            return False
        number, low, high = Fraction(value), condition.get("min"), condition.get("max")
        return (low is None or Fraction(str(low)) <= number) and (high is None or number <= Fraction(str(high)))
    texts = condition if isinstance(condition, list) else [condition]
    return any(re.fullmatch(".*".join(map(re.escape, text.split("*"))), value, re.DOTALL) for text in texts)


def naive_network(network: str, value: str) -> bool:
    try:
        address = ip_address(value)
    except ValueError:
        return False
    return (getattr(address, "ipv4_mapped", None) or address) in ip_network(network)


FORMS = {"lower": str.lower, "trim": str.strip}


@st.composite
def rules(draw: st.DrawFn) -> dict[str, Any]:
    match = draw(MATCHES)
    forms = st.lists(st.sampled_from(sorted(FORMS)), min_size=1, max_size=2)
    named = st.dictionaries(st.sampled_from(sorted(match)), forms) if match else st.just({})
    return {"match": match, "normalise": draw(named), "stop": draw(st.integers(0, 9)) == 0}


def naive_matches(rules: list[dict[str, Any]], attributes: Mapping[str, str]) -> list[str]:
    found = []
    for number, rule in enumerate(rules):
        normal = dict(attributes)
        for name, forms in rule["normalise"].items():
            for form in forms:
                if name in normal:
                    normal[name] = FORMS[form](normal[name])
        if naive(rule["match"], normal):
            found.append(f"r{number}")
            if rule["stop"]:
                break
    return found


@settings(max_examples=400, deadline=None)
@given(st.lists(rules(), max_size=40), st.lists(CHECKS, min_size=1, max_size=8))
def test_the_compiled_matcher_agrees_with_comparing_every_rule(
    rules: list[dict[str, Any]], checks: list[dict[str, str]]
) -> None:
    numbers = {"capacity": 5, "refill": "1/s"}
    document = {"rules": [{"id": f"r{n}", **numbers, **rule} for n, rule in enumerate(rules)]}
    matcher = compile_rules(parse_document(document))
    for attributes in checks:
        assert matched(matcher, **attributes) == naive_matches(rules, attributes)


@pytest.mark.parametrize(
    ("pattern", "value", "fits"),
    [
        ("*", "", True),
        ("*", "a/b\nc", True),
        ("GET /a/*", "GET /a/", True),
        ("GET /a/*", "GET /a/b/c", True),
        ("GET /a/*", "GET /a", False),
        ("get /a/*", "GET /a/b", False),
        ("*.jpg", ".jpg", True),
        ("*.jpg", "xjpg", False),
        ("a*a", "a", False),
        ("a*a", "aa", True),
        ("a*b*c", "a-c-b-c", True),
        ("a*b*c", "a-c-b", False),
        ("*b*", "abc", True),
        ("**", "x", True),
        ("ab*ba", "aba", False),
        ("a.c", "abc", False),
        ("a[b]*", "a[b]c", True),
    ],
)
def test_a_star_is_any_run_and_nothing_else_is_special(pattern: str, value: str, fits: bool) -> None:
    assert matched(matcher_of({"resource": pattern}), resource=value) == (["r0"] if fits else [])


def test_a_wildcard_cannot_be_made_slow_by_its_text() -> None:
    matcher = matcher_of({"resource": "*a" * 16 + "b"})
    assert matched(matcher, resource="a" * 1024) == []


def test_a_condition_on_an_attribute_that_the_check_lacks_fails() -> None:
    assert matched(matcher_of({"tier": "*"}, {"tier": ["", "x"]}, {}), resource="x") == ["r2"]


@pytest.mark.parametrize(
    ("condition", "values", "others"),
    [
        ({"cidr": "10.0.0.0/8"}, ["10.1.2.3", "::ffff:10.1.2.3", "::ffff:a01:203"], ["11.0.0.1", "::10.1.2.3", ""]),
        ({"cidr": ["::ffff:192.0.2.0/120"]}, ["192.0.2.9", "::ffff:192.0.2.9"], ["192.0.3.9"]),
        ({"cidr": ["::/0"]}, ["::1", "fe80::1%eth0"], ["10.0.0.1", "::ffff:10.0.0.1"]),
        ({"cidr": ["192.0.2.7", "2001:db8::7"]}, ["192.0.2.7", "2001:DB8:0::7"], ["192.0.2.8", "192.0.2.07"]),
        (
            {"min": 1, "max": 65536},
            ["1", "65536", "1.0", "+7", "007"],
            ["0", "65536.5", "1e3", "", " 7", "7 ", "٧"],
        ),
        ({"min": -0.5}, ["-0.5", "0", "9" * 40], ["-0.51", "9" * 41, "NaN", "Infinity"]),
        ({"not": ["DE", "A*"]}, ["FR", "", "de"], ["DE", "AT"]),
        ({"not": "*"}, [], ["", "x"]),
    ],
)
def test_conditions_by_network_range_and_negation(condition: Any, values: list[str], others: list[str]) -> None:
    matcher = matcher_of({"a": condition})
    assert [value for value in values + others if matched(matcher, a=value)] == values


def test_a_negation_is_the_complement_so_that_two_rules_leave_no_check_out() -> None:
    matcher = matcher_of({"country": "DE"}, {"country": {"not": "DE"}})
    assert [matched(matcher, **check) for check in ({"country": "DE"}, {"country": "FR"}, {})] == [
        ["r0"],
        ["r1"],
        ["r1"],
    ]


def test_rules_come_in_the_order_of_the_set_each_once() -> None:
    matcher = matcher_of({"tier": ["a*", "*a", "a", "*"]}, {}, {"tier": "a"}, {"tier": "b"}, {"resource": "x"})
    assert matched(matcher, tier="a", resource="x") == ["r0", "r1", "r2", "r4"]


# ---- cost: counted, not timed


def candidates(matches: list[dict[str, Any]], **attributes: str) -> int:
    return len(matcher_of(*matches).candidates(attributes))


SHAPES: dict[str, Any] = {
    "exact": lambda n: {"resource": f"GET /item/{n}"},
    "lists": lambda n: {"resource": [f"GET /item/{n}", f"PUT /item/{n}"]},
    "prefixes": lambda n: {"resource": f"GET /item/{n}/*"},
    "suffixes": lambda n: {"resource": f"*/{n:04}.jpg"},
    "same beginning": lambda n: {"resource": f"GET /*/item/{n:04}"},
    "second attribute": lambda n: {"resource": "GET /item/7", "tier": f"t{n}"},
    "grid": lambda n: {"resource": f"GET /{n % 32}", "tier": f"t{n // 32}"},
    "wildcard in one, exact in another": lambda n: {"resource": "GET *", "tier": f"t{n}"},
    "nested paths": lambda n: {"resource": "GET " + "/".join(["", *str(n), "*"])},
    "networks": lambda n: {"ip": {"cidr": [f"10.{n // 250}.{n % 250}.0/24"]}},
    "lists of networks": lambda n: {"ip": {"cidr": [f"10.{n // 250}.{n % 250}.0/24", f"2001:db8:{n:x}::/48"]}},
    "networks of many lengths": lambda n: {"ip": {"cidr": network_of(f"10.{n // 250}.{n % 250}.0", 24 + n % 9)}},
    "ranges": lambda n: {"size": {"min": 10 * n, "max": 10 * n + 9}},
    "one network in all, exact in another": lambda n: {"ip": {"cidr": ["10.0.0.0/8"]}, "tier": f"t{n}"},
    "one range in all, exact in another": lambda n: {"size": {"min": n % 3}, "resource": f"GET /item/{n}"},
    "a negation in all, exact in another": lambda n: {"country": {"not": ["DE"]}, "tier": f"t{n}"},
    "each by an attribute of its own": lambda n: {f"attribute{n}": "x"},
    "exact in all, a network in another": lambda n: {
        "tier": "t7",
        "ip": {"cidr": [f"10.{n // 250}.{n % 250}.0/24"]},
    },
    "exact in all, a range in another": lambda n: {"tier": "t7", "size": {"min": 10 * n, "max": 10 * n + 9}},
}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_thousand_rules_that_cannot_match_cost_no_more_than_ten(shape: str) -> None:
    make = SHAPES[shape]
    checks = [
        {"resource": "GET /item/7", "tier": "t7", "ip": "10.0.7.1", "size": "75"},
        {"resource": "GET /item/7/x", "tier": "t0", "ip": "10.0.3.255", "size": "0"},
        {"resource": "GET /a/0007.jpg", "tier": "none", "ip": "2001:db8:5::1", "size": "none"},
        {"resource": "GET /a/item/0007", "tier": "t1", "ip": "::ffff:10.0.0.9", "attribute7": "x"},
        {"resource": "GET /7", "tier": "t0", "country": "FR", "ip": "1.7.0.0"},
    ]
    few, many = (matcher_of(*(make(n) for n in range(rules))) for rules in (10, 1000))
    for attributes in checks:
        compared = len(few.candidates(attributes))
        assert len(many.candidates(attributes)) <= max(2 * compared, 2), attributes


def test_networks_inside_one_another_are_all_found_and_no_others() -> None:
    nested = [{"ip": {"cidr": [network_of("10.255.255.255", n)]}} for n in range(33)]
    aside = [{"ip": {"cidr": [f"10.{n}.0.0/16"]}} for n in range(250)]
    assert candidates(nested + aside, ip="10.255.255.255") == 33
    assert candidates(nested + aside, ip="10.7.0.1") == 10  # 0/0 to 8/8, and its own
    assert candidates(nested + aside, ip="::1") == 0


def test_ranges_that_overlap_are_found_without_those_that_do_not() -> None:
    around = [{"size": {"min": 500 - n, "max": 500 + n}} for n in range(100)]
    aside = [{"size": {"min": 10_000 + n}} for n in range(300)]
    assert candidates(around + aside, size="500") == 100
    assert candidates(around + aside, size="590.5") == 9
    assert candidates(around + aside, size="10002") == 3


def test_ten_thousand_overrides_are_looked_up_not_compared() -> None:
    keys = [f"user:{n}" for n in range(10_000)]
    rule_set = parse_document(
        {
            "rules": [{"id": "r", "capacity": 5, "refill": "1/s"}, {"id": "s", "capacity": 7, "refill": "1/s"}],
            "overrides": [{"rule": "r", "key": {"client_key": key}, "capacity": n} for n, key in enumerate(keys)],
        }
    )
    matcher = compile_rules(rule_set)
    assert matcher.candidates({"client_key": "user:77"}) == [0, 1]
    for check, capacities in (
        ({"client_key": "user:77"}, [77, 7]),
        ({"client_key": "user:x"}, [5, 7]),
        ({}, [5, 7]),
    ):
        assert [match.rule.capacity for match in matcher.match(check)] == capacities


# ---- stop, normal forms


def test_a_rule_that_stops_the_search_keeps_later_ones_out_only_where_it_matches() -> None:
    limits = {"capacity": 5, "refill": "1/s"}
    matcher = compile_rules(
        parse_document(
            {
                "rules": [
                    {"id": "first", **limits},
                    {"id": "friends", "match": {"ip": {"cidr": "10.0.0.0/8"}}, "unlimited": True, "stop": True},
                    {"id": "rest", **limits},
                ]
            }
        )
    )
    assert matched(matcher, ip="10.1.1.1") == ["first", "friends"]
    assert matched(matcher, ip="11.1.1.1") == ["first", "rest"]


def test_each_rule_sees_an_attribute_in_its_own_normal_forms() -> None:
    limits = {"capacity": 5, "refill": "1/s", "key": ["email"]}
    matcher = compile_rules(
        parse_document(
            {
                "rules": [
                    {"id": "plain", "match": {"email": "a@x"}, **limits},
                    {
                        "id": "normal",
                        "match": {"email": "a@x"},
                        "normalise": {"email": ["trim", "lower"]},
                        **limits,
                    },
                ],
            }
        )
    )
    attributes = {"email": " A@X "}
    (match,) = matcher.match(attributes)
    assert (match.rule.id, match.attributes["email"], attributes["email"]) == ("normal", "a@x", " A@X ")
    assert matched(matcher, email="a@x") == ["plain", "normal"]
    assert matched(matcher) == []


@pytest.mark.parametrize(
    ("form", "text", "normal"),
    [
        ("trim", " a b\n", "a b"),
        ("lower", "ÄB", "äb"),
        ("nfc", "e\u0301", "é"),
        ("path", "GET /a//b/./c/../d/?q=/x#y", "GET /a/b/d"),
        ("path", "GET /", "GET /"),
        ("path", "/../..", "/"),
        ("path", "POST /%7euser/%2E%2e/a%2fb/%c3%a9", "POST /a%2Fb/%C3%A9"),
        ("path", "/a%252e/%zz/%4", "/a%252e/%zz/%4"),
        ("path", "no slash?x", "no slash?x"),
        ("address", "2001:DB8:0:0::1", "2001:db8::1"),
        ("address", "::ffff:192.0.2.1", "192.0.2.1"),
        ("address", "192.0.2.1:80", "192.0.2.1:80"),
        ("address_64", "2001:db8:1:2:3::4", "2001:db8:1:2::/64"),
        ("address_64", "::ffff:192.0.2.1", "192.0.2.1"),
        ("address_64", "unknown", "unknown"),
    ],
)
def test_normal_forms(form: str, text: str, normal: str) -> None:
    assert normalised(text, [NormalForm(form)]) == normal
    if form != "path":  # escapes are read once
        assert normalised(normal, [NormalForm(form)]) == normal


# ---- attributes


def test_what_the_check_says_wins_over_the_subject_and_the_subject_over_the_defaults() -> None:
    matcher = matcher_of(
        defaults={"tier": "free", "country": "none", "plan": "basic"},
        subjects=[
            {"client_key": "acme", "set": {"tier": "gold", "country": "DE"}},
            {"client_key": "acme", "resource": "x", "set": {"tier": "other", "plan": "pro"}},
        ],
    )
    assert matcher.complete({"client_key": "acme", "country": "FR"}) == {
        "client_key": "acme",
        "country": "FR",
        "tier": "gold",
        "plan": "basic",
    }
    both = matcher.complete({"client_key": "acme", "resource": "x"})
    assert (both["tier"], both["plan"]) == ("gold", "pro")
    assert matcher.complete({"client_key": "else"})["tier"] == "free"
    assert matcher.complete({"client_key": "else", "tier": ""})["tier"] == ""


def test_completing_does_not_change_the_check() -> None:
    attributes = {"client_key": "a"}
    matcher_of(defaults={"tier": "free"}).complete(attributes)
    assert attributes == {"client_key": "a"}
