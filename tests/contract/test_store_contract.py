"""What every store must do, run against each: in memory, and Redis in cluster mode by its real clock."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from itertools import count
from time import time_ns
from typing import Protocol

import pytest

from regional_limiter.model.decision import Reason, ShareKind
from regional_limiter.model.enforcement import Write
from regional_limiter.model.errors import OtherRequest, StoreUnavailable
from regional_limiter.model.rule import Algorithm, CalendarUnit, CalendarWindow, Rate
from regional_limiter.model.share import ProtocolTimes, floor_of
from regional_limiter.store.base import AgentStore, BucketCall, CheckStore, NodeBeat, RuleTotals, Sharing
from regional_limiter.store.memory import MemoryStore
from regional_limiter.store.redis_cluster import RedisClusterStore, StoreOptions
from tests.contract.redis_server import RedisServer
from tests.contract.redis_user import as_node

# A gap that a busy test machine cannot fall into.
TIMES = replace(ProtocolTimes(), gap_us=60_000_000)
PATIENT = as_node(StoreOptions(deadline_ms=2000, whole_deadline_ms=4000, calm_deadline_ms=4000))
SLOW = Rate(1, 3_600_000)
names = count()


class Store(CheckStore, AgentStore, Protocol):
    """Both contracts."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("redis")) as running:
        yield running


