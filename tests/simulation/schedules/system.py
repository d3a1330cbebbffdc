"""120 on: the whole system with its buckets and nodes; what is asked for and admitted is seen as well as shares.

Two regions of equal bases.  Times are a tenth of the defaults: a session of 2 s, a consent of 3 s.
"""

from __future__ import annotations

from global_sync.simulation import traces
from global_sync.simulation.bound import BoundChecker
from global_sync.simulation.faults import NODE_TIMEOUT_US, Act, Scenario, perform
from global_sync.simulation.play import TIMES, make, offer_demand
from global_sync.simulation.region import Region
from global_sync.simulation.world import Decided, World
from regional_limiter.model.decision import Check
from regional_limiter.model.rule import Rate

from ..cast import Cast
from . import schedule

SECOND = 1_000_000
CONSENT = TIMES.consent_us


def _world(cast: Cast, *, burst: int, per_second: int, nodes: int = 2, old_library: bool = False) -> World:
    scenario = Scenario(1, 2, nodes, burst=burst, per_second=per_second, old_library=old_library)
    world = make(scenario, cast.parts)
    world.settle()
    offer_demand(world, scenario)
    world.check("r0", Check("default", {"client_key": "all"}))  # so that there is a key to look at
    return world


def _problems(world: World) -> list[str]:
    return [f"{one.invariant} {one.key} {one.found}" for one in world.problems()]


@schedule(120)
def nodes_without_their_redis_keep_to_the_floor_while_the_base_may_be_lent(cast: Cast) -> list[str]:
    world = _world(cast, burst=60, per_second=200)
    world.demand["r1"] = 3.0
    world.run(3 * SECOND)
    everything = BoundChecker(60 + 30, Rate(200, 1000))  # and once what a region may hold at its base

    def watch(decided: Decided) -> None:
        if decided.admitted:
            everything.admit(decided.at_us, decided.cost)

    world.watchers.append(watch)
    for node in world.regions["r0"].nodes:
        node.is_cut = True
    world.demand["r0"] = 3.0
    world.run(CONSENT)
    worst = everything.worst
    return _problems(world) + ([f"{worst:.0f} tokens too many in all"] if worst > 0 else [])


@schedule(121)
def nodes_divide_their_part_however_long_their_redis_is_silent(cast: Cast) -> list[str]:
    world = _world(cast, burst=20, per_second=50)
    for node in world.regions["r0"].nodes:
        node.is_cut = True
    world.run(62 * SECOND)
    world.demand["r0"] = 3.0
    world.run(3 * SECOND)
    return _problems(world)


@schedule(128)
def nodes_that_restart_without_their_redis_divide_their_part_as_before(cast: Cast) -> list[str]:
    world = _world(cast, burst=20, per_second=100)
    region = world.regions["r0"]
    world.run(SECOND)
    for node in region.nodes:
        node.is_cut = True
    for node in region.nodes:
        world.restart_node(region, node)
    world.run(CONSENT)
    world.demand["r0"] = 3.0
    world.run(5 * SECOND)
    return _problems(world)


@schedule(122)
def a_share_that_grows_brings_no_tokens_for_the_time_before(cast: Cast) -> list[str]:
    """A bucket is empty, nobody looks at it for five seconds, then its share grows from the floor to nearly all."""
    world = _world(cast, burst=300, per_second=50)
    world.demand.update(r0=8.0, r1=8.0)
    world.run(3 * SECOND)
    world.demand["r1"] = 0.0
    world.run(5 * SECOND)
    world.demand["r0"] = 0.0
    world.offer(
        "r1", traces.steady(1000), Check("default", {"client_key": "all"}, cost=100)
    )  # too much for a floor
    world.run(3 * SECOND)
    return _problems(world)


@schedule(123)
def a_point_of_an_old_library_is_written_until_no_node_calls_it(cast: Cast) -> list[str]:
    world = _world(cast, burst=60, per_second=200, old_library=True)
    for region in world.regions.values():
        region.nodes[0].library = "new"
    world.demand["r1"] = 3.0
    world.run(CONSENT + 3 * SECOND)
    for region in world.regions.values():
        region.nodes[1].library = "new"
    world.run(3 * CONSENT)
    left = {library for region in world.regions.values() for library in region.redis.shards[0].copy.points}
    problems = _problems(world)
    if not cast.broken and left != {"new"}:
        problems.append(f"libraries left: {left}")
    return problems


