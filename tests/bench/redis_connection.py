"""How many calls a second one process gets through one connection, as ratios in one run.  Not a test.

    python -m tests.bench.redis_connection [--calls 20000]

Starts its own Redis Cluster and compares, at several numbers of callers: our connection, redis-py's asyncio client
(one pool), each with the same FCALL of a check; and the whole store (encode, route, call, decode) on top of it.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import redis.asyncio
import uvloop

from regional_limiter.model.keys import tag_of
from regional_limiter.model.rule import Algorithm, Rate
from regional_limiter.model.share import ProtocolTimes
from regional_limiter.store.base import BucketCall
from regional_limiter.store.connection import pack
from regional_limiter.store.library import build_library, encode_check
from regional_limiter.store.redis_cluster import RedisClusterStore, StoreOptions
from regional_limiter.store.topology import hash_slot_of
from tests.contract.redis_cluster import RedisCluster

CALLERS = (1, 16, 64, 256)
CALL = BucketCall("rl:{bench}:default/r:x", Algorithm.TOKEN_BUCKET, 1_000_000, Rate(1000, 1), None, 1)

Ask = Callable[[], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Cost:
    calls_per_s: float
    cpu_us: float


async def measure(ask: Ask, callers: int, calls: int) -> Cost:
    async def caller() -> None:
        for _ in range(calls // callers):
            await ask()

    await caller()  # connections, code paths
    wall, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(caller() for _ in range(callers)))
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    done = calls // callers * callers
    return Cost(done / wall, cpu / done * 1e6)


async def compare(cluster: RedisCluster, calls: int) -> None:
    store = RedisClusterStore(cluster.addresses, ProtocolTimes(), StoreOptions(2000, 2000, 2000))
    await store.check([CALL])
    address = store.cluster.owner(hash_slot_of(tag_of(CALL.key)))
    server = store.cluster.server(address)
    keys, arguments = encode_check([CALL])
    function = build_library(ProtocolTimes()).functions["check"]
    command = pack("FCALL", function, len(keys), *keys, *arguments)
    client = redis.asyncio.Redis(port=int(address.rpartition(":")[2]), max_connections=max(CALLERS))
    subjects: dict[str, Ask] = {
        "redis-py asyncio": lambda: client.fcall(function, len(keys), *keys, *arguments),
        "our connection": lambda: server.call(command, 2.0),
        "our whole store": lambda: store.check([CALL]),
    }
    print(f"{'callers':>8}  {'subject':<18}{'calls/s':>10}{'CPU us':>9}{'calls/s ratio':>15}{'CPU ratio':>11}")
    for callers in CALLERS:
        first: Cost | None = None
        for name, ask in subjects.items():
            cost = await measure(ask, callers, calls)
            first = first or cost
            ratios = f"{cost.calls_per_s / first.calls_per_s:>15.1f}{first.cpu_us / cost.cpu_us:>11.1f}"
            print(f"{callers:>8}  {name:<18}{cost.calls_per_s:>10,.0f}{cost.cpu_us:>9.1f}{ratios}")
    await client.aclose()
    await store.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=20_000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        cluster = RedisCluster(Path(directory))
        try:
            cluster.start()
            uvloop.run(compare(cluster, arguments.calls))
        finally:
            cluster.stop()


if __name__ == "__main__":
    main()
