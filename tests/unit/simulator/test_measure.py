"""What is counted is what was meant: excess against every interval at once, vain denials, convergence, fairness."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.simulator.measure import Convergence, Counts, jain, percentile


@given(st.lists(st.tuples(st.integers(0, 300), st.integers(0, 12)), min_size=1, max_size=40))
def test_excess_is_the_worst_interval_of_all(steps: list[tuple[int, int]]) -> None:
    rate, capacity = 10.0, 5
    counts, at_s = Counts(rate, capacity, by_region=[0]), 0.0
    admitted: list[tuple[float, int]] = []
    for wait_ms, number in steps:
        at_s += wait_ms / 1000
        counts.tick(at_s)
        for _ in range(number):
            counts.count(0, True, False, True)
        admitted.append((at_s, number))
    worst = 0.0
    for first in range(len(admitted)):
        total = 0
        for at, number in admitted[first:]:
            total += number
            worst = max(worst, total - capacity - rate * (at - admitted[first][0]))
    assert counts.excess == pytest.approx(worst, abs=1e-5)


def test_only_what_one_bucket_would_have_allowed_is_denied_in_vain() -> None:
    counts = Counts(10.0, 5, by_region=[0])
    for allowed, is_low, ideal in [
        (True, True, True),
        (False, True, True),
        (False, True, False),
        (False, False, True),
    ]:
        counts.count(0, allowed, is_low, ideal)
    assert counts.false_rejects == pytest.approx(1 / 3)


def test_convergence_begins_with_a_jump_and_ends_when_everyone_who_gains_has_it() -> None:
    watch = Convergence([5000, 5000], 100.0)
    watch.tick(0.0, [10, 10], [5000, 5000])
    watch.tick(1.0, [95, 5], [5000, 5000])
    watch.tick(1.3, [95, 5], [8900, 500])
    watch.tick(1.4, [95, 5], [9100, 500])
    assert watch.times_s == [pytest.approx(0.4)]
    watch.tick(2.0, [5, 95], [9100, 500])
    watch.tick(2.5, [95, 5], [500, 9100])
    assert watch.unfinished == 1


@pytest.mark.parametrize(("values", "right"), [([1, 1, 1], 1.0), ([1, 0, 0, 0], 0.25), ([], 1.0), ([0, 0], 1.0)])
def test_jain(values: list[float], right: float) -> None:
    assert jain(values) == pytest.approx(right)


def test_percentiles_of_few() -> None:
    assert percentile([], 0.5) == 0
    assert percentile([3, 1, 2], 0.5) == 2
    assert percentile(list(range(100)), 0.99) == 99
