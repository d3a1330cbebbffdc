"""One split key on a real Redis Cluster, through two nodes: on every shard, and no more than its limit in all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from regional_limiter.limiter import Limiter
from regional_limiter.model.decision import Reason
from regional_limiter.model.share import ProtocolTimes
from regional_limiter.store.redis_cluster import RedisClusterStore, StoreOptions
from tests.contract.redis_cluster import RedisCluster
from tests.unit.limiter_store import blob_of, check, rule, running

TIMES = ProtocolTimes()
PATIENT = StoreOptions(deadline_ms=500, whole_deadline_ms=1000, calm_deadline_ms=1000)


@pytest.fixture
async def store(calm_cluster: RedisCluster) -> AsyncIterator[RedisClusterStore]:
    store = RedisClusterStore(calm_cluster.addresses[:1], TIMES, PATIENT)
    yield store
    await store.close()


def keys_by_primary(cluster: RedisCluster) -> list[int]:
    return [cluster.client(port).dbsize() for port in cluster.ports if cluster.role(port) == "master"]


async def two_nodes(
    store: RedisClusterStore, directory: Path, stack: AsyncExitStack, **of_rule: Any
) -> list[Limiter]:
    blob = blob_of(rule("a", split=3, **of_rule))
    return [
        await stack.enter_async_context(running(store, directory / str(number), blob, deadline_s=1))
        for number in range(2)
    ]


@pytest.mark.parametrize(
    "numbers",
    [
        {"capacity": 301, "refill": "1/day"},
        {"capacity": 301, "refill": "1/day", "algorithm": "gcra"},
        {"capacity": None, "refill": None, "algorithm": "fixed_window", "limit": 301, "window": "1d"},
        {"capacity": None, "refill": None, "algorithm": "sliding_window_log", "limit": 301, "window": "1d"},
    ],
    ids=lambda numbers: numbers.get("algorithm", "token_bucket"),
)
async def test_exactly_the_limit_passes_on_all_shards(
    calm_cluster: RedisCluster, store: RedisClusterStore, tmp_path: Path, numbers: dict[str, Any]
) -> None:
    async with AsyncExitStack() as stack:
        blob = blob_of({name: value for name, value in rule("a", split=3, **numbers).items() if value is not None})
        limiters = [
            await stack.enter_async_context(running(store, tmp_path / str(number), blob, deadline_s=1))
            for number in range(2)
        ]

        async def caller(limiter: Limiter) -> int:
            return sum([(await limiter.check(check())).allowed for _ in range(60)])

        allowed = sum(await asyncio.gather(*(caller(limiter) for limiter in limiters for _ in range(4))))
        last = await limiters[0].check(check())
        peeked = await limiters[1].peek(check())
    assert allowed == 301
    assert (last.allowed, last.reason, last.limit, last.remaining) == (False, Reason.LIMITED, 301, 0)
    assert (peeked.remaining, peeked.degraded) == (0, False)
    assert keys_by_primary(calm_cluster) == [1, 1, 1]


async def test_the_same_request_on_another_node_is_the_same_charge(
    store: RedisClusterStore, tmp_path: Path
) -> None:
    async with AsyncExitStack() as stack:
        first, second = await two_nodes(store, tmp_path, stack, capacity=90, refill="1/day")
        for number in range(20):
            asked = check(cost=4, request_id=f"r{number}")
            told = [await limiter.check(asked) for limiter in (first, second, first)]
            assert [answer.allowed for answer in told] == [True] * 3
        assert (await second.peek(check())).remaining == 10
        for number in range(10):
            await second.refund(check(cost=4, request_id=f"r{number}"))
        assert (await first.peek(check())).remaining == 50
        keys = await first.reset(check())
        assert (await second.peek(check())).remaining == 90
    assert len(keys) == 1


async def test_a_split_rule_beside_others_is_charged_with_all_of_them_or_not_at_all(
    store: RedisClusterStore, tmp_path: Path
) -> None:
    rules = blob_of(
        rule("split", split=3, capacity=30, refill="1/day"), rule("other", capacity=4, refill="1/day"), version=2
    )
    async with running(store, tmp_path, rules, deadline_s=1) as limiter:
        allowed = [(await limiter.check(check())).allowed for _ in range(9)]
        inspected = await limiter.inspect(check())
        assert allowed == [True] * 4 + [False] * 5
        await asyncio.sleep(0.1)  # what was charged in vain is given back beside the answers
        left = {told.rule: told.verdict.remaining for told in (await limiter.inspect(check()))}
    assert left == {"split": 26, "other": 0}
    assert all(told.ttl_ms for told in inspected)


async def test_a_hot_split_key_is_decided_from_token_leases(store: RedisClusterStore, tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        first, second = await two_nodes(store, tmp_path, stack, capacity=30_000, refill="1/h")
        for _ in range(600):
            assert (await first.check(check())).allowed
            assert (await second.check(check())).allowed
            await asyncio.sleep(0.0005)
        leases = [limiter.status().leases for limiter in (first, second)]
        for limiter in (first, second):
            await limiter._token_leases.stop()
        assert all(counts.taken > 100 for counts in leases)
        assert (await first.peek(check())).remaining == 30_000 - 1200
