"""Plans that are kept: for what the set looks at, and within a bound of memory."""

from __future__ import annotations

from regional_limiter.model.decision import Check
from regional_limiter.plan import DomainRules, Planner
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