@schedule(124)
def tokens_leased_under_a_share_end_soon_after_it(cast: Cast) -> list[str]:
    world = _world(cast, burst=2000, per_second=1000, nodes=1)
    world.demand["r0"] = 0.9
    world.run(6 * SECOND)
    if not cast.broken and not world.regions["r0"].nodes[0].leases.holds:
        return ["set-up: no token lease"]
    world.regions["r0"].nodes[0].frozen_until_us = world.now_us + 2 * SECOND  # with what it has leased
    world.demand["r1"] = 3.0
    world.run(2 * SECOND)
    return _problems(world)


@schedule(125)
def bases_are_raised_only_when_every_node_has_stored_the_lower_ones(cast: Cast) -> list[str]:
    """A node with a slow disk brings its old base to a point that has lost everything, and nobody corrects it."""
    world = _world(cast, burst=60, per_second=200, nodes=1)
    first = world.regions["r0"]
    first.nodes[0].disk_us = 20 * CONSENT
    world.change_rules(regions={"r0": 1, "r1": 3})
    world.run(3 * CONSENT)
    _kill_agents(first)
    first.redis.shards[0].copy.lose(buckets=True)
    world.run(2 * CONSENT)
    return _problems(world)


@schedule(126)
def a_silent_node_is_waited_for_by_an_agent_that_has_just_begun(cast: Cast) -> list[str]:
    """It was frozen when the bases were lowered, the agent has never heard of it, and the point has lost it too."""
    world = _world(cast, burst=60, per_second=200, nodes=1)
    first = world.regions["r0"]
    first.nodes[0].frozen_until_us = world.now_us + TIMES.session_us + 2 * SECOND + CONSENT // 2
    _kill_agents(first)
    first.redis.shards[0].copy.lose(buckets=True)
    world.run(TIMES.session_us + SECOND)
    world.start_agent("r0")
    world.change_rules(regions={"r0": 1, "r1": 3})
    world.run(CONSENT // 2)
    _kill_agents(first)
    first.redis.shards[0].copy.lose(buckets=True)
    world.run(2 * CONSENT)
    return _problems(world)


def _kill_agents(region: Region) -> None:
    for running in region.agents:
        running.process.kill()
    region.agents.clear()


@schedule(129)
def a_process_that_was_replaced_brings_no_old_bases_back(cast: Cast) -> list[str]:
    """It slept while the bases were lowered, and goes on cut off; the point has lost everything, a node is new."""
    world = _world(cast, burst=60, per_second=200)
    first = world.regions["r0"]
    first.agents[0].process.loop.freeze(world.now_us + 12 * SECOND)
    successor = world.start_agent("r0")
    world.run(4 * SECOND)
    world.change_rules(regions={"r0": 1, "r1": 3})
    world.run(7 * SECOND)
    if not cast.broken and sum(node.bases.get("default", 0) == 7500 for node in world.nodes()) != 2:
        return ["set-up: the bases are not raised"]
    world.cut("r0")
    successor.process.kill()
    copy = first.redis.shards[0].copy
    copy.lose(buckets=True)
    copy.lock = ("", 0)
    first.nodes[1].begin_anew()
    world.demand["r0"] = 0.1
    world.run(4 * SECOND + CONSENT)
    return _problems(world)


@schedule(127)
def an_old_primary_doubles_its_share_for_the_node_timeout_at_most(cast: Cast) -> list[str]:
    world = _world(cast, burst=60, per_second=200)
    world.demand["r1"] = 3.0
    world.run(3 * SECOND)
    doubled = BoundChecker(2 * 60 + 2 * 200, Rate(200, 1000))  # for two seconds, all of it
    admitted = [0, 0]

    def watch(decided: Decided) -> None:
        if decided.admitted:
            doubled.admit(decided.at_us, decided.cost)
            admitted[decided.at_us >= ends_us] += decided.cost

    world.watchers.append(watch)
    perform(world, Act(0, "two_primaries", 1, 0, 10 * SECOND))
    began_us, ends_us = world.now_us, world.now_us + NODE_TIMEOUT_US
    world.run(2 * NODE_TIMEOUT_US)
    problems = _problems(world)
    old = world.old_primary_bounds
    if not old or max(bound.last_us for bound in old.values()) > began_us + NODE_TIMEOUT_US:
        problems.append("the old primary decided nothing, or for too long")
    if doubled.worst > 0 or admitted[1] > 200 * 2 + 60:
        problems.append(f"{doubled.worst:.0f} tokens more than doubled, {admitted} admitted")
    return problems
