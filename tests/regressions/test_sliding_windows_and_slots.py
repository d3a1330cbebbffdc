"""Faults that other limiters were reported for: sliding windows and slots, in Python and in Redis."""

from __future__ import annotations

import pytest

from regional_limiter.model.rule import Algorithm, Rate
from regional_limiter.store.base import BucketCall
from tests.contract.points import Point

START_US = 20_000 * 86_400_000_000
KEY = "rl:{tag}:default/rule:u"
COUNTED = [Algorithm.FIXED_WINDOW, Algorithm.SLIDING_WINDOW_COUNTER, Algorithm.SLIDING_WINDOW_LOG]


def call_of(algorithm: Algorithm, limit: int, span_ms: int, holder: str = "a") -> BucketCall:
    buckets = (Algorithm.TOKEN_BUCKET, Algorithm.GCRA, Algorithm.LEAKY_BUCKET)
    return BucketCall(
        KEY,
        algorithm,
        limit,
        Rate(limit, span_ms) if algorithm in buckets else None,
        None if algorithm in buckets or algorithm is Algorithm.CONCURRENCY else span_ms,
        1,
        lease_ms=span_ms if algorithm is Algorithm.CONCURRENCY else None,
        holder=holder,
    )


def allowed(point: Point, at_s: float, call: BucketCall) -> bool:
    return point.check(START_US + round(at_s * 1_000_000), [call])[0].allowed


@pytest.mark.parametrize("algorithm", Algorithm)
def test_kong_14995_every_key_has_an_end_within_two_windows(point: Point, algorithm: Algorithm) -> None:
    assert allowed(point, 0, call_of(algorithm, 60, 60_000))
    ends = [ends_ms - START_US // 1000 for _, ends_ms in point.states(START_US).values()]
    assert len(ends) == 1
    assert 0 < ends[0] <= 120_000


@pytest.mark.parametrize("algorithm", Algorithm)
def test_spring_cloud_gateway_168_limit_0_denies_whatever_the_kind(point: Point, algorithm: Algorithm) -> None:
    call = BucketCall(KEY, algorithm, 0, Rate(1, 1000), 60_000, 1, lease_ms=60_000, holder="a")
    (verdict,) = point.check(START_US, [call])
    assert (verdict.allowed, verdict.reason, verdict.retry_after_ms) == (False, "zero_limit", None)
    assert point.states(START_US) == {}


def test_apache_shenyu_6754_what_left_the_window_no_longer_counts(point: Point) -> None:
    call = call_of(Algorithm.SLIDING_WINDOW_LOG, 2, 10_000)
    assert [allowed(point, at_s, call) for at_s in (0, 0, 10.001)] == [True, True, True]


def test_apache_apisix_12823_a_killed_nodes_slots_come_back_and_two_releases_free_one(point: Point) -> None:
    slots = [call_of(Algorithm.CONCURRENCY, 2, 30_000, holder) for holder in "abcd"]
    assert [allowed(point, 0, slots[0]), allowed(point, 0, slots[1])] == [True, True]
    assert [allowed(point, 31, slot) for slot in slots[2:]] == [True, True]
    for _ in range(2):
        point.refund(START_US + 32_000_000, [slots[2]])
    assert [allowed(point, 32, slots[0]), allowed(point, 32, slots[1])] == [True, False]


@pytest.mark.parametrize("algorithm", COUNTED)
def test_envoyproxy_ratelimit_185_a_raised_limit_keeps_what_was_used(point: Point, algorithm: Algorithm) -> None:
    before, after = call_of(algorithm, 10, 3_600_000), call_of(algorithm, 20, 3_600_000)
    assert sum(allowed(point, 0, before) for _ in range(50)) == 10
    assert [allowed(point, 61, after) for _ in range(11)] == [True] * 10 + [False]


@pytest.mark.parametrize("algorithm", COUNTED)
def test_alibaba_sentinel_1965_a_lowered_limit_that_is_raised_again_counts_on(
    point: Point, algorithm: Algorithm
) -> None:
    for _ in range(5):
        assert allowed(point, 0, call_of(algorithm, 10, 60_000))
    left = [point.check(START_US, [call_of(algorithm, limit, 60_000)])[0].remaining for limit in (3, 10)]
    assert left == [0, 4]


@pytest.mark.parametrize("algorithm", COUNTED)
def test_laravel_framework_10600_neither_one_too_few_nor_one_too_many(point: Point, algorithm: Algorithm) -> None:
    call = call_of(algorithm, 10, 60_000)
    assert point.check(START_US, [call])[0].remaining == 9
    assert [allowed(point, 0, call) for _ in range(10)] == [True] * 9 + [False]


@pytest.mark.parametrize("algorithm", COUNTED)
def test_express_rate_limit_251_a_request_whose_answer_was_lost_is_charged_once(
    point: Point, algorithm: Algorithm
) -> None:
    call = call_of(algorithm, 2, 60_000)
    said = [point.check(START_US, [call], request)[0].allowed for request in ("r1", "r1", "r2", "r3")]
    assert said == [True, True, True, False]
