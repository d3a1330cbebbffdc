"""One hot key on a real Redis Cluster, through two nodes that lease its tokens."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from regional_limiter.limiter import Limiter
from regional_limiter.model.share import ProtocolTimes
from regional_limiter.store.redis_cluster import RedisClusterStore, StoreOptions
from tests.contract.redis_cluster import RedisCluster, eventually
from tests.contract.redis_user import as_node
from tests.unit.limiter_store import blob_of, check, rule, running

TIMES = ProtocolTimes()
PATIENT = as_node(StoreOptions(deadline_ms=500, whole_deadline_ms=1000, calm_deadline_ms=1000))
CHECKS = 4000


@pytest.fixture
async def store(calm_cluster: RedisCluster) -> AsyncIterator[RedisClusterStore]:
    store = RedisClusterStore(calm_cluster.addresses[:1], TIMES, PATIENT)
    yield store
    await store.close()


def calls_of_functions(cluster: RedisCluster) -> int:
    """FCALLs that wrote or read a bucket: every one, but for what nodes do in the background (measured apart)."""
    return sum(
        int(cluster.client(port).info("commandstats").get("cmdstat_fcall", {}).get("calls", 0))
        for port in cluster.ports
        if cluster.role(port) == "master"
    )


async def nodes(store: RedisClusterStore, directory: Path, blob: bytes, stack: AsyncExitStack) -> list[Limiter]:
    return [
        await stack.enter_async_context(running(store, directory / str(number), blob, deadline_s=1))
        for number in range(2)
    ]


async def drive(limiters: list[Limiter], checks: int) -> int:
    """As fast as they answer, eight callers a node; how many were allowed."""

    async def caller(limiter: Limiter) -> int:
        allowed = 0
        for _ in range(checks // 16):
            allowed += (await limiter.check(check())).allowed
            await asyncio.sleep(0)
        return allowed

    return sum(await asyncio.gather(*(caller(limiter) for limiter in limiters for _ in range(8))))


async def test_a_hot_key_costs_redis_a_tenth_of_a_call_a_check(
    store: RedisClusterStore, calm_cluster: RedisCluster, tmp_path: Path
) -> None:
    blob = blob_of(rule("a", capacity=10_000_000, refill="1000000/s"))
    async with AsyncExitStack() as stack:
        limiters = await nodes(store, tmp_path, blob, stack)
        await drive(limiters, CHECKS)  # warm: connections, the library, leases
        began, before = time.monotonic(), calls_of_functions(calm_cluster)
        assert await drive(limiters, 5 * CHECKS) == 5 * CHECKS
        calls = calls_of_functions(calm_cluster) - before
        # Each node touches each primary three times a second, whatever else it does.
        touches = 2 * 3 * 4 * (time.monotonic() - began + 1)
        assert calls - touches <= 0.1 * 5 * CHECKS, f"{calls} calls"
        assert sum(limiter.status().leases.taken for limiter in limiters) > 2 * CHECKS
    for limiter in limiters:
        leases = limiter.status().leases
        assert leases.out == 0
        assert leases.returned + leases.lost <= leases.taken


async def test_two_nodes_never_admit_more_than_the_bucket_holds_and_strand_nothing(
    store: RedisClusterStore, tmp_path: Path
) -> None:
    async with AsyncExitStack() as stack:
        limiters = await nodes(store, tmp_path, blob_of(rule("a", capacity=3000, refill="1/day")), stack)
        allowed = await drive(limiters, CHECKS)
        assert allowed <= 3000
        assert sum(limiter.status().leases.taken for limiter in limiters) > 500

        async def used_up() -> bool:
            nonlocal allowed
            allowed += (await limiters[0].check(check())).allowed
            return allowed + lost() == 3000

        def lost() -> int:
            return sum(limiter.status().leases.lost for limiter in limiters)

        # One node goes on asking: what the other one held comes back by itself.
        await eventually("everything is given out, but for what was lost", used_up, 10)
        assert not (await limiters[0].check(check())).allowed
