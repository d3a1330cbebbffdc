"""A seeded scheduler: regions, agents, candidates, Redis copies, and every fault that the protocol allows for.

Within the protocol's assumptions (drift, steps of clocks, changes of primary, one primary at a time) everything
that can be late, lost, repeated, swapped, killed or doubled is.  After every event: no key's shares in force may
sum above the limit (V1), the leader must count at least what is in force (V2), and the shares now in force must
never sum above the limit later if nothing else happens (V6).
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from global_sync.protocol.messages import Beat, Config, Done, Gone, LeaseRecord, Mark, Record, Report, Welcome
from regional_limiter.model.enforcement import BASE, Write, WriteReply
from regional_limiter.model.share import SHARE_UNITS, bases_by_weight, floor_name, named_floors

from .cast import Cast
from .plant import Clock, Destroyed, Plant, make_plant, ticks

REAL = Cast()
VALUES = (BASE, 0, 0, 500, 1000, 2000, 3000, 5000, 8000, 10_000)
QUIET_TOUCH = 20


@dataclass
class Agent:
    side: Any
    position: int
    paused_until: int = 0


@dataclass
class Candidate:
    side: Any
    clock: Clock
    position: int
    paused_until: int = 0


@dataclass
class Faults:
    """How bad this seed's world is."""

    often: float
    loss: float
    repeat: float
    lost_appends: float
    delay: int
    takeovers: float

    @classmethod
    def draw(cls, random: Random) -> Faults:
        return cls(
            often=random.choice([0.02, 0.1, 0.4]),
            loss=random.choice([0, 0.05, 0.3]),
            repeat=random.choice([0, 0.2]),
            lost_appends=random.choice([0, 0, 0.02]),
            delay=random.choice([2, 5, 20, 120]),
            takeovers=random.choice([0.001, 0.005, 0.03]),
        )


@dataclass
class Found:
    """The first violation of each kind."""

    shares: tuple[Any, ...] | None = None  # V1
    counts: tuple[Any, ...] | None = None  # V2
    later: tuple[Any, ...] | None = None  # V6
    evidence: tuple[Any, ...] | None = None  # what the machines' own checks found

    def __bool__(self) -> bool:
        return any((self.shares, self.counts, self.later, self.evidence))


