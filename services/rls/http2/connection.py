"""One HTTP/2 connection: frames in, calls, frames out.

Here it begins and ends, and its frames are told apart.  What they ask is in ``requests.py``, what they are answered
in ``answers.py``.

Bounds: streams, the size of heads and of messages, what is buffered (the connection's window is given back only for
what has been consumed), and the work that a caller can cause without asking anything: streams that it opens and
resets, frames that only want an acknowledgement, heads in many pieces.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from struct import unpack_from
from typing import Any, Final

from services.patient_timer import PatientTimer
from services.rls.http2.answers import Answers
from services.rls.http2.bounds import STREAM_WINDOW, STREAMS_MOST, WINDOW, Patience
from services.rls.http2.frames import (
    ACK,
    CONTINUATION,
    DATA,
    ENABLE_PUSH,
    END_HEADERS,
    END_STREAM,
    FRAME_BYTES_LEAST,
    FRAME_BYTES_MOST,
    FRAME_SIZE_ERROR,
    GOAWAY,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    INTERNAL_ERROR,
    MAX_CONCURRENT_STREAMS,
    MAX_FRAME_SIZE,
    MAX_HEADER_LIST_SIZE,
    NO_ERROR,
    PING,
    PREFACE,
    PRIORITY,
    PROTOCOL_ERROR,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    STREAM_ID_MOST,
    WINDOW_AT_FIRST,
    WINDOW_MOST,
    WINDOW_UPDATE,
    BrokenProtocol,
    StreamError,
    frame,
    go_away,
    settings,
    window_update,
)
from services.rls.http2.hpack_reader import LIST_BYTES_MOST
from services.rls.http2.outbox import Outbox
from services.rls.http2.receive_window import ReceiveWindow
from services.rls.http2.requests import Requests
from services.rls.http2.streams import Streams
from services.rls.methods import Methods, Observer, Stream, Unary

PREFACE_WITHIN_S: Final = 10.0
PING_AFTER_S: Final = 30.0
"""Without a word from the caller; as long again without an answer ends the connection."""

_SETTINGS: Final = settings(
    {
        MAX_CONCURRENT_STREAMS: STREAMS_MOST,
        INITIAL_WINDOW_SIZE: STREAM_WINDOW,
        MAX_HEADER_LIST_SIZE: LIST_BYTES_MOST,
    }
) + window_update(0, WINDOW - WINDOW_AT_FIRST)
_SETTINGS_ACK: Final = frame(SETTINGS, ACK, 0)


def _size_of_whole_request(data: bytes, at: int, after: int, end: int) -> int:
    """The size of the frame at ``after`` if it is all the data of the head at ``at``, and one message; else 0."""
    if end - after < 14 or data[after + 3] != DATA or data[after + 4] != END_STREAM:
        return 0
    size = data[after] << 16 | data[after + 1] << 8 | data[after + 2]
    if size > FRAME_BYTES_LEAST or size < 5 or end - after - 9 < size:
        return 0
    if data[at + 5 : at + 9] != data[after + 5 : after + 9] or data[after + 9]:
        return 0
    return size if int.from_bytes(data[after + 10 : after + 14], "big") == size - 5 else 0


class Front:
    """What all connections of a server share."""

    def __init__(self, methods: Methods, token: str | None, observer: Observer) -> None:
        self.methods: Mapping[str, Unary | Stream] = methods
        self.authorization = f"Bearer {token}".encode() if token else None
        self.observer = observer
        self.connections: set[Connection] = set()
        self.silent: dict[Connection, None] = {}
        """Those of them on which nothing has been asked yet, the oldest first."""
        self.empty = asyncio.Event()
        """Set when the last connection has ended."""


class Connection(asyncio.Protocol):
    """See the module."""

    def __init__(self, front: Front, loop: asyncio.AbstractEventLoop) -> None:
        self._front = front
        self._loop = loop
        self._transport: Any = None
        self._unread = b""
        self._greeted = self._configured = self._has_asked = False
        self._heard_s = 0.0
        self._pinged = False
        self._timer: asyncio.TimerHandle | PatientTimer | None = None

        self._streams = Streams()
        self._patience = Patience()
        self._outbox = Outbox(loop, self._streams)
        self._received = ReceiveWindow(self._outbox)
        self._answers = Answers(self._streams, self._outbox, self._received, self._patience, front.observer)
        self._requests = Requests(
            front.methods,
            front.authorization,
            self._streams,
            self._received,
            self._patience,
            self._answers,
        )

    # ---- life

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = self._outbox.transport = transport
        self._front.connections.add(self)
        self._front.silent[self] = None
        self._timer = PatientTimer(self._loop, PREFACE_WITHIN_S, self._look)
        self._heard_s = self._loop.time()
        protocol = transport.get_extra_info("ssl_object")
        if protocol is not None and protocol.selected_alpn_protocol() != "h2":
            transport.abort()  # type: ignore[attr-defined]
            return
        self._outbox.send(_SETTINGS)

    def connection_lost(self, exc: Exception | None) -> None:
        self._outbox.ended = True
        self._front.connections.discard(self)
        self._front.silent.pop(self, None)
        if not self._front.connections:
            self._front.empty.set()
        if self._timer is not None:
            self._timer.cancel()
        for state in list(self._streams.open.values()):
            self._answers.forget(state)

    def pause_writing(self) -> None:
        """A caller that does not read its answers may ask nothing more."""
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._transport.resume_reading()

    def go_away(self) -> None:
        """Ask the caller to open no more streams here; those that are on their way are still answered."""
        if not self._outbox.ended and self._greeted:
            self._outbox.send(go_away(STREAM_ID_MOST, NO_ERROR))

    def leave(self) -> None:
        """Answer what is open, refuse what comes after it, and close."""
        if self._outbox.ended or self._streams.is_leaving:
            return
        self._streams.is_leaving = True
        self._outbox.send(go_away(self._streams.last_id, NO_ERROR))
        self._answers.close_if_done()

    def abort(self) -> None:
        self._transport.abort()

    def _look(self) -> None:
        """Now and then: is anybody there?"""
        silent_s = self._loop.time() - self._heard_s
        if not self._configured or (self._pinged and silent_s >= PING_AFTER_S):
            self._transport.abort()
            return
        if silent_s >= PING_AFTER_S:
            self._pinged = True
            self._outbox.send(frame(PING, 0, 0, b"anybody?"))
        self._timer = self._loop.call_later(PING_AFTER_S, self._look)

    # ---- reading

    def data_received(self, data: bytes) -> None:
        if self._outbox.ended:
            return
        self._heard_s = self._loop.time()
        self._pinged = False
        if self._unread:
            data = self._unread + data
        self._outbox.in_turn = True
        try:
            self._unread = data[self._take(data) :]
        except BrokenProtocol as error:
            self._lose(error)
        except Exception as error:
            self._front.observer.unexpected(error)
            self._lose(BrokenProtocol(INTERNAL_ERROR, ""))
        finally:
            if not self._has_asked and self._streams.last_id:
                self._has_asked = True
                self._front.silent.pop(self, None)
            self._outbox.in_turn = False
            self._outbox.flush()

    def _take(self, data: bytes) -> int:
        """Deal with every frame that is whole; where the rest begins."""
        at, end = 0, len(data)
        outbox, requests = self._outbox, self._requests
        if not self._greeted:
            if not data.startswith(PREFACE[: min(end, len(PREFACE))]):
                raise BrokenProtocol(PROTOCOL_ERROR, "this is not HTTP/2")
            if end < len(PREFACE):
                return 0
            self._greeted, at = True, len(PREFACE)
        while end - at >= 9 and not outbox.ended:
            length = data[at] << 16 | data[at + 1] << 8 | data[at + 2]
            if length > FRAME_BYTES_LEAST:
                raise BrokenProtocol(FRAME_SIZE_ERROR, "a frame is too large")
            after = at + 9 + length
            if after > end:
                break
            kind, flags = data[at + 3], data[at + 4]
            stream = int.from_bytes(data[at + 5 : at + 9], "big") & STREAM_ID_MOST
            try:
                if kind == HEADERS and flags == END_HEADERS and self._configured and requests.block is None:
                    # Nearly always the whole request comes in these two frames.
                    size = _size_of_whole_request(data, at, after, end)
                    if size:
                        block, after = data[at + 9 : after], after + 9 + size
                        requests.on_whole_request(stream, block, data[after - size : after])
                        at = after
                        continue
                self._frame(kind, flags, stream, data[at + 9 : after])
            except StreamError as error:
                self._answers.reset(error.stream, error.code)
            at = after
        return at

    def _frame(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if self._requests.block is not None and (kind != CONTINUATION or stream != self._requests.block[0]):
            raise BrokenProtocol(PROTOCOL_ERROR, "a head was not finished")
        if not self._configured and kind != SETTINGS:
            raise BrokenProtocol(PROTOCOL_ERROR, "settings come first")
        if kind == HEADERS:
            self._requests.on_headers(flags, stream, payload)
        elif kind == DATA:
            self._requests.on_data(flags, stream, payload)
        elif kind == WINDOW_UPDATE:
            self._on_window_update(stream, payload)
        elif kind == RST_STREAM:
            self._on_reset(stream, payload)
        elif kind == PING:
            self._on_ping(flags, stream, payload)
        elif kind == SETTINGS:
            self._on_settings(flags, stream, payload)
        elif kind == CONTINUATION:
            self._requests.on_continuation(flags, payload)
        elif kind == PRIORITY:
            self._patience.note_idle_work()
            if not stream:
                raise BrokenProtocol(PROTOCOL_ERROR, "a priority of no stream")
            if len(payload) != 5:
                raise StreamError(stream, FRAME_SIZE_ERROR)
            self._check_dependency(stream, payload)
        elif kind == GOAWAY:
            if stream or len(payload) < 8:
                raise BrokenProtocol(PROTOCOL_ERROR, "a broken farewell")
        elif kind == PUSH_PROMISE:
            raise BrokenProtocol(PROTOCOL_ERROR, "callers do not push")
        else:
            self._patience.note_idle_work()

    @staticmethod
    def _check_dependency(stream: int, payload: bytes) -> None:
        if unpack_from(">I", payload)[0] & STREAM_ID_MOST == stream:
            raise StreamError(stream, PROTOCOL_ERROR)

    def _lose(self, error: BrokenProtocol) -> None:
        if not self._transport.is_closing():
            self._outbox.send(go_away(self._streams.last_id, error.code, error.words))
            self._outbox.flush()
            self._transport.close()
        self._outbox.ended = True
        self._unread = b""

    # ---- the rest of the protocol

    def _on_reset(self, number: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise BrokenProtocol(FRAME_SIZE_ERROR, "a reset has four bytes")
        if not number or number > self._streams.last_id:
            raise BrokenProtocol(PROTOCOL_ERROR, "a reset of a stream that never was")
        state = self._streams.open.get(number)
        if state is None:
            self._patience.note_idle_work()
            return
        self._patience.note_reset()
        self._answers.gone(state)

    def _on_ping(self, flags: int, stream: int, payload: bytes) -> None:
        if stream:
            raise BrokenProtocol(PROTOCOL_ERROR, "a ping of a stream")
        if len(payload) != 8:
            raise BrokenProtocol(FRAME_SIZE_ERROR, "a ping has eight bytes")
        if not flags & ACK:
            self._patience.note_idle_work()
            self._outbox.send(frame(PING, ACK, 0, payload))

    def _on_settings(self, flags: int, stream: int, payload: bytes) -> None:
        if stream:
            raise BrokenProtocol(PROTOCOL_ERROR, "settings of a stream")
        if flags & ACK:
            if payload:
                raise BrokenProtocol(FRAME_SIZE_ERROR, "an acknowledgement with settings")
            return
        if len(payload) % 6:
            raise BrokenProtocol(FRAME_SIZE_ERROR, "half a setting")
        self._patience.note_idle_work()
        self._configured = True
        for at in range(0, len(payload), 6):
            name, value = unpack_from(">HI", payload, at)
            self._set(name, value)
        self._outbox.send(_SETTINGS_ACK)
        self._answers.send_blocked()

    def _set(self, name: int, value: int) -> None:
        if name == ENABLE_PUSH and value > 1:
            raise BrokenProtocol(PROTOCOL_ERROR, "push is on or off")
        if name == MAX_FRAME_SIZE:
            if not FRAME_BYTES_LEAST <= value <= FRAME_BYTES_MOST:
                raise BrokenProtocol(PROTOCOL_ERROR, "no size of frames")
            self._answers.frame_most = value
        elif name == INITIAL_WINDOW_SIZE:
            self._answers.set_stream_window(value)

    def _on_window_update(self, number: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise BrokenProtocol(FRAME_SIZE_ERROR, "a window update has four bytes")
        by = unpack_from(">I", payload)[0] & WINDOW_MOST
        if not number:
            if not by:
                raise BrokenProtocol(PROTOCOL_ERROR, "a window that does not grow")
            self._answers.grow(by)
            self._patience.note_idle_work()
            self._answers.send_blocked()
            return
        if number > self._streams.last_id:
            raise BrokenProtocol(PROTOCOL_ERROR, "a window of a stream that never was")
        self._patience.note_idle_work()
        state = self._streams.open.get(number)
        if state is None:
            return
        if not by:
            raise StreamError(number, PROTOCOL_ERROR)
        self._answers.grow_stream(state, by)