@pytest.fixture(params=["memory", "redis"])
async def store(request: pytest.FixtureRequest) -> AsyncIterator[Store]:
    made: Store
    if request.param == "memory":
        made = MemoryStore(lambda: time_ns() // 1000, TIMES)
    else:
        server: RedisServer = request.getfixturevalue("server")
        server.client.flushall()
        server.client.function_flush()
        made = RedisClusterStore([f"127.0.0.1:{server.port}"], TIMES, PATIENT)
    yield made
    await made.close()


def bucket(capacity: int = 10, cost: int = 1, **fields: object) -> BucketCall:
    key = f"rl:{{t}}:default/r{next(names)}:u"
    return BucketCall(key, Algorithm.TOKEN_BUCKET, capacity, SLOW, None, cost, **fields)  # type: ignore[arg-type]


def window(limit: int = 10, cost: int = 1, **fields: object) -> BucketCall:
    key = f"rl:{{t}}:default/w{next(names)}:u"
    return BucketCall(key, Algorithm.FIXED_WINDOW, limit, None, 86_400_000, cost, **fields)  # type: ignore[arg-type]


def sliding(limit: int = 10, cost: int = 1, **fields: object) -> BucketCall:
    return replace(window(limit, cost, **fields), algorithm=Algorithm.SLIDING_WINDOW_COUNTER)


def logged(limit: int = 10, cost: int = 1, **fields: object) -> BucketCall:
    return replace(window(limit, cost, **fields), algorithm=Algorithm.SLIDING_WINDOW_LOG)


def slots(limit: int = 10, cost: int = 1, lease_ms: int = 86_400_000) -> BucketCall:
    key = f"rl:{{t}}:default/s{next(names)}:u"
    return BucketCall(key, Algorithm.CONCURRENCY, limit, None, None, cost, lease_ms=lease_ms, holder="a")


def gcra(capacity: int = 10, cost: int = 1) -> BucketCall:
    return replace(bucket(capacity, cost), algorithm=Algorithm.GCRA)


def queue(capacity: int = 10, cost: int = 1) -> BucketCall:
    return replace(bucket(capacity, cost), algorithm=Algorithm.LEAKY_BUCKET, queue=True)


def monthly(limit: int = 10, cost: int = 1) -> BucketCall:
    return replace(window(limit, cost), window_ms=None, calendar=CalendarWindow(CalendarUnit.MONTH, "Asia/Tokyo"))


every_kind = pytest.mark.parametrize("make", [bucket, window, gcra, queue, monthly, sliding, logged])


async def remaining(store: Store, call: BucketCall) -> int:
    return (await store.check([replace(call, cost=0)]))[0].remaining


async def point_of(store: Store) -> str:
    (point,) = await store.points()
    return point


@every_kind
async def test_a_limit_is_spent_and_then_denies(store: Store, make: type) -> None:
    call = make(3)
    verdicts = [(await store.check([call]))[0] for _ in range(5)]
    assert [verdict.allowed for verdict in verdicts] == [True, True, True, False, False]
    assert [verdict.remaining for verdict in verdicts] == [2, 1, 0, 0, 0]
    assert verdicts[3].retry_after_ms is not None
    assert verdicts[3].retry_after_ms > 0
    assert verdicts[3].reason is Reason.LIMITED


@pytest.mark.parametrize("make", [bucket, window, sliding, logged, slots])
async def test_two_hundred_checks_at_once_are_charged_exactly(store: Store, make: type) -> None:
    call = make(100)
    verdicts = await asyncio.gather(*(store.check([replace(call, holder=f"{i}")]) for i in range(200)))
    assert sum(verdict.allowed for (verdict,) in verdicts) == 100


async def test_all_are_charged_or_none(store: Store) -> None:
    narrow, wide, dear = bucket(1), window(5), bucket(5, charge_denied=True)
    others = [sliding(5), logged(5), slots(5)]
    for holder in "abc":
        verdicts = await store.check([narrow, wide, dear, *(replace(call, holder=holder) for call in others)])
        assert all(verdict.allowed for verdict in verdicts) is (holder == "a")
    assert [await remaining(store, call) for call in (narrow, wide, dear, *others)] == [0, 4, 2, 4, 4, 4]


async def test_what_waiting_cannot_help_names_no_wait(store: Store) -> None:
    (above,) = await store.check([bucket(3, cost=4)])
    (zero,) = await store.check([window(0)])
    assert (above.reason, above.retry_after_ms) == (Reason.EXCEEDS_CAPACITY, None)
    assert (zero.reason, zero.retry_after_ms) == (Reason.ZERO_LIMIT, None)


@every_kind
async def test_a_refund_returns_at_most_what_was_used(store: Store, make: type) -> None:
    call = make(10, cost=4)
    await store.check([call])
    await store.refund([replace(call, cost=3)])
    assert await remaining(store, call) == 9
    await store.refund([replace(call, cost=30)])
    assert await remaining(store, call) == 10


async def test_the_same_request_is_charged_once_and_given_back_once(store: Store) -> None:
    calls = [make(10, cost=2) for make in (bucket, window, sliding, logged, slots)]
    first = await store.check(calls, "r1")
    again = await store.check(calls, "r1")
    assert [v.remaining for v in again] == [v.remaining for v in first] == [8] * 5
    for _ in range(3):
        await store.refund([replace(call, cost=5) for call in calls], "r1")
    assert [await remaining(store, call) for call in calls] == [10] * 5
    await store.check(calls, "r2")
    assert [await remaining(store, call) for call in calls] == [8] * 5


async def test_a_request_that_asks_for_something_else_is_refused_and_charged_nothing(store: Store) -> None:
    calls = [bucket(10, cost=2), window(10, cost=2)]
    await store.check(calls, "r1")
    cheaper = [replace(calls[0], cost=1), calls[1]]
    for other in (cheaper, [replace(call, cost=0) for call in calls], calls[:1], [bucket(10)], calls[::-1]):
        with pytest.raises(OtherRequest, match="request_id"):
            await store.check(other, "r1")
    assert [await remaining(store, call) for call in calls] == [8, 8]
    assert all(
        verdict.replayed for verdict in await store.check([replace(call, capacity=9) for call in calls], "r1")
    )
    await store.refund(calls, "r1")
    assert [verdict.remaining for verdict in await store.check(cheaper, "r1")] == [9, 8]


async def test_a_slot_is_its_holders_until_it_is_given_back_or_its_lease_ends(store: Store) -> None:
    call = slots(2)
    second = replace(call, holder="b")
    assert await store.renew([call]) == [False]
    for holder in (call, second):
        assert (await store.check([holder]))[0].allowed
    assert await store.renew([call, slots(1)]) == [True, False]
    assert not (await store.check([replace(call, holder="c")]))[0].allowed
    for _ in range(2):
        await store.refund([second])
    assert await remaining(store, call) == 1
    short = slots(1, lease_ms=50)
    assert (await store.check([short]))[0].allowed
    await asyncio.sleep(0.06)
    assert (await store.check([replace(short, holder="b")]))[0].allowed
    assert await store.renew([short, replace(short, key=call.key, holder="b")]) == [False, False]


async def test_a_release_frees_one_holders_slots_once_and_forgets_what_the_request_was_told(store: Store) -> None:
    mine, tokens = replace(slots(2, cost=2), holder="r1"), bucket(10)
    assert all(verdict.allowed for verdict in await store.check([tokens, mine], "r1"))
    assert await store.release([tokens, replace(mine, cost=1)], "r1") == [False, True]
    assert await store.release([tokens, replace(mine, cost=1)], "r1") == [False, False]
    assert await remaining(store, mine) == 2
    assert await remaining(store, tokens) == 9
    assert (await store.check([replace(mine, holder="other", cost=1)]))[0].allowed
    assert not (await store.check([tokens, mine], "r1"))[1].allowed


@pytest.mark.parametrize("make", [sliding, logged, slots])
async def test_a_bucket_that_is_dropped_is_as_new(store: Store, make: type) -> None:
    call = make(2, cost=2)
    await store.check([call])
    await store.drop(call)
    assert await remaining(store, call) == 2
    await store.drop(call)


async def test_only_leases_can_be_renewed(store: Store) -> None:
    with pytest.raises((ValueError, StoreUnavailable)):
        await store.renew([slots(), bucket()])


async def test_a_share_is_in_force_as_the_agent_writes_it(store: Store) -> None:
    call = bucket(1000, sharing=Sharing.ADAPTIVE, regions=2, domain="default", base_version=2, base=5000)
    point = await point_of(store)
    (before,) = await store.check([call])
    assert (before.share, before.share_kind) == (floor_of(5000), ShareKind.FLOOR)
    write = Write("n", "", 1, 1, 2**52, True, {call.key: 9000}, True, 2, {"default": 5000})
    named = await store.write(point, write)
    assert (named.accepted, named.instance) == (False, "n")
    reply = await store.write(point, replace(write, instance="n"))
    assert reply.accepted
    assert reply.age_us >= 0
    assert not (await store.write(point, replace(write, instance="n"))).accepted  # not newer
    (after,) = await store.check([call])
    assert (after.share, after.share_kind) == (9000, ShareKind.LEASE)
    assert after.session_left_us > 0
    assert 0 < after.consent_left_us <= TIMES.consent_us
    # A replayed answer tells the share as it is now.
    await store.check([call], "r")
    await store.write(point, replace(write, instance="n", version=2, leases={call.key: 6000}))
    (replayed,) = await store.check([call], "r")
    assert replayed.share == 6000


async def test_nodes_and_agent_hear_of_each_other(store: Store) -> None:
    point = await point_of(store)
    beat = NodeBeat("n1", "i", "127.0.0.1:1", 3, -1, {"default/r": RuleTotals(1, 2, 3, 4, 5)})
    heard = await store.touch(point, beat)
    assert (heard.rules_version, heard.base_version, heard.bases, heard.nodes) == (-1, -1, {}, 1)
    await store.offer(point, {"a": 3, "b": 4})
    await store.offer(point, {"a": 5})
    collected = await store.collect(point)
    assert collected.demand == {"a": 8, "b": 4}
    assert [seen.beat for seen in collected.beats] == [beat]
    assert (await store.collect(point)).demand == {}
    write = Write("n", "", 1, 1, 0, False, {}, True, 4, {"default": 5000, "other": 1})
    await store.write(point, write)
    await store.write(point, replace(write, instance="n"))
    heard = await store.touch(point, beat)
    assert (heard.base_version, heard.bases) == (4, {"default": 5000, "other": 1})


async def test_more_demand_than_one_reply_holds_comes_with_the_next(store: Store) -> None:
    point = await point_of(store)
    await store.offer(point, {f"k{i}": 1 for i in range(2500)})
    first, second = await store.collect(point), await store.collect(point)
    assert (len(first.demand), len(second.demand)) == (2000, 500)
    assert not set(first.demand) & set(second.demand)


async def test_demand_is_bounded(store: Store) -> None:
    point = await point_of(store)
    await store.offer(point, {f"k{i}": 1 for i in range(10_050)})
    await store.offer(point, {"k0": 1, "one more": 1})
    total = {}
    while demand := (await store.collect(point)).demand:
        total.update(demand)
    assert len(total) == 10_000
    assert total["k0"] == 2
    assert "one more" not in total


async def test_the_newest_rules_win_whatever_their_order(store: Store) -> None:
    point = await point_of(store)
    assert await store.fetch_rules(point) == (-1, b"")
    for version, blob in ((3, b"\x00three\xff"), (2, b"two"), (3, b"other")):
        await store.publish_rules(point, version, blob)
    assert await store.fetch_rules(point) == (3, b"\x00three\xff")


async def test_one_owner_holds_the_lock(store: Store) -> None:
    assert await store.hold_lock("a", 10_000)
    assert not await store.hold_lock("b", 10_000)
    assert await store.hold_lock("a", 10_000)
    await store.release_lock("b")
    assert not await store.hold_lock("b", 10_000)
    await store.release_lock("a")
    assert await store.hold_lock("b", 10_000)


async def test_the_points_listed_are_those_that_nodes_use(store: Store) -> None:
    await store.check([bucket()])
    assert await store.list_points() == set(await store.points())


async def test_an_unknown_point_is_no_answer(store: Store) -> None:
    with pytest.raises(StoreUnavailable):
        await store.touch("127.0.0.1:1/none", NodeBeat("n", "i", "", 0, 0))


@pytest.mark.parametrize("make", [bucket, window])
async def test_a_bucket_tells_for_how_long_it_is_kept(store: Store, make: type) -> None:
    call = make(10)
    assert await store.ttl_ms(call) is None
    await store.check([replace(call, cost=0)])
    assert await store.ttl_ms(call) is None
    (verdict,) = await store.check([call])
    ttl_ms = await store.ttl_ms(call)
    assert ttl_ms is not None
    assert 0 < ttl_ms <= verdict.reset_after_ms + 2000


@pytest.mark.parametrize("make", [bucket, window])
async def test_two_refunds_of_more_than_everything_make_a_bucket_as_new(store: Store, make: type) -> None:
    """What a reset is made of, also for a bucket that owes."""
    call = make(10, charge_denied=True)
    for _ in range(5):
        await store.check([replace(call, cost=9)])
    for _ in range(2):
        await store.refund([replace(call, cost=2**32)])
    assert await remaining(store, call) == 10
