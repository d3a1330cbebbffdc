"""What is foretold from a look is what the next check is told."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regional_limiter.foretold import foretold, foretold_of
from regional_limiter.model.decision import Check, Reason
from regional_limiter.model.share import ProtocolTimes
from regional_limiter.plan import DomainRules, Planner
from regional_limiter.rules import compile_rules, parse_document
from regional_limiter.store.memory import MemoryPoint

START_MS = 1_700_000_000_000
KINDS = [
    {"id": "r", "capacity": 7, "refill": "3/10s"},
    {"id": "r", "algorithm": "gcra", "capacity": 5, "refill_per_second": 0.7},
    {"id": "r", "algorithm": "leaky_bucket", "capacity": 4, "leak": "1/s"},
    {"id": "r", "algorithm": "fixed_window", "limit": 3, "window": "10s"},
    {"id": "r", "algorithm": "fixed_window", "limit": 3, "window": {"calendar": "day", "zone": "Europe/Berlin"}},
    {"id": "r", "algorithm": "sliding_window_counter", "limit": 4, "window": "5s"},
    {"id": "r", "algorithm": "sliding_window_log", "limit": 4, "window": "5s"},
    {"id": "r", "algorithm": "concurrency", "limit": 3, "lease": "5s"},
    {"id": "r", "capacity": 6, "refill": "3/s", "scope": "global", "distribution": "static"},
    {"id": "r", "capacity": 6, "refill": "3/s", "scope": "global"},
    {"id": "r", "capacity": 7, "refill": "3/10s", "cost": 2},
    {"id": "r", "algorithm": "fixed_window", "limit": 0, "window": "10s"},
]


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(KINDS), st.lists(st.tuples(st.integers(0, 4000), st.integers(0, 9)), max_size=25))
def test_the_next_check_is_told_so(rule: dict[str, Any], asked: list[tuple[int, int]]) -> None:
    rule_set = parse_document({"regions": ["here", "there"], "rules": [rule]})
    planner, point, now_ms = Planner(b"secret of this test"), MemoryPoint(ProtocolTimes()), START_MS
    rules = DomainRules(1, rule_set, compile_rules(rule_set), 2, rule_set.largest_share("here"), "here")
    planner.use({"default": rules}, {}, 1, {"default": 5000})
    for number, (after_ms, cost) in enumerate(asked):
        now_ms += after_ms
        plan = planner.plan(Check("default", {"client_key": "a"}, cost))
        looks = point.check(now_ms * 1000, plan.calls(0))
        [call] = plan.calls(cost, f"check {number}")
        told = foretold(plan, [foretold_of(plan.steps[0], call, looks[0])])
        [verdict] = point.check(now_ms * 1000, [call])
        assert (told.allowed, told.reason) == (verdict.allowed, verdict.reason)
        if told.retry_after_ms is not None:
            assert verdict.retry_after_ms is not None
            assert abs(told.retry_after_ms - verdict.retry_after_ms) <= 1
        else:
            assert verdict.retry_after_ms is None or "a look does not tell" in told.in_words


@pytest.mark.parametrize(
    ("more", "attributes", "reason", "allowed"),
    [
        ({}, {"tier": "x"}, Reason.NO_RULE, True),
        ({"overrides": [{"rule": "r", "key": {"client_key": "a"}, "block": True}]}, {}, Reason.BLOCKED, False),
        ({"overrides": [{"rule": "r", "key": {"client_key": "a"}, "unlimited": True}]}, {}, Reason.OK, True),
    ],
)
def test_checks_that_ask_no_bucket(
    more: dict[str, Any], attributes: dict[str, str], reason: Reason, allowed: bool
) -> None:
    rule = {"id": "r", "match": {"tier": {"not": "x"}}, "capacity": 5, "refill": "1/s"}
    rule_set = parse_document({"rules": [rule], **more})
    planner = Planner(b"secret of this test")
    planner.use({"default": DomainRules(1, rule_set, compile_rules(rule_set), 1, 10_000)}, {}, 0, {})
    plan = planner.plan(Check("default", {"client_key": "a", **attributes}))
    assert plan.steps == ()
    told = foretold(plan, [])
    assert (told.reason, told.allowed) == (reason, allowed)
