"""A hand-driven world for directed schedules: one log, manual delivery, two Redis copies per shard.

The leader's clock is the true time; a region's copies run at their own rates and offsets.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from global_sync.protocol.messages import Record, Report
from regional_limiter.model.enforcement import Write, WriteReply
from regional_limiter.model.share import SHARE_UNITS, floor_name

from .cast import Cast
from .plant import Clock, Copy, Destroyed, Node, Plant, Shard, ticks

KEYS = ("rl:{0}:shop/all:k0", "rl:{0}:shop/all:k1")
K0, K1 = KEYS
TIMES = ticks()
D, D_C, GAP = TIMES.session_us, TIMES.consent_us, TIMES.gap_us
S_D = TIMES.session_counted_us
EVEN = (3400, 3300, 3300)
SKEWED = (6600, 1700, 1700)
LESS = 6600
"""What one region may hold when another rests at its base and the third at its floor."""


class Hand:
    """Regions are 0, 1, 2; region 0 of three holds base 3,400, the others 3,300, unless told otherwise."""

    def __init__(
        self,
        cast: Cast,
        bases: Sequence[int] = EVEN,
        boot: bool = True,
        ppm: Sequence[int] = (0, 0, 0),
        shards: int = 1,
        lease_life: int = 0,
        floors: Sequence[int] = (),
    ) -> None:
        self.cast = cast
        self.times = ticks(lease_life=lease_life)
        self.resting: list[tuple[int, Any, Any]] = []
        self.now = 1000
        self.log: list[Record] = []
        self.bad: list[str] = []
        self.count = len(bases)
        self.serial = 10
        self.plants = [self._plant(i, ppm[i], shards) for i in range(self.count)]
        self.sides: list[Any] = []
        self.positions: dict[str, int] = {}
        """How far each candidate has read the log."""
        self.agents: list[Any] = [None] * self.count
        self.read: list[int] = [0] * self.count
        for i in range(self.count):
            self.new_agent(i)
        self.leader = self.lead(self.candidate())
        self.configure(1, bases, floors=floors)
        if boot:
            self.run(240)
            self.say(not self.is_even_at(bases), "the set-up is not at base")

    def _plant(self, i: int, ppm: int, shards: int) -> Plant:
        def copy(start: int) -> Copy:
            return Copy(self.times, Clock(start, ppm), self.cast.enforcement)

        return Plant(f"r{i}", [Shard([copy(0), copy(700)]) for _ in range(shards)], [Node()])

    def say(self, wrong: bool, what: str) -> None:
        """Note a problem of the schedule itself (not when a rule is broken on purpose)."""
        if wrong and not self.cast.broken:
            self.bad.append(what)

    def require(self, holds: bool, what: str) -> None:
        """Note a violation: what the schedule is there to find."""
        if not holds and len(self.bad) < 5:
            self.bad.append(f"t={self.now} {what}")

    def is_even_at(self, bases: Sequence[int]) -> bool:
        return [self.share(i) for i in range(self.count)] == list(bases)

    # ---- log and leader

    def candidate(self, position: int = 0) -> Any:
        self.serial += 1
        side = self.cast.leader(f"c{self.serial}", [f"r{i}" for i in range(self.count)], TIMES)
        self.positions[side.candidate] = position
        self.sides.append(side)
        return side

    def put(self, records: Iterable[Record]) -> list[Record]:
        landed = list(records)
        self.log += landed
        return landed

    def follow(self, candidate: Any) -> None:
        for position in range(self.positions[candidate.candidate], len(self.log)):
            candidate.on_record(self.now, self.log[position], position)
        self.positions[candidate.candidate] = len(self.log)

    def lead(self, candidate: Any) -> Any:
        self.follow(candidate)
        self.serial += 1
        self.put([candidate.take_over(self.now, f"nonce{self.serial}")])
        self.follow(candidate)
        return candidate

    def configure(
        self, version: int, bases: Sequence[int], leader: Any = None, floors: Sequence[int] = ()
    ) -> list[Record]:
        """``floors``: as the set names them; empty: it names none."""
        leader = leader or self.leader
        named = {"shop": {f"r{i}": base for i, base in enumerate(bases)}}
        if floors:
            named[floor_name("shop")] = {f"r{i}": floor for i, floor in enumerate(floors)}
        records = self.put(leader.configure(self.now, version, named))
        self.follow(leader)
        return records

    def beat(self, renewed: Iterable[int], leader: Any = None) -> list[Record]:
        """The beat that renews only these regions (not put into the log)."""
        left_out = [f"r{i}" for i in range(self.count) if i not in set(renewed)]
        return list((leader or self.leader).beat(self.now, left_out))

    # ---- agents

    def new_agent(self, i: int, position: int = 0) -> None:
        self.serial += 1
        self.agents[i] = self.cast.region(f"r{i}", f"agent{self.serial}", TIMES)
        self.read[i] = position
        self.sides.append(self.agents[i])

    def catch_up(self, i: int) -> None:
        while self.read[i] < len(self.log):
            self.agents[i].on_record(self.log[self.read[i]])
            self.read[i] += 1

    def list_points(self, i: int, nodes: bool = True) -> None:
        plant, agent = self.plants[i], self.agents[i]
        token = agent.listing_started()
        agent.on_listing(token, plant.points(), plant.nodes_base_version() if nodes else None)

    def write(self, i: int, limit: int = 500, point: str | None = None) -> Write | None:
        self.serial += 1
        point = point or min(self.plants[i].points())
        write: Write | None = self.agents[i].prepare_write(point, f"nonce{self.serial}", limit)
        return write

    def arrive(
        self, i: int, write: Write | None, answered: bool = True, point: str | None = None
    ) -> WriteReply | None:
        """The write reaches whoever is primary of the (first) shard now."""
        if write is None:
            return None
        point = point or min(self.plants[i].points())
        copy = self.plants[i].at(point)
        assert copy is not None
        reply = copy.write(self.now, write)
        rest = self.agents[i].on_reply(point, reply) if answered else None
        if rest is not None:
            self.resting.append((self.now + self.times.token_lease_us, self.agents[i], rest))
        return reply

    def let_rest(self) -> None:
        due = [item for item in self.resting if item[0] <= self.now]
        self.resting = [item for item in self.resting if item[0] > self.now]
        for _, agent, rest in due:
            agent.rested(rest)

    def sync(self, i: int, nodes: bool = True) -> None:
        """List, write every point, let the nodes learn, list again.  ``nodes`` False: they learn nothing."""
        self.list_points(i, nodes)
        for point in sorted(self.plants[i].points()):
            self.arrive(i, self.write(i, point=point), point=point)
        if nodes:
            self.plants[i].touch(self.now)
            self.list_points(i)

    def report(self, i: int, leader: Any = None, now: int | None = None) -> Report | None:
        """A report that arrives at once; ``leader`` False keeps it back."""
        report: Report | None = self.agents[i].report()
        if report is not None and leader is not False:
            self.put((leader or self.leader).on_report(self.now if now is None else now, report))
        return report

    def step(self, i: int, leader: Any = None) -> None:
        self.catch_up(i)
        self.sync(i)
        self.report(i, leader)
        self.catch_up(i)

    def lease(self, i: int, value: int, key: str = K0, leader: Any = None) -> list[Record]:
        records = self.put((leader or self.leader).lease(self.now, key, f"r{i}", value))
        self.step(i, leader)
        return records

    def destroy(self, i: int) -> None:
        """Nothing of the region is left, and nothing of it is heard again."""
        self.plants[i] = Destroyed(f"r{i}")

    # ---- time

    def tick(self, duration: int) -> None:
        while duration > 0:
            part = min(duration, 20)
            self.now += part
            duration -= part
            for plant in self.plants:
                plant.touch(self.now)
            self.let_rest()

    def run(
        self,
        duration: int,
        only: Sequence[int] | None = None,
        leader: Any = None,
        beat: bool = True,
        check: bool = True,
    ) -> None:
        """Ordinary life for regions ``only``; the others have traffic, but no hub."""
        leader, end = leader or self.leader, self.now + duration
        only = range(self.count) if only is None else only
        while self.now < end:
            self.tick(min(20, end - self.now))
            self.follow(leader)
            if beat:
                self.put(self.beat(only, leader))
            for i in only:
                self.step(i, leader)
            self.put(leader.done(self.now, self.now // 1000))
            for i in only:
                self.step(i, leader)
            if check:
                self.check("run")

    def others_live(self, duration: int, only: Sequence[int]) -> None:
        for _ in range(duration // 20):
            self.tick(20)
            self.put(self.beat(only))
            for i in only:
                self.step(i)

    def rest(self) -> None:
        self.tick(D + D_C + 200)

    def hot(self, j: int = 1) -> None:
        """Region ``j`` borrows all it can; the others shrink to their floors."""
        for i in range(self.count):
            if i != j:
                self.lease(i, 0)
        self.run(20)
        self.lease(j, SHARE_UNITS)
        self.check("hot")
        self.say(self.share(j) <= 9000, "no lending")

    # ---- Redis

    def flip(self, i: int) -> None:
        shard = self.plants[i].shards[0]
        shard.primary = 1 - shard.primary

    def copy(self, i: int, number: int = 0) -> Copy:
        return self.plants[i].shards[0].copies[number]

    def share(self, i: int, key: str = K0) -> int:
        return self.plants[i].share(self.now, key)

    def shares(self, key: str = K0) -> list[int]:
        return [self.share(i, key) for i in range(self.count)]

    def check(self, place: str) -> None:
        """No key above the limit, and the machines' own invariants found nothing."""
        found = [violation for side in self.sides for violation in side.evidence.last]
        self.require(not found, f"{place}: {found[:1]}")
        for key in KEYS:
            shares = [plant.shares(self.now, [key])[0] for plant in self.plants]
            self.require(sum(shares) <= SHARE_UNITS, f"{place}: {shares} of {key}")
