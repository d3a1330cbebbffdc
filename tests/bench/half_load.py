"""How long a check takes against a Redis on the same machine while a node bears half of what it can.  Not a test.

    python -m tests.bench.half_load [--rounds 7] [--seconds 2.0]

In turn for a bare uvicorn (see ``_node.py``) and for a node: what it answers when 32 callers ask as fast as they
are answered, and then, at half of that rate whether or not the answers before came, how long each check took from
when it was due.  The load generator takes a core of its own; where there is none to spare, it waits as well.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import time
from functools import partial
from pathlib import Path
from statistics import median

import uvloop

from tests.bench.http_checks import CONNECTIONS, Load, Subject, open_loop, serving, singles
from tests.contract.redis_server import RedisServer

QUANTILES = (0.5, 0.99, 0.999)


async def most_a_second(subject: Subject, seconds: float) -> float:
    """Checks that it answers when every caller asks again at once."""
    callers = await subject.connect(CONNECTIONS)
    asked = singles()
    for caller, request in zip(callers, asked, strict=False):
        caller.on_answer = partial(caller.ask, request)  # type: ignore[assignment]
        caller.ask(request)
    await asyncio.sleep(seconds / 5)
    before, began_s = sum(caller.answered for caller in callers), time.perf_counter()
    await asyncio.sleep(seconds)
    done, took_s = sum(caller.answered for caller in callers) - before, time.perf_counter() - began_s
    for caller in callers:
        caller.on_answer = lambda: None  # type: ignore[method-assign]
    await asyncio.sleep(0.05)
    for caller in callers:
        caller.transport.close()
    return done / took_s


async def measure(subjects: list[Subject], rounds: int, seconds: float) -> None:
    rates: dict[str, list[float]] = {subject.name: [] for subject in subjects}
    took_ms: dict[str, list[list[float]]] = {subject.name: [] for subject in subjects}
    for subject in subjects:
        await Load("", subject, singles()).cpu_us(0.3)  # every key once
    for _ in range(rounds):
        for subject in subjects:
            most = await most_a_second(subject, seconds)
            rates[subject.name].append(most)
            took_ms[subject.name].append(sorted(await open_loop(subject, singles(), round(most / 2), seconds)))
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores, {rounds} turns")
    print(f"{'':<14}{'most/s':>9}{'half/s':>9}" + "".join(f"{f'p{100 * q:g} ms':>11}" for q in QUANTILES))
    for name, runs in took_ms.items():
        most = median(rates[name])
        told = [median(run[int(q * len(run))] for run in runs) for q in QUANTILES]
        best = [min(run[int(q * len(run))] for run in runs) for q in QUANTILES]
        print(f"{name:<14}{most:>9,.0f}{most / 2:>9,.0f}" + "".join(f"{value:>11.2f}" for value in told))
        print(f"{'  best turn':<14}{'':>18}" + "".join(f"{value:>11.2f}" for value in best))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=2.0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, RedisServer(Path(name)) as redis:
        address = f"127.0.0.1:{redis.port}"
        with serving("ours", address, Path(name) / "nodes") as ours:
            # The first check loads the function library, which the bare one relies on.
            uvloop.run(Load("", ours, singles(), callers=1).cpu_us(0.2))
            with serving("bare", address, Path(name) / "nodes") as bare:
                uvloop.run(measure([bare, ours], given.rounds, given.seconds))


if __name__ == "__main__":
    main()
