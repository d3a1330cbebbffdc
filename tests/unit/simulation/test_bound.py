"""The checker of admitted tokens must see an excess in any interval, and must not cry wolf."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from global_sync.simulation.bound import BoundChecker
from regional_limiter.model.rule import Rate

RATE = Rate(100, 1000)
MS = 1000


def checked(*admissions: tuple[int, int], capacity: int = 20) -> BoundChecker:
    checker = BoundChecker(capacity, RATE)
    for at_us, cost in admissions:
        checker.admit(at_us, cost)
    return checker


def test_a_burst_and_its_refill_keep_the_bound() -> None:
    assert checked((0, 20), *((n * 10 * MS, 1) for n in range(1, 300))).worst <= 0


def test_one_token_too_many_is_seen_and_when() -> None:
    checker = checked((0, 5), (10_000 * MS, 21), (20_000 * MS, 5))
    assert 0.9 < checker.worst <= 1
    assert checker.worst_at_us == 10_000 * MS


def test_an_excess_that_builds_up_slowly_is_seen() -> None:
    assert checked(*((n * 9 * MS, 1) for n in range(1000))).worst > 60


def test_what_is_allowed_for_an_event_counts_only_around_it() -> None:
    checker = BoundChecker(20, RATE)
    checker.admit(0, 20)
    checker.allow(0, 7)
    checker.admit(0, 7)
    assert checker.worst <= 0
    checker.admit(1_000_000 * MS, 21)
    assert checker.worst > 0


def test_time_that_goes_back_is_refused() -> None:
    with pytest.raises(ValueError, match="comes after"):
        checked((5, 1), (4, 1))


@given(st.lists(st.tuples(st.integers(0, 200_000), st.integers(1, 30)), min_size=1, max_size=30))
def test_it_finds_what_looking_at_every_interval_finds(steps: list[tuple[int, int]]) -> None:
    at_us, admissions = 0, []
    for passed_us, cost in steps:
        at_us += passed_us
        admissions.append((at_us, cost))
    worst = max(
        sum(cost for _, cost in admissions[first : last + 1])
        - 20
        - 0.1 * 1.001 * (admissions[last][0] - admissions[first][0]) / MS
        for first in range(len(admissions))
        for last in range(first, len(admissions))
    )
    assert checked(*admissions).worst == pytest.approx(worst, abs=1e-6)
