"""What telemetry adds to a check over HTTP, as a ratio in one run.  Not a test.

    python -m tests.bench.telemetry [--rounds 40] [--seconds 1] [--in-memory]

With ``--in-memory`` without sockets, as in ``http_in_memory``: the best of many rounds of each part, since whatever
else the machine does only adds, and the middle of some turns of these.

Otherwise one node is silent, traces 1 % of its checks, traces, and is silent again, round by round, a second
each: so short that whatever else the machine does falls on both.  All the while it sends to a collector, every
ten seconds as by itself.  The numbers are CPU time as the kernel counts it: of the thread that answers checks, by
turns; and of the threads that write and send, over the whole run, by each check of the told turns.  The last line
says within what the two together are, 19 of 20 times, and whether that says anything of the bound.

What is counted of every check (``counts.py``) is in both sides: it cannot be turned off, and is not in the figure.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import os
import tempfile
import time
import timeit
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import sqrt
from pathlib import Path
from statistics import mean, median

import uvloop

from regional_limiter.limiter import LimiterStatus
from services.check_api.counts import Counts
from services.check_api.metrics import Metrics
from services.otlp import COMPRESSION
from services.otlp_wire import metrics_request, traces_request
from services.tracing import Tracer
from tests.bench._node import BE_SILENT, TELL
from tests.bench.http_checks import CLIENTS, Load, Subject, check, request, serving, singles
from tests.bench.http_in_memory import cpu_us
from tests.collector import Collector, collecting
from tests.contract.redis_server import RedisServer

BOUND = 0.05
TRACED, INTERVAL_S, RATE, SERIES, TURNS = 0.01, 10, 10_000, 300, 9


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
    """CPU time of a check on the event loop, in us: the two silent turns of each round, and the two told ones."""

    silent: list[tuple[float, float]] = field(default_factory=list)
    told: list[tuple[float, float]] = field(default_factory=list)

    def line(self, name: str) -> str:
        ratios = sorted(self.ratios())
        apart = sorted(last / first for first, last in self.silent)
        quarter = len(ratios) // 4
        silent, told = (median(map(mean, turns)) for turns in (self.silent, self.told))
        spread = "".join(
            f"{one[quarter]:>7.3f}{median(one):>7.3f}{one[-1 - quarter]:>7.3f}  " for one in (ratios, apart)
        )
        return f"{name:<28}{silent:>8.1f}{told:>8.1f}   {spread}"

    def ratios(self) -> list[float]:
        return [mean(told) / mean(silent) for told, silent in zip(self.told, self.silent, strict=True)]


async def measure(node: Subject, collector: Collector, rounds: int, seconds: float) -> None:
    await Load("", node, singles()).cpu_us(0.5)  # every key once
    collector.wait(lambda one: one.asked > 0, "the first sending, for which much is imported")
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores, {rounds} rounds of 4 x {seconds:g} s")
    print(
        f"\n{'event loop, us a check':<28}{'silent':>8}{'told':>8}   {'ratio: 1/4, 1/2, 3/4':<23}silence to silence"
    )
    turns, beside_us = await take_turns(Load("a check", node, singles()), rounds, seconds)
    print(f"beside it, to write and send: {beside_us:.2f} us a check; {collector.asked} sendings, ", end="")
    print(f"{len(collector.spans)} spans, {len(collector.metrics)} metrics arrived")
    await take_turns(Load("with a traceparent each", node, untraced_callers()), rounds, seconds)
    beside = beside_us / median(map(mean, turns.silent))
    low, middle, high = (ratio - 1 + beside for ratio in where_the_median_is(turns.ratios()))
    print(f"tracing and sending add {middle:.1%} to /v1/check, {low:.1%} to {high:.1%}: {verdict(low, high)}")


def where_the_median_is(values: Sequence[float]) -> tuple[float, float, float]:
    """A low value, the median and a high value: 19 of 20 times the median of all that could be measured is between
    the two, whatever their distribution (by the binomial distribution of how many are below it)."""
    ordered, count = sorted(values), len(values)
    below = max(0, int((count - 1.96 * sqrt(count)) / 2))
    return ordered[below], median(ordered), ordered[count - 1 - below]


def verdict(low: float, high: float) -> str:
    if high <= BOUND:
        return f"no more than the bound of {BOUND:.0%}"
    return f"beyond the bound of {BOUND:.0%}" if low > BOUND else f"not to be told from the bound of {BOUND:.0%}"


async def take_turns(load: Load, rounds: int, seconds: float) -> tuple[Turns, float]:
    """And what the other threads took, in us, for each check of the told turns: all that they do is put on them."""
    node, turns, answered = load.subject, Turns(), 0

    def beside_s() -> float:
        return node.cpu_s() - node.cpu_s_by_thread()[node.pid]

    async def turn(*, told: bool) -> float:
        nonlocal answered
        os.kill(node.pid, TELL if told else BE_SILENT)
        await asyncio.sleep(0.01)
        spent_us = await load.cpu_us(seconds, of_loop=True)
        answered += load.answered if told else 0
        return spent_us

    begun_s = beside_s()
    for _ in range(rounds):
        first = await turn(told=False)
        turns.told.append((await turn(told=True), await turn(told=True)))
        turns.silent.append((first, await turn(told=False)))
    print(turns.line(load.name))
    return turns, (beside_s() - begun_s) / answered * 1e6


async def parts(rounds: int) -> None:
    """What each part of it costs, and what they come to at 10,000 checks a second."""
    every = Tracer(1.0, 10**9)
    tracers = {"plain": None, "silent": Tracer(1e-12), "traced": every}
    found: dict[str, list[float]] = {name: [] for name in tracers}
    for _ in range(TURNS):  # two that do the same differ by half a microsecond: of each the middle
        for name, tracer in tracers.items():
            found[name].append(await cpu_us("ours", singles(), 1, rounds, tracer=tracer))
    plain, silent, traced = (median(found[name]) for name in ("plain", "silent", "traced"))
    spans = every.take()[-1000:]
    written = best_us(lambda: traces_request(spans, {"service.name": "x"}), 5) / len(spans) * 2
    sending = sending_us()
    asked, extra = more_a_check(plain, silent, traced, written, sending)
    for what, us in (
        ("a check, without sockets, nothing is told", plain),
        ("more where one may be traced and is not", asked),
        ("more where it is: two spans", traced - silent),
        ("to write its spans, in the thread", written),
        (f"to make, write and pack {SERIES} series, in the thread", sending),
        (f"more a check: 1 % traced, {RATE:,} checks/s, every {INTERVAL_S} s", extra),
    ):
        print(f"{what:<62}{us:>10.2f} us{us / plain:>9.3f}")


def more_a_check(
    plain_us: float, silent_us: float, traced_us: float, written_us: float, sending_us: float
) -> tuple[float, float]:
    """To ask whether a check is traced, and all in all.  What comes out below nothing is noise, and not saved."""
    asked_us = max(0.0, silent_us - plain_us)
    more_us = max(0.0, traced_us - silent_us) + written_us
    return asked_us, asked_us + TRACED * more_us + sending_us / (INTERVAL_S * RATE)


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
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--in-memory", action="store_true")
    given = parser.parse_args()
    if given.in_memory:
        uvloop.run(parts(given.rounds * 5))
        return
    with tempfile.TemporaryDirectory() as name, RedisServer(Path(name)) as redis, collecting() as collector:
        more = ("--collector", collector.endpoint, "--every", f"{INTERVAL_S}")
        with serving("ours", f"127.0.0.1:{redis.port}", Path(name), *more) as node:
            # The first check loads the function library.
            uvloop.run(Load("", node, singles(), callers=1).cpu_us(0.2))
            uvloop.run(measure(node, collector, given.rounds, given.seconds))


if __name__ == "__main__":
    main()
