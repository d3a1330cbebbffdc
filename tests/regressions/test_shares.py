"""Shared limits that other systems were reported to get wrong, in a simulated world: the real agents and leaders.

Beside the tests of their parts: static windows (litellm#41221) in ``test_decisions.py`` and
``tests/unit/test_static_parts.py``, totals that are told again (kafka-pixy#62, clickhouse#7259, haproxy#1497) in
``tests/unit/test_node_usage.py``, a node that ends (gubernator's global.go) in ``test_nodes_and_identities.py``.
"""

from __future__ import annotations

from global_sync.simulation import World, traces
from regional_limiter.model.share import SHARE_UNITS, ProtocolTimes

REGIONS = {"us-east": 2_000, "eu-west": 40_000, "ap-south": 100_000}
RULE = {"id": "all", "match": {}, "key": ["client_key"], "capacity": 100, "refill": "100/s", "scope": "global"}
RULES = {"domain": "default", "regions": dict.fromkeys(REGIONS, 1), "rules": [RULE]}
TIMES = ProtocolTimes.scaled(1 / 3)
SECOND = 1_000_000


def settled() -> World:
    world = World(REGIONS, RULES, seed=1, times=TIMES)
    world.settle()
    return world


def shares(world: World) -> dict[str, int]:
    (key,) = world.keys
    return world.shares(key)


def test_unkey_6461_small_regions_count_as_well_as_large_ones() -> None:
    world = settled()
    wants = {"us-east": 90, "eu-west": 15, "ap-south": 15}
    for region, rate in wants.items():
        world.offer(region, traces.steady(rate))
    world.run(4 * SECOND)
    before = {region: world.tallies[region].admitted for region in wants}
    world.run(5 * SECOND)
    admitted = {region: world.tallies[region].admitted - before[region] for region in wants}
    assert sum(admitted.values()) <= 5 * 100
    assert admitted["us-east"] >= 0.95 * 5 * 70
    assert all(admitted[region] >= 0.95 * 5 * 15 for region in ("eu-west", "ap-south"))
    assert world.problems() == []


def test_youtube_doorman_growth_waits_while_the_shrink_of_another_may_be_lost() -> None:
    world = settled()
    world.offer("eu-west", traces.steady(150))
    world.run(4 * SECOND)
    assert shares(world)["eu-west"] > 9_000
    # Nothing reaches it any more, so neither does the word that it has less.
    world.cut("eu-west", up=False)
    world.offer("us-east", traces.steady(150))
    world.run(TIMES.session_us // 2)
    held = shares(world)
    assert held["eu-west"] > 9_000
    assert held["us-east"] <= SHARE_UNITS - held["eu-west"]
    # Its loan ends by itself, and only then the others' begins.
    world.run(TIMES.session_us)
    held = shares(world)
    assert held["eu-west"] < 3_334
    assert held["us-east"] > 6_000
    assert world.problems() == []


def test_youtube_doorman_growth_follows_the_acknowledgement_of_a_shrink_that_was_late() -> None:
    world = settled()
    world.offer("eu-west", traces.steady(150))
    world.run(4 * SECOND)
    world.cut("eu-west", up=False)
    world.offer("us-east", traces.steady(1_500))
    world.run(SECOND)
    assert shares(world)["eu-west"] > 9_000
    world.heal("eu-west")
    world.run(2 * SECOND)
    held = shares(world)
    assert held["eu-west"] <= 5_200
    assert held["us-east"] >= 4_800
    assert world.problems() == []
