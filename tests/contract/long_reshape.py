"""A region's Redis grows, and is replaced, while it answers checks: nothing is lost, and the bound holds."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from global_sync.agent import Agent
from global_sync.leader import Leader
from infra.region.region import Region
from infra.region.reshape import Plan, Reshape
from regional_limiter.limiter import Limiter
from regional_limiter.model.decision import Check
from regional_limiter.model.share import ProtocolTimes
from regional_limiter.store.cluster import ClusterOptions
from regional_limiter.store.connection import ConnectionOptions
from regional_limiter.store.redis_cluster import RedisClusterStore, StoreOptions
from services.embedded import Embedded, EmbeddedRegion
from tests.e2e.bound import worst_excess
from tests.quiet_collector import quiet_collector

BASE_PORT, NEW_PORT = 20_700, 20_730
BURST, RATE, CAPACITY = 20, 100, 100_000
KEYS = [f"client-{number}" for number in range(40)]
SCALE = 1 / 3
RULES = {
    "domain": "d",
    "regions": {"real": 1, "other": 1},
    "rules": [
        {
            "id": "shared",
            "match": {"resource": "shared"},
            "capacity": BURST,
            "refill": f"{RATE}/s",
            "scope": "global",
        },
        {"id": "counted", "match": {"resource": "counted"}, "capacity": CAPACITY, "refill": "1/h"},
    ],
}

pytestmark = pytest.mark.timeout(240)


def region_at(directory: Path, base_port: int, primaries: int) -> Region:
    """The same region, by another file."""
    (directory / "secret").write_text("0123456789abcdef")
    file = directory / "region.toml"
    file.write_text(f"""
        name = "real"
        state_dir = "{directory}/state"
        key_secret_file = "{directory}/secret"
        redis.username = "apportion"
        redis.password = "of the nodes"
        redis.own.base_port = {base_port}
        redis.own.primaries = {primaries}
        redis.own.bus_offset = 10
        redis.own.admin_password = "of the admin"
        kafka.bootstrap = "127.0.0.1:1"
        check_api.ports = [{BASE_PORT + 50}]
        sync.port = {BASE_PORT + 51}
    """)
    return Region(file)


class Load:
    """Checks at a steady rate from three sides; every answer is counted."""

    def __init__(self, system: Embedded) -> None:
        self._system = system
        self._over = asyncio.Event()
        self.admitted: list[tuple[float, float]] = []
        self.counted: Counter[str] = Counter()
        self.unsure: Counter[str] = Counter()
        self.answers = self.degraded = self.by_nodes = 0

    @asynccontextmanager
    async def offered(self) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as tasks:
            for region, resource, rate in (
                ("real", "shared", 60),
                ("other", "shared", 60),
                ("real", "counted", 120),
            ):
                tasks.create_task(self._offer(region, resource, rate))
            try:
                yield
            finally:
                self._over.set()

    async def _offer(self, region: str, resource: str, rate: float) -> None:
        began, number = time.monotonic(), 0
        while not self._over.is_set():
            number += 1
            await asyncio.sleep(max(0.0, began + number / rate - time.monotonic()))
            key = KEYS[number % len(KEYS)] if resource == "counted" else "hot"
            sent = time.monotonic()
            answer = await self._system.regions[region].limiter.check(
                Check("d", {"client_key": key, "resource": resource})
            )
            self.answers += 1
            self.degraded += answer.degraded
            if resource == "shared":
                if answer.allowed:
                    self.admitted.append((sent, time.monotonic()))
                    self.by_nodes += answer.degraded
            elif answer.degraded:
                self.unsure[key] += 1
            else:
                assert answer.allowed
                self.counted[key] += 1


@asynccontextmanager
async def serving(directory: Path, region: Region) -> AsyncIterator[Embedded]:
    """Two regions over one hub, one of them with the real Redis."""
    times = ProtocolTimes.scaled(SCALE)
    system = Embedded(["real", "other"], times, directory / "embedded")
    login = ConnectionOptions(username="apportion", password="of the nodes")
    options = StoreOptions(500, 1000, 1000, ClusterOptions(login))
    servers = region.settings.redis.servers
    store, agents = (RedisClusterStore(servers, times, options) for _ in range(2))
    transport = system.hub.transport("real")
    state = directory / "embedded" / "real"
    system.regions["real"] = EmbeddedRegion(
        "real",
        store,  # type: ignore[arg-type]
        transport,
        Limiter("real", store, b"embedded-embedded", state, times, node="real-1", deadline_s=1.0),
        Agent("real", agents, transport, times, state),
        Leader(transport, times, 0),
    )
    await system.start()
    try:
        await system.put_rules(RULES)
        async with asyncio.timeout(40):
            while not all(map(in_session, system.regions.values())):  # noqa: ASYNC110 (nothing tells)
                await asyncio.sleep(0.05)
        with quiet_collector():
            yield system
    finally:
        await system.stop()
        await agents.close()


def sessions(region: EmbeddedRegion) -> dict[str, int]:
    points = region.agent.view()["points"]
    assert isinstance(points, list)
    return {point["point"].partition("/")[0]: point["session_left_ms"] for point in points}


def in_session(region: EmbeddedRegion) -> bool:
    left = sessions(region)
    return region.limiter.ready and bool(left) and all(left.values())


async def test_it_grows_in_place_and_then_moves_to_other_servers_under_load(tmp_path: Path) -> None:
    region = region_at(tmp_path, BASE_PORT, 3)
    cluster = region.cluster()
    assert cluster is not None
    try:
        await asyncio.to_thread(cluster.start)
        async with serving(tmp_path, region) as system:
            load = Load(system)

            def reshape(to: Region) -> Reshape:
                made = to.reshape_redis()
                made.holds = lambda port: sessions(system.regions["real"]).get(f"127.0.0.1:{port}", 0) > 0
                return made

            said: list[str] = []
            async with load.offered():
                await asyncio.sleep(2)
                grown = reshape(region_at(tmp_path, BASE_PORT, 4))
                planned = await asyncio.to_thread(grown.plan)
                done = await asyncio.to_thread(grown.carry_out, said.append)
                assert (done, done.slots, done.retire) == (planned, 4096, ())
                assert owned_by(region_at(tmp_path, BASE_PORT, 4)) == dict.fromkeys(done.primaries, 4096)
                again = await asyncio.to_thread(reshape(region_at(tmp_path, BASE_PORT, 4)).carry_out, said.append)
                assert again.nothing
                await asyncio.sleep(1)
                moved = reshape(region_at(tmp_path, NEW_PORT, 3))
                plan: Plan = await asyncio.to_thread(moved.carry_out, said.append)
                assert plan.retire == tuple(range(BASE_PORT, BASE_PORT + 8))
                await asyncio.sleep(2)
            now = region_at(tmp_path, NEW_PORT, 3)
            assert set(owned_by(now)) == {NEW_PORT, NEW_PORT + 1, NEW_PORT + 2}
            assert sorted(now.processes.running()) == [f"redis-{NEW_PORT + place}" for place in range(6)]
            print(f"{load.answers} answers, {load.degraded} degraded", said)
            for key in KEYS:
                peek = Check("d", {"client_key": key, "resource": "counted"}, cost=0)
                left = (await system.regions["real"].limiter.check(peek)).remaining
                assert left is not None
                used = CAPACITY - left
                assert load.counted[key] <= used <= load.counted[key] + load.unsure[key], key
        assert load.answers > 500
        assert load.degraded <= load.answers // 5, "most slots move in milliseconds"
        assert worst_excess(load.admitted, BURST + load.by_nodes, RATE, slack=0.001) <= 0
    finally:
        region_at(tmp_path, NEW_PORT, 3).down()


def owned_by(region: Region) -> dict[int, int]:
    cluster = region.cluster()
    assert cluster is not None
    return {one["port"]: one["slots"] for one in cluster.describe() if one["slots"]}
