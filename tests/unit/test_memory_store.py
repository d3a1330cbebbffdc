"""The store in this process: points that are lost or cut off, and tables that are full."""

from __future__ import annotations

from dataclasses import replace

import pytest

from regional_limiter.model.enforcement import Write
from regional_limiter.model.errors import StoreUnavailable
from regional_limiter.model.rule import Algorithm, Rate
from regional_limiter.model.share import ProtocolTimes
from regional_limiter.store import memory
from regional_limiter.store.base import BucketCall, NodeBeat, Sharing
from regional_limiter.store.memory import MemoryPoint, MemoryStore

TIMES = ProtocolTimes()
POINTS = ("a:1/1", "b:1/1", "c:1/1")


class Clock:
    now_us = 10**12

    def __call__(self) -> int:
        return self.now_us


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(clock: Clock) -> MemoryStore:
    return MemoryStore(clock, TIMES, POINTS)


def call_of(tag: str, **fields: object) -> BucketCall:
    usual = BucketCall(f"rl:{{{tag}}}:d/r:u", Algorithm.TOKEN_BUCKET, 2, Rate(1, 3_600_000), None, 1)
    return replace(usual, **fields)  # type: ignore[arg-type]


def test_tags_spread_over_the_points_and_each_stays_at_one(store: MemoryStore) -> None:
    owners = {tag: store.point_of(call_of(tag).key) for tag in map(str, range(50))}
    assert set(owners.values()) == set(POINTS)
    assert owners == {tag: store.point_of(f"rl:{{{tag}}}:other/x:y") for tag in owners}


def test_a_lost_point_forgets_what_it_was_told_and_keeps_its_buckets(store: MemoryStore, clock: Clock) -> None:
    call = call_of("t")
    name = store.point_of(call.key)
    store.decide([call])
    store.point(name).publish_rules(clock.now_us, 3, b"x")
    store.lose(name)
    assert store.point(name).fetch_rules(clock.now_us) == (-1, b"")
    assert store.decide([call])[0].remaining == 0
    store.lose(name, buckets=True)
    assert store.decide([call])[0].remaining == 1


async def test_a_cut_point_answers_nobody_and_the_others_go_on(store: MemoryStore) -> None:
    calls = [call_of(str(number)) for number in range(50)]
    gone = store.point_of(calls[0].key)
    store.cut(gone)
    for call in calls:
        if store.point_of(call.key) == gone:
            with pytest.raises(StoreUnavailable):
                await store.check([call])
        else:
            assert (await store.check([call]))[0].allowed
    with pytest.raises(StoreUnavailable):
        await store.write(gone, Write("n", "", 1, 1, 0, False, {}, False, 0, {}))
    store.heal(gone)
    assert (await store.check([calls[0]]))[0].allowed


def test_buckets_of_one_call_share_a_tag_and_differ(store: MemoryStore) -> None:
    for calls in ([call_of("a"), call_of("b")], [call_of("a"), call_of("a")]):
        with pytest.raises(ValueError, match="one hash tag"):
            store.decide(calls)


def test_a_flood_of_keys_frees_nobody_who_is_limited(clock: Clock) -> None:
    store = MemoryStore(clock, TIMES, buckets_most=100)
    spent = call_of("spent", cost=2)
    assert store.decide([spent])[0].allowed
    for number in range(1000):
        store.decide([call_of("t", key=f"rl:{{t}}:d/r:{number}", cost=2)])
    assert not store.decide([replace(spent, cost=1)])[0].allowed


def test_a_window_that_is_over_stands_for_nobody_in_the_next(clock: Clock) -> None:
    store = MemoryStore(clock, TIMES, buckets_most=1)
    window = {"algorithm": Algorithm.FIXED_WINDOW, "refill": None, "window_ms": 1000, "capacity": 1}
    for number in range(40):
        store.decide([call_of("t", key=f"rl:{{t}}:d/w:{number}", **window)])
    clock.now_us += 1_000_000
    assert store.decide([call_of("t", key="rl:{t}:d/w:new", **window)])[0].allowed


def test_a_gap_of_the_clock_loses_the_beats_with_the_shares(clock: Clock) -> None:
    point = MemoryPoint(TIMES)
    point.touch(clock.now_us, NodeBeat("n", "i", "", 0, 0))
    point.offer(clock.now_us, {"k": 1})
    assert point.touch(clock.now_us + TIMES.gap_us + 1, NodeBeat("m", "i", "", 0, 0)).nodes == 1
    assert point.collect(clock.now_us + TIMES.gap_us + 2).demand == {}


def test_beats_and_records_are_bounded(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "BEATS_MOST", 2)
    monkeypatch.setattr(memory, "RECORDS_MOST", 2)
    point = MemoryPoint(TIMES)
    for node in ("a", "b"):
        point.touch(clock.now_us, NodeBeat(node, "i", "", 0, 0))
    with pytest.raises(StoreUnavailable):
        point.touch(clock.now_us, NodeBeat("c", "i", "", 0, 0))
    for step in range(40):
        now_us = clock.now_us + (step + 1) * TIMES.gap_us
        assert point.touch(now_us, NodeBeat("a", "i", "", 0, 0)).nodes >= 1
    assert point.touch(now_us, NodeBeat("c", "i", "", 0, 0)).nodes == 2  # b has been silent for a consent
    for request in ("r1", "r2", "r3"):
        point.check(now_us, [call_of("t", capacity=9)], request)
    assert point.check(now_us, [call_of("t", capacity=9)], "r3")[0].remaining == 6
    assert point.check(now_us, [call_of("t", capacity=9)], "r1")[0].remaining == 5


def test_an_adaptive_sliding_window_is_refused_not_decided_at_some_share(store: MemoryStore) -> None:
    window = call_of(
        "t", algorithm=Algorithm.SLIDING_WINDOW_LOG, refill=None, window_ms=1000, sharing=Sharing.ADAPTIVE
    )
    with pytest.raises(ValueError, match="adaptive"):
        store.decide([window])
