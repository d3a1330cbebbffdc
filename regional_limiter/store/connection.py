"""One connection to one Redis server, shared by every call of this process, and kept up.

Calls are written together (one ``write`` per turn of the loop) and answered in order, so a reply belongs to the
oldest call that waits.  From this follow the rules of this file:

- A call that is given up (deadline, or its caller went away) keeps its place in the queue; the reply that comes
  for it is thrown away.  What a completion raises is logged and goes no further, or every later reply would meet
  the wrong call.
- A deadline that passes ends the connection: nothing that was asked on it can be told from what is asked next.
  Everything that waits fails with it, and a new connection is made outside the path of calls.
- While there is no connection calls fail at once.  A new one counts only after the server answered on it: the
  kernel accepts connections for a process that is frozen.
- The queue is bounded.  A call beyond the bound is refused without being sent; past three quarters of it the server
  is crowded, and whoever can do without should not ask.

``StoreUnavailable.may_have_run`` is False exactly for calls that never reached the socket.
"""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Final, cast

import hiredis

from regional_limiter.model.errors import StoreUnavailable
from regional_limiter.store.base import CROWDED_FROM

_log = logging.getLogger("apportion.store")

ReplyError = hiredis.ReplyError
"""An error reply.  It is handed over as a result: the caller decides what it means."""


def pack(*parts: str | bytes | int) -> bytes:
    """One command as bytes."""
    packed: bytes = hiredis.pack_command(parts)  # type: ignore[arg-type]  # its stub allows one part only
    return packed


Done = Callable[[object], None]
"""Called once with the reply of a call, or with the StoreUnavailable of one that will have none."""

_NOT_YET: Final = object()
_FAILED: Final = "what waited for a reply failed"
_ASKING: Final = pack("ASKING")
_STALL_S: Final = 0.002
"""A timer this late means that the loop stood still: replies may lie unread, so it looks once more."""


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """How to reach the servers.  Times in seconds.  ``tls``: asked for its context by each connection."""

    username: str | None = None
    password: str | None = None
    tls: Callable[[], ssl.SSLContext] | None = None
    in_flight_max: int = 4096
    connect_timeout_s: float = 0.5
    backoff_first_s: float = 0.02
    backoff_most_s: float = 0.5


