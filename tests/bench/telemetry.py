"""What telemetry adds to a check over HTTP, as a ratio in one run.  Not a test.

    python -m tests.bench.telemetry [--rounds 5] [--seconds 8] [--in-memory]

With ``--in-memory`` without sockets, as in ``http_in_memory``: the best of many rounds of each part, since whatever
else the machine does only adds.  Otherwise two nodes take turns: one tells nobody anything, the other sends all its
metrics to a collector once in each turn (eight seconds; by itself it would every ten) and traces 1 % of checks.
The numbers are CPU time of the node's process, all its threads, as the kernel counts it; the ratio is the median of
the turns'.  The last line says whether that is within the bound.
"""

from __future__ import annotations

import argparse
import gzip
import os
import tempfile
import time
import timeit
from collections.abc import Callable
from pathlib import Path

import uvloop

from regional_limiter.limiter import LimiterStatus
from services.check_api.counts import Counts
from services.check_api.metrics import Metrics
from services.otlp import COMPRESSION
from services.otlp_wire import metrics_request, traces_request
from services.tracing import Tracer
from tests.bench.http_checks import CLIENTS, Load, Subject, check, compare, request, serving, singles
from tests.bench.http_in_memory import cpu_us
from tests.collector import Collector, collecting
from tests.contract.redis_server import RedisServer

TOLD = "a check, OTLP and 1 % traces"
BOUND = 0.05
TRACED, INTERVAL_S, RATE, SERIES, TURNS = 0.01, 10, 10_000, 300, 5


def traced_callers() -> list[bytes]:
    """Checks of callers that say of each that its trace is not kept: no two heads are the same."""
    heads = []
    for number in range(CLIENTS * 10):
        plain = request("/v1/check", check(number, "one"))
        line = b"traceparent: 00-%032x-%016x-00" % (number + 1, number + 1)
        heads.append(plain.replace(b"Accept:", line + b"\r\nAccept:", 1))
    return heads


async def measure(off: Subject, on: Subject, collector: Collector, rounds: int, seconds: float) -> None:
    for subject in (off, on):
        await Load("", subject, singles()).cpu_us(0.5)  # every key once
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores, {rounds} turns of {seconds:g} s")
    ratios = await compare(
        [
            Load("a check, nothing is told", off, singles()),
            Load(TOLD, on, singles()),
            Load("nothing is told, a traceparent each", off, traced_callers()),
            Load("OTLP and 1 % traces, a traceparent each", on, traced_callers()),
        ],
        rounds,
        seconds,
    )
    print(f"{collector.asked} sendings, {len(collector.spans)} spans, {len(collector.metrics)} metrics arrived")
    extra = ratios[TOLD] - 1
    verdict = "within" if extra < BOUND else "beyond"
    print(f"telemetry adds {extra:.1%} to /v1/check (ratio {ratios[TOLD]:.3f}): {verdict} the bound of {BOUND:.0%}")


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
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--in-memory", action="store_true")
    given = parser.parse_args()
    if given.in_memory:
        uvloop.run(parts(given.rounds * 100))
        return
    with tempfile.TemporaryDirectory() as name, RedisServer(Path(name)) as redis, collecting() as collector:
        address, folder = f"127.0.0.1:{redis.port}", Path(name)
        with serving("ours", address, folder / "off") as off:
            # The first check loads the function library.
            uvloop.run(Load("", off, singles(), callers=1).cpu_us(0.2))
            with serving(
                "ours", address, folder / "on", "--collector", collector.endpoint, "--every", f"{given.seconds}"
            ) as on:
                uvloop.run(measure(off, on, collector, given.rounds, given.seconds))


if __name__ == "__main__":
    main()
