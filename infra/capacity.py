"""How much a deployment needs: nodes, shards, memory and traffic, from unit costs that were measured.  [P]

Plain arithmetic, so that it can be checked by hand: CPU microseconds a second over what a core may be used, bytes a
key over what a server may hold.  The unit costs are of one machine on one day (``Costs``); measure your own
(``make bench``) and give them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal

Kind = Literal["token_bucket", "gcra"]

CORE_US_A_SECOND: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Costs:
    """CPU in microseconds, memory in bytes.  ``measured``: when and on what.

    ``node_check_us``: a check by HTTP, with the system's part; ``node_batched_us``: one in a batch of 100.
    ``node_leased_us``: one that a token lease answers.  ``redis_check_us``: a call of one rule;
    ``redis_rule_us``: each further rule in the same call.  ``…_bytes``: a live key all in, with its own text of
    some 40 characters.  ``report_bytes``: a region's word about one interesting key; ``reports_a_second``: as
    often as it changes.
    """

    measured: str = "2026-11-30, one core of a shared virtual machine, Redis 7.0, Python 3.11"
    node_check_us: float = 32.0
    node_batched_us: float = 12.6
    node_leased_us: float = 20.0
    redis_check_us: float = 17.6
    redis_rule_us: float = 8.4
    token_bucket_bytes: int = 227
    gcra_bytes: int = 195
    report_bytes: int = 40
    reports_a_second: float = 10.0

    def key_bytes(self, kind: Kind) -> int:
        return self.token_bucket_bytes if kind == "token_bucket" else self.gcra_bytes


@dataclass(frozen=True, slots=True)
class Load:
    """What a deployment is asked over all regions, in its busiest second.

    ``keys``: clients that are live at once (a bucket that is full again takes nothing).  ``busiest_part``: of
    the busiest region, of everything.  ``batched``: the part that comes in batches.  ``hot``: the part that
    token leases answer.  ``interesting_keys``: those near their limit in several regions at once; only they are
    reported.
    """

    checks_a_second: float
    keys: int
    regions: int = 1
    kind: Kind = "token_bucket"
    rules_a_check: int = 1
    busiest_part: float | None = None
    batched: float = 0.0
    hot: float = 0.0
    interesting_keys: int = 100
    replicas_each: int = 1
    node_use_most: float = 0.6
    redis_use_most: float = 0.7
    memory_use_most: float = 0.75

    @property
    def part(self) -> float:
        return self.busiest_part if self.busiest_part is not None else 1 / self.regions


@dataclass(frozen=True, slots=True)
class Plan:
    """For one region, the busiest.  ``limited_by``: what decided the number of shards."""

    checks_a_second: float
    nodes: int
    shards: int
    redis_servers: int
    limited_by: Literal["cpu", "memory", "least"]
    shard_checks_a_second: float
    keys_bytes: int
    maxmemory_bytes_a_server: int
    kafka_bytes_a_second: float


SHARDS_LEAST: Final = 3
NODES_LEAST: Final = 2
SERVER_BYTES_MOST: Final = 12 * 1024**3
"""A server that holds more takes too long to copy itself to a new replica."""
SERVER_BYTES_LEAST: Final = 64 * 1024**2
"""What an empty server takes, its buffers for replicas included."""


def plan(load: Load, costs: Costs = Costs()) -> Plan:
    """What one region needs.  Raises ValueError with the field that cannot be right."""
    _check(load)
    checks = load.checks_a_second * load.part
    single = 1 - load.batched - load.hot
    node_us = single * costs.node_check_us + load.batched * costs.node_batched_us + load.hot * costs.node_leased_us
    nodes = math.ceil(checks * node_us / (CORE_US_A_SECOND * load.node_use_most))
    redis_checks = checks * (1 - load.hot)
    redis_us = costs.redis_check_us + (load.rules_a_check - 1) * costs.redis_rule_us
    by_cpu = math.ceil(redis_checks * redis_us / (CORE_US_A_SECOND * load.redis_use_most))
    keys_bytes = math.ceil(load.keys * load.part) * load.rules_a_check * costs.key_bytes(load.kind)
    by_memory = math.ceil(keys_bytes / (SERVER_BYTES_MOST * load.memory_use_most))
    shards = max(by_cpu, by_memory, SHARDS_LEAST)
    held = max(keys_bytes / shards / load.memory_use_most, 0) + SERVER_BYTES_LEAST
    return Plan(
        checks_a_second=checks,
        nodes=max(nodes, NODES_LEAST),
        shards=shards,
        redis_servers=shards * (1 + load.replicas_each),
        limited_by="least" if shards > max(by_cpu, by_memory) else "cpu" if by_cpu >= by_memory else "memory",
        shard_checks_a_second=redis_checks / shards,
        keys_bytes=keys_bytes,
        maxmemory_bytes_a_server=math.ceil(held / 1024**2) * 1024**2,
        kafka_bytes_a_second=load.interesting_keys * costs.report_bytes * costs.reports_a_second,
    )


def _check(load: Load) -> None:
    wrong = [
        ("checks_a_second", "must be above 0", load.checks_a_second > 0),
        ("keys", "must be 0 or more", load.keys >= 0),
        ("regions", "must be 1 to 100", 1 <= load.regions <= 100),
        ("rules_a_check", "must be 1 to 16", 1 <= load.rules_a_check <= 16),
        ("busiest_part", "must be above 0 and at most 1", 0 < load.part <= 1),
        ("batched and hot", "must be 0 or more, together at most 1", min(load.batched, load.hot) >= 0),
        ("batched and hot", "must be 0 or more, together at most 1", load.batched + load.hot <= 1),
        ("replicas_each", "must be 0 to 4", 0 <= load.replicas_each <= 4),
    ]
    for field, right, holds in wrong:
        if not holds:
            raise ValueError(f"{field} {right}")
