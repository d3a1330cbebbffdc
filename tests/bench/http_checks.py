"""What a check over HTTP costs, as ratios in one run.  Not a test.

    python -m tests.bench.http_checks [--rounds 7] [--seconds 1.0]

The numbers are CPU time of the server's process as the kernel counts it; the subjects take turns, and a ratio is
the median of the ratios of each turn.  ``bare`` is uvicorn with a raw ASGI application that does nothing but one
FCALL and the same answer (see ``_node.py``).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from statistics import median

import uvloop

from tests.contract.redis_server import RedisServer

CONNECTIONS = 32
CLIENTS = 500
BATCH = 100
OPEN_RATE = 2000


def request(path: str, document: object) -> bytes:
    body = json.dumps(document, separators=(",", ":")).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: */*\r\nContent-Type: application/json\r\n"
    return head.encode() + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)


def check(number: int, resource: str) -> dict[str, str]:
    return {"client_key": f"user:{number % CLIENTS}", "resource": resource}


def singles(resource: str = "one", path: str = "/v1/check") -> list[bytes]:
    return [request(path, check(number, resource)) for number in range(CLIENTS)]


HOT = [request("/v1/check", {"client_key": "hot", "resource": "one"})]


def batches(resource: str = "one") -> list[bytes]:
    return [
        request("/v1/check:batch", {"checks": [check(first + i, resource) for i in range(BATCH)]})
        for first in range(0, CLIENTS, 10)
    ]


class Caller(asyncio.Protocol):
    """One connection: a request at a time, answers by their length."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport
        self.answered = 0
        self.failed = 0
        self._data = b""
        self.on_answer = lambda: None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]

    def ask(self, data: bytes) -> None:
        self.transport.write(data)

    def data_received(self, data: bytes) -> None:
        data = self._data + data
        while (end := data.find(b"\r\n\r\n")) >= 0:
            at = data.index(b"content-length: ") + 16
            whole = end + 4 + int(data[at : data.index(b"\r\n", at)])
            if len(data) < whole:
                break
            if not data.startswith(b"HTTP/1.1 200 ") or data.find(b'"degraded":true', end, whole) >= 0:
                self.failed += 1
            data = data[whole:]
            self.answered += 1
            self.on_answer()
        self._data = data


@dataclass
class Subject:
    """A running server, and its process."""

    name: str
    port: int
    pid: int

    def cpu_s(self) -> float:
        """What its threads have run, by the kernel."""
        return sum(self.cpu_s_by_thread().values())

    def cpu_s_by_thread(self) -> dict[int, float]:
        """The first thread, on which the event loop is, has the number of the process."""
        tasks = Path(f"/proc/{self.pid}/task").iterdir()
        return {int(task.name): int((task / "schedstat").read_text().split()[0]) / 1e9 for task in tasks}

    async def connect(self, count: int) -> list[Caller]:
        loop = asyncio.get_running_loop()
        made = [await loop.create_connection(Caller, "127.0.0.1", self.port) for _ in range(count)]
        return [caller for _, caller in made]


@dataclass
class Load:
    """Requests of so many checks each, from a number of callers that each wait for their answer."""

    name: str
    subject: Subject
    requests: Sequence[bytes]
    checks: int = 1
    callers: int = CONNECTIONS
    answered: int = 0
    """How many checks were answered the last time, those of the first moment too."""

    async def cpu_us(self, seconds: float, *, of_loop: bool = False) -> float:
        """CPU time of the server per check; ``of_loop``: of its first thread alone."""

        def cpu_s() -> float:
            return self.subject.cpu_s_by_thread()[self.subject.pid] if of_loop else self.subject.cpu_s()

        callers = await self.subject.connect(self.callers)
        following = cycle(self.requests)
        running = True

        def go_on(caller: Caller) -> None:
            if running:
                caller.ask(next(following))

        for caller in callers:
            caller.on_answer = lambda caller=caller: go_on(caller)  # type: ignore[misc]
            go_on(caller)
        await asyncio.sleep(seconds / 5)
        before, begun_s = sum(caller.answered for caller in callers), cpu_s()
        await asyncio.sleep(seconds)
        spent_s, done = cpu_s() - begun_s, sum(caller.answered for caller in callers) - before
        running = False
        await asyncio.sleep(0.05)
        assert not sum(caller.failed for caller in callers), "answers that are none"
        self.answered = sum(caller.answered for caller in callers) * self.checks
        for caller in callers:
            caller.transport.close()
        return spent_s / max(1, done) / self.checks * 1e6


