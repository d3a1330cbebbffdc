"""Slots against a plain table of who holds how many until when."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regional_limiter.algorithms import concurrency
from regional_limiter.algorithms.registry import fixed_share
from regional_limiter.model.decision import Reason
from regional_limiter.model.rule import Algorithm
from regional_limiter.store.base import BucketCall
from tests.unit.one_bucket import OneBucket

NOW_MS = 20_000 * 86_400_000
LEASE_MS = 100

STEPS = st.lists(
    st.tuples(
        st.integers(0, 60), st.sampled_from("abcde"), st.integers(0, 4), st.sampled_from(["take", "take", "free"])
    ),
    min_size=1,
    max_size=60,
)
"""(ms that pass, holder, cost, what it does)."""


def call_of(capacity: int) -> BucketCall:
    return BucketCall("rl:{t}:d/r:u", Algorithm.CONCURRENCY, capacity, None, None, 1, lease_ms=LEASE_MS, holder="h")


@given(STEPS, st.integers(1, 8))
def test_slots_are_held_by_whom_took_them_for_a_lease_and_never_more_than_there_are(
    steps: list[tuple[int, str, int, str]], capacity: int
) -> None:
    bucket = OneBucket(call_of(capacity), NOW_MS)
    held: dict[str, tuple[int, int]] = {}
    for passed_ms, holder, cost, what in steps:
        bucket.now_ms += passed_ms
        held = {name: slots for name, slots in held.items() if bucket.now_ms < slots[1]}
        if what == "free":
            bucket.refund(cost, holder)
            if cost:
                held.pop(holder, None)
            assert bucket.check(0).remaining == capacity - sum(count for count, _ in held.values())
            continue
        used = sum(count for count, _ in held.values())
        wants = max(cost, held.get(holder, (0, 0))[0])
        missing = wants - held.get(holder, (0, 0))[0]
        verdict = bucket.check(cost, holder)
        assert verdict.allowed == (cost <= capacity and used + missing <= capacity)
        if verdict.allowed and cost:
            held[holder] = (wants, bucket.now_ms + LEASE_MS)
            used += missing
        assert verdict.remaining == capacity - used
        assert used <= capacity
        latest_ms = max((end_ms for _, end_ms in held.values()), default=bucket.now_ms)
        assert verdict.reset_after_ms == latest_ms - bucket.now_ms


@given(STEPS, st.integers(1, 8), st.sampled_from("abz"), st.integers(1, 8), st.integers(0, 3))
def test_the_wait_named_is_enough_and_not_a_millisecond_too_long(
    steps: list[tuple[int, str, int, str]], capacity: int, holder: str, cost: int, fewer: int
) -> None:
    bucket = OneBucket(call_of(capacity), NOW_MS)
    for passed_ms, name, units, _ in steps:
        bucket.now_ms += passed_ms
        bucket.check(units, name)
    bucket.call = replace(bucket.call, capacity=capacity - min(fewer, capacity - 1))
    verdict = bucket.at(bucket.now_ms).check(cost, holder)
    if verdict.reason is not Reason.LIMITED:
        return
    wait_ms = verdict.retry_after_ms
    assert wait_ms is not None
    assert 1 <= wait_ms <= LEASE_MS
    assert bucket.at(bucket.now_ms + wait_ms).check(cost, holder).allowed
    assert not bucket.at(bucket.now_ms + wait_ms - 1).check(cost, holder).allowed or wait_ms == 1


@given(STEPS, st.integers(1, 8), st.integers(0, 5000))
def test_a_clock_that_steps_back_ends_no_lease(
    steps: list[tuple[int, str, int, str]], capacity: int, back_ms: int
) -> None:
    bucket = OneBucket(call_of(capacity), NOW_MS)
    for passed_ms, holder, cost, _ in steps:
        bucket.now_ms += passed_ms
        bucket.check(cost, holder)
    left = bucket.check(0).remaining
    bucket.now_ms -= back_ms
    verdict = bucket.check(0)
    assert verdict.remaining <= left
    assert verdict.reset_after_ms <= LEASE_MS + 2000


def test_a_dead_fleet_is_trimmed_a_hundred_at_a_time_and_counts_for_nothing_meanwhile() -> None:
    bucket = OneBucket(call_of(300), NOW_MS)
    for number in range(250):
        assert bucket.check(1, f"dead {number}").allowed
    bucket.now_ms += LEASE_MS - 1
    assert bucket.check(1, "keeper").remaining == 49
    bucket.now_ms += 1
    lengths = []
    for number in range(4):
        assert bucket.check(1, f"new {number}").remaining == 298 - number
        assert bucket.state is not None
        lengths.append((len(bucket.state) - 6) // 19)
    assert lengths == [152, 53, 4, 5]


def test_who_takes_must_say_who_it_is_and_for_how_long() -> None:
    for wrong in (replace(call_of(1), holder=""), replace(call_of(1), lease_ms=None)):
        with pytest.raises(ValueError):
            concurrency.numbers(wrong, NOW_MS)
        with pytest.raises(ValueError):
            concurrency.decide(None, wrong, fixed_share(wrong), NOW_MS)
    assert concurrency.numbers(replace(call_of(1), cost=0, holder=""), NOW_MS) == (LEASE_MS,)
