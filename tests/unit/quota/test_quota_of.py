"""What may be handed on to gateways, and what is refused by name."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from regional_limiter.model.decision import Check
from regional_limiter.plan import DomainRules, Planner
from regional_limiter.quota import NoQuota, Quota, quota_of
from regional_limiter.rules import compile_rules, parse_document

RULE = {"id": "api", "key": ["user"], "capacity": 100, "refill": "10/s"}


def quota(*rules: dict[str, Any], nodes: int = 1, **more: Any) -> Quota | NoQuota:
    document = {"domain": "edge", "regions": {"us-east": 3, "eu-west": 1}, "rules": list(rules), **more}
    rule_set = parse_document(document)
    domain = DomainRules(1, rule_set, compile_rules(rule_set), 2, rule_set.largest_share("eu-west"), "eu-west")
    planner = Planner(b"a secret of thirty-two bytes, or so")
    planner.use({"edge": domain}, {}, 1, {"edge": rule_set.bases["eu-west"]})
    return quota_of(planner.plan(Check("edge", {"user": "ann"}, 1)), nodes)


@pytest.mark.parametrize(
    ("changes", "nodes", "capacity", "rate_per_s"),
    [
        ({}, 1, 100, 10),
        ({}, 4, 25, Fraction(10, 4)),
        ({"algorithm": "gcra"}, 2, 50, 5),
        ({"scope": "global", "distribution": "static"}, 1, 25, Fraction(10, 4)),
        ({"scope": "global", "distribution": "static"}, 5, 5, Fraction(1, 2)),
        ({}, 101, 0, 0),
    ],
)
def test_a_node_hands_on_its_part(
    changes: dict[str, Any], nodes: int, capacity: int, rate_per_s: int | Fraction
) -> None:
    told = quota({**RULE, **changes}, nodes=nodes)
    assert isinstance(told, Quota)
    assert (told.rule, told.capacity, told.rate * 1000) == ("edge/api", capacity, rate_per_s)


def test_who_is_blocked_is_denied_by_the_gateway_too() -> None:
    told = quota(RULE, overrides=[{"rule": "api", "key": {"user": "ann"}, "block": True}])
    assert isinstance(told, Quota)
    assert (told.rule, told.capacity) == ("edge/api", 0)


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        ([{**RULE, "scope": "global"}], "use scope region or distribution static"),
        ([{"id": "api", "algorithm": "fixed_window", "limit": 5, "window": "60s"}], "use token_bucket or gcra"),
        ([{"id": "api", "algorithm": "concurrency", "limit": 5, "lease": "60s"}], "use token_bucket or gcra"),
        ([{**RULE, "mode": "soft"}], "use mode enforce"),
        ([{**RULE, "cost": 2}], "leave cost out"),
        ([RULE, {**RULE, "id": "other"}], "2 rules"),
        ([{**RULE, "match": {"user": "bob"}}], "no rule"),
        ([{"id": "api", "unlimited": True}], "no rule"),
    ],
)
def test_what_cannot_be_handed_on_says_why(rules: list[dict[str, Any]], words: str) -> None:
    told = quota(*rules)
    assert isinstance(told, NoQuota)
    assert words in told.why
    assert told.rule in ("", "edge/api")
