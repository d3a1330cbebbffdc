"""The simulated world: the real processes on a virtual clock, judged from outside."""

from __future__ import annotations

import pytest

from global_sync.simulation import World, traces
from regional_limiter.model.share import ProtocolTimes, floor_of

REGIONS = {"us-east": 2_000, "eu-west": 40_000, "ap-south": 100_000}
SECOND = 1_000_000
KEY_RULE = {"id": "all", "match": {}, "key": ["client_key"], "capacity": 60, "refill": "300/s", "scope": "global"}
RULES = {"domain": "default", "regions": dict.fromkeys(REGIONS, 1), "rules": [KEY_RULE]}
BASES = {"us-east": 3334, "eu-west": 3333, "ap-south": 3333}
TIMES = ProtocolTimes.scaled(1 / 3)


def settled(seed: int = 1) -> World:
    world = World(REGIONS, RULES, seed=seed, times=TIMES)
    world.settle()
    return world


def key_of(world: World) -> str:
    (key,) = world.keys
    return key


def test_the_share_follows_the_demand_and_nothing_is_broken() -> None:
    world = settled()
    world.offer("eu-west", traces.steady(500))
    world.offer("us-east", traces.steady(15))
    world.run(4 * SECOND)
    assert world.shares(key_of(world))["eu-west"] > 8_000
    before = world.tallies["eu-west"].admitted
    world.run(4 * SECOND)
    assert world.tallies["eu-west"].admitted - before > 0.9 * 4 * 285
    assert world.tallies["us-east"].admitted >= world.tallies["us-east"].offered - 6
    assert world.problems() == []
    assert world.judge.looks > 40


def test_a_region_that_is_cut_off_ends_at_its_base_and_the_others_keep_the_rest() -> None:
    world = settled()
    world.offer("eu-west", traces.steady(500))
    world.offer("us-east", traces.steady(500))
    world.run(3 * SECOND)
    world.cut("ap-south")
    world.run(TIMES.consent_us + 5 * SECOND)
    shares = world.shares(key_of(world))
    assert shares["ap-south"] == BASES["ap-south"]
    assert shares["eu-west"] + shares["us-east"] > 6_500
    world.heal("ap-south")
    world.run(6 * SECOND)
    assert world.shares(key_of(world))["ap-south"] < 3 * floor_of(BASES["ap-south"])
    assert world.problems() == []


def test_without_the_hub_every_region_comes_to_rest_at_its_base() -> None:
    world = settled()
    world.offer("eu-west", traces.steady(500))
    world.run(3 * SECOND)
    world.hub_down()
    world.run(TIMES.consent_us + 2 * SECOND)
    assert world.shares(key_of(world)) == BASES
    world.hub_up()
    world.run(10 * SECOND)
    assert world.shares(key_of(world))["eu-west"] > 8_000
    assert world.problems() == []


def test_a_leader_that_dies_is_followed_by_another_and_loans_live_on() -> None:
    world = settled()
    world.offer("eu-west", traces.steady(500))
    world.run(3 * SECOND)
    epoch = world.newest_epoch
    assert world.crash_leader() == "us-east"
    world.run(5 * SECOND)
    assert world.newest_epoch > epoch
    assert world.shares(key_of(world))["eu-west"] > 8_000
    assert world.problems() == []


def test_a_floor_that_a_set_names_is_kept_from_others_also_while_it_grows() -> None:
    world = settled()
    for region in ("eu-west", "ap-south"):
        world.offer(region, traces.steady(500))
    world.run(4 * SECOND)
    assert world.shares(key_of(world))["us-east"] < 3 * floor_of(BASES["us-east"])
    world.put_rules({**RULES, "floor": "50%"})
    world.run(6 * SECOND)
    floors = {name: base // 2 for name, base in BASES.items()}
    assert world.shares(key_of(world))["us-east"] >= floors["us-east"]
    world.cut("ap-south")
    world.run(TIMES.session_us + 2 * SECOND)
    assert world.shares(key_of(world))["ap-south"] == floors["ap-south"]
    world.heal("ap-south")
    world.put_rules(RULES)
    world.run(12 * SECOND)
    assert world.shares(key_of(world))["us-east"] < 3 * floor_of(BASES["us-east"])
    assert world.problems() == []


@pytest.mark.parametrize("other", [1, 2])
def test_the_same_seed_gives_the_same_world(other: int) -> None:
    runs = []
    for seed in (1, other):
        world = settled(seed)
        world.offer("eu-west", traces.steady(400), is_random=True)
        world.run(2 * SECOND)
        runs.append((world.log, world.tallies, world.scheduler.events, dict(world.hub.bytes)))
    assert (runs[0] == runs[1]) is (other == 1)
