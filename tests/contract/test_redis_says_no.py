"""Redis answers, but not with a decision: full, paused, loading, emptied, upgraded.  What a client of a node sees.

Nothing takes a server away here (``test_redis_cluster_faults.py`` does), so one cluster serves all of it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest
import redis

from regional_limiter.limiter import Limiter
from regional_limiter.model.decision import Answer, Verdict
from regional_limiter.model.enforcement import Write
from regional_limiter.model.errors import StoreUnavailable
from regional_limiter.model.keys import tag_of
from regional_limiter.model.rule import Algorithm, Rate
from regional_limiter.model.share import ProtocolTimes
from regional_limiter.store.base import BucketCall
from regional_limiter.store.redis_cluster import RedisClusterStore, StoreOptions
from regional_limiter.store.topology import hash_slot_of
from tests.contract.redis_cluster import RedisCluster, eventually
from tests.contract.redis_user import as_node
from tests.unit.limiter_store import blob_of, check, rule, running

TIMES = ProtocolTimes()
PATIENT = as_node(StoreOptions(deadline_ms=25, whole_deadline_ms=40))
SLOW = Rate(1, 86_400_000)

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
async def store(calm_cluster: RedisCluster) -> AsyncIterator[RedisClusterStore]:
    store = RedisClusterStore(calm_cluster.addresses[:3], TIMES, PATIENT)
    await store.cluster.known(5)
    try:
        yield store
    finally:
        await store.close()


@pytest.fixture
async def limiter(store: RedisClusterStore, tmp_path: Path) -> AsyncIterator[Limiter]:
    rules = blob_of(rule("a", capacity=1000, refill="1/d"))
    async with running(store, tmp_path, rules, times=TIMES, deadline_s=0.04) as limiter:
        await answered_by_redis(limiter)
        yield limiter


@pytest.fixture
def owner(calm_cluster: RedisCluster, store: RedisClusterStore, limiter: Limiter) -> redis.Redis:
    """The primary that holds the bucket of ``user``."""
    return calm_cluster.client(port_of(store, limiter._planner.plan(check("user")).steps[0].key))


def port_of(store: RedisClusterStore, key: str) -> int:
    return int(store.cluster.owner(hash_slot_of(tag_of(key))).rpartition(":")[2])


async def answered_by_redis(limiter: Limiter, within_s: float = 5) -> Answer:
    answer: Answer | None = None

    async def holds() -> bool:
        nonlocal answer
        answer = await limiter.peek(check("user"))
        return not answer.degraded

    await eventually("Redis answers", holds, within_s)
    assert answer is not None
    return answer


async def test_a_full_redis_is_answered_for_by_the_node_and_its_shares_stay_in_force(
    limiter: Limiter, store: RedisClusterStore, owner: redis.Redis
) -> None:
    assert (await limiter.check(check("user"))).remaining == 999
    owner.config_set("maxmemory", "1")
    try:
        answers = [await limiter.check(check("user")) for _ in range(3)]
        assert [(answer.allowed, answer.degraded) for answer in answers] == [(True, True)] * 3
        assert limiter.status().degraded["oom"] >= 1
        # What keeps the shares right needs no memory of its own: the agent goes on.
        for point in await store.points():
            instance = (await store.write(point, write("", 1))).instance
            assert (await store.write(point, write(instance, 2))).accepted
            await store.collect(point)
    finally:
        owner.config_set("maxmemory", "0")
    # The refusal proved that nothing ran, so what the node allowed is charged now.
    await answered_by_redis(limiter)

    async def charged() -> bool:
        return (await limiter.peek(check("user"))).remaining == 996

    await eventually("the three are charged", charged, 5)


def write(instance: str, version: int) -> Write:
    return Write("nonce", instance, 1, version, 2**50, False, {}, True, 0, {})


async def test_a_paused_redis_is_a_failing_one_until_it_answers_again(limiter: Limiter, owner: redis.Redis) -> None:
    assert not (await limiter.check(check("user"))).degraded
    owner.client_pause(1500, all=True)
    during = [await limiter.check(check("user")) for _ in range(20)]
    assert all(answer.allowed and answer.degraded for answer in during)
    # Charged at most once each: those that were sent may have run after the pause, the others are owed.
    answer = await answered_by_redis(limiter)

    async def settled() -> bool:
        return 999 - 20 <= ((await limiter.peek(check("user"))).remaining or 0) <= 999

    await eventually("the bucket holds what was not used", settled, 5)
    assert answer.limit == 1000


async def test_a_redis_that_loads_its_data_is_answered_for_by_the_node(
    limiter: Limiter, owner: redis.Redis
) -> None:
    assert not (await limiter.check(check("user"))).degraded
    with owner.pipeline(transaction=False) as filling:
        tag = (owner.keys("rl:*")[0]).decode().partition("{")[2].partition("}")[0]
        for i in range(2000):
            filling.set(f"{{{tag}}}filler:{i}", b"x" * 100, px=60_000)
        filling.execute()
    owner.config_set("key-load-delay", 500)
    owner.config_set("loading-process-events-interval-bytes", 1024)
    reloading = threading.Thread(target=reload, args=(owner,))
    try:
        reloading.start()
        degraded = 0
        while reloading.is_alive():
            answer = await limiter.check(check("user"))
            assert answer.allowed
            degraded += answer.degraded
            await asyncio.sleep(0.02)
    finally:
        reloading.join(20)
        owner.config_set("key-load-delay", 0)
    assert degraded
    await answered_by_redis(limiter)


def reload(client: redis.Redis) -> None:
    with redis.Redis(port=client.connection_pool.connection_kwargs["port"], socket_timeout=20) as patient:
        patient.execute_command("DEBUG", "RELOAD")


async def test_emptied_buckets_are_full_again_and_the_shares_stay_in_force(
    limiter: Limiter, store: RedisClusterStore, owner: redis.Redis
) -> None:
    for _ in range(10):
        await limiter.check(check("user"))
    (point,) = [point for point in await store.points() if f":{port_in(owner)}/" in point]
    before = await store.write(point, write("", 1))
    owner.flushall()
    answer = await limiter.check(check("user"))
    assert (answer.degraded, answer.remaining) == (False, 999)
    after = await store.write(point, write(before.instance, 2))
    assert (after.accepted, after.instance) == (True, before.instance)


def port_in(client: redis.Redis) -> int:
    return int(client.connection_pool.connection_kwargs["port"])


async def test_a_slot_that_nobody_serves_is_answered_for_by_the_node(
    limiter: Limiter, calm_cluster: RedisCluster, store: RedisClusterStore, owner: redis.Redis
) -> None:
    slot = hash_slot_of(tag_of(limiter._planner.plan(check("user")).steps[0].key))
    for port in calm_cluster.ports:
        calm_cluster.client(port).execute_command("CLUSTER", "DELSLOTS", slot)
    try:
        answers = [await limiter.check(check("user")) for _ in range(3)]
        assert [(answer.allowed, answer.degraded) for answer in answers] == [(True, True)] * 3
    finally:
        owner.execute_command("CLUSTER", "ADDSLOTS", slot)
    await eventually("the cluster is whole", lambda: asyncio.to_thread(calm_cluster.whole), 10)
    assert await answered_by_redis(limiter)


async def test_two_versions_of_the_library_charge_the_same_buckets_and_hold_their_own_shares(
    calm_cluster: RedisCluster, store: RedisClusterStore
) -> None:
    # The library's text holds the protocol's times, so other times are another version.
    upgraded = replace(TIMES, gap_us=TIMES.gap_us + 1)
    new = RedisClusterStore(calm_cluster.addresses[:1], upgraded, PATIENT)
    call = BucketCall("rl:{x}:default/r:x", Algorithm.TOKEN_BUCKET, 100, SLOW, None, 1)
    try:
        assert new.version != store.version
        old_load = asyncio.create_task(charge(store, call, 60))
        allowed = await charge(new, call, 60) + await old_load
        assert allowed == 100
        points = await store.list_points()
        versions = {point.rpartition("/")[2] for point in points}
        assert versions == {store.version, new.version}
        (address,) = {point.partition("/")[0] for point in points if f":{port_of(store, call.key)}/" in point}
        # Each version is a point of its own: a session in one says nothing in the other.
        old_reply = await new.write(f"{address}/{store.version}", write("", 1))
        new_reply = await new.write(f"{address}/{new.version}", replace(write("", 1), nonce="another"))
        assert (old_reply.instance, new_reply.instance) == ("nonce", "another")
    finally:
        await new.close()


async def charge(store: RedisClusterStore, call: BucketCall, times: int) -> int:
    """How many of ``times`` checks, each sent until it is answered, were allowed."""
    allowed = 0
    for _ in range(times):
        allowed += (await until_answered(store, call)).allowed
        await asyncio.sleep(0)
    return allowed


async def until_answered(store: RedisClusterStore, call: BucketCall) -> Verdict:
    request_id = str(uuid4())
    while True:
        try:
            return (await store.check([call], request_id))[0]
        except StoreUnavailable:
            await asyncio.sleep(0.05)
