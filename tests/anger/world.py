"""Three regions in this process over a real hub: the real limiters, agents and candidate leaders, stores in memory.

One clock stamps everything, so what must hold is looked at exactly: after every write to a point, and between.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import uuid4

from global_sync.agent import Agent, monotonic_us
from global_sync.changes import PUT_SET, Proposal, encode_proposal
from global_sync.leader import Leader, boot_us
from global_sync.simulation.bound import BoundChecker
from global_sync.transport.base import PROPOSALS, Transport, TransportUnavailable
from regional_limiter.limiter import Limiter
from regional_limiter.model.decision import Check, Verdict
from regional_limiter.model.enforcement import Write, WriteReply
from regional_limiter.model.rule import Rate
from regional_limiter.model.share import SHARE_UNITS, ProtocolTimes, floor_name
from regional_limiter.store.base import BucketCall
from regional_limiter.store.memory import MemoryStore
from regional_limiter.store.redis_cluster import RedisClusterStore
from tests.quiet_collector import quiet_collector

REGIONS = ("us-east", "eu-west", "ap-south")
CAPACITY, RATE = 20, 100
BASE = SHARE_UNITS // len(REGIONS)
RULES = {
    "domain": "default",
    "regions": dict.fromkeys(REGIONS, 1),
    "rules": [
        {
            "id": "shared",
            "match": {"resource": "GET /shared"},
            "key": ["client_key"],
            "capacity": CAPACITY,
            "refill": f"{RATE}/s",
            "scope": "global",
        }
    ],
}
TIMES = replace(ProtocolTimes.scaled(1 / 3), session_us=10_000_000, patience_us=8_000_000, gap_us=2_500_000)
"""Short, but a gap that a busy machine does not reach (what stalls for longer has lost its lease), and a session
that lasts until another broker leads and all clients have found it: some 7 s where brokers are given 4 s.
"""
SESSION_S, CONSENT_S = TIMES.session_us / 1e6, TIMES.consent_us / 1e6
POINTS_A_REGION = 2
LOOK_S = 0.02


class WatchedStore(MemoryStore):
    """Tells of every write, and of every check that was allowed."""

    on_write: Callable[[], None]
    on_admit: Callable[[str, int], None]

    def decide(
        self, calls: Sequence[BucketCall], now_us: int | None = None, request_id: str | None = None
    ) -> list[Verdict]:
        verdicts = super().decide(calls, now_us, request_id)
        for call, verdict in zip(calls, verdicts, strict=True):
            if verdict.allowed and call.cost:
                self.on_admit(call.key, call.cost)
        return verdicts

    async def write(self, point: str, write: Write) -> WriteReply:
        reply = await super().write(point, write)
        self.on_write()
        return reply


@dataclass(slots=True)
class Region:
    """One region of the process."""

    name: str
    store: WatchedStore | RedisClusterStore
    transport: Transport
    limiter: Limiter
    agent: Agent
    leader: Leader


class World:
    """``connect`` gives a region's transport.  ``broken``: what did not hold, in words, each kind once.

    ``least``: the smallest share of each region since that was last emptied (of the one key that is used).
    """

    def __init__(self, connect: Callable[[str], Transport], state_dir: Path) -> None:
        self._connect = connect
        self.regions = {name: self._region(name, rank, state_dir / name) for rank, name in enumerate(REGIONS)}
        self.broken: dict[str, str] = {}
        self._bounds: dict[str, BoundChecker] = defaultdict(lambda: BoundChecker(CAPACITY, Rate(RATE, 1000)))
        self.least: dict[str, int] = {}

    def _region(self, name: str, rank: int, state_dir: Path) -> Region:
        store = WatchedStore(monotonic_us, TIMES, [f"{name}:{n}/memory" for n in range(POINTS_A_REGION)])
        store.on_write = self.look
        store.on_admit = self._admit
        transport = self._connect(name)
        limiter = Limiter(name, store, b"a secret of tests", state_dir, TIMES, node=f"{name}-1", deadline_s=1.0)
        agent = Agent(name, store, transport, TIMES, state_dir)
        return Region(name, store, transport, limiter, agent, Leader(transport, TIMES, rank))

    # ---- what must hold

    def _admit(self, key: str, cost: int) -> None:
        self._bounds[key].admit(monotonic_us(), cost)
        if self._bounds[key].worst > 0:
            self._say("bound", f"{self._bounds[key].worst:.2f} tokens of {key}")

    def look(self) -> None:
        """V1, V2, V4, and no process has found an invariant of its own broken."""
        self._look_at_processes()
        for key in self.keys():
            held = {name: self.share(name, key) for name in self.regions}
            self.least = {name: min(share, self.least.get(name, share)) for name, share in held.items()}
            if sum(held.values()) > SHARE_UNITS:
                self._say("V1", f"{key}: {held}")
            leader = self.newest_leader()
            if leader is not None and leader.side.view == max(r.leader.side.view for r in self.regions.values()):
                counted = {name: leader.side.count(key, name, boot_us()) for name in held}
                if any(held[name] > counted[name] for name in held):
                    self._say("V2", f"{key}: {held} in force, {counted} counted")

    def _look_at_processes(self) -> None:
        epochs = [region.leader.side.epoch for region in self.regions.values() if region.leader.active]
        if len(set(epochs)) < len(epochs):
            self._say("V4", f"leaders of epochs {epochs}")
        for name, region in self.regions.items():
            for evidence in (region.leader.side.evidence, region.agent.side.evidence):
                if evidence.total:
                    self._say("own", f"{name}: {list(evidence.last)[:2]}")

    def _say(self, kind: str, what: str) -> None:
        self.broken.setdefault(kind, what)

    def share(self, region: str, key: str) -> int:
        """The most that a check in ``region`` would use of ``key`` now."""
        store, rules, shares = self.regions[region].store, self.regions[region].limiter._rules, []
        assert isinstance(store, WatchedStore)
        for name in (f"{region}:{n}/memory" for n in range(POINTS_A_REGION)):
            enforcement, now_us = store.point(name).enforcement, monotonic_us()
            version, base, floor = enforcement.peek_base(now_us, "default") or (-1, 0, 0)
            if rules.base_version > version:
                base, floor = rules.bases.get("default", 0), rules.bases.get(floor_name("default"), 0)
            shares.append(enforcement.peek_share(now_us, key, base, floor))
        return max(shares)

    # ---- who is what

    def newest_leader(self) -> Leader | None:
        leaders = [region.leader for region in self.regions.values() if region.leader.active]
        return max(leaders, key=lambda leader: leader.side.epoch, default=None)

    def in_session(self, name: str) -> bool:
        points = self.regions[name].agent.view()["points"]
        assert isinstance(points, list)
        return self.regions[name].limiter.ready and bool(points) and all(p["session_left_ms"] > 0 for p in points)

    @property
    def settled(self) -> bool:
        return self.newest_leader() is not None and all(self.in_session(name) for name in REGIONS)

    def resets(self) -> dict[str, int]:
        """How often a region's points have lost their variable: nobody called for longer than the gap."""
        return {name: sum(p.resets for p in region.agent.points.values()) for name, region in self.regions.items()}

    # ---- doing

    async def start(self) -> None:
        for region in self.regions.values():
            await region.transport.start()
            await region.agent.start()
            await region.leader.start()
            await region.limiter.start()
        proposal = Proposal(id=str(uuid4()), domain="default", kind=PUT_SET, document=dict(RULES), author="test")
        transport = next(iter(self.regions.values())).transport
        await until_sent(transport, PROPOSALS, [encode_proposal(proposal)], key=b"default")

    async def stop(self) -> None:
        for region in self.regions.values():
            await region.limiter.stop()
            await region.agent.stop()
            await region.leader.stop()
            await region.transport.close()
            await region.store.close()

    def shares(self) -> dict[str, int]:
        """Of the one key that is used; nothing before it is."""
        return {name: self.share(name, key) for key in self.keys() for name in self.regions}

    def keys(self) -> list[str]:
        """The key that is used, once it is."""
        return list(self._bounds)

    async def offer(self, region: str, rate: float, seconds: float) -> None:
        """Checks at that rate."""
        check, limiter = (
            Check("default", {"client_key": "c", "resource": "GET /shared"}),
            self.regions[region].limiter,
        )
        began = time.monotonic()
        for number in range(int(rate * seconds)):
            await asyncio.sleep(max(0.0, began + number / rate - time.monotonic()))
            await limiter.check(check)

    async def until(self, what: str, holds: Callable[[], bool], within_s: float) -> float:
        """Seconds until it holds."""
        began = time.monotonic()
        while not holds():
            if time.monotonic() - began > within_s:
                raise AssertionError(f"not within {within_s} s: {what}")
            await asyncio.sleep(LOOK_S)
        return time.monotonic() - began


async def until_sent(
    transport: Transport, topic: str, values: list[bytes], *, key: bytes | None = None, within_s: float = 120
) -> list[int]:
    """Send until it is acknowledged (what is repeated is harmless)."""
    async with asyncio.timeout(within_s):
        while True:
            try:
                return await transport.send(topic, values, key=key)
            except TransportUnavailable:
                await asyncio.sleep(0.05)


@asynccontextmanager
async def living(world: World) -> AsyncIterator[World]:
    """All regions are in session; what must hold has held when it ends."""
    looking = asyncio.create_task(_look_on(world))
    try:
        await world.start()
        await world.until("all regions are in session", lambda: world.settled, 120)
        with quiet_collector():
            yield world
        world.look()
        assert not world.broken, world.broken
    finally:
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)
        await world.stop()


async def _look_on(world: World) -> None:
    while True:
        world.look()
        await asyncio.sleep(LOOK_S)


async def lends(world: World, region: str, within_s: float = 240) -> None:
    """Demand in ``region`` until it is lent most of the limit."""
    async with asyncio.timeout(within_s):
        await world.offer(region, 1.5 * RATE, 0.5)
        while world.shares()[region] < 9_000:
            await world.offer(region, 1.5 * RATE, 0.5)
