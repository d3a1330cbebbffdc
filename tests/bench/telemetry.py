"""What telemetry adds to a check over HTTP, as a ratio in one run.  Not a test.

    python -m tests.bench.telemetry [--rounds 7] [--seconds 8] [--in-memory]

With ``--in-memory`` without sockets, as in ``http_in_memory``: the best of many rounds of each part, since whatever
else the machine does only adds.  Otherwise one node takes turns of telling nobody anything, of telling (1 % of its
checks are traced, and what it has counted is sent once in each turn: of eight seconds, where by itself it would be
ten), and of telling nobody again.  The numbers are CPU time of the node's process, all its threads, as the kernel
counts it.  A turn's ratio is to the mean of the two silences around it; how far these are from each other is what
the machine alone does.  The last line says whether the median is within the bound.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import os
import tempfile
import time
import timeit
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import uvloop

from regional_limiter.limiter import LimiterStatus
from services.check_api.counts import Counts
from services.check_api.metrics import Metrics
from services.otlp import COMPRESSION, LAST_S
from services.otlp_wire import metrics_request, traces_request
from services.tracing import Tracer
from tests.bench._node import BE_SILENT, TELL
from tests.bench.http_checks import CLIENTS, Load, Subject, check, request, serving, singles
from tests.bench.http_in_memory import cpu_us
from tests.collector import Collector, collecting
from tests.contract.redis_server import RedisServer

BOUND = 0.05
TRACED, INTERVAL_S, RATE, SERIES, TURNS = 0.01, 10, 10_000, 300, 5


def untraced_callers() -> list[bytes]:
    """Checks of callers that say of each that its trace is not kept: no two heads are the same."""
    heads = []
    for number in range(CLIENTS * 10):
        plain = request("/v1/check", check(number, "one"))
        line = b"traceparent: 00-%032x-%016x-00" % (number + 1, number + 1)
        heads.append(plain.replace(b"Accept:", line + b"\r\nAccept:", 1))
    return heads


@dataclass
class Turns:
    """CPU time of a check, in us, turn by turn: before, while and after telemetry was told."""

    before: list[float] = field(default_factory=list)
    told: list[float] = field(default_factory=list)
    after: list[float] = field(default_factory=list)

    def ratios(self) -> list[float]:
        return [
            told * 2 / (one + other) for one, told, other in zip(self.before, self.told, self.after, strict=True)
        ]

    def line(self, name: str) -> str:
        ratios, apart = self.ratios(), [other / one for one, other in zip(self.before, self.after, strict=True)]
        return (
            f"{name:<34}{median(self.before + self.after):>10.1f}{median(self.told):>8.1f}{median(ratios):>9.3f}"
            f"{min(ratios):>8.3f}{max(ratios):>8.3f}{median(apart):>12.3f}{min(apart):>8.3f}{max(apart):>8.3f}"
        )


async def measure(node: Subject, collector: Collector, rounds: int, seconds: float) -> None:
    await Load("", node, singles()).cpu_us(0.5)  # every key once
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores, {rounds} turns of {seconds:g} s each")
    loads = {"a check": Load("", node, singles()), "a check with a traceparent": Load("", node, untraced_callers())}
    turns = {name: Turns() for name in loads}
    for _ in range(rounds):
        for name, load in loads.items():
            turns[name].before.append(await load.cpu_us(seconds))
            os.kill(node.pid, TELL)
            turns[name].told.append(await load.cpu_us(seconds))
            os.kill(node.pid, BE_SILENT)
            await asyncio.sleep(LAST_S)
            turns[name].after.append(await load.cpu_us(seconds))
    print(
        f"\n{'CPU of the node, us a check':<34}{'silent':>10}{'told':>8}{'ratio':>9}{'lowest':>8}{'highest':>8}",
        end="",
    )
    print(f"{'silent apart':>12}{'lowest':>8}{'highest':>8}")
    for name, found in turns.items():
        print(found.line(name))
    print(f"{collector.asked} sendings, {len(collector.spans)} spans, {len(collector.metrics)} metrics arrived")
    extra = median(turns["a check"].ratios()) - 1
    verdict = "within" if extra < BOUND else "beyond"
    print(f"telemetry adds {extra:.1%} to /v1/check (ratio {1 + extra:.3f}): {verdict} the bound of {BOUND:.0%}")


async def parts(rounds: int) -> None:
    """What each part of it costs, and what they come to at 10,000 checks a second."""
    plain = silent = traced = float("inf")
    every = Tracer(1.0, 10**9)
    for _ in range(TURNS):
        plain = min(plain, await cpu_us("ours", singles(), 1, rounds))
        silent = min(silent, await cpu_us("ours", singles(), 1, rounds, tracer=Tracer(1e-12)))
        traced = min(traced, await cpu_us("ours", singles(), 1, rounds, tracer=every))
    spans = every.take()[-1000:]
    written = best_us(lambda: traces_request(spans, {"service.name": "x"}), 5) / len(spans) * 2
    sending = sending_us()
    extra = silent - plain + TRACED * (traced - silent + written) + sending / (INTERVAL_S * RATE)
    for what, us in (
        ("a check, without sockets, nothing is told", plain),
        ("more where one may be traced and is not", silent - plain),
        ("more where it is: two spans", traced - silent),
        ("to write its spans, in the thread", written),
        (f"to make, write and pack {SERIES} series, in the thread", sending),
        (f"more a check: 1 % traced, {RATE:,} checks/s, every {INTERVAL_S} s", extra),
    ):
        print(f"{what:<62}{us:>10.2f} us{us / plain:>9.3f}")


def sending_us() -> float:
    """To tell of ``SERIES`` series of checks; the way to the collector is not in it."""
    counts = Counts()
    for number in range(SERIES):
        counts.count(("d", f"rule-{number}", "allowed", "ok"))
    exposition = Metrics("eu", counts, lambda: LimiterStatus(1, 1)).exposition

    def tell() -> None:
        exposition.look()
        gzip.compress(metrics_request(exposition.collected()), COMPRESSION)

    return best_us(tell, 20)


def best_us(work: Callable[[], object], times: int) -> float:
    return min(timeit.repeat(work, timer=time.process_time, number=1, repeat=times)) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--in-memory", action="store_true")
    given = parser.parse_args()
    if given.in_memory:
        uvloop.run(parts(given.rounds * 100))
        return
    with tempfile.TemporaryDirectory() as name, RedisServer(Path(name)) as redis, collecting() as collector:
        address, every = f"127.0.0.1:{redis.port}", f"{given.seconds}"
        with serving("ours", address, Path(name), "--collector", collector.endpoint, "--every", every) as node:
            # The first check loads the function library.
            uvloop.run(Load("", node, singles(), callers=1).cpu_us(0.2))
            uvloop.run(measure(node, collector, given.rounds, given.seconds))


if __name__ == "__main__":
    main()
