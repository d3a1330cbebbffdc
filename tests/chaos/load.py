"""``python -m tests.chaos.load SPEC OUT``: checks at fixed instants and a log of every answer, until SIGTERM.  [IO]

It is a process of its own and knows nothing of faults: what it writes is what callers saw, on one clock
(``time.monotonic()``, which every namespace shares), a line of JSON a check.  SPEC: a list of ``Stream``.
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from services.cli.drive import CHECKS_MOST, LoadResult, drive

TIMEOUT_S = 20.0
"""Longer than any deadline of the system: what is not answered by then is not answered."""


@dataclass(frozen=True)
class Stream:
    """``rate`` checks a second by ``rule`` in one region, in turn to its nodes; ``keys`` may repeat."""

    region: str
    rule: str
    targets: list[str]
    keys: list[str]
    rate: float


def skewed(number: int, length: int, seed: int) -> list[str]:
    """``length`` draws of ``number`` keys, the k-th of them 1/k as often as the first."""
    chance = random.Random(seed)
    places = chance.choices(range(number), [1 / (place + 1) for place in range(number)], k=length)
    return [f"key-{place}" for place in places]


async def main(streams: list[Stream], file: IO[str]) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await asyncio.gather(*(_drive(stream, stop, file) for stream in streams))


async def _drive(stream: Stream, stop: asyncio.Event, file: IO[str]) -> None:
    def write(result: LoadResult) -> None:
        for check in result.checks:
            row = {
                "region": stream.region,
                "rule": stream.rule,
                "key": stream.keys[check.client],
                "url": stream.targets[check.target],
                **check._asdict(),
            }
            file.write(json.dumps(row) + "\n")
        file.flush()
        result.checks.clear()

    result = await drive(
        stream.targets,
        stream.rate,
        (CHECKS_MOST - 1) / stream.rate,
        client_key=stream.keys,
        resource=f"GET /{stream.rule}",
        concurrency=32,
        timeout_s=TIMEOUT_S,
        anywhere=True,
        stop=stop,
        on_second=write,
    )
    write(result)


def written(streams: list[Stream]) -> str:
    return json.dumps([asdict(stream) for stream in streams])


if __name__ == "__main__":
    spec, out = map(Path, sys.argv[1:])
    with out.open("w") as log:
        asyncio.run(main([Stream(**stream) for stream in json.loads(spec.read_text())], log))
