"""Plans that are kept: for what the set looks at, and within a bound of memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from regional_limiter.model.decision import Check, Reason
from regional_limiter.model.errors import InvalidCheck
from regional_limiter.model.rule import Rate
from regional_limiter.plan import DomainRules, Plan, Planner
from regional_limiter.rules import compile_rules, parse_document


def planner(**more: int) -> Planner:
    rule_set = parse_document(
        {
            "domain": "default",
            "defaults": {"unused": "x"},
            "subjects": [{"org": "acme", "set": {"tier": "gold"}}],
            "rules": [
                {"id": "a", "match": {"tier": "gold"}, "key": ["client_key"], "capacity": 1, "refill": "1/s"}
            ],
        }
    )
    made = Planner(b"0123456789abcdef", **more)
    made.use({"default": DomainRules(1, rule_set, compile_rules(rule_set), 1, 10_000)}, {}, 0, {})
    return made


def check(**attributes: str) -> Check:
    return Check("default", attributes)


def test_attributes_that_no_rule_looks_at_do_not_fill_the_memory_with_plans() -> None:
    plans = planner()
    same = {id(plans.plan(check(client_key="u", tier="gold", trace=str(number) * 500))) for number in range(50)}
    assert (len(same), len(plans._plans)) == (1, 1)
    for number in range(50):
        plans.plan(Check(f"unknown-{number}", {"client_key": "u"}))
    assert len(plans._plans) == 1


def test_what_a_key_a_match_or_a_subject_names_makes_another_plan() -> None:
    plans = planner()
    asked = [
        check(client_key="u"),
        check(client_key="u", tier="gold"),
        check(client_key="u", org="acme"),
        check(client_key="v", org="acme"),
        check(client_key="v", org="acme", tier="free"),
    ]
    assert [[step.key[-2:] for step in plans.plan(one).steps] for one in asked] == [[], [":u"], [":u"], [":v"], []]


def test_kept_plans_are_bounded_in_bytes() -> None:
    plans = planner(bytes_most=100_000)
    for number in range(200):
        plans.plan(check(client_key=str(number) + "x" * 1000, tier="gold"))
        assert sum(len(text) for _, items in plans._plans for pair in items for text in pair) < 30_000


# ---- costs, overrides, rules that do not limit


def plan_of(check: Check, *rules: dict[str, Any], overrides: Sequence[dict[str, Any]] = ()) -> Plan:
    rule_set = parse_document({"rules": list(rules), "overrides": list(overrides)})
    made = Planner(b"0123456789abcdef")
    made.use({"default": DomainRules(1, rule_set, compile_rules(rule_set), 1, 10_000)}, {}, 0, {})
    return made.plan(check)


def limit(rule_id: str, **fields: Any) -> dict[str, Any]:
    return {"id": rule_id, "capacity": 10, "refill": "1/s", **fields}


@pytest.mark.parametrize(
    ("cost", "size", "asked", "charged"),
    [
        (0, None, 3, 3),
        (5, None, 3, 8),
        (5, None, 0, 0),
        ({"attribute": "size", "per": 1024}, "2048", 3, 2),
        ({"attribute": "size", "per": 1024}, "2049", 3, 3),
        ({"attribute": "size", "per": 1024}, "0.5", 3, 1),
        ({"attribute": "size", "per": 1024}, None, 3, 1),
        ({"attribute": "size", "at_least": 7}, "6", 3, 7),
        ({"attribute": "size"}, "10", 0, 0),
    ],
)
def test_a_rule_adds_to_the_cost_or_measures_it_and_a_peek_stays_one(
    cost: Any, size: str | None, asked: int, charged: int
) -> None:
    attributes = {"client_key": "u"} | ({"size": size} if size is not None else {})
    plan = plan_of(Check("default", attributes), limit("a", cost=cost), limit("b"))
    assert [call.cost for call in plan.calls(asked)] == [charged, asked]


@pytest.mark.parametrize("size", ["", "ten", "-1", "1e3", str(2**31), "NaN"])
def test_a_cost_that_cannot_be_measured_is_a_fault_of_the_check_that_names_the_attribute(size: str) -> None:
    with pytest.raises(InvalidCheck) as caught:
        plan_of(check(client_key="u", size=size), limit("a", cost={"attribute": "size"}))
    assert caught.value.field == "size"


def test_a_cost_that_grows_out_of_bounds_names_the_rule() -> None:
    plan = plan_of(check(client_key="u"), limit("a", cost=10))
    assert plan.calls(2**31 - 11)[0].cost == 2**31 - 1
    with pytest.raises(InvalidCheck, match="rule a adds"):
        plan.calls(2**31 - 10)


def test_an_attribute_that_only_measures_is_read_anew_and_makes_no_plan_of_its_own() -> None:
    rule_set = parse_document({"rules": [limit("a", cost={"attribute": "size"})]})
    made = Planner(b"0123456789abcdef")
    made.use({"default": DomainRules(1, rule_set, compile_rules(rule_set), 1, 10_000)}, {}, 0, {})
    costs = [made.plan(check(client_key="u", size=size)).calls(1)[0].cost for size in ("2", "3", "2")]
    assert (costs, len(made._plans)) == ([2, 3, 2], 1)


def test_an_overridden_key_keeps_its_bucket_and_has_other_numbers() -> None:
    rules = [limit("a", normalise={"client_key": ["lower"]})]
    overrides = [{"rule": "a", "key": {"client_key": "ACME"}, "multiply": 10}]
    (plain,) = plan_of(check(client_key="acme"), *rules).calls(1)
    (call,) = plan_of(check(client_key="Acme"), *rules, overrides=overrides).calls(1)
    assert (call.key, call.capacity, call.refill) == (plain.key, 100, Rate(1, 100))


def test_a_blocked_key_is_denied_whatever_else_matches_and_charges_nothing() -> None:
    rules = [limit("a"), limit("b"), {"id": "c", "unlimited": True}]
    overrides = [{"rule": "b", "key": {"client_key": "u"}, "block": True}]
    plan = plan_of(check(client_key="u"), *rules, overrides=overrides)
    answer = plan.answer_without_store()
    assert (plan.steps, plan.unlimited, plan.groups, plan.calls(1)) == ((), (), [], [])
    assert (answer.allowed, answer.reason, answer.rule) == (False, Reason.BLOCKED, "b")
    assert (answer.limit, answer.remaining, answer.retry_after_ms) == (0, 0, None)
    assert len(plan_of(check(client_key="v"), *rules, overrides=overrides).steps) == 2


def test_a_block_behind_an_allow_list_does_not_reach_its_clients() -> None:
    rules = [{"id": "friends", "match": {"tier": "gold"}, "unlimited": True, "stop": True}, limit("a")]
    overrides = [{"rule": "a", "key": {"client_key": "u"}, "block": True}]
    plan = plan_of(check(client_key="u", tier="gold"), *rules, overrides=overrides)
    answer = plan.answer_without_store()
    assert (answer.allowed, answer.reason, answer.rule, answer.limit) == (True, Reason.OK, "friends", None)


def test_an_unlimited_rule_asks_nothing_of_the_store_beside_rules_that_do() -> None:
    plan = plan_of(check(client_key="u"), {"id": "free", "unlimited": True}, limit("a"))
    assert [step.rule.id for step in plan.steps] == ["a"]
    assert [step.rule.id for step in plan.unlimited] == ["free"]


def test_express_rate_limit_502_addresses_of_one_network_are_one_bucket_and_mapped_ones_are_ipv4() -> None:
    rule = limit("a", key=["ip"], normalise={"ip": ["address_64"]})

    def key(address: str) -> str:
        (step,) = plan_of(check(ip=address), rule).steps
        return step.key

    assert len({key(f"2001:db8:1:2::{n}") for n in range(1, 7)}) == 1
    assert key("2001:db8:1:3::1") != key("2001:db8:1:2::1")
    assert key("::ffff:192.0.2.1") == key("192.0.2.1") != key("192.0.2.2")
