"""What the limiter costs in an application's process, and its calls a Redis, as ratios in one run.  Not a test.

    python -m tests.bench.in_process [--rounds 7] [--checks 5000]

48 tasks that check one of 500 clients again and again, by a token bucket of ours and by the asynchronous fixed
window of the package ``limits``, in turns on one real Redis; what that Redis spends on it, also beside INCR and
EXPIRE in a pipeline a check.  And Redis without the way to it: hundred calls a pipeline.  CPU time as the kernel
counts it; a ratio is the median of the turns' ratios.
"""

from __future__ import annotations

import argparse
import asyncio
import socket
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from itertools import count
from pathlib import Path
from statistics import median

import uvloop
from limits import RateLimitItemPerHour
from limits.aio.storage import RedisStorage
from limits.aio.strategies import FixedWindowRateLimiter
from redis.asyncio import Redis as AsyncRedis

from regional_limiter.model.decision import Check
from regional_limiter.model.rule import Algorithm, Rate
from regional_limiter.model.share import ProtocolTimes
from regional_limiter.store.base import BucketCall
from regional_limiter.store.connection import pack
from regional_limiter.store.library import build_library, encode_check
from regional_limiter.store.redis_cluster import RedisClusterStore
from services.check_api.server import settle_collector
from tests.bench._node import CAPACITY, PATIENT
from tests.bench.http_checks import CLIENTS, Subject
from tests.contract.redis_server import RedisServer
from tests.unit.limiter_store import blob_of, rule, running

TASKS = 48
PIPELINED = 100

Ask = Callable[[int], Awaitable[object]]


async def cpu_us(ask: Ask, checks: int, redis: Subject) -> tuple[float, float]:
    """CPU time of this process, and of Redis, for one of ``checks``."""
    numbers = count()
    done = checks // TASKS * TASKS

    async def task() -> None:
        for _ in range(checks // TASKS):
            await ask(next(numbers) % CLIENTS)

    before, redis_before = time.process_time(), redis.cpu_s()
    await asyncio.gather(*(task() for _ in range(TASKS)))
    spent_s, redis_s = time.process_time() - before, redis.cpu_s() - redis_before
    return spent_s / done * 1e6, redis_s / done * 1e6


def show(title: str, first: str, ours: str, pairs: Sequence[tuple[float, float]]) -> None:
    ratios = [b / a for a, b in pairs]
    theirs_us, ours_us = (median(column) for column in zip(*pairs, strict=True))
    print(f"\n{title:<44}{'us':>9}{'ratio':>8}{'lowest':>8}{'highest':>8}")
    print(f"{first:<44}{theirs_us:>9.2f}{1:>8.3f}")
    print(f"{ours:<44}{ours_us:>9.2f}{median(ratios):>8.3f}{min(ratios):>8.3f}{max(ratios):>8.3f}")


async def engines(server: RedisServer, directory: Path, rounds: int, checks: int) -> None:
    window = RateLimitItemPerHour(CAPACITY)
    storage = RedisStorage(f"async+redis://127.0.0.1:{server.port}", implementation="redispy")
    strategy = FixedWindowRateLimiter(storage)
    store = RedisClusterStore([f"127.0.0.1:{server.port}"], ProtocolTimes(), PATIENT)
    bucket = rule("a", capacity=CAPACITY)
    asked = [Check("default", {"client_key": f"user:{n}", "resource": "GET /"}) for n in range(CLIENTS)]
    client = AsyncRedis(port=server.port, max_connections=TASKS)

    async def counted(number: int) -> None:
        key = f"counter:{number}"
        await client.pipeline(transaction=False).incr(key).expire(key, 3600).execute()

    async with running(store, directory, blob_of(bucket), deadline_s=2) as limiter:

        async def theirs(number: int) -> None:
            assert await strategy.hit(window, "user", str(number))

        async def ours(number: int) -> None:
            answer = await limiter.check(asked[number])
            assert answer.allowed
            assert not answer.degraded

        redis = Subject("redis", server.port, server.pid)
        subjects = (theirs, counted, ours)
        for ask in subjects:
            await cpu_us(ask, CLIENTS * 2, redis)
        settle_collector()
        turns = [[await cpu_us(ask, checks, redis) for ask in subjects] for _ in range(rounds)]
    await client.aclose()
    await store.close()
    title = f"{TASKS} tasks, a check: CPU of "
    ours_name, window_name = "token bucket", "limits: fixed window, asynchronous"
    show(title + "the process", window_name, ours_name, [(turn[0][0], turn[2][0]) for turn in turns])
    show(title + "Redis", "INCR and EXPIRE in a pipeline", ours_name, [(turn[1][1], turn[2][1]) for turn in turns])
    show(title + "Redis", window_name, ours_name, [(turn[0][1], turn[2][1]) for turn in turns])


def calls_alone(server: RedisServer, rounds: int, checks: int) -> None:
    library = build_library(ProtocolTimes())
    redis = Subject("redis", server.port, server.pid)

    def bucket(number: int) -> bytes:
        key = f"rl:{{{number}}}:default/a:user%3A{number}"
        keys, arguments = encode_check([BucketCall(key, Algorithm.TOKEN_BUCKET, CAPACITY, Rate(1, 1000), None, 1)])
        return pack("FCALL", library.functions["check"], len(keys), *keys, *arguments)

    def counter(number: int) -> bytes:
        key = f"LIMITS:LIMITER/user/{number}/{CAPACITY}/1/hour"
        return pack("INCR", key) + pack("EXPIRE", key, 3600)

    with socket.create_connection(("127.0.0.1", server.port)) as connection:

        def spent_us(one: Callable[[int], bytes], replies: int) -> float:
            batches = [
                b"".join(one((first + n) % CLIENTS) for n in range(PIPELINED))
                for first in range(0, checks, PIPELINED)
            ]
            before = redis.cpu_s()
            for batch in batches:
                connection.sendall(batch)
                left = replies * PIPELINED
                while left > 0:
                    left -= connection.recv(2**16).count(b"*" if replies == 1 else b":")
            return (redis.cpu_s() - before) / len(batches) / PIPELINED * 1e6

        spent_us(counter, 2)
        spent_us(bucket, 1)
        pairs = [(spent_us(counter, 2), spent_us(bucket, 1)) for _ in range(rounds)]
    show(f"CPU of Redis, {PIPELINED} calls a pipeline", "INCR and EXPIRE", "token bucket", pairs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--checks", type=int, default=5000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, RedisServer(Path(name)) as server:
        uvloop.run(engines(server, Path(name), given.rounds, given.checks))
        calls_alone(server, given.rounds, 4 * given.checks)


if __name__ == "__main__":
    main()
