"""Properties of the bucket over random numbers, shares and times."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from regional_limiter.algorithms.bucket_state import pack, unpack
from regional_limiter.algorithms.registry import fixed_share, functions_of
from regional_limiter.algorithms.token_bucket import decide, fits_exactly, give_back
from regional_limiter.model.decision import Reason, ShareKind
from regional_limiter.model.enforcement import ShareInForce
from regional_limiter.model.rule import Algorithm, Rate
from regional_limiter.model.share import region_capacity
from regional_limiter.store.base import BucketCall, Sharing
from tests.unit.test_bucket_state import NOW_MS, buckets

ADAPTIVE = BucketCall(
    "rl:{t}:d/r:u",
    Algorithm.TOKEN_BUCKET,
    60,
    Rate(3, 100),
    None,
    1,
    sharing=Sharing.ADAPTIVE,
    regions=3,
    domain="d",
)


def share_since(share: int, ago_us: int, before: int, before_ago_us: int) -> ShareInForce:
    now_us = NOW_MS * 1000
    return ShareInForce(share, ShareKind.LEASE, now_us - ago_us, before, now_us - max(ago_us, before_ago_us), 0, 0)


SHARES = st.builds(
    share_since, st.integers(0, 10_000), st.integers(0, 10**8), st.integers(0, 10_000), st.integers(0, 10**8)
)


@st.composite
def calls(draw: st.DrawFn) -> BucketCall:
    capacity, rate = draw(st.integers(0, 10**6)), Rate(draw(st.integers(1, 10**4)), draw(st.integers(1, 10**5)))
    assume(fits_exactly(capacity, rate))
    return replace(
        ADAPTIVE,
        capacity=capacity,
        refill=rate,
        cost=draw(st.integers(0, 9) | st.integers(0, capacity + 1)),
        sharing=draw(st.sampled_from(Sharing)),
        base=draw(st.integers(0, 10_000)),
        charge_denied=draw(st.booleans()),
    )


@given(st.none() | buckets().map(pack), calls(), SHARES)
def test_whatever_the_state_the_answer_is_in_range(
    state: bytes | None, call: BucketCall, moving: ShareInForce
) -> None:
    share = moving if call.sharing is Sharing.ADAPTIVE else fixed_share(call)
    outcome = decide(state, call, share, NOW_MS)
    top = region_capacity(call.capacity, share.share, call.regions)
    for ending in (outcome.charged, outcome.left):
        verdict = ending.verdict
        assert verdict.allowed == outcome.allowed
        assert 0 <= verdict.remaining <= top
        assert verdict.reset_after_ms >= 0
        if verdict.allowed:
            assert verdict.retry_after_ms == 0
        else:
            assert (verdict.retry_after_ms is None) == (verdict.reason is not Reason.LIMITED)
            assert verdict.retry_after_ms is None or verdict.retry_after_ms >= 1
        if ending.state is not None:
            assert ending.ttl_ms >= 1
            assert call.cost > 0
    if call.cost == 0:
        assert outcome.allowed == (call.capacity > 0)


@given(st.none() | buckets().map(pack), calls(), SHARES, st.integers(0, 10_000))
def test_a_denied_check_changes_nothing_that_any_later_one_could_see(
    state: bytes | None, call: BucketCall, moving: ShareInForce, later_ms: int
) -> None:
    share = moving if call.sharing is Sharing.ADAPTIVE else fixed_share(call)
    outcome = decide(state, replace(call, charge_denied=False), share, NOW_MS)
    left = outcome.left.state
    if left is None:
        return
    peek = replace(call, cost=0)
    seen = decide(left, peek, share, NOW_MS + later_ms).left.verdict
    expected = decide(state, peek, share, NOW_MS + later_ms).left.verdict
    known = unpack(state, NOW_MS) if state else None
    stepped = known is not None and known.time_ms > NOW_MS
    slower = known is not None and call.sharing is not Sharing.ADAPTIVE and known.share != share.share
    if not stepped and not slower:  # those two are the moments that must be remembered
        assert seen == expected


@given(calls(), SHARES)
def test_the_wait_named_is_enough_and_not_a_millisecond_too_long(call: BucketCall, moving: ShareInForce) -> None:
    share = moving if call.sharing is Sharing.ADAPTIVE else fixed_share(call)
    state: bytes | None = None
    call = replace(call, charge_denied=False)
    for _ in range(4):
        outcome = decide(state, call, share, NOW_MS)
        state = outcome.charged.state if outcome.allowed else state
    verdict = outcome.left.verdict
    top = region_capacity(call.capacity, share.share, call.regions)
    if outcome.allowed or verdict.reason is not Reason.LIMITED or call.cost > top:
        return
    assert verdict.retry_after_ms is not None
    assert decide(state, call, share, NOW_MS + verdict.retry_after_ms).allowed
    assert not decide(state, call, share, NOW_MS + verdict.retry_after_ms - 1).allowed


@given(buckets().map(pack), calls(), SHARES)
def test_a_refund_stays_within_capacity_and_gives_no_more_than_asked(
    state: bytes, call: BucketCall, moving: ShareInForce
) -> None:
    share = moving if call.sharing is Sharing.ADAPTIVE else fixed_share(call)
    before = decide(state, replace(call, cost=0), share, NOW_MS).left.verdict
    ending = give_back(state, call, share, NOW_MS)
    if ending is not None:
        assert ending.ttl_ms >= 1
        top = region_capacity(call.capacity, share.share, call.regions)
        assert before.remaining <= ending.verdict.remaining <= min(top, before.remaining + call.cost)


def test_a_missing_adaptive_bucket_holds_what_its_share_earned_and_at_least_one_token() -> None:
    peek = replace(ADAPTIVE, cost=0)
    for ago_us, remaining in ((0, 1), (100_000, 1), (1_000_000, 15), (10**9, 29)):
        share = share_since(5000, ago_us, 9000, ago_us)
        assert decide(None, peek, share, NOW_MS).left.verdict.remaining == remaining
    assert decide(None, peek, share_since(0, 10**9, 0, 10**9), NOW_MS).left.verdict.remaining == 0


def test_a_bucket_older_than_the_known_shares_keeps_one_token_at_most() -> None:
    full = decide(None, ADAPTIVE, share_since(10_000, 10**9, 10_000, 10**9), NOW_MS).charged.state
    share = share_since(5000, 0, 9000, 0)
    later = replace(share, since_us=(NOW_MS + 10) * 1000, before_since_us=(NOW_MS + 10) * 1000)
    assert decide(full, replace(ADAPTIVE, cost=0), later, NOW_MS + 10).left.verdict.remaining == 1


def test_a_share_counts_from_the_next_millisecond_when_it_rises_and_from_the_last_when_it_falls() -> None:
    call = replace(ADAPTIVE, capacity=1000, refill=Rate(10, 1))
    empty = decide(None, replace(call, cost=2), share_since(1, 10**9, 1, 10**9), NOW_MS).left
    assert empty.state is None
    spent = decide(None, replace(call, cost=998), share_since(10_000, 10**9, 10_000, 10**9), NOW_MS).charged.state
    middle_us = NOW_MS * 1000 + 500
    rose = ShareInForce(10_000, ShareKind.LEASE, middle_us, 5000, 0, 0, 0)
    fell = ShareInForce(5000, ShareKind.LEASE, middle_us, 10_000, 0, 0, 0)
    peek = replace(call, cost=0)
    assert decide(spent, peek, rose, NOW_MS + 2).left.verdict.remaining == 5 + 10
    assert decide(spent, peek, fell, NOW_MS + 2).left.verdict.remaining == 5 + 5


def test_a_cost_that_only_a_larger_share_can_hold_waits_for_it() -> None:
    share = share_since(3333, 10**9, 3333, 10**9)
    verdict = decide(None, replace(ADAPTIVE, cost=30), share, NOW_MS).left.verdict
    assert (verdict.reason, verdict.retry_after_ms) == (Reason.LIMITED, 1000)
    verdict = decide(None, replace(ADAPTIVE, cost=60, largest_share=9800), share, NOW_MS).left.verdict
    assert (verdict.reason, verdict.retry_after_ms) == (Reason.EXCEEDS_CAPACITY, None)


def test_an_unreadable_state_counts_as_empty() -> None:
    call = replace(ADAPTIVE, sharing=Sharing.WHOLE, regions=1)
    verdict = decide(b"\x00garbage", call, fixed_share(call), NOW_MS).left.verdict
    assert (verdict.allowed, verdict.remaining, verdict.retry_after_ms) == (False, 0, 34)


def test_a_sliding_window_cannot_follow_a_moving_share() -> None:
    with pytest.raises(ValueError, match="adaptive"):
        functions_of(replace(ADAPTIVE, algorithm=Algorithm.SLIDING_WINDOW_LOG, window_ms=1000, refill=None))
