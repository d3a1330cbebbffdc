"""Why rules apply or not, one by one: the same ones as the matcher finds, and in words."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regional_limiter.plan import replaced_by
from regional_limiter.rules import compile_rules, parse_document
from regional_limiter.rules.judged import judged, unmet_by
from tests.unit.rules.test_match_rules import CHECKS, rules


def compiled(*rules: dict[str, Any], **more: Any) -> Any:
    numbered = [{"id": f"r{number}", "capacity": 5, "refill": "1/s", **rule} for number, rule in enumerate(rules)]
    return compile_rules(parse_document({"rules": numbered, **more}))


@settings(max_examples=200, deadline=None)
@given(st.lists(rules(), max_size=20), st.lists(st.integers(0, 19), max_size=3), CHECKS)
def test_those_that_apply_are_those_that_match(
    found: list[dict[str, Any]], replacing: list[int], attributes: dict[str, str]
) -> None:
    for number in replacing:
        if 0 < number < len(found):
            found[number]["replaces"] = ["r0"]
    matcher = compiled(*found)
    complete = matcher.complete(attributes)
    matches = matcher.match(complete)
    replaced = replaced_by(match.rule for match in matches)
    expected = [match.rule.id for match in matches if match.rule.id not in replaced]
    everything = judged(matcher, complete)
    assert [one.rule.id for one in everything if one.applies] == expected
    assert len(everything) == len(found)


@pytest.mark.parametrize(
    ("match", "words"),
    [
        ({"tier": ["free", "trial"]}, 'tier is "gold", and must be free or trial'),
        ({"tier": {"not": "g*"}}, 'tier is "gold", and must not be g*'),
        ({"plan": "x"}, "plan is not given, and must be x"),
        ({"ip": {"cidr": "10.0.0.0/8"}}, 'ip is "192.0.2.1", and must lie in 10.0.0.0/8'),
        ({"size": {"min": 1, "max": 9}}, 'size is "12", and must be a number from 1 to 9'),
        ({"size": {"min": 20}}, 'size is "12", and must be a number from 20'),
        ({"tier": [f"t{n}" for n in range(20)]}, "or one of 12 more"),
    ],
)
def test_what_is_not_met_is_said_in_words(match: dict[str, Any], words: str) -> None:
    matcher = compiled({"match": match})
    [one] = judged(matcher, matcher.complete({"tier": "gold", "ip": "192.0.2.1", "size": "12"}))
    assert len(one.why_not) == 1
    assert words in one.why_not[0]


def test_what_stands_before_it_and_what_replaces_it_is_named() -> None:
    matcher = compiled({}, {"replaces": ["r0"]}, {"stop": True}, {})
    found = judged(matcher, {})
    assert [one.why_not for one in found] == [
        ("r1 applies and replaces it",),
        (),
        (),
        ("r2 stands before it, applies, and ends the search",),
    ]


def test_an_override_is_told() -> None:
    matcher = compiled({}, overrides=[{"rule": "r0", "key": {"client_key": "a"}, "multiply": 2}])
    [one] = judged(matcher, {"client_key": "a"})
    assert (one.overridden, one.rule.capacity) == (True, 10)


def test_an_override_of_a_rule_that_does_not_apply_is_told_too() -> None:
    matcher = compiled(
        {"match": {"tier": "x"}}, overrides=[{"rule": "r0", "key": {"client_key": "a"}, "multiply": 2}]
    )
    assert [judged(matcher, {"client_key": key})[0].overridden for key in "ab"] == [True, False]


@pytest.mark.parametrize(
    ("given", "unmet"),
    [
        ({"client_key": "acme"}, ['tier is "gold", and must be free']),
        ({"client_key": "acme", "tier": "free"}, []),
        ({"client_key": "hooli"}, []),
        ({"client_key": "hooli", "country": "DE"}, ['country is "DE", and must not be DE']),
    ],
)
def test_only_what_is_known_keeps_a_rule_from_applying_and_no_default(
    given: dict[str, str], unmet: list[str]
) -> None:
    match = {"tier": "free", "resource": "POST /x", "country": {"not": "DE"}, "ip": {"cidr": "10.0.0.0/8"}}
    rule_set = parse_document(
        {
            "defaults": {"tier": "other"},
            "subjects": [{"client_key": "acme", "set": {"tier": "gold"}}],
            "rules": [{"id": "r", "match": match, "capacity": 5, "refill": "1/s"}],
        }
    )
    assert unmet_by(rule_set, rule_set.rules[0], given) == unmet
