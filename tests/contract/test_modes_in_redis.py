"""Shadow and soft rules over a real Redis Cluster: repeated requests, refunds, and a promotion."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from regional_limiter.limiter import Limiter
from regional_limiter.model.decision import Reason
from regional_limiter.store.redis_cluster import RedisClusterStore, StoreOptions
from tests.contract.redis_cluster import RedisCluster
from tests.unit.limiter_store import TIMES, blob_of, check, running

PATIENT = StoreOptions(deadline_ms=500, whole_deadline_ms=1000, calm_deadline_ms=1000)


@pytest.fixture
async def store(calm_cluster: RedisCluster) -> AsyncIterator[RedisClusterStore]:
    store = RedisClusterStore(calm_cluster.addresses[:1], TIMES, PATIENT)
    yield store
    await store.close()


def window(rule_id: str, mode: str, limit: int) -> dict[str, Any]:
    return {"id": rule_id, "algorithm": "fixed_window", "limit": limit, "window": "1h", "mode": mode}


async def shadowed(limiter: Limiter, allowed: int, denied: int) -> None:
    async with asyncio.timeout(5):
        while True:
            counted = limiter.status().shadows.get("default/s")
            if counted is not None and (counted.would_allow, counted.would_deny) == (allowed, denied):
                return
            await asyncio.sleep(0.01)


async def test_a_shadow_counts_a_repeated_request_once_and_its_promotion_goes_on_from_there(
    store: RedisClusterStore, tmp_path: Path
) -> None:
    rules = blob_of(window("a", "enforce", 10), window("s", "shadow", 3))
    async with running(store, tmp_path, rules, deadline_s=1) as limiter:
        for request in ("r1", "r1", "r2", "r3", "r4", "r4"):
            answer = await limiter.check(check("shadowed", request_id=request))
        assert (answer.remaining, answer.rule) == (6, "a")
        await shadowed(limiter, 3, 1)
        await limiter.refund(check("shadowed", request_id="r1"))
    rules = blob_of(window("a", "enforce", 10), window("s", "enforce", 3), version=2)
    async with running(store, tmp_path, rules, deadline_s=1) as limiter:
        answers = [await limiter.check(check("shadowed")) for _ in range(2)]
    assert [answer.allowed for answer in answers] == [True, False]
    assert answers[1].rule == "s"


async def test_a_soft_rule_lets_pass_and_the_rule_beside_it_is_charged(
    store: RedisClusterStore, tmp_path: Path
) -> None:
    rules = blob_of(window("a", "enforce", 4), window("s", "soft", 2))
    async with running(store, tmp_path, rules, deadline_s=1) as limiter:
        answers = [await limiter.check(check("softened")) for _ in range(6)]
    assert [answer.reason for answer in answers] == [
        *(Reason.OK, Reason.OK),
        *(Reason.SOFT_LIMITED, Reason.SOFT_LIMITED),
        *(Reason.LIMITED, Reason.LIMITED),
    ]
