"""Capacity by hand: three sizes whose arithmetic is written out, and what cannot be right."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from infra.capacity import SERVER_BYTES_LEAST, Costs, Load, plan
from services.cli.main import app

ROUND = Costs(node_check_us=30, redis_check_us=14, token_bucket_bytes=100)
"""Round numbers: 14 us and 70 % of a core are 50,000 checks a second a shard."""


@pytest.mark.parametrize(
    ("checks", "shards", "nodes"),
    [
        # checks x 14 us / (0.7 x 1,000,000 us); checks x 30 us / (0.6 x 1,000,000 us)
        (500_000, 10, 25),
        (3_000_000, 60, 150),
        (5_000_000, 100, 250),
        (500_001, 11, 26),
    ],
)
def test_shards_and_nodes_follow_from_cpu(checks: int, shards: int, nodes: int) -> None:
    needed = plan(Load(checks, keys=10_000_000), ROUND)
    assert (needed.shards, needed.nodes, needed.limited_by) == (shards, nodes, "cpu")
    assert needed.redis_servers == 2 * shards


def test_ten_million_keys_of_100_bytes_are_a_gigabyte() -> None:
    needed = plan(Load(500_000, keys=10_000_000), ROUND)
    assert needed.keys_bytes == 1_000_000_000
    # a tenth of it, at 75 % of what a server may hold, and what an empty server takes, in whole MiB
    assert needed.maxmemory_bytes_a_server == 192 * 1024**2
    assert needed.maxmemory_bytes_a_server >= 1_000_000_000 / 10 / 0.75 + SERVER_BYTES_LEAST


def test_with_todays_costs_a_shard_does_40_000_checks_a_second() -> None:
    needed = plan(Load(500_000, keys=10_000_000))
    # 17.6 us: 0.7 / 0.0000176 = 39,773 a second; 500,000 / 39,773 = 12.6
    assert needed.shards == 13
    assert needed.keys_bytes == 2_270_000_000


def test_many_keys_and_few_checks_are_decided_by_memory() -> None:
    needed = plan(Load(10_000, keys=1_000_000_000), ROUND)
    # 100 GB over 0.75 x 12 GiB
    assert (needed.shards, needed.limited_by) == (11, "memory")


def test_a_small_region_is_as_small_as_a_cluster_can_be() -> None:
    needed = plan(Load(100, keys=1000), ROUND)
    assert (needed.shards, needed.nodes, needed.limited_by) == (3, 2, "least")


def test_the_busiest_region_is_planned_for() -> None:
    equal = plan(Load(3_000_000, keys=9_000_000, regions=3), ROUND)
    most = plan(Load(3_000_000, keys=9_000_000, regions=3, busiest_part=0.5), ROUND)
    assert (equal.shards, most.shards) == (20, 30)
    assert (equal.keys_bytes, most.keys_bytes) == (300_000_000, 450_000_000)


def test_hot_keys_do_not_reach_redis_and_batches_spare_the_nodes() -> None:
    needed = plan(Load(1_000_000, keys=0, hot=0.5), ROUND)
    assert needed.shards == 10
    costs = Costs(node_check_us=30, node_batched_us=10)
    assert plan(Load(600_000, keys=0, batched=1.0), costs).nodes == 10


@pytest.mark.parametrize(
    ("load", "field"),
    [
        (Load(0, 1), "checks_a_second"),
        (Load(1, -1), "keys"),
        (Load(1, 1, regions=0, busiest_part=1), "regions"),
        (Load(1, 1, rules_a_check=17), "rules_a_check"),
        (Load(1, 1, busiest_part=1.5), "busiest_part"),
        (Load(1, 1, hot=0.7, batched=0.4), "batched and hot"),
        (Load(1, 1, replicas_each=5), "replicas_each"),
    ],
)
def test_what_cannot_be_right_is_named(load: Load, field: str) -> None:
    with pytest.raises(ValueError, match=field):
        plan(load)


def test_the_command_says_it_and_its_costs() -> None:
    arguments = ["plan", "--checks-per-second", "500000", "--keys", "10000000"]
    told = json.loads(CliRunner().invoke(app, [*arguments, "--json"]).stdout)
    assert told["region"]["shards"] == 13
    assert told["costs"]["measured"].startswith("2026-")
    shown = CliRunner().invoke(app, arguments).stdout
    assert "13  primaries" in shown
    assert "Costs: 17.6 us of Redis" in shown
    refused = CliRunner().invoke(app, [*arguments, "--rules", "99"])
    assert (refused.exit_code, refused.stderr.strip()) == (2, "rules_a_check must be 1 to 16")
