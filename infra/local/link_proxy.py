"""The links between regions and the hub: TCP forwarders that can be cut, healed and slowed, one process for all.

A cut link is a black hole.  Connections stay open and new ones are accepted, but no byte passes in either
direction until it heals; then everything that was under way arrives, late, as on a real network.  A slow link
delays each direction.  What waits is bounded: ``QUEUE_CHUNKS`` reads a direction, then the sender is made to wait.

Control: one line a connection, ``cut NAME``, ``heal NAME``, ``slow NAME MILLISECONDS`` or ``status``; the answer is
one line of JSON.  ``python -m infra.local.link_proxy CONFIG`` with ``{"host", "control_port", "links": {NAME:
{"port", "target_port"}}}``.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
import sys
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

CHUNK_BYTES = 64 * 1024
QUEUE_CHUNKS = 8
CONNECTIONS_MOST = 256
"""On one link; beyond that the oldest gives way, so that a cut of days does not fill the table."""
DELAY_MS_MOST = 60_000

State = Literal["up", "cut", "slow"]


@dataclass(slots=True)
class Link:
    """One region's link: what passes, and how late."""

    name: str
    target: tuple[str, int]
    delay_ms: int = 0
    passes: asyncio.Event = field(default_factory=asyncio.Event)
    connections: deque[_Connection] = field(default_factory=deque)
    forwarded_bytes: int = 0

    def __post_init__(self) -> None:
        self.passes.set()

    @property
    def state(self) -> State:
        if not self.passes.is_set():
            return "cut"
        return "slow" if self.delay_ms else "up"

    def cut(self) -> None:
        self.passes.clear()

    def heal(self) -> None:
        """Let everything through again, without delay."""
        self.delay_ms = 0
        self.passes.set()

    def slow(self, delay_ms: int) -> None:
        """Delay each direction.  Raises ValueError."""
        if not 0 <= delay_ms <= DELAY_MS_MOST:
            raise ValueError(f"a delay is from 0 to {DELAY_MS_MOST} ms")
        self.delay_ms = delay_ms
        self.passes.set()

    def describe(self) -> dict[str, Any]:
        return {
            "link": self.state,
            "delay_ms": self.delay_ms,
            "connections": len(self.connections),
            "forwarded_bytes": self.forwarded_bytes,
        }

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection until both directions have ended."""
        connection = _Connection(self, reader, writer)
        self.connections.append(connection)
        if len(self.connections) > CONNECTIONS_MOST:
            self.connections.popleft().abort()
        try:
            await connection.run()
        except asyncio.CancelledError:
            pass  # by abort or close: asyncio's own callback would log it as an error
        finally:
            with contextlib.suppress(ValueError):
                self.connections.remove(connection)


class _Connection:
    """One client and its connection to the target, which is made when bytes may pass."""

    def __init__(self, link: Link, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._link = link
        self._reader = reader
        self._writers = [writer]
        self._task = asyncio.current_task()
        self.ended = asyncio.Event()

    def abort(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def run(self) -> None:
        try:
            await self._link.passes.wait()
            there, to_there = await asyncio.open_connection(*self._link.target, limit=CHUNK_BYTES)
            self._writers.append(to_there)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._forward(self._reader, to_there))
                group.create_task(self._forward(there, self._writers[0]))
        except* OSError:
            pass  # a side is gone: so is the connection
        finally:
            for writer in self._writers:
                writer.transport.abort()
            self.ended.set()

    async def _forward(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        """One direction: read now, write when due, in order.  The queue's bound is the sender's brake."""
        due: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(QUEUE_CHUNKS)
        writing = asyncio.create_task(self._write_when_due(due, sink))
        try:
            clock = asyncio.get_running_loop().time
            while True:
                chunk = await source.read(CHUNK_BYTES)
                put = asyncio.create_task(due.put((clock() + self._link.delay_ms / 1000, chunk)))
                await asyncio.wait({put, writing}, return_when=asyncio.FIRST_COMPLETED)
                if writing.done() or not chunk:
                    put.cancel() if writing.done() else await put
                    break
            await writing
        finally:
            writing.cancel()

    async def _write_when_due(self, due: asyncio.Queue[tuple[float, bytes]], sink: asyncio.StreamWriter) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            at, chunk = await due.get()
            if at > clock():
                await asyncio.sleep(at - clock())
            await self._link.passes.wait()
            if not chunk:
                if sink.can_write_eof():
                    sink.write_eof()
                return
            sink.write(chunk)
            self._link.forwarded_bytes += len(chunk)
            await sink.drain()


class LinkProxy:
    """All links and the control port."""

    def __init__(self) -> None:
        self.links: dict[str, Link] = {}
        self._servers: list[asyncio.Server] = []

    async def add(self, name: str, host: str, port: int, target_port: int) -> int:
        """Listen for a region's connections; the port (chosen by the system when 0)."""
        link = Link(name, (host, target_port))
        server = await asyncio.start_server(link.accept, host, port, limit=CHUNK_BYTES, backlog=256)
        self.links[name] = link
        self._servers.append(server)
        return int(server.sockets[0].getsockname()[1])

    async def control(self, host: str, port: int) -> int:
        """Listen for commands; the port."""
        server = await asyncio.start_server(self._serve_control, host, port, limit=1024)
        self._servers.append(server)
        return int(server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        for server in self._servers:
            server.close()
        connections = [connection for link in self.links.values() for connection in link.connections]
        for connection in connections:
            connection.abort()
        for connection in connections:
            await connection.ended.wait()

    def obey(self, line: str) -> dict[str, Any]:
        """Carry out one command.  Raises ValueError with what would be right."""
        match line.split():
            case ["status"]:
                return {name: link.describe() for name, link in self.links.items()}
            case ["cut", name]:
                self._link(name).cut()
            case ["heal", name]:
                self._link(name).heal()
            case ["slow", name, delay_ms] if delay_ms.isdigit():
                self._link(name).slow(int(delay_ms))
            case _:
                raise ValueError("commands: cut NAME, heal NAME, slow NAME MILLISECONDS, status")
        return {name: self._link(name).describe()}

    def _link(self, name: str) -> Link:
        if name not in self.links:
            raise ValueError(f"no link {name}; there are: {', '.join(self.links)}")
        return self.links[name]

    async def _serve_control(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            line = await asyncio.wait_for(reader.readline(), 5.0)
            try:
                answer = self.obey(line.decode(errors="replace"))
            except ValueError as error:
                answer = {"error": str(error)}
            writer.write(json.dumps(answer).encode() + b"\n")
            await writer.drain()
        except (TimeoutError, OSError, ValueError):
            pass  # whoever asked is gone, or said no line
        finally:
            writer.close()
            with contextlib.suppress(OSError, TimeoutError):
                await asyncio.wait_for(writer.wait_closed(), 1.0)


def command(port: int, line: str, *, host: str = "127.0.0.1", timeout_s: float = 5.0) -> dict[str, Any]:
    """Send one command to a running proxy.  Raises OSError when there is none, ValueError when it is refused."""
    with socket.create_connection((host, port), timeout=timeout_s) as connection:
        connection.sendall(line.encode() + b"\n")
        with connection.makefile("rb") as answers:
            answer: dict[str, Any] = json.loads(answers.readline())
    if "error" in answer:
        raise ValueError(answer["error"])
    return answer


async def _serve(configuration: Mapping[str, Any]) -> None:
    from services.logs import configure_logging  # not at the top: those who only send commands need no logs

    log = configure_logging("link_proxy")
    proxy = LinkProxy()
    host = configuration["host"]
    for name, link in configuration["links"].items():
        await proxy.add(name, host, link["port"], link["target_port"])
    await proxy.control(host, configuration["control_port"])
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    log.info("started", links=list(proxy.links))
    await stopped.wait()
    await proxy.close()


def main() -> int:
    if len(sys.argv) != 2:
        print("usage: python -m infra.local.link_proxy CONFIG", file=sys.stderr)
        return 2
    asyncio.run(_serve(json.loads(Path(sys.argv[1]).read_text())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
