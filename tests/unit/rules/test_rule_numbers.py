"""Rates: held exactly, or as the nearest lower one that is exact, or refused; and what users are shown of it."""

from __future__ import annotations

import json
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regional_limiter.algorithms.token_bucket import fits_exactly
from regional_limiter.rules import describe, largest_cost, parse_document
from regional_limiter.rules.quantities import hold_rate, largest_capacity, largest_period_ms

SMALL_RATES = st.fractions(min_value=Fraction(1, 10**6), max_value=50, max_denominator=10**7)


@settings(max_examples=300, deadline=None)
@given(SMALL_RATES, st.integers(0, 10**9))
def test_a_held_rate_is_exact_below_2_53_and_never_faster_than_asked(asked: Fraction, capacity: int) -> None:
    held = hold_rate(asked, capacity)
    if held is None:
        return
    rate = Fraction(held.tokens, held.period_ms)
    assert (rate.numerator, rate.denominator) == (held.tokens, held.period_ms)
    assert asked - asked / 1_000_000 <= rate <= asked
    assert fits_exactly(capacity, held)


@settings(max_examples=60, deadline=None)
@given(
    st.fractions(min_value=Fraction(1, 500), max_value=3, max_denominator=2000),
    st.integers(10**8, 10**9),
)
def test_no_lower_fraction_is_nearer(asked: Fraction, capacity: int) -> None:
    largest = largest_period_ms(asked, capacity)
    best = max(Fraction(asked.numerator * period // asked.denominator, period) for period in range(1, largest + 1))
    held = hold_rate(asked, capacity)
    if held is None:
        assert best == 0 or asked - best > asked / 1_000_000
    else:
        assert Fraction(held.tokens, held.period_ms) == best


@settings(max_examples=200, deadline=None)
@given(SMALL_RATES)
def test_the_capacity_that_a_refusal_proposes_is_the_largest_that_holds(asked: Fraction) -> None:
    most = largest_capacity(asked)
    held = hold_rate(asked, most)
    assert held is not None
    assert Fraction(held.tokens, held.period_ms) == asked
    assert largest_period_ms(asked, most + 1) < asked.denominator


def test_a_bucket_that_never_refills_within_a_life_is_refused_also_with_capacity_0() -> None:
    assert hold_rate(Fraction(1, 10**13), 0) is None
    assert largest_capacity(Fraction(1, 10**13)) < 0


def test_an_inexact_rate_is_held_lower_and_the_loaded_rule_shows_it() -> None:
    rule_set = parse_document({"rules": [{"id": "r", "capacity": 1_000_000, "refill": "999983/100003s"}]})
    (rule,) = rule_set.rules
    shown = describe(rule, rule_set)
    assert rule.refill is not None
    refill = shown["refill"]
    assert isinstance(refill, dict)
    assert refill["exact"] is False
    assert 0 < refill["lower_by_ppm"] <= 1
    assert Fraction(rule.refill.tokens, rule.refill.period_ms) < Fraction(999983, 100_003_000)


def test_the_loaded_rule_shows_what_each_region_can_pass() -> None:
    rule_set = parse_document(
        {
            "regions": {"a": 2, "b": 1, "c": 1},
            "rules": [
                {"id": "adaptive", "capacity": 103, "refill": "10/s", "scope": "global"},
                {
                    "id": "static",
                    "algorithm": "fixed_window",
                    "limit": 103,
                    "window": 60,
                    "scope": "global",
                    "distribution": "static",
                },
                {"id": "plain", "capacity": 20, "refill": "10/s"},
            ],
        }
    )
    adaptive, static, plain = rule_set.rules
    # The floors of b and c (2 % of 2,500) are never lent: 9,900 of 10,000 is the most that a can hold.
    assert largest_cost(adaptive, rule_set, "a") == 1 + 100 * 9900 // 10_000
    assert largest_cost(static, rule_set, "a") == 1 + 100 * 5000 // 10_000
    assert largest_cost(plain, rule_set, "a") == 20
    assert largest_cost(adaptive, rule_set, "elsewhere") == 0
    shown = describe(adaptive, rule_set, "a")
    assert shown["here"] == {"base": 5000, "floor": 100, "capacity": 51, "largest_cost": 100}
    assert shown["refill"] == {
        "tokens": 1,
        "period_ms": 100,
        "per_second": 10.0,
        "exact": True,
        "lower_by_ppm": 0.0,
    }
    assert set(shown["regions"]) == {"a", "b", "c"}  # type: ignore[call-overload]
    for rule in rule_set.rules:
        assert json.loads(json.dumps(describe(rule, rule_set, "a")))["id"] == rule.id


@pytest.mark.parametrize(
    ("numbers", "words", "shown"),
    [
        ({"algorithm": "gcra", "capacity": 20, "refill": "10/s"}, "20 at once, then 10/s", {"capacity": 20}),
        ({"algorithm": "leaky_bucket", "capacity": 9, "leak": "5/min"}, "9 at once, then 5/min", {"queue": False}),
        (
            {"algorithm": "leaky_bucket", "capacity": 9, "leak": "1/day", "queue": True},
            "9 waiting, 1/day let through",
            {"queue": True},
        ),
        ({"algorithm": "fixed_window", "limit": 1000, "window": "1min"}, "1,000 in 60 s", {"window_ms": 60_000}),
        (
            {"algorithm": "fixed_window", "limit": 9, "window": {"calendar": "month", "zone": "Europe/Berlin"}},
            "9 a month (Europe/Berlin)",
            {"window": {"calendar": "month", "zone": "Europe/Berlin"}},
        ),
        (
            {"algorithm": "sliding_window_log", "limit": 9, "window": 1},
            "9 in any 1 s",
            {"limit": 9, "memory_bytes_most": 450},
        ),
        ({"algorithm": "sliding_window_counter", "limit": 9, "window": 1}, "9 in any 1 s", {"window_ms": 1000}),
        (
            {"algorithm": "concurrency", "limit": 9, "lease": "30s"},
            "9 at the same time, each for 30 s at most",
            {"lease_ms": 30_000, "limit": 9},
        ),
    ],
)
def test_the_loaded_rule_shows_its_numbers_and_says_them(
    numbers: dict[str, Any], words: str, shown: dict[str, Any]
) -> None:
    rule_set = parse_document({"rules": [{"id": "r", **numbers}]})
    described = describe(rule_set.rules[0], rule_set)
    assert described["in_words"] == words
    assert {name: described[name] for name in shown} == shown
    assert json.loads(json.dumps(described)) == described


@pytest.mark.parametrize(("algorithm", "field"), [("gcra", "refill"), ("leaky_bucket", "leak")])
def test_every_rate_is_rounded_and_shown_as_a_token_buckets(algorithm: str, field: str) -> None:
    rule = {"id": "r", "algorithm": algorithm, "capacity": 1_000_000, field: "999983/100003s"}
    rule_set = parse_document({"rules": [rule]})
    shown = describe(rule_set.rules[0], rule_set)[field]
    assert isinstance(shown, dict)
    assert (shown["exact"], 0 < shown["lower_by_ppm"] <= 1) == (False, True)