async def open_loop(subject: Subject, requests: Sequence[bytes], rate: int, seconds: float) -> list[float]:
    """Latencies in ms from when each check was due, whether or not those before it were answered."""
    callers = await subject.connect(CONNECTIONS)
    due: list[list[float]] = [[] for _ in callers]
    latencies: list[float] = []

    def answered(place: int) -> None:
        latencies.append((time.perf_counter() - due[place].pop(0)) * 1000)

    for place, caller in enumerate(callers):
        caller.on_answer = lambda place=place: answered(place)  # type: ignore[misc]
    start, sent, following = time.perf_counter(), 0, cycle(requests)
    while (now := time.perf_counter() - start) < seconds:
        while sent < now * rate:
            place = sent % len(callers)
            due[place].append(start + sent / rate)
            callers[place].ask(next(following))
            sent += 1
        await asyncio.sleep(0.0002)
    await asyncio.sleep(0.2)
    for caller in callers:
        caller.transport.close()
    return latencies[len(latencies) // 10 :]


async def calls_a_check(load: Load, redis: RedisServer, seconds: float) -> float:
    """How often Redis is called for a check; what carries token leases counts too."""

    def calls() -> int:
        return int(redis.client.info("commandstats").get("cmdstat_fcall", {}).get("calls", 0))

    await load.cpu_us(seconds / 2)
    before = calls()
    await load.cpu_us(seconds)
    return (calls() - before) / load.answered


async def compare(loads: Sequence[Load], rounds: int, seconds: float) -> dict[str, float]:
    """The median ratio of each load to the first."""
    found: dict[str, float] = {}
    spent: dict[str, list[float]] = {load.name: [] for load in loads}
    for _ in range(rounds):
        for load in loads:
            spent[load.name].append(await load.cpu_us(seconds))
    first = spent[loads[0].name]
    print(f"\n{'CPU of the server':<44}{'us a check':>11}{'ratio':>8}{'lowest':>8}{'highest':>8}")
    for name, values in spent.items():
        ratios = [value / base for value, base in zip(values, first, strict=True)]
        found[name] = median(ratios)
        print(f"{name:<44}{median(values):>11.1f}{median(ratios):>8.3f}{min(ratios):>8.3f}{max(ratios):>8.3f}")
    return found


async def measure(bare: Subject, ours: Subject, redis: RedisServer, rounds: int, seconds: float) -> None:
    # Every key once, so that all meet buckets that are there and plans that are kept.
    for load in (Load("", bare, singles()), Load("", ours, singles()), Load("", ours, singles("three"))):
        await load.cpu_us(0.3)
    await compare(
        [
            Load("bare uvicorn, one check a request", bare, singles()),
            Load("a check", ours, singles()),
            Load(f"a check in a batch of {BATCH}", ours, batches(), BATCH, callers=4),
            Load("a check of one hot key", ours, HOT),
            Load("a check on the slow path (?x=1)", ours, singles(path="/v1/check?x=1")),
        ],
        rounds,
        seconds,
    )
    calls = [await calls_a_check(Load("", ours, HOT), redis, seconds) for _ in range(rounds)]
    print(f"{'hot key: calls to Redis a check':<44}{median(calls):>11.4f}")
    await compare(
        [
            Load("a check that meets one rule", ours, singles()),
            Load("a check that meets three rules", ours, singles("three")),
            Load("in a batch: one rule", ours, batches(), BATCH, callers=4),
            Load("in a batch: three rules", ours, batches("three"), BATCH, callers=4),
        ],
        rounds,
        seconds,
    )
    await compare(
        [
            Load("one caller at a time: bare uvicorn", bare, singles(), callers=1),
            Load("one caller at a time: a check", ours, singles(), callers=1),
        ],
        rounds,
        seconds,
    )
    print(f"\n{f'open loop, {OPEN_RATE:,} checks/s':<44}{'p50 ms':>11}{'p99 ms':>8}")
    told: dict[str, list[list[float]]] = {"bare uvicorn": [], "ours": []}
    for _ in range(rounds):
        for name, subject in zip(told, (bare, ours), strict=True):
            told[name].append(sorted(await open_loop(subject, singles(), OPEN_RATE, seconds)))
    for name, runs in told.items():
        p50, p99 = (median(run[int(q * len(run))] for run in runs) for q in (0.5, 0.99))
        print(f"{name:<44}{p50:>11.2f}{p99:>8.2f}")


@contextmanager
def serving(kind: str, redis: str, directory: Path, *more: str) -> Iterator[Subject]:
    command = [sys.executable, "-m", "tests.bench._node", kind, "--redis", redis, "--directory", str(directory)]
    command += more
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        yield Subject(kind, int(process.stdout.readline()), process.pid)
    finally:
        process.kill()
        process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=1.0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, RedisServer(Path(name)) as redis:
        address = f"127.0.0.1:{redis.port}"
        load = Path(name) / "nodes"
        with serving("ours", address, load) as ours:
            # The first check loads the function library, which the bare one relies on.
            uvloop.run(Load("", ours, singles(), callers=1).cpu_us(0.2))
            with serving("bare", address, load) as bare:
                uvloop.run(measure(bare, ours, redis, given.rounds, given.seconds))


if __name__ == "__main__":
    main()
