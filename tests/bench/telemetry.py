"""What telemetry adds to a check over HTTP, as a ratio in one run.  Not a test.

    python -m tests.bench.telemetry [--rounds 15] [--seconds 2.0]

Two nodes take turns: one tells nobody anything, the other sends all its metrics to a collector once a second (ten
times as often as it would by itself) and traces 1 % of the checks.  The numbers are CPU time of the node's process,
all its threads, as the kernel counts it; the ratio is the median of the turns'.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

import uvloop

from tests.bench.http_checks import CLIENTS, Load, Subject, check, compare, request, serving, singles
from tests.collector import Collector, collecting
from tests.contract.redis_server import RedisServer


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
    await compare(
        [
            Load("a check, nothing is told", off, singles()),
            Load("a check, OTLP once a second and 1 % traces", on, singles()),
            Load("nothing is told, a traceparent each", off, traced_callers()),
            Load("OTLP and 1 % traces, a traceparent each", on, traced_callers()),
        ],
        rounds,
        seconds,
    )
    print(f"{collector.asked} sendings, {len(collector.spans)} spans, {len(collector.metrics)} metrics arrived")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=2.0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, RedisServer(Path(name)) as redis, collecting() as collector:
        address, folder = f"127.0.0.1:{redis.port}", Path(name)
        with serving("ours", address, folder / "off") as off:
            # The first check loads the function library.
            uvloop.run(Load("", off, singles(), callers=1).cpu_us(0.2))
            with serving("ours", address, folder / "on", "--collector", collector.endpoint) as on:
                uvloop.run(measure(off, on, collector, given.rounds, given.seconds))


if __name__ == "__main__":
    main()
