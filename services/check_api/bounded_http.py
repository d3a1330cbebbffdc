"""uvicorn's HTTP protocol with bounds that it does not set, and with problems where it answers in plain text.

The bounds are the size of a request's head, the time it takes, the time that answers stay unread, and the number of
connections.  Without them one caller could fill the memory with a header that never ends, or hold every connection
by saying nothing on it, or by not listening.  When all connections are taken, the oldest one on which no whole
request has come yet makes room: nobody is turned away for those who only hold connections.

A refusal that ends the connection (not HTTP, or too long a head) waits until what came before it on the same
connection has been answered: answers come in the order of their requests.
"""

from __future__ import annotations

import asyncio
from typing import Any
from weakref import WeakKeyDictionary

import httptools
from uvicorn.protocols.http.flow_control import service_unavailable
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from services.check_api.headers import Header, Lines, as_headers, as_lines
from services.check_api.replies import CLOSE, Reply, problem, unavailable
from services.patient_timer import PatientTimer

HEAD_BYTES_MOST = 128 * 1024
HEAD_DEADLINE_S = 10.0
UNREAD_S = 30.0
"""A caller that takes nothing of what fills its connection for so long is hung up on."""

_CLOSE_LINE = as_lines(CLOSE)
_NOT_HTTP = problem(400, "this is not an HTTP request", CLOSE)
_TOO_LARGE = problem(431, f"the head of a request may have at most {HEAD_BYTES_MOST:,} bytes", CLOSE)
_OVERLOADED = unavailable("too many connections or requests at once; ask again, or another node")


_silent_of: WeakKeyDictionary[ServerState, dict[BoundedHttp, None]] = WeakKeyDictionary()
"""By server: its connections on which no whole request has come yet, the oldest first."""


class _HeadTooLarge(httptools.HttpParserError):
    """Ends the parsing."""


def encode_reply(reply: Reply, default_lines: Lines, *, close: bool = False) -> bytes:
    """A whole response.  ``default_lines``: headers that go before its own."""
    status, lines, body = reply
    return b"%b%b%bcontent-length: %d\r\n%b\r\n%b" % (
        STATUS_LINE[status],
        default_lines,
        lines,
        len(body),
        _CLOSE_LINE if close else b"",
        body,
    )


async def _overloaded(scope: Any, receive: Any, send: Any) -> None:
    headers = [*as_headers(_OVERLOADED.lines), CLOSE, (b"content-length", b"%d" % len(_OVERLOADED.body))]
    await send({"type": "http.response.start", "status": _OVERLOADED.status, "headers": headers})
    await send({"type": "http.response.body", "body": _OVERLOADED.body})


class BoundedHttp(HttpToolsProtocol):
    """One connection."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._in_head = False
        self._unparsed_bytes = 0
        self._head_bytes = 0
        self._head_timer: PatientTimer | None = None
        self._running: RequestResponseCycle | None = None
        self._last_words: bytes | None = None
        self._unread_timer: asyncio.TimerHandle | None = None
        self._default_headers: list[Header] | None = None
        self._default_lines = b""
        self._silent = _silent_of.setdefault(self.server_state, {})
        # uvicorn would refuse everybody's requests while too many are connected.
        self._connections_most, self.limit_concurrency = self.limit_concurrency, None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # A connection that never says anything ends like one that has been idle for too long.
        self.timeout_keep_alive_task = self.loop.call_later(
            self.timeout_keep_alive, self.timeout_keep_alive_handler
        )

        self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_is_over()
        self._silent.pop(self, None)
        self._is_read()
        super().connection_lost(exc)

    # ---- slow readers

    def pause_writing(self) -> None:
        self._unread_timer = self.loop.call_later(UNREAD_S, self.transport.abort)
        super().pause_writing()

    def resume_writing(self) -> None:
        self._is_read()
        super().resume_writing()

    def _is_read(self) -> None:
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None

    # ---- too many connections

    def _make_room(self) -> None:
        self._silent[self] = None
        if self._connections_most is None or len(self.connections) <= self._connections_most:
            return
        oldest = next(iter(self._silent))
        if oldest is self:
            self.limit_concurrency = 1  # all others have asked: what comes on this one is told so
            return
        del self._silent[oldest]
        self.connections.discard(oldest)
        oldest.transport.abort()

    def has_asked(self) -> None:
        """A whole request has come."""
        self._silent.pop(self, None)

    # ---- bounds

    def data_received(self, data: bytes) -> None:
        if self._last_words is not None:
            return
        super().data_received(data)
        if not self._in_head or self.transport.is_closing() or self._last_words is not None:
            return
        # The parser tells of a header when it is complete: one that never is counts by what was read.
        self._unparsed_bytes += len(data)
        if max(self._unparsed_bytes, self._head_bytes) > HEAD_BYTES_MOST:
            self._refuse(_TOO_LARGE)
        elif self._head_timer is None:
            self._head_timer = PatientTimer(self.loop, HEAD_DEADLINE_S, self.transport.abort)

    def on_message_begin(self) -> None:
        self._in_head, self._unparsed_bytes, self._head_bytes = True, 0, 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._head_bytes += len(url)
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_bytes += len(name) + len(value) + 4
        if self._head_bytes > HEAD_BYTES_MOST:
            raise _HeadTooLarge
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._head_is_over()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self.has_asked()
        super().on_message_complete()

    def _head_is_over(self) -> None:
        self._in_head = False
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    # ---- problems

    def send_400_response(self, msg: str) -> None:
        """The parser has given up."""
        self._refuse(_TOO_LARGE if self._head_bytes > HEAD_BYTES_MOST else _NOT_HTTP)

    def _refuse(self, reply: Reply) -> None:
        """Say so and close, when everything that was asked before has been answered."""
        words = encode_reply(reply, self.default_lines())
        self._head_is_over()
        if self.cycle is not None and self.cycle.more_body and self.pipeline:
            self.pipeline.popleft()  # the refused request itself: its body will never be whole
        elif self.cycle is not None and self.cycle.more_body:
            self._running = None
        if self._is_answering():
            self._last_words = words
            self.flow.pause_reading()
        else:
            self._close_with(words)

    def _is_answering(self) -> bool:
        return self._running is not None and not self._running.response_complete

    def _close_with(self, words: bytes) -> None:
        self.transport.write(words)
        self.transport.close()

    def default_lines(self) -> Lines:
        """What the server sends with every response; it makes a new list of them every second, for the date."""
        headers = self.server_state.default_headers
        if headers is not self._default_headers:
            self._default_headers, self._default_lines = headers, as_lines(*headers)
        return self._default_lines

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, _overloaded if app is service_unavailable else app)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._last_words is not None and not self._is_answering():
            self._close_with(self._last_words)
