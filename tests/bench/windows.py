"""What the windows let through, against the log, which is exact; and what a log takes.  Not a test.

    python -m tests.bench.windows [--limit 100] [--windows 400] [--no-redis]

The same checks go to a fixed window, a sliding counter and a sliding log of one limit, each with its own state, on
a clock of their own: the figures are the same in every run.  *most* is the most that was allowed in any span as
long as the window, in percent of the limit; *in all*: what was allowed in all, in percent of what the log allowed;
*otherwise*: checks that were decided otherwise than by the log.  The bytes are Redis's own, MEMORY USAGE of a key.
"""

from __future__ import annotations

import argparse
import math
import random
import tempfile
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path
from time import sleep, time_ns

from regional_limiter.algorithms.outcome import settle
from regional_limiter.algorithms.registry import fixed_share, functions_of
from regional_limiter.model.rule import Algorithm
from regional_limiter.model.share import ProtocolTimes
from regional_limiter.store.base import BucketCall
from regional_limiter.store.library import build_library, encode_check
from tests.contract.redis_server import RedisServer

WINDOW_MS = 60_000
KINDS = (Algorithm.FIXED_WINDOW, Algorithm.SLIDING_WINDOW_COUNTER, Algorithm.SLIDING_WINDOW_LOG)
CHARGED_MOST = 10_000


def call_of(kind: Algorithm, limit: int, key: str = "rl:{AbCdEfGh}:default/per-client:user%3A42") -> BucketCall:
    return BucketCall(key, kind, limit, None, WINDOW_MS, 1)


# ---- traffic: the times of checks in milliseconds, in order


def steady(limit: int, windows: int, load: float) -> Iterator[int]:
    """At random with the same rate all the time: ``load`` times the limit."""
    dice, at_ms = random.Random(1), 0.0
    while (at_ms := at_ms + dice.expovariate(limit * load / WINDOW_MS)) < windows * WINDOW_MS:
        yield int(at_ms)


def wave(limit: int, windows: int, load: float) -> Iterator[int]:
    """A rate that swings between 0 and twice ``load`` times the limit in two and a half windows."""
    dice = random.Random(2)
    for at_ms in steady(limit, windows, 2 * load):
        if dice.random() < (1 + math.sin(2 * math.pi * at_ms / (2.5 * WINDOW_MS))) / 2:
            yield at_ms


def bursts(limit: int, windows: int, load: float) -> Iterator[int]:
    """Two seconds at a time, each worth ``load`` times the limit, at random distances of a window on average."""
    dice, at_ms = random.Random(3), 0.0
    while (at_ms := at_ms + 2000 + dice.expovariate(1 / (WINDOW_MS - 2000))) < windows * WINDOW_MS:
        yield from sorted(int(at_ms + dice.random() * 2000) for _ in range(int(limit * load)))
        at_ms += 2000


def edges(limit: int, windows: int, load: float) -> Iterator[int]:
    """Somebody who knows where windows end: ``load`` times the limit around every second edge."""
    for window in range(2, windows, 2):
        edge_ms = window * WINDOW_MS
        yield from [edge_ms - 1] * limit
        yield from [edge_ms] * int(limit * load - limit)


def greedy(limit: int, windows: int, load: float) -> Iterator[int]:
    """The worst for a counter: the whole limit just before an edge, then all that is let through, evenly."""
    for window in range(3, windows, 3):
        edge_ms = window * WINDOW_MS
        yield from [edge_ms - 1] * limit
        yield from range(edge_ms, edge_ms + WINDOW_MS - 1, int(WINDOW_MS / limit / load))


TRAFFIC = {
    "steady, 0.9 of the limit": (steady, 0.9),
    "steady, twice the limit": (steady, 2.0),
    "a wave, mean 0.9": (wave, 0.9),
    "a wave, mean 2": (wave, 2.0),
    "bursts of 2 s, 0.9 each": (bursts, 0.9),
    "bursts of 2 s, 2 each": (bursts, 2.0),
    "around the edges": (edges, 2.0),
    "the worst for a counter": (greedy, 4.0),
}


