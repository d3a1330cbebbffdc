"""The store on a real Redis Cluster while nothing is broken: shards, moves of slots, lost functions, locks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from regional_limiter.algorithms.calendar import window_at
from regional_limiter.model.enforcement import Write
from regional_limiter.model.errors import StoreUnavailable
from regional_limiter.model.keys import tag_of
from regional_limiter.model.rule import Algorithm, CalendarUnit, CalendarWindow, Rate
from regional_limiter.model.share import ProtocolTimes
from regional_limiter.store import redis_cluster
from regional_limiter.store.base import BucketCall
from regional_limiter.store.cluster import ClusterOptions
from regional_limiter.store.connection import ConnectionOptions, pack
from regional_limiter.store.library import build_library
from regional_limiter.store.redis_cluster import RedisClusterStore, StoreOptions
from regional_limiter.store.topology import hash_slot_of
from tests.contract.redis_cluster import RedisCluster, eventually
from tests.contract.redis_user import as_node
from tests.unit.limiter_store import blob_of, check, rule, running

TIMES = ProtocolTimes()
PATIENT = as_node(StoreOptions(deadline_ms=500, whole_deadline_ms=1000, calm_deadline_ms=1000))
SLOW = Rate(1, 86_400_000)


@pytest.fixture
async def store(calm_cluster: RedisCluster) -> AsyncIterator[RedisClusterStore]:
    store = RedisClusterStore(calm_cluster.addresses[:1], TIMES, PATIENT)
    yield store
    await store.close()


def bucket(key: str, capacity: int = 10, cost: int = 1, rate: Rate = SLOW) -> BucketCall:
    return BucketCall(f"rl:{{{key}}}:default/r:{key}", Algorithm.TOKEN_BUCKET, capacity, rate, None, cost)


def window(key: str, limit: int, cost: int = 1) -> BucketCall:
    return BucketCall(f"rl:{{{key}}}:default/w:{key}", Algorithm.FIXED_WINDOW, limit, None, 86_400_000, cost)


async def allowed(store: RedisClusterStore, call: BucketCall, request_id: str | None = None) -> bool:
    return (await store.check([call], request_id))[0].allowed


async def remaining(store: RedisClusterStore, call: BucketCall) -> int:
    return (await store.check([call]))[0].remaining


def slot(call: BucketCall) -> int:
    return hash_slot_of(tag_of(call.key))


# ---- deciding


async def test_keys_of_all_shards_are_decided_and_each_lies_on_one_primary(
    calm_cluster: RedisCluster, store: RedisClusterStore
) -> None:
    calls = [bucket(f"k{i}") for i in range(60)]
    assert [await remaining(store, call) for call in calls] == [9] * 60
    assert [await remaining(store, call) for call in calls] == [8] * 60
    sizes = [calm_cluster.client(port).dbsize() for port in calm_cluster.ports[:3]]
    assert sum(sizes) == 60
    assert min(sizes) > 0


async def test_spring_cloud_gateway_248_two_rules_of_one_client_whose_keys_hash_apart(
    store: RedisClusterStore, tmp_path: Path
) -> None:
    rules = blob_of(rule("a", capacity=2), rule("b", capacity=2, key=["resource", "client_key"]))
    async with running(store, tmp_path, rules, times=TIMES, deadline_s=1.0) as limiter:
        answers = [await limiter.check(check()) for _ in range(3)]
    assert [(answer.allowed, answer.degraded) for answer in answers] == [(True, False)] * 2 + [(False, False)]


@pytest.mark.parametrize("off_days", [-400, -2, 0, 2, 400])
async def test_a_node_whose_calendar_is_wrong_goes_by_the_stores(
    store: RedisClusterStore, monkeypatch: pytest.MonkeyPatch, off_days: int
) -> None:
    monkeypatch.setattr(redis_cluster, "time_ns", lambda: time.time_ns() + off_days * 86_400 * 10**9)
    calendar = CalendarWindow(CalendarUnit.DAY, "Pacific/Apia")
    key = f"rl:{{{off_days}}}:default/day:u"
    call = BucketCall(key, Algorithm.FIXED_WINDOW, 10, None, None, 4, calendar=calendar)
    (verdict,) = await store.check([call])
    assert (verdict.allowed, verdict.remaining) == (True, 6)
    await store.refund([replace(call, cost=1)])
    start_ms, end_ms = window_at(calendar, time.time_ns() // 1_000_000)
    (peeked,) = await store.check([replace(call, cost=0)])
    assert peeked.remaining == 7
    assert abs(peeked.reset_after_ms - (end_ms - time.time_ns() // 1_000_000)) < 10_000
    server = store.cluster.server(store.cluster.owner(slot(call)))
    assert await server.call(pack("GET", f"{key}:{start_ms}"), 1.0) == b"3"
    for ends_in in (store, RedisClusterStore(list(store.cluster._seeds), TIMES, PATIENT)):
        # The second has been told nothing of clocks yet.
        await store.check([call])
        assert 0 < (await ends_in.ttl_ms(call) or 0) <= end_ms - start_ms + 60_000
        await ends_in.drop(call)
        assert (await store.check([replace(call, cost=0)]))[0].remaining == 10
    await ends_in.close()


async def test_a_denial_in_one_slot_gives_back_what_the_other_charged(
    store: RedisClusterStore, tmp_path: Path
) -> None:
    rules = blob_of(rule("a", capacity=9, refill="1/h"), rule("b", capacity=2, refill="1/h", key=["resource"]))
    async with running(store, tmp_path, rules, times=TIMES, deadline_s=1.0) as limiter:
        for _ in range(20):
            await limiter.check(check(request_id="r1"))  # one request, sent 20 times
        for _ in range(10):
            await limiter.check(check())
        await limiter.stop()
        left = {item.rule: item.verdict.remaining for item in (await limiter.peek(check())).verdicts}
    assert left == {"a": 7, "b": 0}


# ---- a cluster that changes


async def test_pyratelimiter_182_lost_functions_cost_no_answer_and_no_second_charge(
    calm_cluster: RedisCluster, store: RedisClusterStore
) -> None:
    call = window("visitor", 5)
    assert await remaining(store, call) == 4
    for port in calm_cluster.ports[:3]:
        calm_cluster.client(port).execute_command("FUNCTION", "FLUSH")
        calm_cluster.client(port).execute_command("SCRIPT", "FLUSH")
    outcomes = await asyncio.gather(*(remaining(store, call) for _ in range(3)))
    assert sorted(outcomes) == [1, 2, 3]


async def test_a_moved_slot_is_followed_and_charged_once(
    calm_cluster: RedisCluster, store: RedisClusterStore
) -> None:
    call = bucket("moves")
    assert await remaining(store, call) == 9
    source = calm_cluster.owner_of(slot(call))
    target = next(port for port in calm_cluster.ports[:3] if port != source)
    calm_cluster.move_slot(slot(call), source, target)
    assert [await remaining(store, call) for _ in range(3)] == [8, 7, 6]
    assert store.cluster.owner(slot(call)) == f"127.0.0.1:{target}"


async def test_a_slot_on_the_move_is_asked_for_where_its_key_is(
    calm_cluster: RedisCluster, store: RedisClusterStore
) -> None:
    call = bucket("halfway")
    assert await remaining(store, call) == 9
    source = calm_cluster.owner_of(slot(call))
    target = next(port for port in calm_cluster.ports[:3] if port != source)
    calm_cluster.begin_move(slot(call), source, target)
    assert [await remaining(store, call) for _ in range(2)] == [8, 7]
    assert store.cluster.owner(slot(call)) == f"127.0.0.1:{source}"
    calm_cluster.end_move(slot(call), source, target)
    assert await remaining(store, call) == 6


@pytest.mark.parametrize(
    "fields",
    [
        {"algorithm": Algorithm.TOKEN_BUCKET, "refill": SLOW},
        {"algorithm": Algorithm.FIXED_WINDOW, "window_ms": 366 * 86_400_000},
        {"algorithm": Algorithm.FIXED_WINDOW, "calendar": CalendarWindow(CalendarUnit.YEAR, "Asia/Tokyo")},
        {"algorithm": Algorithm.SLIDING_WINDOW_COUNTER, "window_ms": 366 * 86_400_000},
        {"algorithm": Algorithm.SLIDING_WINDOW_LOG, "window_ms": 366 * 86_400_000},
        {"algorithm": Algorithm.CONCURRENCY, "lease_ms": 600_000},
    ],
)
async def test_whatever_is_counted_is_seen_at_each_step_of_a_slots_move(
    calm_cluster: RedisCluster, store: RedisClusterStore, fields: dict[str, Any]
) -> None:
    """A server of which a slot leaves looks for the keys that a call declares, and sends on what is not there."""
    usual: dict[str, Any] = {"capacity": 40, "refill": None, "window_ms": None, "cost": 1}
    tag = f"{fields['algorithm'].value} {'calendar' in fields}"
    call = BucketCall(f"rl:{{{tag}}}:default/r:u", **{**usual, **fields})
    first = await remaining(store, replace(call, holder="first"))
    left: list[int] = []

    async def check_twice() -> None:
        for _ in range(2):
            left.append(await remaining(store, replace(call, holder=f"h{len(left)}")))

    source = calm_cluster.owner_of(slot(call))
    target = next(port for port in calm_cluster.ports[:3] if port != source)
    calm_cluster.begin_move(slot(call), source, target, with_keys=False)
    await check_twice()
    await store.refund([replace(call, cost=0)])
    calm_cluster.move_keys(slot(call), source, target)
    await check_twice()
    calm_cluster.end_move(slot(call), source, target)
    await check_twice()
    assert left == [first - more for more in range(1, 7)]


async def test_a_check_of_two_buckets_torn_apart_by_a_move_has_not_run(
    calm_cluster: RedisCluster, store: RedisClusterStore
) -> None:
    calls = [
        BucketCall(f"rl:{{torn}}:default/{name}:x", Algorithm.TOKEN_BUCKET, 10, SLOW, None, 1) for name in "ab"
    ]
    await store.check(calls[:1])
    source = calm_cluster.owner_of(slot(calls[0]))
    target = next(port for port in calm_cluster.ports[:3] if port != source)
    calm_cluster.begin_move(slot(calls[0]), source, target, with_keys=False)
    await store.check(calls[1:])  # a new key is made at the target
    with pytest.raises(StoreUnavailable) as caught:
        await store.check(calls)
    assert (caught.value.cause, caught.value.may_have_run) == ("tryagain", False)
    calm_cluster.end_move(slot(calls[0]), source, target)
    assert [verdict.remaining for verdict in await store.check(calls)] == [8, 8]


# ---- points


async def test_a_listing_names_every_loaded_version_and_each_can_be_written(
    calm_cluster: RedisCluster, store: RedisClusterStore
) -> None:
    other = build_library(ProtocolTimes.scaled(0.5))
    port = calm_cluster.ports[0]
    calm_cluster.client(port).function_load(other.text)
    try:
        points = await store.list_points()
        point = f"127.0.0.1:{port}/{other.version}"
        assert points == {f"{address}/{store.version}" for address in calm_cluster.addresses[:3]} | {point}
        write = Write("other nonce", "", 1, 1, 0, False, {}, False, 0, {})
        assert (await store.write(point, write)).instance == "other nonce"
    finally:
        calm_cluster.client(port).function_delete(other.name)
    with pytest.raises(StoreUnavailable) as caught:
        await store.collect(point)
    assert not caught.value.may_have_run


async def test_an_old_library_is_dropped_with_its_point_and_never_the_own_one(
    calm_cluster: RedisCluster, store: RedisClusterStore
) -> None:
    other = build_library(ProtocolTimes.scaled(0.5))
    port = calm_cluster.ports[0]
    calm_cluster.client(port).function_load(other.text)
    point = f"127.0.0.1:{port}/{other.version}"
    assert point in await store.list_points()
    for _ in range(2):  # another agent may have been first
        await store.drop_library(point)
        assert point not in await store.list_points()
    own = f"127.0.0.1:{port}/{store.version}"
    with pytest.raises(ValueError, match="that it calls"):
        await store.drop_library(own)
    assert own in await store.list_points()
    with pytest.raises(StoreUnavailable):
        await store.drop_library("127.0.0.1:1/old")


# ---- reaching it


async def test_a_user_with_a_password_is_logged_in(calm_cluster: RedisCluster) -> None:
    for port in calm_cluster.ports:
        calm_cluster.client(port).execute_command("ACL", "SETUSER", "node", "on", ">secret", "~rl:*", "+@all")
    login = ConnectionOptions(username="node", password="secret")
    options = StoreOptions(500, 1000, 1000, ClusterOptions(login))
    store = RedisClusterStore(calm_cluster.addresses[:1], TIMES, options)
    try:
        assert await remaining(store, bucket("login")) == 9
    finally:
        await store.close()
    wrong = StoreOptions(50, 100, 200, ClusterOptions(ConnectionOptions(username="node", password="guess")))
    store = RedisClusterStore(calm_cluster.addresses[:1], TIMES, wrong)
    try:
        with pytest.raises(StoreUnavailable):
            await store.check([bucket("login")])
    finally:
        await store.close()


async def test_nobody_there_is_told_within_the_deadline() -> None:
    store = RedisClusterStore(["127.0.0.1:1"], TIMES, StoreOptions(10, 20, 50))
    try:
        with pytest.raises(StoreUnavailable) as caught:
            async with asyncio.timeout(1):
                await store.check([bucket("x")])
        assert (caught.value.cause, caught.value.may_have_run) == ("no_topology", False)
        with pytest.raises(StoreUnavailable):
            await store.list_points()
    finally:
        await store.close()


async def test_a_raised_rule_is_enforced_within_a_second(store: RedisClusterStore, tmp_path: Path) -> None:
    rules = blob_of(rule("a", capacity=5, refill="1/h"), version=1)
    async with running(store, tmp_path, rules, times=TIMES, deadline_s=1.0) as limiter:
        before = [(await limiter.check(check())).allowed for _ in range(6)]
        raised = blob_of(rule("a", capacity=10, refill="1/h"), version=2)
        for point in await store.list_points():
            await store.publish_rules(point, 2, raised)

        async def known() -> bool:
            return limiter.status().rules_version == 2

        await eventually("the node knows the raised rule", known, 1)
        after = [(await limiter.check(check())).allowed for _ in range(6)]
    assert before == [True] * 5 + [False]
    assert after == [True] * 5 + [False]
