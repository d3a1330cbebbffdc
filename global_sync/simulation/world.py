"""The simulated world: see the package's docstring for how it is used.  Time and chance come from the seed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

from global_sync import codec
from global_sync.changes import PUT_SET, Proposal, encode_proposal
from global_sync.leader import Leader
from global_sync.protocol.invariants import Evidence
from global_sync.protocol.messages import LeaseRecord, Mark, Record
from global_sync.simulation.bound import BoundChecker, WindowBound
from global_sync.simulation.clock import Clock
from global_sync.simulation.hub import Hub, SimTransport
from global_sync.simulation.judge import Broken, Judge, in_force
from global_sync.simulation.links import Law, Link
from global_sync.simulation.node import Node
from global_sync.simulation.parts import Parts
from global_sync.simulation.process import Process
from global_sync.simulation.redis import LIBRARY, OLD_LIBRARY, Copy, RegionRedis, Shard
from global_sync.simulation.region import AgentProcess, LeaderProcess, Region
from global_sync.simulation.scheduler import Scheduler
from global_sync.simulation.traces import Trace
from global_sync.transport.base import LOG, PROPOSALS, Message
from regional_limiter.model.decision import Check, Verdict
from regional_limiter.model.rule import Algorithm, Rate
from regional_limiter.model.share import SHARE_UNITS, ProtocolTimes, region_capacity, window_static
from regional_limiter.rules import parse_document
from regional_limiter.store.base import BucketCall, Sharing

OFFER_TICK_US = 5_000
WALL_CLOCK_US = 1_800_000_000_000_000
"""What the clocks show at the beginning: windows and beats expect a time of this century."""
LAG_US = 5_000
"""Of replication between the copies of a shard."""
NEAR = Law(200, 100)
"""One way between a process and its region's Redis."""
APPEND = Law(1_000, 1_000)


@dataclass(frozen=True, slots=True)
class Decided:
    """One check as it was decided: ``admitted`` by every rule that it meets."""

    at_us: int
    region: str
    cost: int
    admitted: bool
    calls: Sequence[BucketCall]
    verdicts: Sequence[Verdict]


@dataclass(slots=True)
class Tally:
    """Tokens asked for in one region, and tokens admitted there."""

    offered: int = 0
    admitted: int = 0


@dataclass(slots=True)
class _Offer:
    trace: Trace
    check: Check
    owed: float = 0.0
    is_random: bool = False


