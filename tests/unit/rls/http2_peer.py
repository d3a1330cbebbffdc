"""A caller made of the package ``h2``, and one of our connections, with memory between them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import h2.config
import h2.connection
import h2.events

from services.rls.http2.connection import Connection, Front
from services.rls.messages import METHOD
from services.rls.methods import Methods, Observer, Unary
from services.rls.rpc import Failed

HEADERS = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", METHOD),
    (":authority", "test"),
    ("content-type", "application/grpc"),
    ("te", "trailers"),
]


class Noted(Observer):
    def __init__(self) -> None:
        self.errors: list[Exception] = []

    def unexpected(self, error: Exception) -> None:
        self.errors.append(error)


class MemoryTransport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.closed = self.reading_paused = False

    def write(self, data: Any) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True

    def pause_reading(self) -> None:
        self.reading_paused = True

    def resume_reading(self) -> None:
        self.reading_paused = False


@dataclass
class Told:
    """What a stream was answered."""

    headers: dict[str, str] = field(default_factory=dict)
    data: bytes = b""
    trailers: dict[str, str] = field(default_factory=dict)
    ended: bool = False
    reset: int | None = None

    @property
    def message(self) -> bytes:
        assert self.data[0] == 0
        assert int.from_bytes(self.data[1:5], "big") == len(self.data) - 5
        return self.data[5:]


def echo(data: bytes, ended: Any) -> None:
    """Answers with what it is asked, ten times; in the next turn if it begins with ``L``; fails if with ``F``."""
    if data[:1] == b"F":
        ended(Failed(5, "no: 100 % äh"))
    elif data[:1] == b"L":
        asyncio.get_running_loop().call_soon(ended, data * 10)
    else:
        ended(data * 10)


class Clock:
    """The running loop, but for its time, which goes on when :meth:`advance` says so."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._now_s = 0.0
        self._due: list[tuple[float, Callable[[], None], asyncio.Handle]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)

    def time(self) -> float:
        return self._now_s

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> asyncio.Handle:
        handle = asyncio.Handle(callback, (), self._loop)
        self._due.append((self._now_s + delay_s, callback, handle))
        return handle

    def advance(self, seconds: float) -> None:
        self._now_s += seconds
        due, self._due = self._due, []
        for when_s, callback, handle in due:
            if when_s > self._now_s:
                self._due.append((when_s, callback, handle))
            elif not handle.cancelled():
                callback()


class Peer:
    """``methods`` in place of the echo, ``clock`` in place of the running loop."""

    def __init__(
        self,
        methods: Methods | None = None,
        token: str | None = None,
        upgrade: bool = True,
        clock: Clock | None = None,
    ) -> None:
        self.noted = Noted()
        self.front = Front(methods or {METHOD: Unary(echo)}, token, self.noted)
        loop: Any = clock or asyncio.get_running_loop()
        self.connection = Connection(self.front, loop)
        self.transport = MemoryTransport()
        self.client = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
        self.told: dict[int, Told] = {}
        self.goaway: tuple[int, int] | None = None
        self.pongs = 0
        self.connection.connection_made(self.transport)
        if upgrade:
            self.client.initiate_connection()

    async def exchange(self, *, acknowledge: bool = True, pieces: int = 1 << 20) -> None:
        """Carry bytes both ways until nobody has any."""
        for _ in range(1000):
            out = self.client.data_to_send()
            for start in range(0, len(out), pieces):
                if not self.transport.closed:
                    self.connection.data_received(out[start : start + pieces])
            for _ in range(4):
                await asyncio.sleep(0)
            got, self.transport.written = bytes(self.transport.written), bytearray()
            if not out and not got:
                return
            for event in self.client.receive_data(got):
                self._hear(event, acknowledge)
        raise AssertionError("they never stop talking")

    def _hear(self, event: Any, acknowledge: bool) -> None:
        if isinstance(event, h2.events.ResponseReceived):
            self.told.setdefault(event.stream_id, Told()).headers = dict(event.headers)
        elif isinstance(event, h2.events.TrailersReceived):
            self.told[event.stream_id].trailers = dict(event.headers)
        elif isinstance(event, h2.events.DataReceived):
            self.told[event.stream_id].data += event.data
            if acknowledge and event.flow_controlled_length:
                self.client.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        elif isinstance(event, h2.events.StreamEnded):
            self.told[event.stream_id].ended = True
        elif isinstance(event, h2.events.StreamReset):
            self.told.setdefault(event.stream_id, Told()).reset = int(event.error_code)
        elif isinstance(event, h2.events.ConnectionTerminated):
            self.goaway = (event.last_stream_id, int(event.error_code))
        elif isinstance(event, h2.events.PingAckReceived):
            self.pongs += 1

    def ask(self, message: bytes, *, path: str = METHOD, end: bool = True, extra: Any = ()) -> int:
        """Begin a call; its stream."""
        number = self.client.get_next_available_stream_id()
        headers = [(name, path if name == ":path" else value) for name, value in HEADERS]
        self.client.send_headers(number, [*headers, *extra])
        body = b"\x00" + len(message).to_bytes(4, "big") + message
        while body:
            size = min(16_000, len(body))
            self.client.send_data(number, body[:size], end_stream=end and size == len(body))
            body = body[size:]
        return number
