"""When the faults end, everything comes back by itself: bases, a new configuration, lending, an empty ledger."""

from __future__ import annotations

import heapq
from random import Random

from regional_limiter.model.share import SHARE_UNITS, bases_by_weight

from .world import Candidate, World


def is_watched_on(seed: int) -> bool:
    """Of one seed in ten: what is well again must also stay so."""
    return Random(f"{seed} healing").randrange(10) == 0


def heal(world: World) -> list[str]:
    """End the faults, let a new leader and one agent per region work, and say what did not heal.

    Most worlds are left as soon as all is well, some are watched for as long as it may take at most.
    """
    _end_faults(world)
    candidate = world.candidates[0] = world.new_candidate()
    _one_agent_each(world)
    world.read_log(candidate)
    world.land([candidate.side.take_over(candidate.clock.read(world.true), world.name_for("nonce"))])
    world.read_log(candidate)
    world.newest_config += 1
    even = dict.fromkeys(world.names, 0) | bases_by_weight(dict.fromkeys(world.names_left(), 1))
    world.configs[world.newest_config] = dict.fromkeys(world.domains, even)
    end = world.true + 3 * (world.times.session_counted_us + world.times.consent_us)
    watched_on = is_watched_on(world.seed)
    while world.true < end and (watched_on or not _is_well(world, candidate, even)):
        _round(world, candidate)
    problems = _unhealed(world, candidate, even)
    if not _lends(world, candidate, even):
        problems.append("no lending")
    if world.found:
        problems.append(str(world.found))
    return problems


def _is_well(world: World, candidate: Candidate, even: dict[str, int]) -> bool:
    return not _unhealed(world, candidate, even) and _may_lend(world, candidate)


def _unhealed(world: World, candidate: Candidate, even: dict[str, int]) -> list[str]:
    problems = [
        f"{key}: {plant.share(world.true, key)} instead of {even[plant.name]} in {plant.name}"
        for key in world.keys
        for plant in world.plants
        if plant.share(world.true, key) != even[plant.name]
    ]
    if candidate.side.done_version != world.newest_config:
        problems.append("no DONE")
    if list(candidate.side.keys):
        problems.append(f"keys not forgotten: {sorted(candidate.side.keys)}")
    left = {key for name in world.names_left() for key in world.agents[name][0].side.shares()}
    if left:
        problems.append(f"keys not forgotten by agents: {sorted(left)}")
    return problems


def _may_lend(world: World, candidate: Candidate) -> bool:
    now, side = candidate.clock.read(world.true), candidate.side
    return all(side.live(name, now) and not side.free(name, now) for name in world.names_left())


def _end_faults(world: World) -> None:
    world.cuts, world.hub_down_until = {}, 0
    world.quiet_until = dict.fromkeys(world.names, 0)
    while world.queue:
        at, _, act, arguments = heapq.heappop(world.queue)
        world.true = max(world.true, at)
        act(*arguments)


def _one_agent_each(world: World) -> None:
    for name in world.names:
        alive = [agent for agent in world.agents[name] if not agent.side.deposed] or [world.spawn(name)]
        world.agents[name] = alive[-1:]
        agent = alive[-1]
        if agent.position < world.trimmed:
            agent.side.restart(world.name_for("agent"))
            agent.position = world.trimmed


def _round(world: World, candidate: Candidate) -> None:
    for name in world.names:
        if world.agents[name][0].side.deposed:  # the supervisor starts another process
            world.agents[name] = [world.spawn(name)]
    world.quiet_round(candidate)
    now, side = candidate.clock.read(world.true), candidate.side
    if world.destroyed:
        world.land(side.gone(now, world.destroyed))
    if side.config_version < world.newest_config:
        world.land(side.configure(now, world.newest_config, world.configs[world.newest_config]))
    for key in list(side.keys):
        world.land(side.rest(now, key))
    world.check()


def _lends(world: World, candidate: Candidate, even: dict[str, int]) -> bool:
    key, now = world.keys[0], candidate.clock.read(world.true)
    first, *others = world.names_left()
    for name in others:
        world.land(candidate.side.lease(now, key, name, 0))
    for _ in range(2):
        world.quiet_round(candidate)
    world.land(candidate.side.lease(candidate.clock.read(world.true), key, first, SHARE_UNITS))
    world.quiet_round(candidate)
    world.check()
    return world.plant(first).share(world.true, key) > even[first]
