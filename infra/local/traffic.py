"""Traffic for a local system: follows the sun around the regions, at a bounded rate, until it is stopped.

A day takes ``DAY_S``; at its noon a region gets most of the checks.  A few clients send nearly all, so that
their global limits are worth moving.  ``python -m infra.local.traffic --dir DIR``.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import math
import random
import signal
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from infra.local.layout import HOST, Layout, load_layout
from services.logs import configure_logging

CHECKS_A_SECOND = 150.0
"""Over all regions together."""
DAY_S = 240.0
TICK_S = 0.05
ANSWER_S = 1.0
RECONNECT_S = 0.5
TELL_S = 10.0
WAITING_MOST = 16
"""Checks that one node has been sent or that wait for its connection: two ticks of a region's noon."""

CLIENTS = (("acme", 50), ("user:42", 25), ("user:7", 15), ("user:1001", 6), ("guest", 4))
RESOURCES = (("GET /items", 80), ("POST /orders", 15), ("POST /login", 3), ("POST /exports", 2))


def parts_of_traffic(regions: int, at_s: float) -> list[float]:
    """Each region's part at a time: the night has a tenth of the noon.  They sum to 1."""
    angles = [2 * math.pi * (at_s / DAY_S - number / regions) for number in range(regions)]
    light = [0.1 + max(0.0, math.cos(angle)) ** 2 for angle in angles]
    return [one / sum(light) for one in light]


@dataclass(slots=True)
class Node:
    """One connection to one node; one check at a time, and a few that wait for their turn."""

    port: int
    counts: Counter[str]
    _streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
    _closed_until: float = 0.0
    _waiting: int = 0
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    def usable(self) -> bool:
        """Whether one more check may be sent: a slow node does not gather them without bound."""
        return self._waiting < WAITING_MOST and time.monotonic() >= self._closed_until

    def send(self, body: bytes) -> asyncio.Task[None]:
        """Send one check in its turn and count its answer."""
        self._waiting += 1
        task = asyncio.create_task(self._check(body))
        task.add_done_callback(self._done)
        return task

    def _done(self, _task: asyncio.Task[None]) -> None:
        self._waiting -= 1

    async def _check(self, body: bytes) -> None:
        """A node that does not answer is left alone for a moment, also by those that waited."""
        async with self._turn:
            if time.monotonic() < self._closed_until:
                return
            try:
                async with asyncio.timeout(ANSWER_S):
                    self.counts[await self._ask(body)] += 1
            except (OSError, EOFError, ValueError, TimeoutError):
                self.counts["unanswered"] += 1
                self._closed_until = time.monotonic() + RECONNECT_S
                self.close()

    async def _ask(self, body: bytes) -> str:
        if self._streams is None:
            self._streams = await asyncio.open_connection(HOST, self.port)
        reader, writer = self._streams
        head = f"POST /v1/check HTTP/1.1\r\nhost: {HOST}\r\ncontent-type: application/json\r\n"
        writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        answer = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = int(answer.split(b"content-length:", 1)[1].split(b"\r\n", 1)[0])
        content = json.loads(await reader.readexactly(length))
        if not answer.startswith(b"http/1.1 200"):
            return "refused"
        return "allowed" if content["allowed"] else "denied"

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].transport.abort()
            self._streams = None


async def drive(layout: Layout, stopped: asyncio.Event) -> None:
    """Send checks until ``stopped``; tell the counts now and then."""
    log = configure_logging("traffic")
    chance = random.Random()
    counts = {region: Counter[str]() for region in layout.regions}
    nodes = {region: [Node(port, counts[region]) for port in layout.node_ports(region)] for region in counts}
    owed = dict.fromkeys(counts, 0.0)
    sending: set[asyncio.Task[None]] = set()
    began = told = time.monotonic()
    while not stopped.is_set():
        now = time.monotonic()
        for region, part in zip(counts, parts_of_traffic(len(counts), now - began), strict=True):
            # What the nodes could not take is not made up for: the rate is a bound.
            owed[region] = min(owed[region] + CHECKS_A_SECOND * part * TICK_S, 2 * CHECKS_A_SECOND * TICK_S)
            while owed[region] >= 1:
                owed[region] -= 1
                usable = [node for node in nodes[region] if node.usable()]
                if not usable:
                    continue  # all have enough to do
                task = chance.choice(usable).send(_body(chance))
                sending.add(task)
                task.add_done_callback(sending.discard)
        if now - told >= TELL_S:
            told = now
            log.info("sent", **{region: dict(count) for region, count in counts.items()})
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stopped.wait(), max(0.0, TICK_S - (time.monotonic() - now)))
    await asyncio.gather(*sending)
    for node in (node for region in nodes.values() for node in region):
        node.close()
    log.info("stopped", **{region: dict(count) for region, count in counts.items()})


def _body(chance: random.Random) -> bytes:
    client = chance.choices([name for name, _ in CLIENTS], [weight for _, weight in CLIENTS])[0]
    resource = chance.choices([name for name, _ in RESOURCES], [weight for _, weight in RESOURCES])[0]
    return json.dumps({"client_key": client, "resource": resource}).encode()


async def _run(layout: Layout) -> None:
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    await drive(layout, stopped)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m infra.local.traffic", description="Traffic that follows the sun."
    )
    parser.add_argument("--dir", type=Path, required=True, help="the local system's directory")
    layout = load_layout(parser.parse_args().dir)
    if layout is None:
        print("no local system there", file=sys.stderr)
        return 2
    asyncio.run(_run(layout))
    return 0


if __name__ == "__main__":
    sys.exit(main())
