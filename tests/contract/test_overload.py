"""A Redis that stands still under load: what waits, what is shed, what the rules decide, and what was charged."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from regional_limiter.limiter import Limiter
from regional_limiter.model.decision import Answer, Reason
from regional_limiter.model.share import ProtocolTimes
from regional_limiter.store.cluster import ClusterOptions
from regional_limiter.store.connection import ConnectionOptions
from regional_limiter.store.redis_cluster import RedisClusterStore, StoreOptions
from tests.contract.redis_cluster import eventually
from tests.contract.redis_server import RedisServer
from tests.unit.limiter_store import blob_of, check, rule, running

TIMES = ProtocolTimes()
BOUND = 64
PATIENT = StoreOptions(
    deadline_ms=20_000,
    whole_deadline_ms=20_000,
    calm_deadline_ms=20_000,
    cluster=ClusterOptions(ConnectionOptions(in_flight_max=BOUND), view_timeout_s=20),
)
RULES = blob_of(
    *(
        rule(name, match={"tier": name}, key=["tier"], capacity=1000, refill="1/d", **fields)  # type: ignore[arg-type]
        for name, fields in {
            "low": {"priority": "low"},
            "dropped": {"priority": "low", "shed": "deny"},
            "open": {"on_store_failure": "open"},
            "closed": {"priority": "critical", "on_store_failure": "closed"},
        }.items()
    )
)


@pytest.fixture
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        try:
            yield server
        finally:
            os.kill(server.pid, signal.SIGCONT)


@pytest.fixture
async def limiter(server: RedisServer, tmp_path: Path) -> AsyncIterator[Limiter]:
    store = RedisClusterStore([f"127.0.0.1:{server.port}"], TIMES, PATIENT)
    try:
        async with running(store, tmp_path, RULES, times=TIMES, deadline_s=20) as limiter:

            async def answers() -> bool:
                return not (await limiter.peek(check(attributes={"tier": "open"}))).degraded

            await eventually("Redis answers", answers, 10)
            yield limiter
    finally:
        await store.close()


async def left(limiter: Limiter, tier: str) -> int | None:
    return (await limiter.peek(check(attributes={"tier": tier}))).remaining


async def test_a_frozen_redis_under_load_sheds_the_low_first_and_queues_no_more_than_its_bound(
    server: RedisServer, limiter: Limiter
) -> None:
    os.kill(server.pid, signal.SIGSTOP)
    tiers = ["low", "dropped", "open", "closed"]
    asked = [
        (tier, asyncio.create_task(limiter.check(check(attributes={"tier": tier}))))
        for _ in range(2 * BOUND)
        for tier in tiers
    ]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    at_once: dict[str, list[Answer]] = {tier: [] for tier in tiers}
    waiting = []
    for tier, task in asked:
        if task.done():
            at_once[tier].append(task.result())
        else:
            waiting.append((tier, task))
    said = {
        tier: Counter((answer.allowed, answer.reason, answer.degraded) for answer in answers)
        for tier, answers in at_once.items()
    }
    queued = Counter(tier for tier, _ in waiting)
    # The node's own touch may be in the queue as well.
    assert BOUND - 2 <= len(waiting) <= BOUND
    assert queued["low"] < queued["open"]
    assert said == {
        "low": {(True, Reason.SHED, True): 2 * BOUND - queued["low"]},
        "dropped": {(False, Reason.SHED, True): 2 * BOUND - queued["dropped"]},
        "open": {(True, Reason.OK, True): 2 * BOUND - queued["open"]},
        "closed": {(False, Reason.STORE_UNAVAILABLE, True): 2 * BOUND - queued["closed"]},
    }
    counted = limiter.status().degraded
    assert counted["shed"] == sum(len(at_once[tier]) for tier in ("low", "dropped"))
    assert counted["queue_full"] == sum(len(at_once[tier]) for tier in ("open", "closed"))

    os.kill(server.pid, signal.SIGCONT)
    answers = await asyncio.gather(*(task for _, task in waiting))
    assert all(answer.allowed and not answer.degraded for answer in answers)

    # What waited was charged once each; what was shed or decided by its rule was charged to nobody.
    async def charged() -> bool:
        return {tier: await left(limiter, tier) for tier in tiers} == {tier: 1000 - queued[tier] for tier in tiers}

    # So many answers at once earn a key a token lease, which goes back when nothing is spent.
    await eventually("the buckets miss what was answered", charged, 10)
