"""Decisions that other rate limiters were reported to get wrong: the same input, and the right answer.

Each test is named after the report.  What concerns the store, rules or the HTTP side is named likewise beside the
tests of those parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from regional_limiter.model.decision import Reason, Verdict
from regional_limiter.model.rule import Algorithm, Rate
from regional_limiter.store.base import BucketCall, Sharing
from tests.contract.points import Point

START_MS = 20_000 * 86_400_000
"""Midnight, so that every window of whole seconds, minutes and hours begins here."""


def bucket(capacity: int, tokens: int, period_ms: int, name: str = "bucket", key: str = "u") -> BucketCall:
    return BucketCall(
        f"rl:{{t}}:default/{name}:{key}", Algorithm.TOKEN_BUCKET, capacity, Rate(tokens, period_ms), None, 1
    )


def window(limit: int, seconds: int, name: str = "window", key: str = "u") -> BucketCall:
    return BucketCall(f"rl:{{t}}:default/{name}:{key}", Algorithm.FIXED_WINDOW, limit, None, seconds * 1000, 1)


def asked(
    point: Point, at_s: float, *calls: BucketCall, cost: int = 1, request: str | None = None
) -> list[Verdict]:
    now_us = (START_MS + round(at_s * 1000)) * 1000
    return point.check(now_us, [replace(call, cost=cost) for call in calls], request)


def said(point: Point, call: BucketCall, times_s: Sequence[float]) -> str:
    """A for every check that was allowed, D for every one that was denied."""
    return "".join("A" if asked(point, at_s, call)[0].allowed else "D" for at_s in times_s)


def test_uber_go_ratelimit_119_idle_time_is_no_credit_above_the_capacity(point: Point) -> None:
    call = bucket(2, 1, 1000)
    assert said(point, call, [0, 10, 10, 10, 10, 10]) == "AAADDD"
    assert asked(point, 10, call)[0].retry_after_ms == 1000


def test_redis_14826_a_huge_cost_is_refused_and_changes_nothing(point: Point) -> None:
    call = bucket(10, 1, 86_400_000)
    verdict = asked(point, 0, call, cost=200_000_000)[0]
    assert (verdict.allowed, verdict.reason, verdict.retry_after_ms) == (False, Reason.EXCEEDS_CAPACITY, None)
    assert asked(point, 0, call)[0].remaining == 9


@pytest.mark.parametrize("call", [bucket(0, 1, 1000), window(0, 60)])
def test_spring_cloud_gateway_168_and_new_api_1026_a_limit_of_zero_denies(point: Point, call: BucketCall) -> None:
    verdict = asked(point, 0, call)[0]
    assert (verdict.allowed, verdict.reason, verdict.retry_after_ms) == (False, Reason.ZERO_LIMIT, None)


def test_mailgun_gubernator_156_and_gkit_133_a_refund_never_lifts_a_bucket_above_its_capacity(point: Point) -> None:
    call = bucket(10, 1, 1000)
    assert asked(point, 0, call, cost=10)[0].allowed
    assert not asked(point, 0, call)[0].allowed
    for cost, left in ((5, 5), (50, 10)):
        point.refund(START_MS * 1000, [replace(call, cost=cost)])
        assert asked(point, 0, call, cost=0)[0].remaining == left


def test_long2ice_fastapi_limiter_41_two_routes_have_two_buckets(point: Point) -> None:
    assert said(point, window(5, 60, "route-a"), [0] * 5) == "AAAAA"
    assert asked(point, 0, window(5, 60, "route-b"))[0].remaining == 4


def test_envoyproxy_ratelimit_1060_what_one_rule_denied_is_not_charged_to_another(point: Point) -> None:
    user, site = window(1, 60, "user"), window(100, 60, "site")
    answers = [all(verdict.allowed for verdict in asked(point, 0, user, site)) for _ in range(50)]
    assert answers == [True] + [False] * 49
    assert asked(point, 0, site, cost=0)[0].remaining == 99


@pytest.mark.parametrize("kind", ["window", "bucket"])
def test_envoyproxy_ratelimit_185_a_raised_limit_keeps_what_was_used(point: Point, kind: str) -> None:
    old, new = (
        (window(10, 3600), window(20, 3600))
        if kind == "window"
        else (bucket(10, 1, 86_400_000), bucket(20, 1, 86_400_000))
    )
    assert said(point, old, [0] * 50) == "A" * 10 + "D" * 40
    assert said(point, new, [61] * 11) == "A" * 10 + "D"


@pytest.mark.parametrize("kind", ["window", "bucket"])
def test_alibaba_sentinel_1965_lowered_and_raised_again_gives_back_what_was_not_used(
    point: Point, kind: str
) -> None:
    def limit(number: int) -> BucketCall:
        return window(number, 60) if kind == "window" else bucket(number, 1, 86_400_000)

    assert said(point, limit(5), [0] * 5) == "AAAAA"
    assert said(point, limit(10), [0] * 6) == "AAAAAD"
    fresh = replace(limit(10), key="rl:{t}:default/rule:another")
    assert said(point, fresh, [0] * 5) == "AAAAA"
    assert asked(point, 0, replace(limit(3), key=fresh.key), cost=0)[0].remaining == 0
    assert asked(point, 0, fresh, cost=0)[0].remaining == 5


def test_envoyproxy_ratelimit_1077_a_denial_does_not_outlive_a_raised_limit(point: Point) -> None:
    assert said(point, window(1, 3600), [0, 0]) == "AD"
    assert asked(point, 0, window(100, 3600))[0].remaining == 98


def test_yiisoft_yii2_17237_the_fraction_of_a_token_is_kept(point: Point) -> None:
    assert said(point, bucket(1, 1, 10_000), [0, 5, 9, 10]) == "ADDA"


@pytest.mark.parametrize("call", [window(60, 60), bucket(60, 1, 1000)])
def test_kong_14995_every_key_has_an_end(point: Point, call: BucketCall) -> None:
    asked(point, 0, call)
    (ends_ms,) = (at_ms for _, at_ms in point.states(START_MS * 1000).values())
    assert 0 < ends_ms - START_MS <= 120_000


def test_laravel_framework_10600_remaining_counts_the_check_itself(point: Point) -> None:
    assert asked(point, 0, window(5, 60, "five"))[0].remaining == 4
    assert said(point, window(10, 60, "ten"), [0] * 11) == "A" * 10 + "D"


def test_spring_cloud_gateway_2453_a_wait_is_rounded_up(point: Point) -> None:
    call = bucket(1, 3, 1000)
    assert said(point, call, [0] * 10) == "A" + "D" * 9
    assert asked(point, 0, call)[0].retry_after_ms == 334
    assert asked(point, 0.333, call)[0].retry_after_ms == 1
    assert asked(point, 0.334, call)[0].allowed


def test_fastify_rate_limit_301_and_apisix_9964_the_wait_is_until_the_windows_end(point: Point) -> None:
    call = window(2, 60)
    assert said(point, call, [10, 10, 10]) == "AAD"
    assert asked(point, 10, call)[0].retry_after_ms == 50_000


def test_brandur_redis_cell_56_the_wait_named_is_the_wait_needed(point: Point) -> None:
    call = bucket(1, 2, 1000)
    assert said(point, call, [0, 0]) == "AD"
    assert asked(point, 0, call)[0].retry_after_ms == 500
    assert asked(point, 0.5, call)[0].allowed


def test_express_rate_limit_redis_251_a_request_that_comes_again_is_charged_once(point: Point) -> None:
    call = window(2, 60)
    allowed = [asked(point, 0, call, request=request)[0].allowed for request in ("r1", "r1", "r2", "r3")]
    assert allowed == [True, True, True, False]


def test_alisaifee_limits_14_a_count_and_its_end_are_written_in_one_step(point: Point) -> None:
    call = window(5, 60)
    asked(point, 0, call)
    (key, (_, ends_ms)) = next(iter(point.states(START_MS * 1000).items()))
    assert ends_ms > START_MS
    assert asked(point, 61, call)[0].remaining == 4
    assert key not in point.states((START_MS + 63_000) * 1000)


def test_better_auth_7161_a_peek_makes_nothing_and_a_window_that_is_over_is_gone(point: Point) -> None:
    for number in range(200):
        asked(point, 0, window(5, 1, key=f"u{number}"), cost=number % 2)
    assert len(point.states(START_MS * 1000)) == 100
    assert not point.states((START_MS + 10_000) * 1000)


def test_litellm_41221_a_static_split_holds_whatever_becomes_of_the_link(point: Point) -> None:
    """Two regions with half of four each: nothing that one does reaches the other."""

    def region(name: str) -> BucketCall:
        shared = window(4, 60, key=name)
        return replace(shared, sharing=Sharing.STATIC, regions=2, base=5000, largest_share=5000)

    assert said(point, region("a"), [0] * 3) == "AAD"
    assert said(point, region("b"), [0] * 2) == "AA"
    assert said(point, region("a"), [1] * 2) == "DD"
