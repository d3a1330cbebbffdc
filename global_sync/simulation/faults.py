"""What can go wrong in the simulated world, as data: an act has a name, a moment and numbers, so that a run that
fails can be made shorter, written down and played again.

Everything keeps within what the protocol assumes (docs/protocol.md, "Safety rests on"); what is outside of it is
refused by the act itself.  Ends of faults are part of the act: whatever is cut is healed after ``for_us``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random

from global_sync.simulation.links import Law
from global_sync.simulation.redis import LIBRARY
from global_sync.simulation.region import Region
from global_sync.simulation.world import World

NODE_TIMEOUT_US = 2_000_000
"""After which a Redis Cluster has made another copy primary, and a cut-off old one serves nobody any more."""


@dataclass(frozen=True, slots=True)
class Act:
    """``what`` happens at ``at_us`` after the world has settled.  ``region``: its place in the world's order.

    ``which``: a number that picks a shard, node, process or value of it.  ``for_us``: how long it lasts.
    """

    at_us: int
    what: str
    region: int = 0
    which: int = 0
    for_us: int = 0


Doing = Callable[[World, Region, Act], None]
ACTS: dict[str, Doing] = {}


def act(doing: Doing) -> Doing:
    ACTS[doing.__name__] = doing
    return doing


def _for_a_while(world: World, one: Act, thing: object, name: str, value: object) -> None:
    """Give an attribute another value, and its usual one back when the act is over."""
    usual = world.usual.setdefault((id(thing), name), getattr(thing, name))
    setattr(thing, name, value)
    world.scheduler.later(one.for_us, setattr, thing, name, usual)


def perform(world: World, one: Act) -> None:
    regions = list(world.regions.values())
    ACTS[one.what](world, regions[one.region % len(regions)], one)
    world.look()


# ---- links


@act
def cut_both(world: World, region: Region, one: Act) -> None:
    _cut(world, region, one, up=True, down=True)


@act
def cut_up(world: World, region: Region, one: Act) -> None:
    _cut(world, region, one, up=True, down=False)


@act
def cut_down(world: World, region: Region, one: Act) -> None:
    _cut(world, region, one, up=False, down=True)


def _cut(world: World, region: Region, one: Act, up: bool, down: bool) -> None:
    world.cut(region.name, up=up, down=down)
    world.scheduler.later(one.for_us, world.heal, region.name)


@act
def bad_link(world: World, region: Region, one: Act) -> None:
    """Sends are lost and repeated, and now and then something takes long."""
    for way in (region.link.up, region.link.down):
        base_us = way.law.base_us
        bad = Law(base_us, base_us // 2, slow=0.1, slow_us=2 * world.times.beat_us, loss=0.1, repeat=0.1)
        _for_a_while(world, one, way, "law", bad)


@act
def hub_out(world: World, region: Region, one: Act) -> None:
    world.hub_down()
    world.scheduler.later(one.for_us, world.hub_up)


@act
def slow_appends(world: World, region: Region, one: Act) -> None:
    _for_a_while(world, one, world.hub, "append_law", Law(1000, world.times.beat_us))


# ---- processes


@act
def agent_dies(world: World, region: Region, one: Act) -> None:
    """And a supervisor starts another one."""
    alive = [running for running in region.agents if running.process.alive]
    if alive:
        running = alive[one.which % len(alive)]
        running.process.kill()
        region.agents.remove(running)

    def succeed() -> None:
        if len(region.agents) < 2:
            world.start_agent(region.name)

    world.scheduler.later(one.for_us, succeed)


@act
def agent_freezes(world: World, region: Region, one: Act) -> None:
    """Its lock runs out meanwhile, so another one may act when it goes on."""
    if region.agents:
        running = region.agents[one.which % len(region.agents)]
        running.process.loop.freeze(world.now_us + one.for_us)


@act
def second_agent(world: World, region: Region, one: Act) -> None:
    if len(region.agents) < 3:
        world.start_agent(region.name)


@act
def both_agents_act(world: World, region: Region, one: Act) -> None:
    """The lock is forgotten, as after a promotion: another process takes it while the first still writes."""
    second_agent(world, region, one)
    region.redis.shards[0].copy.lock = ("", 0)


@act
def leader_dies(world: World, region: Region, one: Act) -> None:
    place = world.crash_leader()
    if place is not None:
        world.scheduler.later(one.for_us, partial(world.start_candidate, place, one.which % 3))


@act
def leader_freezes(world: World, region: Region, one: Act) -> None:
    """It goes on later as if nothing had happened: a zombie."""
    for running in world.newest_leaders():
        running.process.loop.freeze(world.now_us + one.for_us)


@act
def candidate_freezes(world: World, region: Region, one: Act) -> None:
    for running in region.candidates:
        running.process.loop.freeze(world.now_us + one.for_us)


@act
def impatient_candidate(world: World, region: Region, one: Act) -> None:
    """Takes over though somebody leads: a clock that ran, a beat that it did not see."""
    for running in region.candidates[:1]:
        if running.process.alive and not running.side.active and running.leader.may_lead:
            running.process.loop.call_soon(running.leader.take_over)


# ---- Redis


@act
def failover(world: World, region: Region, one: Act) -> None:
    world.promote(region, one.which % len(region.redis.shards))


@act
def there_and_back(world: World, region: Region, one: Act) -> None:
    number = one.which % len(region.redis.shards)
    world.promote(region, number)
    world.scheduler.later(one.for_us, partial(world.promote, region, number))


@act
def two_primaries(world: World, region: Region, one: Act) -> None:
    """The old one still serves half of the nodes, for the node timeout at most."""
    shard = region.redis.shards[one.which % len(region.redis.shards)]
    old = shard.copy
    if not world.promote(region, one.which % len(region.redis.shards)):
        return
    shard.old_primary = old
    clinging = region.nodes[::2]
    for node in clinging:
        node.clings.add(old)

    def end() -> None:
        shard.old_primary = None
        for node in clinging:
            node.clings.discard(old)

    world.scheduler.later(min(one.for_us, NODE_TIMEOUT_US), end)


@act
def redis_restarts(world: World, region: Region, one: Act) -> None:
    """Empty: variable and buckets are gone."""
    region.redis.shards[one.which % len(region.redis.shards)].copy.lose(buckets=True)


@act
def library_replaced(world: World, region: Region, one: Act) -> None:
    region.redis.shards[one.which % len(region.redis.shards)].copy.lose()


@act
def redis_stops(world: World, region: Region, one: Act) -> None:
    copy = region.redis.shards[one.which % len(region.redis.shards)].copy
    copy.stopped_until_us = max(copy.stopped_until_us, world.now_us + one.for_us)


@act
def redis_clock_steps(world: World, region: Region, one: Act) -> None:
    """Forward or back by less than the gap, once a consent and shard at most; further, which is detected."""
    gap_us = world.times.gap_us
    steps = (gap_us - 1, -(gap_us - 1), gap_us // 3, -gap_us // 3, 5 * gap_us, -5 * gap_us, 100 * gap_us)
    world.step_clock(region, one.which % len(region.redis.shards), steps[one.which % len(steps)])


@act
def agent_cut_from_redis(world: World, region: Region, one: Act) -> None:
    for running in region.agents:
        _for_a_while(world, one, running.store, "is_cut", True)


@act
def lossy_redis(world: World, region: Region, one: Act) -> None:
    for running in region.agents:
        _for_a_while(world, one, running.store, "law", Law(200, world.times.write_us, loss=0.2))


# ---- nodes


@act
def node_restarts(world: World, region: Region, one: Act) -> None:
    world.restart_node(region, region.nodes[one.which % len(region.nodes)])


@act
def node_freezes(world: World, region: Region, one: Act) -> None:
    region.nodes[one.which % len(region.nodes)].frozen_until_us = world.now_us + one.for_us


@act
def node_cut_from_redis(world: World, region: Region, one: Act) -> None:
    node = region.nodes[one.which % len(region.nodes)]
    _for_a_while(world, one, node, "is_cut", True)


@act
def node_upgrades(world: World, region: Region, one: Act) -> None:
    """It calls the newer version of the function library from now on."""
    region.nodes[one.which % len(region.nodes)].library = LIBRARY


@act
def slow_disk(world: World, region: Region, one: Act) -> None:
    """A node that takes long to store new bases, and uses the old ones meanwhile."""
    node = region.nodes[one.which % len(region.nodes)]
    _for_a_while(world, one, node, "disk_us", one.for_us)


# ---- rules


@act
def other_weights(world: World, region: Region, one: Act) -> None:
    weights = {name: 1 + (one.which >> 2 * number) % 4 for number, name in enumerate(world.regions)}
    world.change_rules(regions=weights)


@act
def region_leaves(world: World, region: Region, one: Act) -> None:
    """It is taken out of the rules, and put back later."""
    if len(world.weights) > 2 and region.name in world.weights:
        weight = world.weights[region.name]
        world.change_rules(regions={name: of for name, of in world.weights.items() if name != region.name})

        def come_back() -> None:
            world.change_rules(regions={**world.weights, region.name: weight})

        world.scheduler.later(one.for_us, come_back)


# ---- demand


@act
def demand_moves(world: World, region: Region, one: Act) -> None:
    """What this region asks for, in quarters of the whole limit."""
    world.demand[region.name] = (0.0, 0.1, 0.25, 0.5, 1.0, 1.6, 3.0)[one.which % 7]


DURATIONS = (0.02, 0.1, 0.4, 1.0, 2.5, 5.0)
"""Of a consent."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """A run as data: how the world is made, and what happens in it.  ``over_us``: when the acts are over.

    ``window_s``: the rule is a fixed window of so many seconds instead of a bucket (0), with what the bucket would
    have refilled in it as its limit.
    """

    seed: int
    regions: int = 3
    nodes: int = 2
    shards: int = 1
    drift_ppm: int = 0
    burst: int = 60
    per_second: int = 200
    old_library: bool = False
    acts: tuple[Act, ...] = ()
    over_us: int = 0
    window_s: int = 0

    @classmethod
    def draw(cls, seed: int, consent_us: int, acts: int = 12) -> Scenario:
        """Everything about it follows from the seed."""
        random = Random(seed)
        over_us = round(consent_us * random.choice((1.5, 3, 4)))
        names = sorted(ACTS)
        favourites = random.sample(names, 6)

        def one() -> Act:
            what = random.choice(random.choice((names, favourites, ["demand_moves"])))
            for_us = round(consent_us * random.choice(DURATIONS) * random.uniform(0.5, 1.1))
            return Act(random.randrange(over_us), what, random.randrange(8), random.randrange(1 << 16), for_us)

        return cls(
            seed=seed,
            regions=random.choice((2, 3, 3, 4)),
            nodes=random.choice((1, 2, 3)),
            shards=random.choice((1, 1, 2, 3)),
            drift_ppm=random.choice((0, 1000)),
            burst=random.choice((20, 60, 300)),
            per_second=random.choice((50, 200, 400)),
            old_library=random.random() < 0.3,
            acts=tuple(sorted((one() for _ in range(random.randint(2, acts))), key=lambda item: item.at_us)),
            over_us=over_us,
        )
