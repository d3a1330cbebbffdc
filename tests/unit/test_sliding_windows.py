"""Both sliding windows against what their definitions say, in fractions and plain lists."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regional_limiter.algorithms.sliding_window_log import entries_most, memory_bytes_most
from regional_limiter.model.decision import Reason
from regional_limiter.model.rule import Algorithm
from regional_limiter.store.base import BucketCall
from tests.unit.one_bucket import OneBucket

NOW_MS = 20_000 * 86_400_000
BOTH = [Algorithm.SLIDING_WINDOW_COUNTER, Algorithm.SLIDING_WINDOW_LOG]
COUNTER, LOG = BOTH

STEPS = st.lists(st.tuples(st.integers(0, 400), st.integers(0, 4)), min_size=1, max_size=60)
"""(ms that pass, cost)."""


def call_of(algorithm: Algorithm, capacity: int, window_ms: int) -> BucketCall:
    return BucketCall("rl:{t}:d/r:u", algorithm, capacity, None, window_ms, 1)


@given(STEPS, st.integers(1, 12), st.integers(1, 1000), st.integers(0, 999))
def test_the_counter_is_previous_times_what_has_not_elapsed_plus_current(
    steps: list[tuple[int, int]], capacity: int, window_ms: int, offset_ms: int
) -> None:
    bucket = OneBucket(call_of(COUNTER, capacity, window_ms), NOW_MS + offset_ms)
    counts: dict[int, int] = {}
    for passed_ms, cost in steps:
        bucket.now_ms += passed_ms
        number, elapsed_ms = divmod(bucket.now_ms, window_ms)
        used = counts.get(number - 1, 0) * (1 - Fraction(elapsed_ms, window_ms)) + counts.get(number, 0)
        fits = used + cost <= capacity
        verdict = bucket.check(cost)
        if cost <= capacity:
            assert verdict.allowed == (fits or cost == 0)
        if verdict.allowed and cost:
            counts[number] = counts.get(number, 0) + cost
            used += cost
        assert verdict.remaining == max(0, (capacity - used).__floor__())
    assert max(counts.values(), default=0) <= capacity


@given(STEPS, st.integers(1, 12), st.integers(1, 1000))
def test_the_log_counts_what_was_charged_in_the_window_and_nothing_else(
    steps: list[tuple[int, int]], capacity: int, window_ms: int
) -> None:
    bucket = OneBucket(call_of(LOG, capacity, window_ms), NOW_MS)
    charged: list[tuple[int, int]] = []
    for passed_ms, cost in steps:
        bucket.now_ms += passed_ms
        used = sum(units for at_ms, units in charged if bucket.now_ms - at_ms < window_ms)
        verdict = bucket.check(cost)
        assert verdict.allowed == (cost <= capacity and (used + cost <= capacity or cost == 0))
        if verdict.allowed and cost:
            charged.append((bucket.now_ms, cost))
            used += cost
        assert verdict.remaining == capacity - used
        assert bucket.state is None or len(bucket.state) <= 12 * entries_most(capacity, window_ms)


@pytest.mark.parametrize("algorithm", BOTH)
@given(
    steps=STEPS,
    capacity=st.integers(1, 12),
    window_ms=st.integers(1, 1000),
    cost=st.integers(1, 12),
    back=st.booleans(),
)
def test_the_wait_named_is_enough_and_not_a_millisecond_too_long(
    algorithm: Algorithm, steps: list[tuple[int, int]], capacity: int, window_ms: int, cost: int, back: bool
) -> None:
    bucket = OneBucket(call_of(algorithm, capacity, window_ms), NOW_MS)
    for passed_ms, units in steps:
        bucket.now_ms += passed_ms
        bucket.check(units)
    if back:  # by so little that the bucket waits for its clock
        bucket.now_ms -= 700
    verdict = bucket.at(bucket.now_ms).check(cost)
    if verdict.reason is Reason.LIMITED:
        wait_ms = verdict.retry_after_ms
        assert wait_ms is not None
        assert 1 <= wait_ms <= 2 * window_ms + 700
        assert bucket.at(bucket.now_ms + wait_ms).check(cost).allowed
        # A key that may not live longer than two windows forgets early what a clock that stands still held on to.
        if wait_ms > 1 and not back:
            assert not bucket.at(bucket.now_ms + wait_ms - 1).check(cost).allowed
    reset_ms = bucket.check(0).reset_after_ms
    assert bucket.at(bucket.now_ms + reset_ms).check(0).remaining == capacity
    if reset_ms > 1 and not back:
        assert bucket.at(bucket.now_ms + reset_ms - 1).check(0).remaining < capacity


@pytest.mark.parametrize("algorithm", BOTH)
@given(steps=STEPS, capacity=st.integers(0, 12), window_ms=st.integers(1, 1000), cost=st.integers(1, 20))
def test_a_denied_check_and_a_peek_change_nothing(
    algorithm: Algorithm, steps: list[tuple[int, int]], capacity: int, window_ms: int, cost: int
) -> None:
    bucket = OneBucket(call_of(algorithm, capacity, window_ms), NOW_MS)
    for passed_ms, units in steps:
        bucket.now_ms += passed_ms
        bucket.check(units)
    before = bucket.state
    assert bucket.check(0).allowed == (capacity > 0)
    denied = [verdict for _ in range(3) if not (verdict := bucket.at(bucket.now_ms).check(cost)).allowed]
    if denied:
        bucket.check(cost)
    assert bucket.state == before


@pytest.mark.parametrize("algorithm", BOTH)
@given(
    steps=STEPS,
    back_ms=st.integers(0, 5000),
    longer=st.integers(1, 1000),
    capacity=st.integers(0, 12),
)
def test_a_clock_that_steps_back_and_a_changed_rule_forgive_nothing_that_still_counts(
    algorithm: Algorithm, steps: list[tuple[int, int]], back_ms: int, longer: int, capacity: int
) -> None:
    bucket = OneBucket(call_of(algorithm, 12, 1000), NOW_MS)
    for passed_ms, units in steps:
        bucket.now_ms += passed_ms
        bucket.check(units)
    used = 12 - bucket.check(0).remaining
    bucket.now_ms -= back_ms
    bucket.call = replace(bucket.call, capacity=capacity, window_ms=1000 + longer)
    assert bucket.check(0).remaining <= max(0, capacity - used)


@pytest.mark.parametrize("algorithm", BOTH)
def test_a_charged_denial_is_bounded_by_twice_the_limit(algorithm: Algorithm) -> None:
    bucket = OneBucket(replace(call_of(algorithm, 5, 1000), charge_denied=True), NOW_MS)
    for _ in range(50):
        bucket.check(3)
        bucket.now_ms += 1
    bucket.call = replace(bucket.call, capacity=20)
    assert bucket.check(0).remaining == 10
    assert bucket.state is not None
    assert len(bucket.state) <= 12 * (2 * entries_most(5, 1000))


def test_a_log_that_was_full_is_trimmed_a_hundred_at_a_time_and_decides_right_meanwhile() -> None:
    bucket = OneBucket(call_of(LOG, 1001, 10_000), NOW_MS)
    for _ in range(1000):
        assert bucket.check().allowed
        bucket.now_ms += 1
    bucket.now_ms = NOW_MS + 9_999
    assert bucket.check().remaining == 0
    bucket.now_ms = NOW_MS + 10_998
    lengths = []
    for used in range(1, 12):
        bucket.now_ms += 1
        assert bucket.check().remaining == 1000 - used
        assert bucket.state is not None
        lengths.append(len(bucket.state) // 12 - 1)
    assert lengths == [902, 803, 704, 605, 506, 407, 308, 209, 110, 11, 12]


def test_the_memory_of_a_log_is_bounded_by_its_units_and_by_its_milliseconds() -> None:
    assert entries_most(100, 60_000) == 101
    assert entries_most(10**9, 1000) == 1001
    assert memory_bytes_most(100, 60_000) < 2000
