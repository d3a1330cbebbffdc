"""The seeded world of shares with windows in escrow in it: asks, grants, words to points and requests.

Everything of :mod:`world` goes on: leaders come and go, agents are doubled, Redis restarts (and loses its counts,
or not), appends swap and get lost.  Weights stay as they are: what a change of bases means for a window is told by
directed schedules.  After every event: no window of a key was admitted more than the limit, and no process has
found an invariant of its own broken.
"""

from __future__ import annotations

from random import Random

from global_sync.protocol.messages import WindowAsk
from regional_limiter.model.escrow import WindowNews
from regional_limiter.model.share import WINDOW_POOL

from .plant import Destroyed
from .spending import Till
from .world import Agent, World

WINDOWED = ("rl:{0}:shop/windows:a", "rl:{1}:shop/windows:b")


class EscrowWorld(World):
    def __post_init__(self) -> None:
        super().__post_init__()
        self.chance = Random(f"{self.seed} escrow")
        self.till = Till(window_ms=self.chance.choice([1, 2, 6]), limit=self.chance.choice([4, 40, 103]))
        self.loses_counts = self.chance.random() < 0.7

    def new_config(self) -> None:
        self.newest_config += 1
        bases = {name: 10_000 // len(self.names) for name in self.names}
        self.configs[self.newest_config] = {"shop": bases, "mail": bases}

    def step(self, number: int) -> None:
        super().step(number)
        chance = self.chance
        chance.seed(self.seed << 33 | number)
        for _ in range(6):
            what, name = chance.random(), chance.choice(self.names)
            if isinstance(self.plant(name), Destroyed):
                continue
            if what < 0.2:
                self.spend(name)
            elif what < 0.5:
                self.ask(name)
            elif what < 0.7:
                self.tell_points(name)
            elif what < 0.998:
                self.grant()
            elif what < 0.9993:
                self.redis_restarts()
            else:
                self.change_leader()

    def any_agent(self, name: str) -> Agent | None:
        agents = [agent for agent in self.agents[name] if self.true >= agent.paused_until]
        return self.chance.choice(agents) if agents else None

    def shard_of(self, name: str, key: str) -> int:
        """Keys move when there are more shards: their counts stay behind."""
        return WINDOWED.index(key) % len(self.plant(name).shards)

    def spend(self, name: str) -> None:
        key = self.chance.choice(WINDOWED)
        for _ in range(self.chance.choice([1, 3, 30])):
            self.till.spend(
                self.true, self.plant(name), self.shard_of(name, key), key, self.chance.choice([1, 1, 4])
            )

    def ask(self, name: str) -> None:
        agent, key = self.any_agent(name), self.chance.choice(WINDOWED)
        if agent is None:
            return
        copy = self.plant(name).shards[self.shard_of(name, key)].copy
        window, end_ms = self.till.window_at(self.true, copy)
        held = agent.side.escrow.held(key, window)
        wanted = min(WINDOW_POOL, held + self.chance.choice([0, 300, 2000, WINDOW_POOL]))
        least = self.chance.choice([1, 100, 3000])
        agent.side.ask(key, WindowAsk(window, end_ms, held, wanted, least))

    def tell_points(self, name: str) -> None:
        agent = self.any_agent(name)
        if agent is None:
            return
        side = agent.side
        for point in sorted(side.points):
            news = side.escrow.to_tell(point, side.base_version, side.bases_since, self.chance.choice([1, 200]))
            self.later(self.delay(10), self.word_arrives, name, agent, point, news)

    def word_arrives(self, name: str, agent: Agent, point: str, news: WindowNews) -> None:
        plant = self.plant(name)
        copy = plant.at(point, misrouted=self.random.random() < 0.2)
        if copy is None:
            return
        shard = next(shard for shard in plant.shards if shard.copy is copy)
        reply = self.till.tell(self.true, shard, news)
        if self.random.random() < 0.9:
            self.later(self.delay(20), self.word_answered, agent, agent.side.escrow, point, reply.instance, news)

    def word_answered(self, agent: Agent, escrow: object, point: str, instance: str, news: WindowNews) -> None:
        if agent.side.escrow is escrow:
            agent.side.escrow.was_told(point, instance, news)

    def grant(self) -> None:
        candidate = self.chance.choice(self.candidates)
        if self.true >= candidate.paused_until:
            now = candidate.clock.read(self.true)
            granted = candidate.side.grant_windows(now, now // 1000)
            self.counted["granted"] += len(granted)
            self.append(granted, self.pause(0.06))

    def change_leader(self) -> None:
        """Somebody takes over who has read all that there is; the one before goes on until it reads of that."""
        candidate = self.chance.choice(self.candidates)
        if self.true >= max(candidate.paused_until, self.hub_down_until):
            self.read_log(candidate)
            now = candidate.clock.read(self.true)
            self.append([candidate.side.take_over(now, self.name_for("nonce"))])

    def redis_restarts(self) -> None:
        plant = self.any_plant()
        shard = self.random.choice(plant.shards)
        shard.copy.lose()
        if self.loses_counts:
            self.till.lose_counts(shard)
        self.counted["lost variable"] += 1

    def more_shards(self) -> None:
        """Slots move with their counts: these keys' do not, so no shard is added here."""

    def check(self) -> None:
        """Of windows alone: shares are judged in the world that this one is made of."""
        self.check_evidence()
        excess = self.till.excess()
        if excess and not self.found.shares:
            self.found.shares = (self.true, "windows", excess, self.till.limit)


def run(seed: int, steps: int, cast: object = None) -> EscrowWorld:
    world = EscrowWorld(seed) if cast is None else EscrowWorld(seed, cast)  # type: ignore[arg-type]
    for number in range(steps):
        world.step(number)
        world.check()
        if world.found:
            break
    return world
