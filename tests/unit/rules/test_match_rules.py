"""The compiled matcher says what comparing every rule would say, without comparing every rule."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regional_limiter.model.rule import Rule, RuleSet
from regional_limiter.rules import Matcher, compile_rules, parse_document

FEW_TEXTS = st.text(alphabet="ab/", max_size=4)
PATTERNS = st.text(alphabet="ab/*", max_size=5)
NAMES = st.sampled_from(["resource", "tier", "method"])
MATCHES = st.dictionaries(NAMES, st.one_of(PATTERNS, st.lists(PATTERNS, min_size=1, max_size=4)), max_size=3)
CHECKS = st.dictionaries(NAMES, FEW_TEXTS, max_size=3)


def rule_set_of(*matches: Mapping[str, Any], **of_set: Any) -> RuleSet:
    rules = [
        {"id": f"r{n}", "capacity": 5, "refill": "1/s", "match": dict(match)} for n, match in enumerate(matches)
    ]
    return parse_document({"rules": rules, **of_set})


def matcher_of(*matches: Mapping[str, Any], **of_set: Any) -> Matcher:
    return compile_rules(rule_set_of(*matches, **of_set))


def matched(matcher: Matcher, **attributes: str) -> list[str]:
    return [rule.id for rule in matcher.match(attributes)]


def naive(rule: Rule, attributes: Mapping[str, str]) -> bool:
    """The definition: every condition is met by a value or by a wildcard."""
    return all(
        condition.attribute in attributes
        and (
            attributes[condition.attribute] in condition.exact
            or any(
                re.fullmatch(".*".join(map(re.escape, text.split("*"))), attributes[condition.attribute], re.DOTALL)
                for text in condition.wildcards
            )
        )
        for condition in rule.match
    )


@settings(max_examples=300, deadline=None)
@given(st.lists(MATCHES, max_size=40), st.lists(CHECKS, min_size=1, max_size=8))
def test_the_compiled_matcher_agrees_with_comparing_every_rule(
    matches: list[dict[str, Any]], checks: list[dict[str, str]]
) -> None:
    rule_set = rule_set_of(*matches)
    matcher = compile_rules(rule_set)
    for attributes in checks:
        assert matcher.match(attributes) == tuple(rule for rule in rule_set.rules if naive(rule, attributes))


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
}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_thousand_rules_that_cannot_match_cost_no_more_than_ten(shape: str) -> None:
    make = SHAPES[shape]
    checks = [
        {"resource": "GET /item/7", "tier": "t7"},
        {"resource": "GET /item/7/x", "tier": "t0"},
        {"resource": "GET /a/0007.jpg", "tier": "none"},
        {"resource": "GET /a/item/0007", "tier": "t1"},
        {"resource": "GET /7", "tier": "t0"},
    ]
    for attributes in checks:
        few = candidates([make(n) for n in range(10)], **attributes)
        many = candidates([make(n) for n in range(1000)], **attributes)
        assert many <= max(2 * few, 2), attributes


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