@dataclass
class World:
    """One seed's world.  ``step`` makes one event, ``check`` judges it."""

    seed: int
    cast: Cast = REAL
    found: Found = field(default_factory=Found)
    counted: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        random = self.random = Random(self.seed)
        # Of its own, so that the rest of a seed's world is what it was before there were token leases.
        lease_life = Random(f"{self.seed} token leases").choice([0, 0, 5, 25])
        self.times = ticks(random.choice([300, 500, 1400]), lease_life)
        self.faults = Faults.draw(random)
        self.true = 0
        self.log: list[Record] = []
        self.trimmed = 0
        self.queue: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self.serial = 0
        self.names = [f"r{i}" for i in range(random.choice([2, 3, 3, 4]))]
        shards = random.choice([1, 1, 2, 3])
        self.plants = [
            make_plant(name, self.times, random, shards, random.choice([1, 2]), self.cast.enforcement)
            for name in self.names
        ]
        self.last_step: dict[tuple[str, int], int] = {}
        self.destroyed = ""
        self.quiet_until = dict.fromkeys(self.names, 0)
        self.cuts: dict[tuple[str, str], int] = {}
        self.hub_down_until = 0
        self.domains = ["shop", "mail"][: random.choice([1, 1, 2])]
        keys = random.choice([2, 2, 3, 5, 24])
        self.keys = [f"rl:{{{i}}}:{self.domains[i % len(self.domains)]}/all:u{i}" for i in range(keys)]
        self.hot = self.keys[:4]
        self.newest_epoch = 0
        self.foreseen: tuple[tuple[int, ...], ...] = ()
        self.told: list[str] | None = None
        """What happened, for who wants to read it."""
        self.newest_config = 0
        self.configs: dict[int, dict[str, dict[str, int]]] = {}
        self.agents: dict[str, list[Agent]] = {name: [] for name in self.names}
        for name in self.names:
            self.spawn(name)
        self.candidates = [self.new_candidate() for _ in range(2)]
        if random.random() < 0.85:
            self.boot()

    # ---- set-up

    def name_for(self, what: str) -> str:
        self.serial += 1
        return f"{what}{self.serial}"

    def spawn(self, name: str) -> Agent:
        agent = Agent(self.cast.region(name, self.name_for("agent"), self.times), self.trimmed)
        self.agents[name].append(agent)
        return agent

    def new_candidate(self) -> Candidate:
        clock = Clock(self.random.randint(0, 9000), self.any_rate())
        side = self.cast.leader(self.name_for("candidate"), self.names, self.times)
        return Candidate(side, clock, self.trimmed)

    def any_rate(self) -> int:
        return self.random.choice([-4000, 4000, self.random.randint(-4000, 4000)])

    def new_config(self) -> None:
        random = self.random
        self.newest_config += 1
        bases = {}
        for domain in self.domains:
            names = self.names_left()
            weights = {name: random.choice([0, 1, 1, 2, 4]) for name in names}
            if random.random() < 0.6 or not any(weights.values()):
                weights = dict.fromkeys(names, 1)
            bases[domain] = bases_by_weight(weights)
            if floors := named_floors(bases[domain], self.floor_per_mille(domain)):
                bases[floor_name(domain)] = floors
        self.configs[self.newest_config] = bases

    def floor_per_mille(self, domain: str) -> int:
        """Of chance of its own, so that the rest of a seed's world is what it was before floors were named."""
        random = Random(f"{self.seed} floor of {domain} {self.newest_config}")
        return random.choice([20, 20, 20, 100, 300, 1000])

    def boot(self) -> None:
        """A quiet start: a leader, sessions open, bases raised."""
        candidate = self.candidates[0]
        self.land([candidate.side.take_over(candidate.clock.read(self.true), self.name_for("nonce"))])
        self.read_log(candidate)
        self.new_config()
        now = candidate.clock.read(self.true)
        self.land(candidate.side.configure(now, 1, self.configs[1]))
        self.read_log(candidate)
        for _ in range(10):
            self.quiet_round(candidate)

    def quiet_round(self, candidate: Candidate, renew: bool = True) -> None:
        """Everything works and takes no time, for one round of every agent and the leader."""
        for name in self.names:
            self.advance(20)
            agent = self.agents[name][0]
            self.quiet_agent_round(name, agent)
            report = agent.side.report()
            self.read_log(candidate)
            if report:
                self.land(candidate.side.on_report(candidate.clock.read(self.true), report))
        now = candidate.clock.read(self.true)
        self.read_log(candidate)
        self.land(candidate.side.beat(now) if renew else [])
        self.land(candidate.side.tend(now))
        self.land(candidate.side.done(now, now // 1000))
        self.read_log(candidate)

    def quiet_agent_round(self, name: str, agent: Agent) -> None:
        plant, side = self.plant(name), agent.side
        while agent.position < len(self.log):
            side.on_record(self.log[agent.position])
            agent.position += 1
        for _ in range(2):
            token = side.listing_started()
            side.on_listing(token, plant.points(), plant.nodes_base_version())
            for point, copy in plant.points().items():
                write = side.prepare_write(point, self.name_for("nonce"))
                if write:
                    rest = side.on_reply(point, copy.write(self.true, write))
                    if rest is not None:
                        self.advance(self.times.token_lease_us)
                        side.rested(rest)
            plant.touch(self.true)

    def plant(self, name: str) -> Plant:
        return self.plants[self.names.index(name)]

    def names_left(self) -> list[str]:
        return [name for name in self.names if name != self.destroyed]

    def any_plant(self) -> Plant:
        return self.random.choice([plant for plant in self.plants if plant.shards])

    # ---- time and the log

    def later(self, delay: int, act: Callable[..., None], *arguments: Any) -> None:
        self.serial += 1
        heapq.heappush(self.queue, (self.true + delay, self.serial, act, arguments))

    def delay(self, most: int | None = None) -> int:
        random, most = self.random, self.faults.delay if most is None else most
        long = random.randint(0, most * 4) if random.random() < 0.2 else 0
        return random.choice([0, 1, random.randint(0, most), random.randint(0, most), long])

    def append(self, records: Iterable[Record], pause: int = 0) -> None:
        """Each record lands on its own: late, twice, swapped or (in some worlds) never."""
        for record in records:
            self.counted[_kind(record)] += 1
            if self.random.random() < self.faults.lost_appends:
                continue
            self.later(pause + self.delay(), self.land_one, record)
            if self.random.random() < self.faults.repeat * 0.2:
                self.later(pause + self.delay() * 3, self.land_one, record)

    def land_one(self, record: Record) -> None:
        if self.true < self.hub_down_until:
            self.later(self.hub_down_until - self.true + self.delay(), self.land_one, record)
            return
        self.log.append(record)
        if isinstance(record, Mark):
            self.newest_epoch = max(self.newest_epoch, record.epoch)

    def land(self, records: Iterable[Record]) -> None:
        for record in records:
            self.land_one(record)

    def read_log(self, candidate: Candidate, most: int = 1_000_000) -> None:
        now = candidate.clock.read(self.true)
        while candidate.position < len(self.log) and most > 0:
            candidate.side.on_record(now, self.log[candidate.position], candidate.position)
            candidate.position, most = candidate.position + 1, most - 1
            trim = candidate.side.trim_before
            if trim is not None and trim > self.trimmed:
                self.trimmed = trim
                self.counted["trim"] += 1

    def is_cut(self, name: str, other: str) -> bool:
        if self.true < self.hub_down_until:
            return True
        return max(self.cuts.get((name, other), 0), self.cuts.get((name, "all"), 0)) > self.true

    def advance(self, duration: int) -> None:
        while duration > 0:
            part = min(duration, QUIET_TOUCH)
            self.true += part
            duration -= part
            for plant in self.plants:
                self.touch_idle(plant)

    def touch_idle(self, plant: Plant) -> None:
        if self.true < self.quiet_until[plant.name]:
            return
        for shard in plant.shards:
            if shard.copy.age_of_last_call(self.true) >= QUIET_TOUCH - 1 or not shard.copy.variable:
                for node in plant.nodes:
                    shard.copy.touch(self.true, node)

    # ---- one event

    def step(self, number: int) -> None:
        """Event ``number`` of this seed: what it draws does not depend on which others are made."""
        random = self.random
        random.seed(self.seed << 32 | number)
        idle = random.choice([0, 1, 1, 2, 3, 5, 8])
        self.advance(idle if random.random() > 0.004 else random.choice([100, 400, 1100, 2600]))
        if self.queue and self.queue[0][0] <= self.true:
            _, _, act, arguments = heapq.heappop(self.queue)
            self.tell(f"{act.__name__.strip('_')} {_named(arguments)}")
            act(*arguments)
            if random.random() < 0.7:
                return
        x = random.random()
        if x >= 0.93 and random.random() > self.faults.often:
            x = random.random() * 0.93
        if x < 0.50:
            self.agent_event(random.choice(self.names))
        elif x < 0.93:
            self.candidate_event(random.choice(self.candidates))
        else:
            self.fault((x - 0.93) / 0.07)

    def tell(self, what: str) -> None:
        if self.told is not None:
            self.told.append(f"t={self.true:<6} {what}")

    def pause(self, chance: float) -> int:
        if self.random.random() >= chance * self.faults.often:
            return 0
        return self.random.choice([50, 300, 1200])

    # ---- agents

    def agent_event(self, name: str) -> None:
        random = self.random
        if not self.agents[name]:
            if random.random() < 0.05:
                self.spawn(name)
            return
        agent = random.choice(self.agents[name])
        if self.true < agent.paused_until:
            return
        self.tell(f"{agent.side.agent_id} of {name} reads, writes or reports")
        what = random.random()
        if random.random() < 0.5 and not self.is_cut(name, "log"):
            self.read_as_agent(agent, 1_000_000)
            self.begin_listing(name, agent, at_once=random.random() < 0.7)
            self.write_points(name, agent, 0)
            what = 0.9
        pause = self.pause(0.05)
        if what < 0.35:
            if not self.is_cut(name, "log"):
                self.read_as_agent(agent, random.choice([1, 3, 1_000_000]))
        elif what < 0.60:
            self.write_points(name, agent, pause)
        elif what < 0.72:
            self.begin_listing(name, agent)
        elif what < 0.96:
            self.send_report(name, agent.side.report(random.choice([2000, 2000, 2])), pause)
        else:
            key = random.choice(self.keys)
            agent.side.release(key, random.randint(0, 5000))
        if pause:
            agent.paused_until = self.true + pause

    def read_as_agent(self, agent: Agent, most: int) -> None:
        if agent.position < self.trimmed and self.random.random() < 0.5:
            agent.side.restart(self.name_for("agent"))
            agent.position = self.trimmed
        while agent.position < len(self.log) and most > 0:
            agent.side.on_record(self.log[agent.position])
            agent.position, most = agent.position + 1, most - 1

    def begin_listing(self, name: str, agent: Agent, at_once: bool = False) -> None:
        token, process = agent.side.listing_started(), agent.side.agent_id
        if at_once:
            self.list_now(name, agent, process, token, 0)
        else:
            self.later(self.delay(10), self.list_now, name, agent, process, token, self.delay(10))

    def list_now(self, name: str, agent: Agent, process: str, token: int, delay: int) -> None:
        plant = self.plant(name)
        points, version = frozenset(plant.points()), plant.nodes_base_version()
        if delay:
            self.later(delay, self.take_listing, agent, process, token, points, version)
        else:
            self.take_listing(agent, process, token, points, version)

    def take_listing(self, agent: Agent, process: str, token: int, points: frozenset[str], version: int) -> None:
        if agent.side.agent_id == process:
            agent.side.on_listing(token, points, version)

    def write_points(self, name: str, agent: Agent, pause: int) -> None:
        for point in sorted(agent.side.points):
            if self.random.random() < 0.15:
                continue
            write = agent.side.prepare_write(point, self.name_for("nonce"), self.random.choice([500, 500, 1]))
            if write and self.random.random() > 0.05:
                self.later(pause + self.delay(10), self.arrive, name, agent, point, write)

    def arrive(self, name: str, agent: Agent, point: str, write: Write) -> None:
        copy = self.plant(name).at(point, misrouted=self.random.random() < 0.2)
        if copy is None:
            return
        reply = copy.write(self.true, write)
        if self.random.random() < 0.9:
            self.later(self.delay(20), self.reply, agent, agent.side.agent_id, point, reply)

    def reply(self, agent: Agent, process: str, point: str, reply: WriteReply) -> None:
        if agent.side.agent_id != process:
            return
        rest = agent.side.on_reply(point, reply)
        if rest is not None:
            self.counted["rest"] += 1
            self.later(self.times.token_lease_us + self.delay(), agent.side.rested, rest)

    def send_report(self, name: str, report: Report | None, pause: int) -> None:
        if report is None:
            return
        for number in range(len(self.candidates)):
            for _ in range(2 if self.random.random() < self.faults.repeat else 1):
                if self.random.random() >= self.faults.loss and not self.is_cut(name, str(number)):
                    self.later(pause + self.delay(), self.receive, number, report)

    def receive(self, number: int, report: Report) -> None:
        candidate = self.candidates[number]
        if self.true < candidate.paused_until:
            wait = candidate.paused_until - self.true + self.random.randint(0, 3)
            self.later(wait, self.receive, number, report)
            return
        self.append(candidate.side.on_report(candidate.clock.read(self.true), report))

    # ---- candidates

    def candidate_event(self, candidate: Candidate) -> None:
        random, side = self.random, candidate.side
        if self.true < candidate.paused_until:
            return
        self.tell(f"{side.candidate} {'leads' if side.active else 'follows'}")
        what, now, out = random.random(), candidate.clock.read(self.true), []
        pause = self.pause(0.06)
        if what < 0.25:
            if self.true >= self.hub_down_until:
                self.read_log(candidate, random.choice([1, 5, 1_000_000]))
            return
        if self.takes_over(candidate, what):
            if self.true >= self.hub_down_until and random.random() < 0.9:
                self.read_log(candidate)
            out = [side.take_over(now, self.name_for("nonce"))]
        elif what < 0.48:
            out = side.beat(now, [name for name in self.names if random.random() < 0.2])
        elif what < 0.74:
            out = side.lease(now, random.choice(self.keys), random.choice(self.names), random.choice(VALUES))
        elif what < 0.85:
            out = self.borrow(side, now, random.choice(self.hot))
        elif what < 0.88:
            out = side.rest(now, random.choice(self.keys))
        elif what < 0.90:
            out = side.gone(now, self.destroyed) if self.destroyed and random.random() < 0.5 else side.tend(now)
        elif what < 0.92 and side.active:
            out = self.configure(side, now)
        elif what < 0.935:
            out = side.snapshot(now, random.choice([1, 2, 1000]))
        else:
            out = side.done(now, now // 1000)
        self.append(out, pause)
        if pause:
            candidate.paused_until = self.true + pause

    def takes_over(self, candidate: Candidate, what: float) -> bool:
        side = candidate.side
        if what < 0.25 + 0.01 * self.faults.often:
            return True
        if side.active:
            return False
        return (not side.pending and what < 0.25 + self.faults.takeovers) or (side.view == 0 and what < 0.4)

    def borrow(self, side: Any, now: int, key: str) -> list[Record]:
        """Everyone else gives way to one region."""
        winner = self.random.choice(self.names)
        out = [record for name in self.names if name != winner for record in side.lease(now, key, name, 200)]
        return out + list(side.lease(now, key, winner, SHARE_UNITS))

    def configure(self, side: Any, now: int) -> list[Record]:
        if not self.newest_config or (self.newest_config <= side.config_version and self.random.random() < 0.4):
            self.new_config()
        return list(side.configure(now, self.newest_config, self.configs[self.newest_config]))

    # ---- faults

    def fault(self, x: float) -> None:
        table: Sequence[tuple[float, Callable[[], None]]] = (
            (0.32, self.cut_a_link),
            (0.38, self.hub_down),
            (0.46, self.doubled_agent),
            (0.53, self.agent_dies),
            (0.65, self.failover),
            (0.73, self.redis_restarts),
            (0.79, self.clock_step),
            (0.84, self.no_traffic),
            (0.88, self.candidate_dies),
            (0.92, self.freeze),
            (0.96, self.freeze_agent),
            (0.97, self.more_shards),
            (1.01, self.region_destroyed),
        )
        self.counted["fault"] += 1
        act = next(act for below, act in table if x < below)
        self.tell(f"fault: {act.__name__.replace('_', ' ')}")
        act()

    def cut_a_link(self) -> None:
        random = self.random
        for plant in self.plants:
            for shard in plant.shards:
                for copy in shard.copies:
                    if random.random() < 0.3:
                        copy.clock.set_rate(self.true, self.any_rate())
        random.choice(self.candidates).clock.set_rate(self.true, self.any_rate())
        self.foreseen = ()
        link = (random.choice(self.names), random.choice(["log", "0", "1", "all", "all"]))
        self.cuts[link] = self.true + random.choice([50, 500, 2500, 6000])

    def hub_down(self) -> None:
        self.hub_down_until = self.true + self.random.choice([50, 900, 3000, 6000])

    def doubled_agent(self) -> None:
        name = self.random.choice(self.names)
        if len(self.agents[name]) < 3:
            self.spawn(name)

    def agent_dies(self) -> None:
        name = self.random.choice(self.names)
        if self.agents[name] and self.random.random() < 0.5:
            self.agents[name].pop(0)
        if not self.agents[name] and self.random.random() < 0.5:
            self.spawn(name)

    def failover(self) -> None:
        plant = self.any_plant()
        number = self.random.randrange(len(plant.shards))
        self.flip(plant, number)
        if self.random.random() < 0.6:
            self.later(self.random.choice([0, 5, 30, 50, 90, 300, 1500]), self.flip, plant, number)

    def flip(self, plant: Plant, number: int) -> None:
        """At most three changes of primary per shard within stretch(2G) + G."""
        shard = plant.shards[number]
        window = self.times.settle_age_us + self.times.gap_us + 2
        shard.failovers = [at for at in shard.failovers if self.true - at <= window]
        if len(shard.failovers) < 3:
            shard.failovers.append(self.true)
            shard.primary = 1 - shard.primary
            self.counted["failover"] += 1

    def redis_restarts(self) -> None:
        self.random.choice(self.any_plant().shards).copy.lose()
        self.counted["lost variable"] += 1

    def clock_step(self) -> None:
        """One undetected step of at most G per shard and consent; a larger one back is caught while calls come."""
        plant, gap = self.any_plant(), self.times.gap_us
        number = self.random.randrange(len(plant.shards))
        shard = plant.shards[number]
        if self.true - self.last_step.get((plant.name, number), -(10**6)) <= self.times.consent_us + 100:
            return
        self.last_step[plant.name, number] = self.true
        self.foreseen = ()
        step = self.random.choice([-3000, -300, -59, -20, 20, 40, 59, 200, 3000])
        copy = shard.copies[self.random.randrange(2)] if step > -gap else shard.copy
        if step < -gap:
            copy.touch(self.true)
        copy.clock.step(self.true, step)
        if step < -gap:
            copy.touch(self.true)

    def no_traffic(self) -> None:
        self.quiet_until[self.random.choice(self.names)] = self.true + self.random.choice([60, 100, 500])

    def candidate_dies(self) -> None:
        self.candidates[self.random.randrange(2)] = self.new_candidate()

    def freeze(self) -> None:
        candidate = self.random.choice(self.candidates)
        candidate.paused_until = self.true + self.random.choice([200, 1500, 4000])

    def freeze_agent(self) -> None:
        name = self.random.choice(self.names)
        if self.agents[name]:
            agent = self.random.choice(self.agents[name])
            agent.paused_until = self.true + self.random.choice([200, 1500, 4000])

    def region_destroyed(self) -> None:
        """Nothing is left of it; an operator says so (see ``candidate_event``)."""
        if len(self.names) > 2 and not self.destroyed:
            name = self.destroyed = self.random.choice(self.names)
            self.plants[self.names.index(name)] = Destroyed(name)
            self.agents[name] = []
            self.new_config()
            self.counted["destroyed"] += 1

    def more_shards(self) -> None:
        plant = self.any_plant()
        if len(plant.shards) < 3:
            plant.shards += make_plant(plant.name, self.times, self.random, 1, 0, self.cast.enforcement).shards
            self.counted["new shard"] += 1

    # ---- judgement

    def check(self) -> None:
        """V1, V2 and V6, on every key."""
        held = [plant.shares(self.true, self.keys) for plant in self.plants]
        for key, shares in zip(self.keys, zip(*held, strict=True), strict=True):
            if sum(shares) > SHARE_UNITS and not self.found.shares:
                self.found.shares = (self.true, key, [plant.share(self.true, key) for plant in self.plants])
        self.check_counts(held)
        self.check_later()
        self.check_evidence()

    def check_counts(self, held: Sequence[Sequence[int]]) -> None:
        epochs = [candidate.side.epoch for candidate in self.candidates if candidate.side.active]
        if len(set(epochs)) < len(epochs) and not self.found.counts:
            self.found.counts = (self.true, "two leaders of one epoch", epochs)  # V4
        for candidate in self.candidates:
            side = candidate.side
            if not side.active or side.epoch != self.newest_epoch or self.found.counts:
                continue
            now = candidate.clock.read(self.true)
            for plant, shares in zip(self.plants, held, strict=True):
                for key, share in zip(self.keys, shares, strict=True):
                    count = side.count(key, plant.name, now)
                    if share > count and not self.found.counts:
                        self.found.counts = (self.true, key, plant.name, share, count)

    def check_later(self) -> None:
        fingerprint = tuple(plant.fingerprint() for plant in self.plants)
        if fingerprint == self.foreseen:
            return  # left alone since it was last looked at, so what was foreseen is what happens
        self.foreseen = fingerprint
        ends = {
            end
            for plant in self.plants
            for shard in plant.shards
            if (end := shard.copy.consent_left(self.true)) is not None
        }
        for after in ends:
            held = [plant.shares_later(self.true, after, self.hot) for plant in self.plants]
            for key, shares in zip(self.hot, zip(*held, strict=True), strict=True):
                if sum(shares) > SHARE_UNITS and not self.found.later:
                    self.found.later = (self.true, after, key, list(shares))
        for plant in self.plants:
            base = max((node.bases.get(self.domains[0], 0) for node in plant.nodes), default=0)
            self.counted["lent"] += plant.share(self.true, self.hot[0]) > base > 0

    def check_evidence(self) -> None:
        sides = [agent.side for agents in self.agents.values() for agent in agents]
        for side in [*sides, *(candidate.side for candidate in self.candidates)]:
            if side.evidence.total and not self.found.evidence:
                self.found.evidence = tuple(side.evidence.last)


def _kind(record: Record) -> str:
    if isinstance(record, LeaseRecord):
        return str(record.kind)
    if isinstance(record, Beat):
        return "renewing beat" if record.renewals else "beat"
    for kind in (Mark, Welcome, Config, Done, Gone):
        if isinstance(record, kind):
            return kind.__name__.lower()
    return "snapshot part"


def _named(arguments: Iterable[Any]) -> str:
    """What a reader may want to know of them."""
    return ", ".join(str(one) for one in arguments if isinstance(one, (str, int, Report, *_RECORDS)))


_RECORDS = (Mark, Welcome, LeaseRecord, Beat, Config, Done, Gone)


def run(
    seed: int, steps: int, cast: Cast = REAL, only: Iterable[int] | None = None, told: list[str] | None = None
) -> World:
    """Make ``steps`` events of a seed's world, judging each; stops at a violation of V1.

    ``only``: just these of them.  ``told`` is filled with what happened.
    """
    world = World(seed, cast)
    world.told = told
    for number in range(steps) if only is None else only:
        world.step(number)
        world.check()
        if world.found.shares:
            break
    return world