class World:
    """``regions``: name -> one-way delay to the hub in us.  ``rules``: a rule set, as an operator would put it.

    ``drift_ppm``: clocks run up to so much too fast or too slow (at most the protocol's).  ``nodes`` and ``shards``
    a region.  ``old_library``: two versions of the function library are loaded, and nodes call the older one.
    ``judged_every_us``: how often the invariants are looked at beside every event that changes a share
    (0: never).  ``began_us``: what the clocks show at the beginning, since 1970.
    """

    def __init__(
        self,
        regions: Mapping[str, int],
        rules: Mapping[str, object],
        *,
        seed: int = 0,
        times: ProtocolTimes | None = None,
        nodes: int = 2,
        shards: int = 1,
        drift_ppm: int = 0,
        parts: Parts | None = None,
        old_library: bool = False,
        judged_every_us: int = 100_000,
        began_us: int = WALL_CLOCK_US,
    ) -> None:
        self.times = times or ProtocolTimes()
        self.random = Random(seed)
        self.scheduler = Scheduler()
        self.hub = Hub(self.scheduler, self.random, APPEND)
        self.hub.written = self._written
        self.log: list[Record] = []
        self.newest_epoch = 0
        self.keys: dict[str, None] = {}
        """Keys that a lease was ever recorded of, or a check met: those that are judged."""
        self.failures: list[str] = []
        self.bounds: dict[str, BoundChecker] = {}
        self.local_bounds: dict[tuple[str, str], BoundChecker] = {}
        """(region, key): of what its nodes decided without Redis."""
        self.window_bounds: dict[tuple[str, str, int], WindowBound] = {}
        """(who decided, key, window's end in ms): "" for the stores, a region for its nodes by themselves."""
        self._largest_base: dict[tuple[str, str], int] = {}
        self.old_primary_bounds: dict[str, BoundChecker] = {}
        """Key: of what a cut-off old primary still decided."""
        self._lately: dict[str, deque[tuple[int, str, int]]] = {name: deque() for name in regions}
        self._stepped_us: dict[Copy, int] = {}
        self.usual: dict[tuple[int, str], object] = {}
        """For :mod:`faults`: what attributes are when nothing is wrong."""
        self.demand: dict[str, float] = dict.fromkeys(regions, 0.0)
        """For :mod:`faults`: what each region asks for, in parts of the whole limit."""
        self.tallies: dict[str, Tally] = {name: Tally() for name in regions}
        self.watchers: list[Callable[[Decided], None]] = []
        self._drift_ppm = drift_ppm
        self._began_us = began_us
        self._parts = parts or Parts()
        self._libraries = (OLD_LIBRARY, LIBRARY) if old_library else (LIBRARY,)
        self._serial = 0
        self._offers: dict[str, list[_Offer]] = {name: [] for name in regions}
        self.judge = Judge(self)
        self._judged_every_us = judged_every_us
        self.regions = {name: self._region(name, delay, nodes, shards) for name, delay in regions.items()}
        for rank, name in enumerate(regions):
            self.start_agent(name)
            self.start_candidate(name, rank)
        self.rules: Mapping[str, object] = rules
        self.put_rules(rules)
        self.scheduler.later(0, self._offer_all)
        if judged_every_us:
            self.scheduler.later(judged_every_us, self._judge_again)

    # ---- building

    def _region(self, name: str, delay_us: int, nodes: int, shards: int) -> Region:
        redis = RegionRedis(name, [self._shard(name, number) for number in range(shards)])
        region = Region(name, Link.of(delay_us), redis, [])
        region.nodes = [self._node(name, number, redis) for number in range(nodes)]
        for node in region.nodes:
            node.leased = partial(self._note, name)
        return region

    def _shard(self, region: str, number: int) -> Shard:
        return Shard(
            [
                Copy(
                    f"{region}-{number}-{copy}:6379",
                    self.times,
                    self._clock(),
                    self.scheduler,
                    LAG_US,
                    self._parts.enforcement,
                    self._libraries,
                )
                for copy in range(2)
            ]
        )

    def _node(self, region: str, number: int, redis: RegionRedis) -> Node:
        name = f"{region}-node-{number}"
        return Node(
            name,
            redis,
            self.scheduler,
            self.random,
            self.times,
            self._clock(),
            NEAR,
            self._parts,
            self._libraries[0],
        )

    def _clock(self) -> Clock:
        ppm = self.random.randint(-self._drift_ppm, self._drift_ppm) if self._drift_ppm else 0
        clock = Clock(self._began_us)
        clock.set_rate(self.now_us, ppm)
        return clock

    def _process(self, name: str) -> Process:
        return Process(name, self.scheduler, self.random, self._clock(), self._failed)

    def _failed(self, what: str) -> None:
        self.failures.append(what)

    def start_agent(self, region: str) -> AgentProcess:
        """Another process with the region's agent: the first one, a standby, or the successor of a dead one."""
        place = self.regions[region]
        process = self._process(f"{region} agent")
        store = self._parts.store(place.redis, process, self.scheduler, self.random, NEAR)
        store.wrote = self.look
        transport = SimTransport(self.hub, process, place.link)
        agent = self._parts.agent(
            region, store, transport, self.times, None, now_us=process.now_us, new_id=process.new_id
        )
        running = AgentProcess(process, store, agent)
        place.agents.append(running)
        process.loop.spawn(agent.start())
        return running

    def start_candidate(self, region: str, rank: int, link: Link | None = None) -> LeaderProcess:
        """Another process with a candidate leader; it may have a link of its own."""
        place = self.regions[region]
        process = self._process(f"{region} leader")
        link = link or place.link
        transport = SimTransport(self.hub, process, link)
        leader = Leader(
            transport,
            self.times,
            rank,
            now_us=process.now_us,
            wall_ms=lambda: process.now_us() // 1000,
            new_id=process.new_id,
        )
        running = LeaderProcess(process, leader, link)
        place.candidates.append(running)
        process.loop.spawn(leader.start())
        return running

    # ---- time

    @property
    def now_us(self) -> int:
        """True time since the world began."""
        return self.scheduler.now_us

    def run_until(self, at_us: int) -> None:
        """Let everything happen that is due until then."""
        scheduler = self.scheduler
        while (due := scheduler.next_at_us()) is not None and due <= at_us:
            scheduler.step()
        scheduler.now_us = max(scheduler.now_us, at_us)

    def run(self, duration_us: int) -> None:
        self.run_until(self.now_us + duration_us)

    def settle(self, most_us: int = 0) -> None:
        """Until there is a leader, the rules are with every node, the bases are done and every session lives."""
        end_us = self.now_us + (most_us or 4 * self.times.consent_us + 20_000_000)
        while not self.is_settled():
            if self.now_us >= end_us:
                raise RuntimeError("the world does not settle")
            self.run(self.times.beat_us // 4)

    def is_settled(self) -> bool:
        for leader in self.newest_leaders():
            side, now_us = leader.side, leader.process.now_us()
            done = 0 < side.config_version == side.done_version
            heard = all(side.live(name, now_us) and not side.free(name, now_us) for name in self.regions)
            ready = all(node.ready and node.base_version > 0 for node in self.nodes())
            if done and heard and ready and not side.waiting_for_bases():
                return all(
                    any(one.side.settled_base_version == 2 * side.config_version + 1 for one in region.agents)
                    for region in self.regions.values()
                )
        return False

    # ---- traffic

    def offer(self, region: str, trace: Trace, check: Check | None = None, *, is_random: bool = False) -> None:
        """From now on ``trace`` says how many tokens a second are asked for there, by checks like ``check``.

        Evenly spaced, or with ``is_random`` by chance at that rate.
        """
        check = check or Check("default", {"client_key": "all"})
        self._offers[region].append(_Offer(trace, check, is_random=is_random))

    def stop_offers(self) -> None:
        for offers in self._offers.values():
            offers.clear()

    def _offer_all(self) -> None:
        for region, offers in self._offers.items():
            for offer in offers:
                asked = offer.trace(self.now_us) * OFFER_TICK_US / 1e6 / offer.check.cost
                if offer.is_random:
                    count = self._chance(asked)
                else:
                    offer.owed += asked
                    count = int(offer.owed)
                    offer.owed -= count
                for _ in range(count):
                    self.check(region, offer.check)
        self.scheduler.later(OFFER_TICK_US, self._offer_all)

    def _chance(self, mean: float) -> int:
        """How many of many unlikely things happen, ``mean`` of them on average."""
        count, left = 0, mean
        while (left := left - self.random.expovariate(1.0)) > 0:
            count += 1
        return count

    def check(self, region: str, check: Check) -> bool | None:
        """One check in that region, now.  None: no node is running there."""
        place, tally = self.regions[region], self.tallies[region]
        node = place.next_node()
        if node is None:
            return None
        admitted, calls, verdicts = node.check(check)
        tally.offered += check.cost
        if admitted:
            tally.admitted += check.cost
            for call, verdict in zip(calls, verdicts, strict=True):
                if call.sharing is Sharing.WHOLE:
                    continue
                if call.refill is not None:
                    self._admit(region, call, call.refill, verdict, node)
                elif call.algorithm is Algorithm.FIXED_WINDOW:
                    self._admit_in_window(region, call, verdict, node)
        if self.watchers:
            decided = Decided(self.now_us, region, check.cost, admitted, calls, verdicts)
            for watch in self.watchers:
                watch(decided)
        return admitted

    def _admit(self, region: str, call: BucketCall, refill: Rate, verdict: Verdict, node: Node) -> None:
        """Give it to the checker that it belongs to (docs/semantics.md says which of them add up)."""
        key, now_us = call.key, self.now_us
        if verdict.degraded:
            self._admit_locally(region, call, refill)
            return
        bounds = self.old_primary_bounds if node.asked_old_primary else self.bounds
        bound = bounds.get(key)
        if bound is None:
            bound = bounds[key] = BoundChecker(call.capacity, refill)
            self.keys[key] = None
        bound.admit(now_us, call.cost)
        self._note(region, key, call.cost)

    def _admit_locally(self, region: str, call: BucketCall, refill: Rate) -> None:
        """All nodes of a region together, by themselves: no more than its base (the larger one during a change)."""
        name = (region, call.key)
        base = max(call.base, self._largest_base.get(name, 0))
        if name not in self.local_bounds or base > self._largest_base[name]:
            self._largest_base[name] = base
            capacity = region_capacity(call.capacity, base, call.regions)
            rate = Rate(refill.tokens * base, refill.period_ms * SHARE_UNITS)
            self.local_bounds[name] = BoundChecker(capacity, rate, self.local_bounds.get(name))
        self.local_bounds[name].admit(self.now_us, call.cost)

    def _admit_in_window(self, region: str, call: BucketCall, verdict: Verdict, node: Node) -> None:
        """A window is named by its end, as the clock shows it that decided."""
        clock_us = (
            node.now_us() if verdict.degraded else self.regions[region].redis.shard_of(call.key).copy.now_us()
        )
        end_ms = clock_us // 1000 + verdict.reset_after_ms
        decided_by, capacity = "", call.capacity
        if verdict.degraded:
            decided_by, capacity = region, region_capacity(call.capacity, window_static(call.base), call.regions)
        elif node.asked_old_primary:
            decided_by = "old primary"
        name = (decided_by, call.key, end_ms)
        if name not in self.window_bounds:
            self.window_bounds[name] = WindowBound(capacity)
        self.window_bounds[name].admit(self.now_us, call.cost)
        if not decided_by:
            self._note(region, call.key, call.cost)

    def _note(self, region: str, key: str, tokens: int) -> None:
        """Charged in that region just now: a promotion within a lag would lose it."""
        lately = self._lately[region]
        lately.append((self.now_us, key, tokens))
        while lately and lately[0][0] < self.now_us - LAG_US:
            lately.popleft()

    # ---- looking

    def nodes(self) -> Iterator[Node]:
        for region in self.regions.values():
            yield from region.nodes

    def agents(self) -> Iterator[AgentProcess]:
        for region in self.regions.values():
            yield from region.agents

    def candidates(self) -> Iterator[LeaderProcess]:
        for region in self.regions.values():
            yield from region.candidates

    def newest_leaders(self) -> list[LeaderProcess]:
        """Those who lead by the newest valid MARK (one, or none)."""
        return [one for one in self.candidates() if one.side.active and one.side.epoch == self.newest_epoch]

    def shares(self, key: str) -> dict[str, int]:
        """The share of ``key`` in force in each region now, out of 10,000."""
        return {name: in_force(region.redis, region.nodes, key) for name, region in self.regions.items()}

    def evidence(self) -> Iterable[tuple[str, Evidence]]:
        """What the processes' own invariants have found."""
        for agent in self.agents():
            yield agent.process.name, agent.side.evidence
        for candidate in self.candidates():
            yield candidate.process.name, candidate.side.evidence

    def problems(self) -> list[Broken]:
        """What was broken so far: invariants, and the bound of the admitted checks."""
        found = list(self.judge.broken.values())
        tables: tuple[tuple[str, Mapping[Any, BoundChecker]], ...] = (
            ("bound", self.bounds),
            ("bound, decided without Redis", self.local_bounds),
            ("bound, by an old primary", self.old_primary_bounds),
        )
        for name, bounds in tables:
            for key, bound in bounds.items():
                if bound.worst > 0:
                    found.append(Broken(name, bound.worst_at_us, str(key), f"{bound.worst:.3f} tokens too many"))
        for (decided_by, key, end_ms), window in self.window_bounds.items():
            if window.worst > 0:
                what = f"{window.worst} tokens too many of the window to {end_ms}, of {window.capacity}"
                found.append(Broken(f"window {decided_by}".strip(), window.last_us, key, what))
        return found

    def _written(self, message: Message) -> None:
        if message.topic != LOG:
            return
        for record in codec.decode_records(message.value):
            self.log.append(record)
            if isinstance(record, Mark):
                self.newest_epoch = max(self.newest_epoch, record.epoch)
            elif isinstance(record, LeaseRecord):
                self.keys.setdefault(record.key)

    def look(self) -> None:
        """Judge now, if this world is judged at all."""
        if self._judged_every_us:
            self.judge.look()

    def _judge_again(self) -> None:
        self.judge.look(foresee=False)
        self.scheduler.later(self._judged_every_us, self._judge_again)

    # ---- what operators do

    def put_rules(self, rules: Mapping[str, object]) -> None:
        """Propose a whole set.  Raises InvalidRules."""
        rule_set = parse_document(rules)
        self.rules = rules
        self._serial += 1
        proposal = Proposal(
            id=f"proposal-{self._serial}",
            domain=rule_set.domain,
            kind=PUT_SET,
            document=dict(rules),
            author="simulation",
        )
        self.hub.append(PROPOSALS, encode_proposal(proposal), rule_set.domain.encode())

    @property
    def weights(self) -> dict[str, int]:
        """Weight by region, as last proposed."""
        weights = self.rules["regions"]
        assert isinstance(weights, dict)
        return dict(weights)

    def change_rules(self, **changes: object) -> None:
        """Propose the set with some of its fields replaced."""
        self.put_rules({**self.rules, **changes})

    # ---- faults

    def promote(self, region: Region, number: int) -> bool:
        """Make the other copy of the shard primary, with what was replicated.

        False: it has changed so often lately that no cluster would do it again (three times within the time that
        a variable takes to be trusted, and a gap).
        """
        shard, times = region.redis.shards[number], self.times
        window_us = times.settle_age_us + times.gap_us + 2
        if sum(self.now_us - at_us <= window_us for at_us in shard.changes_us) >= 3:
            return False
        shard.changes_us.append(self.now_us)
        shard.promote()
        for at_us, key, tokens in self._lately[region.name]:
            if self.now_us - at_us <= LAG_US and key in self.bounds:
                self.bounds[key].allow(self.now_us, tokens)
            for (decided_by, name, _), window in self.window_bounds.items():
                if name == key and not decided_by:
                    window.allow(tokens)
        return True

    def restart_node(self, region: Region, node: Node) -> None:
        """What it had used up of its part by itself is forgotten with it."""
        node.restart()
        for (name, _), bound in self.local_bounds.items():
            if name == region.name:
                bound.allow(self.now_us, bound.capacity)
        for (decided_by, _, _), window in self.window_bounds.items():
            if decided_by == region.name:
                window.allow(window.capacity)

    def step_clock(self, region: Region, number: int, by_us: int) -> bool:
        """Set the clock of the shard's primary forward or back.

        Within the gap (which may go unnoticed) once a consent and shard.  False: not now.
        """
        shard, times = region.redis.shards[number], self.times
        last_us = max(self._stepped_us.get(copy, -(2**62)) for copy in shard.copies)
        if self.now_us - last_us <= times.stretch(times.consent_us):
            return False
        copy = shard.copy
        self._stepped_us[copy] = self.now_us
        if by_us < -times.gap_us:  # noticed, because calls come all the time
            copy.enter()
        copy.clock.step(self.now_us, by_us)
        if abs(by_us) > times.gap_us:
            copy.enter()
        elif by_us > 0:
            # A bucket earns what its clock shows, as much as if so much time had passed.
            for bound in self.bounds.values():
                bound.allow_time(self.now_us, by_us)
        return True

    def cut(self, region: str, *, up: bool = True, down: bool = True) -> None:
        """Cut the region's link to the hub: what it says (``up``), what it hears (``down``), or both."""
        link = self.regions[region].link
        if up:
            link.up.cut()
        if down:
            link.down.cut()

    def heal(self, region: str) -> None:
        link = self.regions[region].link
        link.up.heal()
        link.down.heal()

    def hub_down(self) -> None:
        """No broker answers anyone."""
        self.hub.go_down()

    def hub_up(self) -> None:
        self.hub.come_up()

    def crash_leader(self) -> str | None:
        """Kill whoever leads; the region where that was, None if nobody does."""
        for region in self.regions.values():
            for running in list(region.candidates):
                if running.process.alive and running.side.active:
                    running.process.kill()
                    region.candidates.remove(running)
                    return region.name
        return None
