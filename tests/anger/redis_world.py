"""Three regions, one with a real Redis Cluster: every server of it is asked, all the time, what it enforces."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from global_sync.agent import Agent
from global_sync.leader import Leader, boot_us
from global_sync.transport.memory import MemoryHub
from regional_limiter.limiter import Limiter
from regional_limiter.model.keys import tag_of
from regional_limiter.model.share import SHARE_UNITS
from regional_limiter.store import library as wire
from regional_limiter.store.base import BucketCall
from regional_limiter.store.connection import pack
from regional_limiter.store.library import Library
from regional_limiter.store.redis_cluster import Prepared, RedisClusterStore, StoreOptions
from regional_limiter.store.topology import hash_slot_of
from tests.anger.world import REGIONS, TIMES, Region, World, living
from tests.contract.redis_cluster import RedisCluster, eventually
from tests.contract.redis_user import as_node

REAL = REGIONS[0]
PROBE_S = 0.02
OPTIONS = as_node(StoreOptions(deadline_ms=25, whole_deadline_ms=40))


AHEAD = """
local ahead_us = 0
local function clock(args)
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2] + ahead_us
end
"""
STEP = """
redis.register_function{
  function_name = 'apportion_step_VERSION', flags = {'allow-oom'}, callback = function(keys, args)
    ahead_us = _G.tonumber(args[1])
    return {1}
  end,
}
"""


def with_another_clock(library: Library) -> Library:
    """The library with one thing changed: by how much its clock is ahead of the server's is told to each server.

    (Debian's Redis does not start under libfaketime: its allocator asks for the time, and that allocates.)
    """
    begin = library.text.index("local function clock(args)")
    end = library.text.index("end\n", begin) + len("end\n")
    text = (
        library.text[:begin] + AHEAD.strip() + "\n" + library.text[end:] + STEP.replace("VERSION", library.version)
    )
    return replace(library, text=text)


class SeenStore(RedisClusterStore):
    """Remembers what was asked of the one key."""

    asked: BucketCall | None = None

    def __init__(self, seeds: Sequence[str]) -> None:
        super().__init__(seeds, TIMES, OPTIONS)
        self._library = with_another_clock(self._library)
        self._load_command = pack("FUNCTION", "LOAD", self._library.text)

    def prepare(self, calls: Sequence[BucketCall], request_id: str | None) -> Prepared:
        (self.asked,) = calls
        return super().prepare(calls, request_id)


@dataclass(frozen=True, slots=True)
class Seen:
    """A server enforced ``share`` at some moment between two times of the loop."""

    port: int
    share: int
    sent: float
    answered: float


class RedisWorld(World):
    """``seen``: the last word of each server that decided a check.  ``enforced``: how many each has decided."""

    def __init__(self, cluster: RedisCluster, hub: MemoryHub, state_dir: Path) -> None:
        self.cluster = cluster
        self.seen: dict[int, Seen] = {}
        self.enforced: dict[int, int] = dict.fromkeys(cluster.ports, 0)
        super().__init__(hub.transport, state_dir)

    def _region(self, name: str, rank: int, state_dir: Path) -> Region:
        if name != REAL:
            return super()._region(name, rank, state_dir)
        self.store = SeenStore(self.cluster.addresses[:3])
        transport = self._connect(name)
        limiter = Limiter(
            name, self.store, b"a secret of tests", state_dir, TIMES, node=f"{name}-1", deadline_s=0.04
        )
        agent = Agent(name, self.store, transport, TIMES, state_dir)
        return Region(name, self.store, transport, limiter, agent, Leader(transport, TIMES, rank))

    def share(self, region: str, key: str) -> int:
        if region != REAL:
            return super().share(region, key)
        newest = max(self.seen.values(), key=lambda seen: seen.sent, default=None)
        return newest.share if newest is not None else 0

    def look(self) -> None:
        """Shares are looked at with each answer of a server."""
        self._look_at_processes()

    def keys(self) -> list[str]:
        return [self.store.asked.key] if self.store.asked is not None else []

    # ---- its servers

    async def pair(self) -> tuple[int, int]:
        """The primary that owns the key, and its replica."""
        first = await asyncio.to_thread(self.cluster.owner_of, self.slot)
        place = self.cluster.ports.index(first)
        return first, self.cluster.ports[(place + self.cluster.primaries) % len(self.cluster.ports)]

    async def fail_over(self, port: int, how: str = "") -> None:
        """Make a replica the primary; ``how``: FORCE or TAKEOVER."""
        await self.has_role(port, "slave")
        await asyncio.to_thread(self.cluster.client(port).execute_command, "CLUSTER", "FAILOVER", *how.split())
        await self.has_role(port, "master")

    async def set_clock(self, port: int, ahead_s: float) -> None:
        function = f"apportion_step_{self.store.version}"
        await asyncio.to_thread(self.cluster.client(port).fcall, function, 0, round(ahead_s * 1e6))

    async def has_role(self, port: int, role: str, within_s: float = 120) -> None:
        async def holds() -> bool:
            return await asyncio.to_thread(self.cluster.role, port) == role

        await eventually(f"{port} is {role}", holds, within_s)

    async def answered_by(self, port: int, times: int = 20) -> None:
        """Until that server has decided so many checks more."""
        before = self.enforced[port]
        await self.until(f"{port} decides", lambda: self.enforced[port] >= before + times, 120)

    # ---- every server is asked

    @property
    def slot(self) -> int:
        assert self.store.asked is not None
        return hash_slot_of(tag_of(self.store.asked.key))

    async def probe(self, port: int) -> None:
        """Ask one server for ever what it would allow."""
        client = Redis(port=port, socket_timeout=0.5, socket_connect_timeout=0.5, retry=Retry(NoBackoff(), 0))
        try:
            while True:
                await asyncio.sleep(PROBE_S)
                if self.store.asked is not None:
                    with contextlib.suppress(RedisError, OSError):
                        await self._ask(client, port, replace(self.store.asked, cost=0))
        finally:
            await client.aclose()

    async def _ask(self, client: Redis, port: int, call: BucketCall) -> None:
        loop, leader = asyncio.get_running_loop(), self.newest_leader()
        keys, arguments = wire.encode_check([call])
        sent, counted, others = loop.time(), self._count(leader, call.key), self._others(call.key)
        function = self.store._library.functions["check"]
        reply = await client.execute_command("FCALL", function, len(keys), *keys, *arguments)
        (verdict,) = wire.decode_check(reply)
        self.seen[port] = Seen(port, verdict.share, sent, loop.time())
        self.enforced[port] += 1
        if leader is not None and leader is self.newest_leader():
            counted = max(counted, self._count(leader, call.key))
            if verdict.share > counted:
                self._say("V2", f"{port} enforced {verdict.share}, counted {counted}")
        # At the moment of the decision each of the others held at least the less of before and after.
        held = {
            name: min(before, after)
            for (name, before), after in zip(others.items(), self._others(call.key).values(), strict=True)
        }
        if verdict.share + sum(held.values()) > SHARE_UNITS:
            self._say("V1", f"{port} enforced {verdict.share}, the others {held}")

    def _count(self, leader: Leader | None, key: str) -> int:
        return leader.side.count(key, REAL, boot_us()) if leader is not None else SHARE_UNITS

    def _others(self, key: str) -> dict[str, int]:
        return {name: self.share(name, key) for name in REGIONS if name != REAL}


@asynccontextmanager
async def living_on(cluster: RedisCluster, state_dir: Path) -> AsyncIterator[RedisWorld]:
    """A world whose servers are asked, and in which what must hold has held when it ends."""
    world = RedisWorld(cluster, MemoryHub(), state_dir)
    probing = [asyncio.create_task(world.probe(port)) for port in cluster.ports]
    try:
        async with living(world):
            yield world
    finally:
        for task in probing:
            task.cancel()
        await asyncio.gather(*probing, return_exceptions=True)
