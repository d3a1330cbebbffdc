"""``apportion plan``: how many nodes and shards a deployment needs, and how much memory and traffic."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Literal

import typer

from services.cli.output import fail, print_json


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command("plan")(plan_command)


def plan_command(
    checks_per_second: Annotated[float, typer.Option(help="Over all regions, in the busiest second.")],
    keys: Annotated[int, typer.Option(help="Clients that are live at once, over all regions.")],
    regions: Annotated[int, typer.Option(help="How many regions.")] = 1,
    busiest: Annotated[float | None, typer.Option(help="The busiest region's part; default: an equal one.")] = None,
    kind: Annotated[str, typer.Option(help="token_bucket or gcra.")] = "token_bucket",
    rules: Annotated[int, typer.Option(help="Rules that a check meets.")] = 1,
    batched: Annotated[float, typer.Option(help="The part of checks that comes in batches.")] = 0.0,
    hot: Annotated[float, typer.Option(help="The part of checks on hot keys, answered from token leases.")] = 0.0,
    interesting_keys: Annotated[int, typer.Option(help="Keys near their global limit at once.")] = 100,
    replicas: Annotated[int, typer.Option(help="Replicas of each shard.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Nodes, shards, memory and Kafka traffic of the busiest region, from unit costs that were measured.

    Example: apportion plan --checks-per-second 500000 --keys 10000000 --regions 3
    """
    from infra.capacity import Costs, Load, plan

    if kind not in ("token_bucket", "gcra"):
        fail("--kind must be token_bucket or gcra")
    which: Literal["token_bucket", "gcra"] = "gcra" if kind == "gcra" else "token_bucket"
    load = Load(
        checks_a_second=checks_per_second,
        keys=keys,
        regions=regions,
        busiest_part=busiest,
        kind=which,
        rules_a_check=rules,
        batched=batched,
        hot=hot,
        interesting_keys=interesting_keys,
        replicas_each=replicas,
    )
    costs = Costs()
    try:
        needed = plan(load, costs)
    except ValueError as error:
        fail(str(error))
    if as_json:
        print_json({"load": asdict(load), "costs": asdict(costs), "region": asdict(needed)})
        return
    redis_us = costs.redis_check_us + (rules - 1) * costs.redis_rule_us
    lines = [
        f"One region, the busiest of {regions}: {needed.checks_a_second:,.0f} checks/s",
        f"  nodes       {needed.nodes:>7,}  processes, a core each, {load.node_use_most:.0%} used",
        f"  shards      {needed.shards:>7,}  primaries, {needed.shard_checks_a_second:,.0f} checks/s each;"
        f" {needed.redis_servers:,} servers with replicas",
        f"  memory      {_size(needed.keys_bytes):>7}  of live keys;"
        f" maxmemory {_size(needed.maxmemory_bytes_a_server)} a server",
        f"  to Kafka    {_size(needed.kafka_bytes_a_second):>7}  a second at most,"
        f" for {interesting_keys:,} keys near their limit; nothing for the others",
        f"  decided by  {_WORDS[needed.limited_by]}",
        f"Costs: {redis_us:.1f} us of Redis and {costs.node_check_us:.0f} us of a node a check,"
        f" {costs.key_bytes(which)} bytes a key ({costs.measured}).",
        "Your machines differ: measure (make bench, python -m tests.bench.scale) before you buy.",
    ]
    typer.echo("\n".join(lines))


_WORDS = {
    "cpu": "Redis's CPU: a server runs its commands on one core",
    "memory": "memory: a server that holds more than 12 GB takes too long to copy",
    "least": "the least that a Redis Cluster can be: 3 primaries",
}


def _size(count: float) -> str:
    for unit in ("B", "KB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
