"""What a rate limit call over gRPC costs, as ratios in one run.  Not a test.

    python -m tests.bench.grpc_checks [--rounds 5] [--seconds 1.0]

CPU time of the server's process as the kernel counts it, per call; the servers take turns, and a ratio is the
median of the ratios of each turn to grpcio's synchronous server.  Behind each stands the same limiter, without
Redis (``_grpc_node.py``), so this is what the server and the limiter cost together.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from statistics import median

import uvloop
from envoy.service.ratelimit.v3 import rls_pb2
from hpack import Encoder

from services.rls.http2.frames import (
    ACK,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PING,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    frame,
    settings,
    window_update,
)
from services.rls.messages import METHOD
from tests.bench.http_checks import Subject

USERS = 500
KINDS = ("sync", "grpcio", "own")


def bodies() -> list[bytes]:
    made = []
    for number in range(USERS):
        request = rls_pb2.RateLimitRequest(domain="edge")
        descriptor = request.descriptors.add()
        descriptor.entries.add(key="user", value=f"user:{number}")
        descriptor.entries.add(key="method", value="POST")
        message = request.SerializeToString()
        made.append(b"\x00" + len(message).to_bytes(4, "big") + message)
    return made


BODIES = bodies()
HEAD = [
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", METHOD.encode()),
    (b":authority", b"127.0.0.1"),
    (b"te", b"trailers"),
    (b"content-type", b"application/grpc"),
    (b"user-agent", b"bench"),
    (b"grpc-timeout", b"20m"),
]


class Caller(asyncio.Protocol):
    """A connection with ``depth`` calls at a time.  ``fresh``: each head carries an id that was never sent."""

    def __init__(self, depth: int, fresh: bool) -> None:
        self._depth, self._fresh = depth, fresh
        self._encoder = Encoder()
        self._numbers = count(1, 2)
        self._data = b""
        self._received = 0
        self.answered = 0
        self.running = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: asyncio.Transport = transport  # type: ignore[assignment]
        wide = settings({4: 2**24}) + window_update(0, 2**30)
        transport.write(PREFACE + wide + b"".join(self._call() for _ in range(self._depth)))  # type: ignore[attr-defined]

    def _call(self) -> bytes:
        number = next(self._numbers)
        head = [*HEAD, (b"x-request-id", b"%032x" % number)] if self._fresh else HEAD
        body = BODIES[(number // 2) % USERS]
        return frame(HEADERS, END_HEADERS, number, self._encoder.encode(head)) + frame(
            DATA, END_STREAM, number, body
        )

    def data_received(self, data: bytes) -> None:
        data = self._data + data
        at, out = 0, []
        while len(data) - at >= 9:
            length, kind, flags = int.from_bytes(data[at : at + 3], "big"), data[at + 3], data[at + 4]
            if len(data) < at + 9 + length:
                break
            payload = data[at + 9 : at + 9 + length]
            at += 9 + length
            if kind == SETTINGS and not flags & ACK:
                out.append(frame(SETTINGS, ACK, 0))
            elif kind == PING and not flags & ACK:
                out.append(frame(PING, ACK, 0, payload))
            elif kind == DATA:
                self._received += length
                assert b"per-user" in payload
            if kind in (HEADERS, DATA) and flags & END_STREAM:
                self.answered += 1
                if self.running:
                    out.append(self._call())
            # grpcio resets streams without an error once they are answered.
            assert kind != GOAWAY, payload
            assert kind != RST_STREAM or payload == bytes(4), payload
        self._data = data[at:]
        if self._received > 2**20:
            out.append(window_update(0, self._received))
            self._received = 0
        if out:
            self._transport.write(b"".join(out))

    def close(self) -> None:
        self._transport.abort()


async def cpu_us(subject: Subject, connections: int, depth: int, fresh: bool, seconds: float) -> float:
    loop = asyncio.get_running_loop()
    callers = [
        (await loop.create_connection(lambda: Caller(depth, fresh), "127.0.0.1", subject.port))[1]
        for _ in range(connections)
    ]
    await asyncio.sleep(seconds / 5)
    before, spent_s = sum(caller.answered for caller in callers), subject.cpu_s()
    await asyncio.sleep(seconds)
    spent_s, done = subject.cpu_s() - spent_s, sum(caller.answered for caller in callers) - before
    for caller in callers:
        caller.running = False
    await asyncio.sleep(0.05)
    for caller in callers:
        caller.close()
    return spent_s / done * 1e6


@contextmanager
def running() -> Iterator[list[Subject]]:
    processes, subjects = [], []
    try:
        for kind in KINDS:
            command = [sys.executable, "-m", "tests.bench._grpc_node", kind]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            processes.append(process)
            assert process.stdout is not None
            subjects.append(Subject(kind, int(process.stdout.readline()), process.pid))
        yield subjects
    finally:
        for process in processes:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


LOADS = {
    "2 connections, 32 calls at a time": (2, 32, False),
    "the same, a header that is new with each call": (2, 32, True),
    "8 connections, one call at a time": (8, 1, False),
    "1 connection, one call at a time": (1, 1, False),
}


async def compare(subjects: list[Subject], rounds: int, seconds: float) -> None:
    print(f"{'load':<48}{'server':<10}{'us a call':>10}{'ratio':>8}{'  lowest, highest':>18}")
    for name, (connections, depth, fresh) in LOADS.items():
        turns = [
            {one.name: await cpu_us(one, connections, depth, fresh, seconds) for one in subjects}
            for _ in range(rounds)
        ]
        for kind in KINDS:
            ratios = [turn[kind] / turn["sync"] for turn in turns]
            spent_us = median(turn[kind] for turn in turns)
            span = f"{min(ratios):.3f}, {max(ratios):.3f}"
            print(f"{name:<48}{kind:<10}{spent_us:>10.1f}{median(ratios):>8.3f}{span:>18}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0)
    given = parser.parse_args()
    with running() as subjects:
        uvloop.run(compare(subjects, given.rounds, given.seconds))


if __name__ == "__main__":
    main()
