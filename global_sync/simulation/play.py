"""Play a scenario: make its world, let everything in it happen, judge, let it heal, and say what was wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from global_sync.simulation.faults import Act, Scenario, perform
from global_sync.simulation.judge import Broken
from global_sync.simulation.parts import Parts
from global_sync.simulation.redis import LIBRARY
from global_sync.simulation.traces import Trace
from global_sync.simulation.world import World
from regional_limiter.model.share import ProtocolTimes, bases_by_weight

SCALE = 0.1
TIMES = ProtocolTimes.scaled(SCALE)
DELAYS_US = (1_000, 12_000, 25_000, 6_000, 40_000)


@dataclass(slots=True)
class Played:
    """``broken``: what did not hold.  ``unhealed``: what did not come back when the faults were over."""

    world: World
    broken: list[Broken]
    unhealed: list[str]

    def __bool__(self) -> bool:
        return bool(self.broken or self.unhealed)


def rules_of(scenario: Scenario) -> dict[str, object]:
    names = [f"r{number}" for number in range(scenario.regions)]
    rule: dict[str, object] = {"id": "all", "match": {}, "key": ["client_key"], "scope": "global"}
    if scenario.window_s:
        limit = scenario.per_second * scenario.window_s
        rule |= {
            "algorithm": "fixed_window",
            "limit": limit,
            "window": scenario.window_s,
            "distribution": "adaptive",
        }
    else:
        rule |= {"capacity": scenario.burst, "refill": f"{scenario.per_second}/s"}
    return {"domain": "default", "regions": dict.fromkeys(names, 1), "rules": [rule]}


def make(scenario: Scenario, parts: Parts | None = None) -> World:
    return World(
        {f"r{number}": DELAYS_US[number] for number in range(scenario.regions)},
        rules_of(scenario),
        seed=scenario.seed,
        times=TIMES,
        nodes=scenario.nodes,
        shards=scenario.shards,
        drift_ppm=scenario.drift_ppm,
        parts=parts,
        old_library=scenario.old_library,
        judged_every_us=TIMES.write_us,
    )


def play(scenario: Scenario, *, heals: bool = True, parts: Parts | None = None) -> Played:
    world = make(scenario, parts)
    world.settle()
    offer_demand(world, scenario)
    for one in scenario.acts:
        world.scheduler.later(one.at_us, _perform, world, one)
    end_us = world.now_us + scenario.over_us
    while world.now_us < end_us and not world.problems():
        world.run_until(min(end_us, world.now_us + TIMES.beat_us))
    broken = world.problems()
    unhealed = heal(world, scenario) if heals and not broken else []
    return Played(world, world.problems(), unhealed)


def offer_demand(world: World, scenario: Scenario) -> None:
    """Every region asks for what ``world.demand`` says, in parts of the whole limit."""
    for region in world.regions:
        world.offer(region, _demand_of(world, region, scenario.per_second), is_random=True)


def _perform(world: World, one: Act) -> None:
    perform(world, one)


def _demand_of(world: World, region: str, per_second: int) -> Trace:
    return lambda at_us: world.demand[region] * per_second


def heal(world: World, scenario: Scenario) -> list[str]:
    """The faults are over: everything comes back by itself.  What does not?"""
    world.demand = dict.fromkeys(world.regions, 0.0)
    last_us = max((one.at_us + one.for_us for one in scenario.acts), default=0)
    world.run(max(0, last_us - scenario.over_us))
    for region in world.regions.values():
        for node in region.nodes:
            node.library = LIBRARY
        if not any(running.process.alive for running in region.agents):
            world.start_agent(region.name)
    world.change_rules(regions=dict.fromkeys(world.regions, 1))
    try:
        world.settle(10 * TIMES.consent_us)
    except RuntimeError:
        return ["no leader, or the new configuration was not adopted"]
    if not _comes_true(world, lambda: not _not_at_rest(world), 4 * TIMES.consent_us):
        return _not_at_rest(world)
    hot = next(iter(world.regions))
    world.demand[hot] = 3.0
    if not _comes_true(world, lambda: _is_lent(world, hot), 10_000_000):
        return [f"nothing is lent: {[world.shares(key) for key in world.keys]} with demand in {hot} alone"]
    return []


def _comes_true(world: World, condition: Callable[[], bool], within_us: int) -> bool:
    end_us = world.now_us + within_us
    while not condition():
        if world.now_us >= end_us:
            return False
        world.run(TIMES.beat_us)
    return True


def _not_at_rest(world: World) -> list[str]:
    bases = bases_by_weight(dict.fromkeys(world.regions, 1))
    held = {key: world.shares(key) for key in world.keys}
    problems = [f"{key} is at {shares} instead of {bases}" for key, shares in held.items() if shares != bases]
    left = [key for leader in world.newest_leaders() for key in leader.side.keys]
    return problems + [f"the leader has not forgotten {key}" for key in left]


def _is_lent(world: World, hot: str) -> bool:
    return any(world.shares(key)[hot] > 8_000 for key in world.keys)
