"""What token leases save on a hot key, as ratios in one run.  Not a test.

    python -m tests.bench.hot_keys [--checks 20000]

Starts its own Redis Cluster.  One key, one node, several callers, at full speed: with leases and (a table that
holds none) without, in turn.  And the decision alone, in this process, against one look-up in a
dict and one reading of the clock.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
import timeit
from pathlib import Path

import uvloop

from regional_limiter.model.decision import ShareKind
from regional_limiter.model.rule import Algorithm, Rate
from regional_limiter.model.share import ProtocolTimes
from regional_limiter.store.base import BucketCall, TokenLease
from regional_limiter.store.redis_cluster import RedisClusterStore, StoreOptions
from regional_limiter.token_lease_table import Ask, TokenLeaseTable
from tests.contract.redis_cluster import RedisCluster
from tests.unit.limiter_store import FakeStore, allow, blob_of, check, rule, running

CALLERS = 16
ROUNDS = 5
HOT = blob_of(rule("a", capacity=10_000_000, refill="1000000/s"))


def fcalls(cluster: RedisCluster) -> tuple[int, float]:
    """(calls, microseconds that the servers spent in them)."""
    stats = [cluster.client(port).info("commandstats").get("cmdstat_fcall", {}) for port in cluster.ports]
    return sum(int(stat.get("calls", 0)) for stat in stats), sum(float(stat.get("usec", 0)) for stat in stats)


async def one_key(cluster: RedisCluster, directory: Path, checks: int) -> None:
    store = RedisClusterStore(cluster.addresses, ProtocolTimes(), StoreOptions(2000, 2000, 2000))
    async with running(store, directory, HOT, deadline_s=2) as limiter:

        async def caller(count: int) -> None:
            for _ in range(count):
                await limiter.check(check())
                await asyncio.sleep(0)  # a lease answers without a turn of the loop

        async def drive(count: int) -> None:
            await asyncio.gather(*(caller(count // CALLERS) for _ in range(CALLERS)))

        tables = {"without leases": TokenLeaseTable(leases_most=0), "with leases": limiter._token_leases.table}
        spent: dict[str, list[tuple[float, float, float]]] = {name: [] for name in tables}
        for _ in range(ROUNDS):
            for name, table in tables.items():
                limiter._token_leases.table = table
                await drive(checks // 10)
                calls, server_us = fcalls(cluster)
                cpu = time.process_time()
                await drive(checks)
                cpu = time.process_time() - cpu
                more, more_us = fcalls(cluster)
                spent[name].append(((more - calls) / checks, cpu / checks * 1e6, (more_us - server_us) / checks))
    await store.close()
    print(f"{'one hot key':<18}{'Redis calls a check':>20}{'node us a check':>17}{'Redis us a check':>18}")
    best = {name: [min(column) for column in zip(*rows, strict=True)] for name, rows in spent.items()}
    for name, (calls_a_check, cpu_us, redis_us) in best.items():
        print(f"{name:<18}{calls_a_check:>20.4f}{cpu_us:>17.1f}{redis_us:>18.2f}")
    plain, leased = best["without leases"], best["with leases"]
    print(
        f"{'ratio':<18}" + "".join(f"{b / a:>{w}.3f}" for a, b, w in zip(plain, leased, (20, 17, 18), strict=True))
    )


def decision_alone() -> None:
    table = TokenLeaseTable()
    call = BucketCall("rl:{t}:default/r:u", Algorithm.TOKEN_BUCKET, 10**9, Rate(1, 1), None, 1)
    lease = TokenLease(2**40, 99, 2**50, 0, 10**6, 1000, 10_000, ShareKind.WHOLE, 0, 0)
    table.granted(Ask(call, 1, (), 0), lease, 0, 0)
    known, calls, key = {call.key: 1}, [call], call.key
    floor = best_ns("known.get(key); monotonic()", {"known": known, "key": key, "monotonic": time.monotonic})
    names = {
        "take": table.take,
        "spend": table.spend,
        "call": call,
        "calls": calls,
        "monotonic_ns": time.monotonic_ns,
    }
    print(f"\n{'decided in process':<38}{'ns':>8}{'ratio':>8}")
    print(f"{'one dict look-up and time.monotonic()':<38}{floor:>8.0f}{1:>8.1f}")
    for what, statement in (
        ("the decision", "take(call, monotonic_ns() // 1000)"),
        ("the decision and its verdict", "spend(calls, monotonic_ns() // 1000)"),
    ):
        ns = best_ns(statement, names)
        print(f"{what:<38}{ns:>8.0f}{ns / floor:>8.1f}")
    asyncio.run(whole_check(floor))


async def whole_check(floor: float) -> None:
    """Limiter.check of one rule, from plan to counters, answered by a lease."""
    lease = TokenLease(2**40, 99, 2**50, 0, 10**6, 1000, 10_000, ShareKind.WHOLE, 0, 0)
    with tempfile.TemporaryDirectory() as directory:
        async with running(FakeStore(default=allow(10**9), leased=lease), Path(directory), HOT) as limiter:
            while not limiter.status().leases.out:
                await limiter.check(check())
                await asyncio.sleep(0)
            asked, best = check(), float("inf")
            for _ in range(20):
                began = time.process_time_ns()
                for _ in range(2000):
                    await limiter.check(asked)
                best = min(best, (time.process_time_ns() - began) / 2000)
    print(f"{'a whole Limiter.check':<38}{best:>8.0f}{best / floor:>8.1f}")


def best_ns(statement: str, names: dict[str, object]) -> float:
    number = 100_000
    return (
        min(timeit.repeat(statement, timer=time.process_time, globals=names, number=number, repeat=9))
        / number
        * 1e9
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checks", type=int, default=20_000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        cluster = RedisCluster(Path(directory))
        try:
            cluster.start()
            uvloop.run(one_key(cluster, Path(directory), arguments.checks))
        finally:
            cluster.stop()
    decision_alone()


if __name__ == "__main__":
    main()
