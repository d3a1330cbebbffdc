"""A queue's turns: even, within a full bucket's time, and the same decisions as a meter's."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from regional_limiter.algorithms import leaky_bucket, token_bucket
from regional_limiter.algorithms.registry import fixed_share
from regional_limiter.model.decision import ShareKind
from regional_limiter.model.enforcement import ShareInForce
from regional_limiter.model.rule import Algorithm, Rate
from regional_limiter.store.base import BucketCall, Sharing

START_MS = 20_000 * 86_400_000
QUEUE = BucketCall("rl:{t}:d/r:u", Algorithm.LEAKY_BUCKET, 10, Rate(1, 100), None, 1, queue=True)


@given(
    st.integers(1, 50),
    st.builds(Rate, st.integers(1, 20), st.integers(1, 500)),
    st.lists(st.tuples(st.integers(0, 400), st.integers(1, 5)), max_size=40),
)
def test_turns_follow_one_another_at_the_rate_of_the_leak(
    capacity: int, leak: Rate, arrivals: list[tuple[int, int]]
) -> None:
    call = replace(QUEUE, capacity=capacity, refill=leak)
    state, now_ms, free_at = None, START_MS, Fraction(START_MS)
    for after_ms, cost in arrivals:
        now_ms += after_ms
        outcome = leaky_bucket.decide(state, replace(call, cost=cost), fixed_share(call), now_ms)
        meter = token_bucket.decide(state, replace(call, cost=cost), fixed_share(call), now_ms)
        assert outcome.allowed == meter.allowed
        if not outcome.allowed:
            assert outcome.left.verdict.wait_ms == 0
            continue
        state, wait_ms = outcome.charged.state, outcome.charged.verdict.wait_ms
        turn = max(free_at, Fraction(now_ms))
        assert 0 <= now_ms + wait_ms - turn < 1  # rounded up, and no rounding is carried on
        assert wait_ms <= -(-capacity * leak.period_ms // leak.tokens)
        free_at = turn + Fraction(cost * leak.period_ms, leak.tokens)


@given(st.integers(0, 10_000), st.integers(0, 10_000), st.integers(0, 10**7), st.integers(0, 12))
def test_while_a_share_moves_a_turn_is_never_later_than_a_full_bucket_takes(
    share: int, before: int, ago_us: int, cost: int
) -> None:
    since_us = START_MS * 1000 - ago_us
    moving = ShareInForce(share, ShareKind.LEASE, since_us, before, since_us - 10**6, 0, 0)
    call = replace(QUEUE, sharing=Sharing.ADAPTIVE, regions=3, domain="d", cost=cost)
    state = None
    for _ in range(5):
        outcome = leaky_bucket.decide(state, call, moving, START_MS)
        ending = outcome.charged if outcome.allowed else outcome.left
        state = ending.state or state
        if share:
            assert 0 <= ending.verdict.wait_ms <= -(-10 * 100 * 10_000 // share) + 1
    assert outcome.allowed or ending.verdict.wait_ms == 0


def test_a_meter_names_no_turn() -> None:
    meter = replace(QUEUE, queue=False, cost=5)
    state = leaky_bucket.decide(None, meter, fixed_share(meter), START_MS).charged.state
    outcome = leaky_bucket.decide(state, meter, fixed_share(meter), START_MS)
    assert (outcome.allowed, outcome.charged.verdict.wait_ms) == (True, 0)
