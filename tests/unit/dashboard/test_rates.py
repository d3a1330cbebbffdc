"""Rates from running totals: never from a pair that does not belong together."""

from __future__ import annotations

from typing import Any

import pytest

from services.dashboard.rates import STALE_MS, UsageRates


def usage(at_ms: int, allowed: int, denied: int = 0, *, agent: str = "a", key: str | None = None) -> dict[str, Any]:
    totals = [allowed, denied, allowed, denied, 0]
    return {
        "region": "us-east",
        "agent": agent,
        "at_ms": at_ms,
        "totals": {"default/r": totals},
        "keys": {key: {"share": None, "want": 0, "totals": totals}} if key else {},
    }


def fold(*documents: dict[str, Any]) -> UsageRates:
    rates = UsageRates()
    for document in documents:
        rates.take(document, document["at_ms"])
    return rates


def test_a_first_message_says_nothing_of_a_rate() -> None:
    assert fold(usage(1000, 500)).rule("us-east", "default/r", 1000) == (0.0, 0.0)


def test_two_messages_give_cost_per_second_whatever_lies_between_them() -> None:
    assert fold(usage(1000, 100, 10), usage(3000, 300, 50)).rule("us-east", "default/r", 3000) == (100.0, 20.0)


@pytest.mark.parametrize("late", [usage(1000, 100), usage(500, 40)], ids=["repeated", "late"])
def test_repeated_and_late_messages_change_nothing(late: dict[str, Any]) -> None:
    rates = fold(usage(1000, 100), usage(2000, 150))
    rates.take(late, 2000)
    rates.take(usage(3000, 200), 3000)
    assert rates.rule("us-east", "default/r", 3000) == (50.0, 0.0)


def test_a_new_agent_that_counts_from_zero_is_no_negative_rate() -> None:
    rates = fold(usage(1000, 100_000), usage(2000, 20, agent="b"))
    assert rates.rule("us-east", "default/r", 2000) == (0.0, 0.0)
    rates.take(usage(3000, 50, agent="b"), 3000)
    assert rates.rule("us-east", "default/r", 3000) == (30.0, 0.0)


def test_a_late_message_of_the_agent_before_does_not_take_its_place() -> None:
    rates = fold(usage(1000, 100), usage(2000, 20, agent="b"))
    rates.take(usage(1500, 150), 2100)
    rates.take(usage(3000, 50, agent="b"), 3000)
    assert rates.rule("us-east", "default/r", 3000) == (30.0, 0.0)


def test_a_silent_region_has_no_rate_rather_than_its_last_one() -> None:
    rates = fold(usage(1000, 100), usage(2000, 200))
    assert rates.rule("us-east", "default/r", 2000 + STALE_MS) == (100.0, 0.0)
    assert rates.rule("us-east", "default/r", 2001 + STALE_MS) is None
    assert rates.keys_of("us-east", 2001 + STALE_MS) == {}


def test_a_key_that_is_published_for_the_first_time_brings_no_burst_from_its_past() -> None:
    key = "rl:{a}:default/r:x"
    rates = fold(usage(1000, 1_000_000), usage(2000, 1_000_000, key=key))
    assert rates.keys_of("us-east", 2000) == {}
    rates.take(usage(3000, 1_000_050, key=key), 3000)
    assert rates.keys_of("us-east", 3000) == {key: (50.0, 0.0)}


def test_decisions_without_redis_and_at_the_floor_are_told_apart() -> None:
    before, after = usage(1000, 0), usage(3000, 0)
    before["totals"]["default/r"] = [10, 0, 10, 0, 2, 1]
    after["totals"]["default/r"] = [30, 0, 30, 0, 20, 15]
    assert fold(before, after).degraded("us-east", 3000) == (2.0, 7.0)


def test_an_agent_of_an_older_version_counts_no_floor() -> None:
    before, after = usage(1000, 0), usage(2000, 0)
    after["totals"]["default/r"] = [1, 0, 1, 0, 1]
    assert fold(before, after).degraded("us-east", 2000) == (1.0, 0.0)
