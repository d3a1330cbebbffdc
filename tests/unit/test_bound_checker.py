"""The end-to-end tests stand on this checker: it must see an excess, and must not cry wolf."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from global_sync.simulation.bound import BoundChecker
from regional_limiter.model.rule import Rate
from tests.e2e.bound import rate_between, worst_excess


def at(*moments: float) -> list[tuple[float, float]]:
    return [(moment, moment + 0.001) for moment in moments]


def test_a_burst_and_its_refill_keep_the_bound() -> None:
    burst = [0.0] * 20
    refill = [n / 100 for n in range(1, 300)]
    assert worst_excess(at(*burst, *refill), burst=20, rate=100) <= 0


def test_one_request_too_many_is_seen() -> None:
    assert worst_excess(at(*[5.0] * 23), burst=20, rate=100) > 2


def test_an_excess_late_in_a_long_run_is_seen() -> None:
    steady = [n / 100 for n in range(1000)]
    assert worst_excess(at(*steady, *[7.0] * 25), burst=20, rate=100) > 4


def test_twice_the_rate_is_seen_even_when_the_burst_is_not_used() -> None:
    assert worst_excess(at(*(n / 200 for n in range(400))), burst=20, rate=100) > 100


def test_slow_answers_are_no_excess() -> None:
    checks = [(n / 100, 10.0) for n in range(1000)]  # a pause, then all answers at once
    assert worst_excess(checks, burst=20, rate=100) <= 0


def test_rate_counts_answers_in_the_window_only() -> None:
    assert rate_between(at(0.5, 1.5, 1.6, 2.5), start=1, end=2) == pytest.approx(2)


@given(st.lists(st.tuples(st.integers(0, 200_000), st.integers(0, 40_000), st.integers(0, 40_000)), min_size=1))
def test_it_says_what_the_checker_of_the_simulated_world_says(steps: list[tuple[int, int, int]]) -> None:
    """The same number where the moments are known; never more where only a time around each is."""
    at_us, exact, around, checker = 0, [], [], BoundChecker(20, Rate(100, 1000))
    for passed_us, sent_before_us, answered_after_us in steps:
        at_us += passed_us
        checker.admit(at_us, 1)
        exact.append((at_us / 1e6, at_us / 1e6))
        around.append(((at_us - sent_before_us) / 1e6, (at_us + answered_after_us) / 1e6))
    assert worst_excess(exact, burst=20, rate=100) == pytest.approx(checker.worst, abs=1e-3)
    assert worst_excess(around, burst=20, rate=100) <= checker.worst + 1e-3
