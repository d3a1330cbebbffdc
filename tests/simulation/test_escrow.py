"""Windows in escrow in both simulated worlds: never more than the limit in a window, and most of it is used."""

from __future__ import annotations

import pytest

from global_sync.protocol.messages import WindowGrant
from global_sync.simulation import World, traces
from regional_limiter.model.share import ProtocolTimes

from .cast import Cast
from .escrow_world import run

SECOND = 1_000_000
REGIONS = {"us-east": 2_000, "eu-west": 40_000, "ap-south": 100_000}
TIMES = ProtocolTimes.scaled(1 / 3)
LIMIT = 603
WINDOW_S = 3


def world_of_windows(seed: int = 1) -> World:
    rule = {"id": "all", "match": {}, "key": ["client_key"], "algorithm": "fixed_window"}
    numbers = {"limit": LIMIT, "window": f"{WINDOW_S}s", "scope": "global", "distribution": "adaptive"}
    rules = {"domain": "default", "regions": dict.fromkeys(REGIONS, 1), "rules": [rule | numbers]}
    world = World(REGIONS, rules, seed=seed, times=TIMES)
    world.settle()
    return world


def admitted(world: World, region: str, seconds: int) -> float:
    """A second, on average."""
    before = world.tallies[region].admitted
    world.run(seconds * SECOND)
    return (world.tallies[region].admitted - before) / seconds


@pytest.mark.timeout(400)
def test_no_window_is_admitted_more_than_the_limit() -> None:
    worlds = [run(seed, 250) for seed in range(30)]
    assert [(world.seed, world.found) for world in worlds if world.found] == []
    assert sum(world.counted["granted"] for world in worlds) > 150
    assert sum(sum(world.till.admitted.values()) for world in worlds) > 400


def test_the_same_seed_gives_the_same_windows() -> None:
    assert run(3, 200, Cast()).till.admitted == run(3, 200).till.admitted


@pytest.mark.timeout(400)
def test_what_one_region_asks_for_alone_is_half_of_the_limit_and_half_of_its_base() -> None:
    world = world_of_windows()
    world.offer("eu-west", traces.steady(400))
    world.run(WINDOW_S * SECOND)
    rate = admitted(world, "eu-west", 2 * WINDOW_S) * WINDOW_S
    assert 0.64 * LIMIT < rate <= 0.68 * LIMIT
    assert world.problems() == []
    assert 0 < len([record for record in world.log if isinstance(record, WindowGrant)]) < 150


@pytest.mark.timeout(400)
def test_all_regions_together_use_a_whole_window() -> None:
    world = world_of_windows()
    for region in REGIONS:
        world.offer(region, traces.steady(300))
    world.run(WINDOW_S * SECOND)
    before = sum(tally.admitted for tally in world.tallies.values())
    world.run(2 * WINDOW_S * SECOND)
    used = (sum(tally.admitted for tally in world.tallies.values()) - before) / 2
    assert 0.97 * LIMIT < used <= LIMIT
    assert world.problems() == []


@pytest.mark.timeout(400)
def test_a_region_that_is_cut_off_has_half_of_its_base_in_every_window_and_more_again_when_healed() -> None:
    world = world_of_windows()
    for region in ("eu-west", "ap-south"):
        world.offer(region, traces.steady(400))
    world.run(WINDOW_S * SECOND)
    world.cut("ap-south")
    world.run(2 * WINDOW_S * SECOND)
    alone = admitted(world, "ap-south", 2 * WINDOW_S) * WINDOW_S
    assert 0.15 * LIMIT < alone < 0.18 * LIMIT
    world.heal("ap-south")
    world.run(2 * WINDOW_S * SECOND)
    assert admitted(world, "ap-south", 2 * WINDOW_S) * WINDOW_S > 0.25 * LIMIT
    assert world.problems() == []