class _Wire(asyncio.Protocol):
    """One socket: FIFO of waiting calls, one write per loop turn, one timer."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, in_flight_max: int, on_lost: Callable[[_Wire, str], None]
    ) -> None:
        self._loop = loop
        self._on_lost = on_lost
        self._reader = hiredis.Reader(notEnoughData=_NOT_YET)
        self._waiting: deque[tuple[Done | None, float]] = deque()
        self._unsent: list[bytes] = []
        self._in_flight_max = in_flight_max
        self._transport: asyncio.Transport | None = None
        self._writable = True
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = float("inf")
        self._looked_again = False
        self._is_over = False
        self.lost = asyncio.Event()

    # ---- calls

    def submit(self, command: bytes, deadline: float, done: Done, *, asking: bool = False) -> None:
        if self._is_over:
            raise StoreUnavailable("disconnected", may_have_run=False)
        waiting, unsent = self._waiting, self._unsent
        if len(waiting) >= self._in_flight_max:
            raise StoreUnavailable("queue_full", may_have_run=False)
        if not unsent and self._writable:
            self._loop.call_soon(self._flush)
        if asking:
            waiting.append((None, deadline))
            unsent.append(_ASKING)
        waiting.append((done, deadline))
        unsent.append(command)
        if deadline < self._timer_at:
            self._arm(deadline)

    def call(self, command: bytes, timeout_s: float, *, asking: bool = False) -> asyncio.Future[object]:
        future: asyncio.Future[object] = self._loop.create_future()
        self.submit(command, monotonic() + timeout_s, partial(_settle, future), asking=asking)
        return future

    @property
    def in_flight(self) -> int:
        return len(self._waiting)

    def _flush(self) -> None:
        if self._unsent and self._writable and self._transport is not None:
            data = self._unsent[0] if len(self._unsent) == 1 else b"".join(self._unsent)
            self._unsent.clear()
            self._transport.write(data)

    # ---- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not inherit from asyncio.Transport.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        reader = self._reader
        next_reply, next_waiting = reader.gets, self._waiting.popleft
        try:
            reader.feed(data)
            while (reply := next_reply()) is not _NOT_YET:
                done, _ = next_waiting()
                if done is not None:
                    try:
                        done(reply)
                    except Exception:
                        _log.exception(_FAILED)
        except (hiredis.ProtocolError, IndexError):
            self.drop("protocol")

    def pause_writing(self) -> None:
        self._writable = False

    def resume_writing(self) -> None:
        self._writable = True
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self.drop("disconnected")

    # ---- the end

    def drop(self, cause: str) -> None:
        """End the connection; whatever waits fails with ``cause``."""
        if self._is_over:
            return
        self._is_over = True
        self.lost.set()
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None:
            self._transport.abort()
        waiting, self._waiting = self._waiting, deque()
        sent = len(waiting) - len(self._unsent)
        self._unsent.clear()
        self._on_lost(self, cause)
        for place, (done, _) in enumerate(waiting):
            if done is not None:
                try:
                    done(StoreUnavailable(cause, may_have_run=place < sent))
                except Exception:
                    _log.exception(_FAILED)

    def _arm(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = deadline
        self._timer = self._loop.call_later(max(0.0, deadline - monotonic()), self._on_timer)

    def _on_timer(self) -> None:
        now = monotonic()
        stalled = now - self._timer_at > _STALL_S
        self._timer, self._timer_at = None, float("inf")
        if stalled and not self._looked_again:
            self._looked_again = True
            self._arm(now + 0.001)
            return
        self._looked_again = False
        if not self._waiting:
            return
        earliest = min(deadline for _, deadline in self._waiting)
        # The loop's clock is coarser than ours: half a millisecond early is on time.
        if earliest <= now + 0.0005:
            self.drop("timeout")
        else:
            self._arm(earliest)


def _settle(future: asyncio.Future[object], outcome: object) -> None:
    if future.done():
        return
    if isinstance(outcome, StoreUnavailable):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)


class Server:
    """One Redis server and the connection to it, made anew for as long as this object is open.

    ``on_down(address, cause)`` is called whenever a connection is lost.
    """

    def __init__(
        self, address: str, options: ConnectionOptions, on_down: Callable[[str, str], None] | None = None
    ) -> None:
        self.address = address
        self._options = options
        self._on_down = on_down
        self.wire: _Wire | None = None
        """The connection, None while there is none."""
        self._keeper: asyncio.Task[None] | None = None
        self._up = asyncio.Event()
        self._down_since: float | None = None

    @property
    def long_down(self) -> bool:
        """Whether it has been tried and has not answered for a second: not worth waiting for."""
        return self.wire is None and self._down_since is not None and monotonic() - self._down_since > 1.0

    @property
    def connected(self) -> bool:
        return self.wire is not None

    @property
    def in_flight(self) -> int:
        return 0 if self.wire is None else self.wire.in_flight

    @property
    def crowded(self) -> bool:
        """Whether more calls wait for their replies than three quarters of the bound."""
        return self.in_flight > CROWDED_FROM * self._options.in_flight_max

    def call(self, command: bytes, timeout_s: float, *, asking: bool = False) -> asyncio.Future[object]:
        """Send a packed command; the reply comes within ``timeout_s`` or not at all.

        An error reply is a result (a ReplyError).  Raises StoreUnavailable at once when there is no connection
        or the queue is full; the future fails with StoreUnavailable when the connection ends.
        """
        wire = self.wire
        if wire is None:
            raise StoreUnavailable("disconnected", may_have_run=False)
        return wire.call(command, timeout_s, asking=asking)

    def submit(self, command: bytes, deadline: float, done: Done) -> None:
        """:meth:`call` by callback, until ``deadline`` of ``monotonic()``.  Raises as :meth:`call` does at once."""
        wire = self.wire
        if wire is None:
            raise StoreUnavailable("disconnected", may_have_run=False)
        wire.submit(command, deadline, done)

    def start(self) -> None:
        """Begin to connect (needs a running loop)."""
        if self._keeper is None:
            self._keeper = asyncio.get_running_loop().create_task(self._keep(), name=f"redis {self.address}")

    async def ready(self, timeout_s: float) -> bool:
        """Wait for a connection, at most ``timeout_s``."""
        if self.wire is not None:
            return True
        self.start()
        try:
            async with asyncio.timeout(timeout_s):
                await self._up.wait()
        except TimeoutError:
            return False
        return True

    async def close(self) -> None:
        self._on_down = None
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.cancel()
        if self.wire is not None:
            self.wire.drop("closed")
        if keeper is not None:
            await asyncio.gather(keeper, return_exceptions=True)

    # ---- keeping it up

    async def _keep(self) -> None:
        delay_s = self._options.backoff_first_s
        while True:
            wire = await self._connect()
            if wire is None:
                self._down_since = self._down_since or monotonic()
                await asyncio.sleep(delay_s * (0.75 + random.random() / 2))
                delay_s = min(delay_s * 2, self._options.backoff_most_s)
                continue
            delay_s = self._options.backoff_first_s
            self.wire, self._down_since = wire, None
            self._up.set()
            if wire.lost.is_set():
                self._ended(wire, "disconnected")
            await wire.lost.wait()

    def _ended(self, wire: _Wire, cause: str) -> None:
        """A connection is no more: from this moment calls fail at once."""
        if wire is self.wire:
            self.wire = None
            self._up.clear()
            if self._on_down is not None:
                self._on_down(self.address, cause)

    async def _connect(self) -> _Wire | None:
        """A connection on which the server has answered, or None."""
        loop = asyncio.get_running_loop()
        options = self._options
        host, _, port = self.address.rpartition(":")
        wire = _Wire(loop, options.in_flight_max, self._ended)
        try:
            async with asyncio.timeout(options.connect_timeout_s):
                tls = options.tls() if options.tls else None
                await loop.create_connection(lambda: wire, host.strip("[]"), int(port), ssl=tls)
                if options.password is not None:
                    login = (options.username or "default", options.password)
                    await self._expect(wire, ("AUTH", *login), b"OK")
                await self._expect(wire, ("PING",), b"PONG")
        except (OSError, TimeoutError, StoreUnavailable):
            wire.drop("refused")
            return None
        except Exception:
            # Whatever else is wrong with an address must not end the attempts.
            _log.exception("connecting to redis %s failed", self.address)
            wire.drop("refused")
            return None
        except BaseException:
            wire.drop("closed")
            raise
        return wire

    async def _expect(self, wire: _Wire, command: tuple[str, ...], reply: bytes) -> None:
        said = await wire.call(pack(*command), self._options.connect_timeout_s)
        if said != reply:
            raise StoreUnavailable("refused", may_have_run=False)
