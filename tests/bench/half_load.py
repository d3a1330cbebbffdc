"""How long a check takes against a Redis on the same machine at half of what all of it bears.  Not a test.

    python -m tests.bench.half_load [--rounds 7] [--seconds 2.0]

Checks leave at a steady rate, whether or not those before were answered, and are timed from when they were due.
In turn for a bare uvicorn (see ``_node.py``) and for a node: first the highest rate, in steps of a quarter, at
which half of them are answered within 20 ms, which counts generator, node and Redis on these cores; then half.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path
from statistics import median

import uvloop

from tests.bench.http_checks import Load, Subject, open_loop, serving, singles
from tests.contract.redis_server import RedisServer

QUANTILES = (0.5, 0.99, 0.999)
RATE_LEAST, RATE_MOST = 1_000, 20_000
BORNE_MS = 20


async def most_a_second(subject: Subject, seconds: float) -> int:
    """From below, so that only the last step is too much."""
    rate = RATE_LEAST
    while rate < RATE_MOST:
        took_ms = sorted(await open_loop(subject, singles(), rate, seconds))
        if len(took_ms) < 0.8 * rate * seconds or took_ms[len(took_ms) // 2] > BORNE_MS:
            break
        rate = rate * 5 // 4
    return rate * 4 // 5


async def measure(subjects: list[Subject], rounds: int, seconds: float) -> None:
    rates: dict[str, list[int]] = {subject.name: [] for subject in subjects}
    took_ms: dict[str, list[list[float]]] = {subject.name: [] for subject in subjects}
    for subject in subjects:
        await Load("", subject, singles()).cpu_us(0.3)  # every key once
    for _ in range(rounds):
        for subject in subjects:
            most = await most_a_second(subject, seconds / 2)
            rates[subject.name].append(most)
            took_ms[subject.name].append(sorted(await open_loop(subject, singles(), most // 2, seconds)))
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
