"""Split keys over Python's buckets and over Redis's: the same answers, and together never more than the limit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import Any
from zlib import crc32

import pytest

from regional_limiter.model.decision import Reason
from regional_limiter.model.errors import StoreUnavailable
from regional_limiter.model.rule import Algorithm, Rate
from regional_limiter.model.share import ProtocolTimes
from regional_limiter.store.base import BucketCall, ReturnedLease
from regional_limiter.sub_buckets import part_of, sub_call, sub_key
from tests.contract.points import PythonPoint, RedisPoint, told
from tests.contract.redis_server import RedisServer
from tests.contract.split_point import SplitPoint

START_US = 20_000 * 86_400_000_000
TIMES = ProtocolTimes()
KINDS = (
    Algorithm.TOKEN_BUCKET,
    Algorithm.GCRA,
    Algorithm.LEAKY_BUCKET,
    Algorithm.FIXED_WINDOW,
    Algorithm.SLIDING_WINDOW_COUNTER,
    Algorithm.SLIDING_WINDOW_LOG,
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("redis")) as running:
        yield running


def call_of(kind: Algorithm, capacity: int, split: int, per_s: int = 2) -> BucketCall:
    buckets = kind in (Algorithm.TOKEN_BUCKET, Algorithm.GCRA, Algorithm.LEAKY_BUCKET)
    refill, window_ms = (Rate(per_s, 1000), None) if buckets else (None, 10_000)
    return BucketCall("rl:{tag}:default/r:u", kind, capacity, refill, window_ms, 1, split=split)


@pytest.mark.parametrize("kind", KINDS)
def test_both_answer_alike(server: RedisServer, kind: Algorithm) -> None:
    """Checks, peeks, refunds, debts and request ids of two nodes; rules that change and shards that are silent."""
    random = Random(f"split {kind}")
    both = [SplitPoint(point, nodes=2) for point in (PythonPoint(TIMES), RedisPoint(server, TIMES))]
    now_us, call = START_US, call_of(kind, 20, 3)
    for _ in range(700):
        now_us += random.choice((0, 0, 1000, 77_000, 400_000, 3_000_000))
        if random.random() < 0.01:
            call = call_of(kind, random.choice((8, 20, 23, 41)), random.choice((2, 3, 5, 8)), random.choice((2, 7)))
        if random.random() < 0.02:
            silent = {
                sub_key(call.key, call.split, random.randrange(call.split)) for _ in range(random.randrange(3))
            }
            for one in both:
                one.store.silent = silent
        asked = replace(call, cost=random.choice((0, 1, 1, 1, 2, 5, 9)))
        request = random.choice("xyz") + str(asked.cost) if random.random() < 0.2 else None
        node = random.randrange(2)
        step = random.choice(("check",) * 8 + ("refund", "charge"))
        if step == "charge":
            arguments: tuple[Any, ...] = (
                now_us,
                replace(sub_call(asked, random.randrange(call.split)), charge_denied=True),
                node,
            )
            if asked.cost > call.capacity or any(one.store.silent for one in both):
                continue
        else:
            arguments = (now_us, [asked], request, node)
            if step == "refund" and both[0].store.silent:
                continue
        python, redis = (told(one, step, *arguments) for one in both)
        assert python == redis, (step, asked, request)
    assert both[0].store.asked == both[1].store.asked


@pytest.mark.parametrize("kind", KINDS)
def test_a_denial_means_that_no_sub_bucket_had_it_and_its_wait_is_the_least(kind: Algorithm) -> None:
    random = Random(f"honest {kind}")
    point = PythonPoint(TIMES)
    split = SplitPoint(point, nodes=2)
    now_us, call, denials = START_US, call_of(kind, 17, 4), 0
    for _ in range(800):
        now_us += random.choice((0, 0, 1000, 77_000, 400_000))
        asked = replace(call, cost=random.choice((1, 1, 2, 4)))
        before = split.check(now_us, [replace(call, cost=0)])[0].remaining
        verdict = split.check(now_us, [asked], node=random.randrange(2))[0]
        after = split.check(now_us, [replace(call, cost=0)])[0].remaining
        assert 0 <= verdict.remaining <= call.capacity
        if verdict.allowed:
            assert after == before - asked.cost
            continue
        denials += 1
        assert (verdict.reason, verdict.remaining, after) == (Reason.LIMITED, before, before)
        assert verdict.retry_after_ms is not None
        # Nobody else asks meanwhile: a moment before it is denied still, then allowed.
        assert not split.check(now_us + (verdict.retry_after_ms - 1) * 1000, [asked])[0].allowed
        now_us += verdict.retry_after_ms * 1000
        assert split.check(now_us, [asked])[0].allowed
    assert denials > 50


@pytest.mark.parametrize("capacity", [8, 9, 23])
def test_all_sub_buckets_together_let_no_more_through_than_one_bucket_would(capacity: int) -> None:
    """In any time t at most capacity + rate x t, whoever asks, and whatever shards are silent."""
    random = Random(capacity)
    split = SplitPoint(PythonPoint(TIMES), nodes=3)
    call = call_of(Algorithm.TOKEN_BUCKET, capacity, 5, per_s=3)
    keys = [sub_key(call.key, 5, place) for place in range(5)]
    now_us, allowed = START_US, []
    for _ in range(3000):
        now_us += random.choice((0, 0, 0, 1000, 30_000, 200_000, 900_000))
        if random.random() < 0.05:
            split.store.silent = {key for key in keys if random.random() < 0.4}
        cost = random.choice((1, 1, 2))
        request = f"{random.randrange(40)}/{cost}" if random.random() < 0.1 else None
        outcome = told(split, "check", now_us, [replace(call, cost=cost)], request, random.randrange(3))
        if isinstance(outcome, list) and outcome[0].allowed and not outcome[0].replayed:
            allowed.append((now_us, cost))
    assert len(allowed) > 200
    level, then_us = float(capacity), START_US  # of one bucket that must never run dry
    for at_us, cost in allowed:
        level = min(capacity, level + (at_us - then_us) * 3 / 1_000_000) - cost
        then_us = at_us
        assert level > -1e-6


def test_one_silent_shard_takes_its_part_with_it_and_no_more() -> None:
    split = SplitPoint(PythonPoint(TIMES))
    call = call_of(Algorithm.FIXED_WINDOW, 10, 3)
    silent = sub_key(call.key, 3, 1)
    split.store.silent = {silent}
    verdicts = [split.check(START_US + n, [call])[0] for n in range(8)]
    assert [verdict.allowed for verdict in verdicts] == [True] * 7 + [False]
    assert (verdicts[-1].degraded, verdicts[0].degraded) == (True, False)
    split.store.silent = set()
    assert [split.check(START_US + 600_000 + n, [call])[0].allowed for n in range(4)] == [True] * 3 + [False]


@pytest.mark.parametrize("empty", [0, 1])
def test_a_request_is_not_charged_past_a_silent_shard_where_another_node_reaches_it(empty: int) -> None:
    """``empty``: sub-buckets on its way that deny it before the silent one is asked."""
    split = SplitPoint(PythonPoint(TIMES), nodes=2)
    call = call_of(Algorithm.FIXED_WINDOW, 9, 3)
    first = crc32(b"r") % 3
    for place in range(first, first + empty):
        split.store.point.check(START_US, [replace(sub_call(call, place % 3), cost=3)])
    split.store.silent = {sub_key(call.key, 3, (first + empty) % 3)}
    with pytest.raises(StoreUnavailable):
        split.check(START_US, [call], "r", node=0)
    assert split.check(START_US, [call], node=0)[0].allowed, "without an id any other will do"
    split.store.silent = set()
    told = [split.check(START_US, [call], "r", node=node)[0] for node in (1, 0, 1)]
    assert [(verdict.allowed, verdict.replayed) for verdict in told] == [(True, False), (True, True), (True, True)]
    assert split.check(START_US, [replace(call, cost=0)])[0].remaining == 9 - 3 * empty - 2


def test_a_token_lease_is_of_one_sub_bucket_and_comes_back_to_it() -> None:
    split = SplitPoint(PythonPoint(TIMES))
    call = call_of(Algorithm.TOKEN_BUCKET, 1000, 2)
    first = split.lease(START_US, call, 100)
    assert (first.tokens, first.remaining) == (50, 950)
    back = (ReturnedLease(first.edge_ms, 50, 20),)
    again = split.lease(START_US, call, 100, back)
    assert (again.credited, again.tokens, again.remaining) == (20, 47, 970 - 47)
    assert split.lease(START_US, call, 0, (ReturnedLease(again.edge_ms, 47, 47),)).remaining == 970
    assert split.check(START_US, [replace(call, cost=0)])[0].remaining == 970


@pytest.mark.parametrize(("capacity", "split"), [(1, 1), (10, 3), (8, 8), (9_000, 7)])
def test_the_parts_sum_to_the_limit(capacity: int, split: int) -> None:
    parts = [part_of(capacity, split, place) for place in range(split)]
    assert sum(parts) == capacity
    assert max(parts) - min(parts) <= 1
