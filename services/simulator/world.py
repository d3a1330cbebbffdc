"""Regions on a virtual clock: the agents, leaders, transport, points and buckets that run in earnest.

Each region has an enforcement point in memory, an agent, a candidate leader, and a node that decides requests by
the store's own code, notes demand by the nodes' own rule and touches its point as nodes do.  What a node has beside
(token leases, remembered denials, the fallback for a store that does not answer) is left out: points always answer
here, and the rest only saves calls.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from global_sync.agent import Agent
from global_sync.leader import Leader
from global_sync.rulebook import PUT_SET, Proposal, encode_proposal
from global_sync.transport.base import LOG, PROPOSALS, REPORTS
from global_sync.transport.memory import MemoryHub, MemoryTransport
from regional_limiter.limiter import OFFER_EVERY_S
from regional_limiter.model.decision import Check, Verdict
from regional_limiter.model.share import ProtocolTimes
from regional_limiter.plan import DomainRules, Planner
from regional_limiter.rules import compile_rules, parse_document
from regional_limiter.store.base import NodeBeat
from regional_limiter.store.memory import MemoryStore
from regional_limiter.usage import Demand, is_interesting
from services.simulator.virtual_loop import VirtualLoop

_SECRET = b"simulated-secret"
_POINT = "point/memory"


class CountingTransport(MemoryTransport):
    """Counts what is sent: messages and bytes by topic."""

    def __init__(self, hub: MemoryHub, name: str) -> None:
        super().__init__(hub, hub.link(name))
        self.messages: dict[str, int] = {}
        self.bytes: dict[str, int] = {}

    async def send(
        self, topic: str, values: list[bytes], *, key: bytes | None = None, timeout_ms: int = 3000
    ) -> list[int]:
        self.messages[topic] = self.messages.get(topic, 0) + len(values)
        self.bytes[topic] = self.bytes.get(topic, 0) + sum(map(len, values))
        return await super().send(topic, values, key=key, timeout_ms=timeout_ms)


@dataclass(slots=True)
class Region:
    """One region.  ``claim``: what its node says it was asked for, times what it was."""

    name: str
    store: MemoryStore
    transport: CountingTransport
    agent: Agent
    leader: Leader
    now_us: Callable[[], int]
    planner: Planner = field(default_factory=lambda: Planner(_SECRET))
    claim: int = 1
    base_version: int = -1
    bases: dict[str, int] = field(default_factory=dict)
    _demand: Demand = field(default_factory=Demand)
    _domains: dict[str, DomainRules] = field(default_factory=dict)

    def use(self, document: Mapping[str, object]) -> None:
        """Take the rules as a node does."""
        rule_set = parse_document(document)
        matcher, regions = compile_rules(rule_set), len(rule_set.regions)
        largest = rule_set.largest_share(self.name)
        self._domains = {rule_set.domain: DomainRules(1, rule_set, matcher, regions, largest, self.name)}
        self._plan_anew()

    def _plan_anew(self) -> None:
        self.planner.use(self._domains, {}, max(0, self.base_version), self.bases)

    def check(self, check: Check) -> bool:
        """Decide and charge; note demand.  All rules of a check share a tag here."""
        plan = self.planner.plan(check)
        calls = plan.calls(check.cost)
        if not calls:
            return True
        verdicts: list[Verdict] = self.store.decide(calls, self.now_us())
        for call, verdict in zip(calls, verdicts, strict=True):
            if is_interesting(call, verdict):
                self._demand.add(call.key, call.cost * self.claim)
        return all(verdict.allowed for verdict in verdicts)

    async def offer_demand(self) -> None:
        while True:
            await asyncio.sleep(OFFER_EVERY_S)
            if self._demand:
                self.store.point(_POINT).offer(self.now_us(), self._demand.take(1000))

    async def touch(self, every_s: float) -> None:
        while True:
            beat = NodeBeat(f"{self.name}-1", "1", "", self.agent.rules.version, self.base_version)
            reply = self.store.point(_POINT).touch(self.now_us(), beat)
            if reply.base_version > self.base_version:
                self.base_version, self.bases = reply.base_version, dict(reply.bases)
                self._plan_anew()
            await asyncio.sleep(every_s)

    def share(self, key: str, domain: str = "default") -> int:
        """The share of ``key`` in force now."""
        enforcement = self.store.point(_POINT).enforcement
        return enforcement.peek_share(self.now_us(), key, self.bases.get(domain, 0))

    def key_of(self, check: Check) -> str:
        return self.planner.plan(check).steps[0].key


class World:
    """``delays_ms``: one-way delay to the hub by region; the first region's candidate leads first.

    ``async with`` starts it: rules accepted, sessions open, consents heard; ``settled_s`` of time have passed then.
    """

    settled_s = 36.0

    def __init__(
        self,
        loop: VirtualLoop,
        delays_ms: Mapping[str, int],
        document: Mapping[str, object],
        times: ProtocolTimes | None = None,
    ) -> None:
        self._loop = loop
        self.times = times or ProtocolTimes()
        self._document = document
        self.hub = MemoryHub()
        self._directory = tempfile.TemporaryDirectory(prefix="apportion-simulation-")
        self._tasks: list[asyncio.Task[None]] = []
        self.regions = {
            name: self._region(name, rank, delay_ms) for rank, (name, delay_ms) in enumerate(delays_ms.items())
        }

    def _region(self, name: str, rank: int, delay_ms: int) -> Region:
        now_us = self._loop.now_us
        self.hub.link(name).delay_ms = delay_ms
        transport = CountingTransport(self.hub, name)
        store = MemoryStore(now_us, self.times, [_POINT])
        agent = Agent(name, store, transport, self.times, Path(self._directory.name) / name, now_us=now_us)
        return Region(name, store, transport, agent, Leader(transport, self.times, rank, now_us=now_us), now_us)

    async def __aenter__(self) -> World:
        for region in self.regions.values():
            (Path(self._directory.name) / region.name).mkdir()
            region.use(self._document)
            await region.agent.start()
            await region.leader.start()
            for loop in (region.offer_demand(), region.touch(self.times.touch_us / 1e6)):
                self._tasks.append(self._loop.create_task(loop))
        proposal = Proposal(id="simulated", domain="default", kind=PUT_SET, document=dict(self._document))
        await self.hub.transport("operator").send(PROPOSALS, [encode_proposal(proposal)], key=b"default")
        # Bases are settled once nodes have been heard for a whole consent.
        await asyncio.sleep(self.settled_s)
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for region in self.regions.values():
            # Not agent.stop(): its last words would wait for links that may be cut.
            region.transport.closed = True
            await region.leader.stop()
            await region.agent.stop()
        self._directory.cleanup()

    # ---- what happens to it

    def cut(self, region: str) -> None:
        self.hub.link(region).cut = True

    def heal(self, region: str) -> None:
        self.hub.link(region).cut = False

    def cut_hub(self) -> None:
        for region in self.regions:
            self.cut(region)

    def heal_hub(self) -> None:
        for region in self.regions:
            self.heal(region)

    def leading(self) -> Region | None:
        return next((region for region in self.regions.values() if region.leader.active), None)

    async def kill_leader(self) -> str:
        """End the process that leads, without a word; its region."""
        region = self.leading()
        if region is None:
            raise RuntimeError("nobody leads")
        await region.leader.stop()
        region.leader.side.active = False
        return region.name

    # ---- what it costs

    def traffic(self) -> dict[str, tuple[int, int]]:
        """(messages, bytes) of the sync by topic, since the start."""
        totals: dict[str, tuple[int, int]] = {}
        for topic in (LOG, REPORTS):
            messages = sum(region.transport.messages.get(topic, 0) for region in self.regions.values())
            size = sum(region.transport.bytes.get(topic, 0) for region in self.regions.values())
            totals[topic] = (messages, size)
        return totals
