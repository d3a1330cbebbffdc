"""Two nodes on a real Redis Cluster, restarted one after the other under load: nobody notices, nothing is lost."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from regional_limiter.model.errors import StoreUnavailable
from regional_limiter.model.share import ProtocolTimes
from regional_limiter.store.base import RuleTotals
from regional_limiter.store.redis_cluster import RedisClusterStore, StoreOptions
from tests.contract.redis_cluster import RedisCluster
from tests.contract.region_processes import Region

CAPACITY = 100_000
RULES = {
    "domain": "default",
    "regions": {"us-east": 1},
    "rules": [
        {"id": "all", "match": {}, "key": ["client_key"], "capacity": CAPACITY, "refill": "1/h"},
        {"id": "few", "match": {"resource": "few"}, "key": ["client_key"], "capacity": 5, "refill": "1/h"},
    ],
}
CALLERS = 8
LOADED_S = 1.0
"""Between two restarts."""

pytestmark = pytest.mark.timeout(120)


@dataclass
class Seen:
    """What the callers were told."""

    statuses: Counter[int] = field(default_factory=Counter)
    allowed: Counter[str] = field(default_factory=Counter)
    denied: Counter[str] = field(default_factory=Counter)
    refused: int = 0
    failures: list[str] = field(default_factory=list)


class Callers:
    """Each goes round the nodes; a node that refuses the connection is passed over for the next one."""

    def __init__(self, urls: list[str]) -> None:
        self._urls = urls
        self._over = asyncio.Event()
        self.seen = Seen()

    @asynccontextmanager
    async def calling(self) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(self._call(place)) for place in range(CALLERS)]
        try:
            yield
        finally:
            self._over.set()
            await asyncio.gather(*tasks)

    async def _call(self, place: int) -> None:
        async with httpx.AsyncClient(trust_env=False, timeout=20) as client:
            turn = place
            while not self._over.is_set():
                turn += 1
                body = {"client_key": "hot", "resource": "few" if turn % 20 == 0 else "many"}
                await self._ask(client, turn, body)
                await asyncio.sleep(0.002)

    async def _ask(self, client: httpx.AsyncClient, turn: int, body: dict[str, str]) -> None:
        seen = self.seen
        for further in range(len(self._urls)):
            url = self._urls[(turn + further) % len(self._urls)]
            try:
                response = await client.post(f"{url}/v1/check", json=body)
            except httpx.ConnectError:
                seen.refused += 1
                continue
            except httpx.HTTPError as error:
                seen.failures.append(repr(error))
                return
            seen.statuses[response.status_code] += 1
            if response.status_code == 200:
                answer: dict[str, Any] = response.json()
                (seen.allowed if answer["allowed"] else seen.denied)[body["resource"]] += 1
            return
        seen.failures.append("every node refused the connection")


class Beats:
    """The last beat of every node that ever was, collected as a region's agent does."""

    def __init__(self, store: RedisClusterStore) -> None:
        self._store = store
        self._last: dict[tuple[str, str], dict[str, RuleTotals]] = {}

    @asynccontextmanager
    async def collecting(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self._collect())
        try:
            yield
        finally:
            task.cancel()
            (ended,) = await asyncio.gather(task, return_exceptions=True)
            assert isinstance(ended, asyncio.CancelledError), ended

    async def _collect(self) -> None:
        while True:
            await self.collect()
            await asyncio.sleep(0.1)

    async def collect(self) -> None:
        try:
            points = await self._store.points()
        except StoreUnavailable:  # the machine is busy: the next turn asks again
            return
        for point in points:
            try:
                collected = await self._store.collect(point)
            except StoreUnavailable:
                continue
            for entry in collected.beats:
                beat = entry.beat
                totals = self._last.setdefault((beat.node, beat.incarnation), {})
                for name, told in beat.usage.items():
                    known = totals.get(name, RuleTotals())
                    totals[name] = max(known, told, key=lambda one: one.allowed + one.denied)

    @property
    def incarnations(self) -> int:
        return len(self._last)

    def total(self, name: str) -> tuple[int, int]:
        """(allowed, denied) of one rule, of all nodes together."""
        told = [totals.get(name, RuleTotals()) for totals in self._last.values()]
        return sum(one.allowed for one in told), sum(one.denied for one in told)


async def remaining(url: str, resource: str) -> int:
    async with httpx.AsyncClient(trust_env=False, timeout=20) as client:
        peeked = await client.get(f"{url}/v1/peek", params={"client_key": "hot", "resource": resource})
    assert not peeked.json()["degraded"]
    left: int = peeked.json()["remaining"]
    return left


async def test_nodes_that_are_restarted_in_turn_under_load_lose_no_answer_no_token_and_no_count(
    calm_cluster: RedisCluster, tmp_path: Path
) -> None:
    region = Region(tmp_path, calm_cluster.addresses[:3], RULES)
    store = RedisClusterStore(calm_cluster.addresses[:3], ProtocolTimes(), StoreOptions(1000, 1000, 1000))
    callers, beats = Callers(list(region.urls.values())), Beats(store)
    leased = 0
    try:
        for number in region.urls:
            await region.start(number)
        async with beats.collecting():
            async with callers.calling():
                for number in region.urls:
                    await asyncio.sleep(LOADED_S)
                    leased += await tokens_taken(region.urls[number])
                    await region.stop(number)
                    await asyncio.sleep(LOADED_S / 2)
                    await region.start(number)
                await asyncio.sleep(LOADED_S)
            for number in region.urls:
                await region.stop(number)
            await beats.collect()
        seen = callers.seen
        assert seen.failures == []
        assert set(seen.statuses) == {200}, seen.statuses
        assert (seen.refused > 0, leased > 0) == (True, True)
        assert beats.incarnations == 4
        allowed, denied = sum(seen.allowed.values()), sum(seen.denied.values())
        assert denied > 0
        assert beats.total("default/all") == (allowed, 0)
        assert beats.total("default/few") == (seen.allowed["few"], seen.denied["few"])
        await region.start(1)
        ends = [end for number in region.urls for end in region.said(number, "stopped")]
        lost = sum(end["lease_tokens_lost"] for end in ends)
        assert await remaining(region.urls[1], "many") == CAPACITY - allowed - lost
        # A busy machine may bring a lease back too late; a node that ends loses none.
        before = [end for number in region.urls for end in region.said(number, "served")]
        assert lost == sum(end["lease_tokens_lost"] for end in before)
        assert [end["lease_tokens_out"] for end in ends] == [0] * 4
        for number in region.urls:
            assert '"level": "error"' not in region.log(number)
            assert "Traceback" not in region.log(number)
    finally:
        region.kill()
        await store.close()


async def tokens_taken(url: str) -> int:
    """What a node has leased since its start."""
    async with httpx.AsyncClient(trust_env=False, timeout=20) as client:
        metrics = (await client.get(f"{url}/metrics")).text
    found = re.search(r'^ratelimit_lease_tokens\w*\{.*event="taken".*\} ([0-9.]+)$', metrics, re.MULTILINE)
    assert found is not None, metrics
    return int(float(found[1]))