# ---- decisions


def decided(call: BucketCall, times_ms: list[int]) -> list[bool]:
    """Each check by the algorithm that Redis runs too, with its state carried on."""
    functions, share = functions_of(call), fixed_share(call)
    stored: dict[str, tuple[bytes, int]] = {}
    verdicts = []
    for at_ms in times_ms:
        key = functions.storage_key(call, at_ms)
        state, ends_ms = stored.get(key, (None, 0))
        (ending,) = settle([functions.decide(state if at_ms < ends_ms else None, call, share, at_ms)])
        if ending.state is not None:
            stored = {key: (ending.state, at_ms + ending.ttl_ms)}
        verdicts.append(ending.verdict.allowed)
    return verdicts


def most_in_a_span(times_ms: list[int]) -> int:
    """The most of ``times_ms`` in any half-open span of a window."""
    return max(bisect_right(times_ms, at_ms + WINDOW_MS - 1) - place for place, at_ms in enumerate(times_ms))


def compare(limit: int, windows: int) -> None:
    print(f"{'':<26}" + "".join(f"{name:^25}" for name in ("fixed window", "sliding counter")) + f"{'log':^9}")
    print(f"{'traffic':<26}" + f"{'most':>7}{'in all':>8}{'otherwise':>10}" * 2 + f"{'most':>7}")
    for name, (made, load) in TRAFFIC.items():
        times_ms = list(made(limit, windows, load))
        said = {kind: decided(call_of(kind, limit), times_ms) for kind in KINDS}
        exact = said[Algorithm.SLIDING_WINDOW_LOG]
        line = f"{name:<26}"
        for kind, verdicts in said.items():
            allowed_ms = [at_ms for at_ms, allowed in zip(times_ms, verdicts, strict=True) if allowed]
            line += f"{100 * most_in_a_span(allowed_ms) / limit:>6.0f}%"
            if kind is not Algorithm.SLIDING_WINDOW_LOG:
                other = sum(a != b for a, b in zip(verdicts, exact, strict=True))
                line += f"{100 * len(allowed_ms) / sum(exact):>7.1f}%{100 * other / len(times_ms):>9.1f}%"
        print(line)


def bytes_of_a_key(server: RedisServer) -> None:
    """Each charge in a millisecond of its own: a log keeps those of one millisecond as one entry."""
    library = build_library(ProtocolTimes())
    server.load(library)
    calls = [call_of(kind, CHARGED_MOST, f"rl:{{AbCdEfGh}}:default/{kind.value}:user%3A42") for kind in KINDS]
    print(f"\n{'bytes of a key in Redis':<26}" + "".join(f"{kind.value:>24}" for kind in KINDS))
    for charged in range(1, CHARGED_MOST + 1):
        for call in calls:
            keys, arguments = encode_check([call], None, time_ns() // 1_000_000)
            server.client.fcall(library.functions["check"], len(keys), *keys, *arguments)
        sleep(0.001)
        if charged in (1, 10, 100, 1000, CHARGED_MOST):
            # Of a fixed window the newest, if one has ended meanwhile.
            keys_now = [max(server.client.keys(f"{call.key}*")) for call in calls]
            sizes = [server.client.memory_usage(key) for key in keys_now]
            print(f"{f'{charged:,} charged':<26}" + "".join(f"{size:>24,}" for size in sizes))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limit", type=int, default=100)
    parser.add_argument("--windows", type=int, default=400)
    parser.add_argument("--no-redis", action="store_true", help="without the bytes, which need a redis-server")
    given = parser.parse_args()
    compare(given.limit, given.windows)
    if not given.no_redis:
        with tempfile.TemporaryDirectory() as directory, RedisServer(Path(directory)) as server:
            bytes_of_a_key(server)


if __name__ == "__main__":
    main()
