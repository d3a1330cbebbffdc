"""One HTTP/2 connection: frames in, calls, frames out.

What becomes ready in one turn of the loop leaves in one write.  Header blocks that we send are literals that enter
no table, so they are made once and mean the same at any time.  A stream is kept from its head to its end:

    head --> open --END_STREAM--> asked --answered, or reset by either--> gone

Bounds: streams, the size of heads and of messages, what is buffered (the connection's window is given back only for
what has been consumed), and the work that a caller can cause without asking anything: streams that it opens and
resets, frames that only want an acknowledgement, heads in many pieces.
"""

from __future__ import annotations

import asyncio
import hmac
from collections import deque
from collections.abc import Mapping
from struct import unpack_from
from typing import Any, Final
from urllib.parse import quote

from services.rls.http2.calls import Call, MessageReader, StreamCall
from services.rls.http2.frames import (
    ACK,
    COMPRESSION_ERROR,
    CONTINUATION,
    DATA,
    ENABLE_PUSH,
    END_HEADERS,
    END_STREAM,
    ENHANCE_YOUR_CALM,
    FLOW_CONTROL_ERROR,
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
    PADDED,
    PING,
    PREFACE,
    PRIORITISED,
    PRIORITY,
    PROTOCOL_ERROR,
    PUSH_PROMISE,
    REFUSED_STREAM,
    RST_STREAM,
    SETTINGS,
    STREAM_CLOSED,
    STREAM_ID_MOST,
    WINDOW_AT_FIRST,
    WINDOW_MOST,
    WINDOW_UPDATE,
    BrokenProtocol,
    StreamError,
    frame,
    go_away,
    literal,
    reset,
    settings,
    window_update,
)
from services.rls.http2.heads import Head, read_head
from services.rls.http2.hpack_reader import LIST_BYTES_MOST, HpackReader, Mangled, TooLarge
from services.rls.methods import Methods, Observer, Stream, Unary, failed
from services.rls.rpc import UNAUTHENTICATED, UNIMPLEMENTED, Failed

STREAMS_MOST: Final = 256
STREAM_CALLS_MOST: Final = 16
"""Calls of many messages, such as a watch of health, at a time on one connection."""
WINDOW: Final = 1024 * 1024
STREAM_WINDOW: Final = 128 * 1024
BLOCK_BYTES_MOST: Final = 2 * LIST_BYTES_MOST
PIECES_MOST: Final = 16
"""Frames that one header block may come in."""
RESETS_MOST: Final = 2000
"""Streams that a caller has reset while they were open, beyond those that were answered meanwhile."""
IDLE_WORK_MOST: Final = 10_000
"""Frames that ask for nothing, since the last call."""
PREFACE_WITHIN_S: Final = 10.0
PING_AFTER_S: Final = 30.0
"""Without a word from the caller; as long again without an answer ends the connection."""
REFUSED_MOST: Final = 128

_SETTINGS: Final = settings(
    {
        MAX_CONCURRENT_STREAMS: STREAMS_MOST,
        INITIAL_WINDOW_SIZE: STREAM_WINDOW,
        MAX_HEADER_LIST_SIZE: LIST_BYTES_MOST,
    }
) + window_update(0, WINDOW - WINDOW_AT_FIRST)
_SETTINGS_ACK: Final = frame(SETTINGS, ACK, 0)
_STATUS: Final = {
    200: b"\x88",
    405: literal(b":status", b"405"),
    415: literal(b":status", b"415"),
    431: literal(b":status", b"431"),
}
_TEXT: Final = literal(b"content-type", b"text/plain")
_NOT_GRPC: Final = b"this is a gRPC server: POST with application/grpc, and a head of at most 16 KiB\n"
_GRPC_HEAD: Final = _STATUS[200] + literal(b"content-type", b"application/grpc")
_OK_TRAILERS: Final = literal(b"grpc-status", b"0")
_HEAD_START: Final = frame(HEADERS, END_HEADERS, 0, _GRPC_HEAD)
_TRAILERS_START: Final = frame(HEADERS, END_HEADERS | END_STREAM, 0, _OK_TRAILERS)
_HEAD_BEFORE, _HEAD_AFTER = _HEAD_START[:5], _HEAD_START[9:]
_TRAILERS_BEFORE, _TRAILERS_AFTER = _TRAILERS_START[:5], _TRAILERS_START[9:]


class _StreamState:
    """``window``: what we may still send.  ``received``: of our window for it, not given back yet."""

    __slots__ = (
        "asked",
        "call",
        "head",
        "id",
        "last_data",
        "length",
        "pending",
        "reader",
        "received",
        "trailers",
        "window",
    )

    def __init__(self, number: int, head: Head, window: int) -> None:
        self.id = number
        self.head = head
        self.window = window
        self.received = 0
        self.length = 0
        self.asked = False
        self.reader: MessageReader | None = None
        self.call: Call | None = None
        self.pending = b""
        """Bytes of DATA that wait for a window."""
        self.last_data = False
        """Whether the pending bytes end the stream."""
        self.trailers: bytes | None = None
        """The block that ends the stream, once the pending bytes are gone."""


class _Answer:
    """Where the answer to a call goes."""

    __slots__ = ("_connection", "_number")

    def __init__(self, connection: Connection, number: int) -> None:
        self._connection = connection
        self._number = number

    def told(self, outcome: bytes | Exception) -> None:
        self._connection.answered(self._number, outcome)


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
        self.empty = asyncio.Event()
        """Set when the last connection has ended."""


class Connection(asyncio.Protocol):
    """See the module."""

    def __init__(self, front: Front, loop: asyncio.AbstractEventLoop) -> None:
        self._front = front
        self._loop = loop
        self._transport: Any = None
        self._unread = b""
        self._reader = HpackReader(read_head)
        self._streams: dict[int, _StreamState] = {}
        self._stream_calls = 0
        self._refused: deque[int] = deque(maxlen=REFUSED_MOST)
        self._last_id = 0
        self._block: tuple[int, int, list[bytes]] | None = None
        """The stream, the flags and the pieces of a head that is not whole yet."""
        self._greeted = self._configured = False
        self._window = WINDOW_AT_FIRST
        self._stream_window = WINDOW_AT_FIRST
        self._frame_most = FRAME_BYTES_LEAST
        self._received = 0
        self._consumed = 0
        self._blocked: deque[int] = deque()
        self._out: list[bytes] = []
        self._flush_due = False
        self._untold = 0
        """Streams that are over, whose caller cannot know it yet."""
        self._in_turn = False
        self._resets = 0
        self._idle_work = 0
        self._ended = False
        self._leaving: int | None = None
        """The last stream that will be answered."""
        self._heard_s = 0.0
        self._pinged = False
        self._timer: asyncio.TimerHandle | None = None

    # ---- life

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._front.connections.add(self)
        self._timer = self._loop.call_later(PREFACE_WITHIN_S, self._look)
        self._heard_s = self._loop.time()
        protocol = transport.get_extra_info("ssl_object")
        if protocol is not None and protocol.selected_alpn_protocol() != "h2":
            transport.abort()  # type: ignore[attr-defined]
            return
        self._send(_SETTINGS)

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended = True
        self._front.connections.discard(self)
        if not self._front.connections:
            self._front.empty.set()
        if self._timer is not None:
            self._timer.cancel()
        for state in list(self._streams.values()):
            self._forget(state)

    def pause_writing(self) -> None:
        """A caller that does not read its answers may ask nothing more."""
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._transport.resume_reading()

    def go_away(self) -> None:
        """Ask the caller to open no more streams here; those that are on their way are still answered."""
        if not self._ended and self._greeted:
            self._send(go_away(STREAM_ID_MOST, NO_ERROR))

    def leave(self) -> None:
        """Answer what is open, refuse what comes after it, and close."""
        if self._ended or self._leaving is not None:
            return
        self._leaving = self._last_id
        self._send(go_away(self._last_id, NO_ERROR))
        self._close_if_done()

    def abort(self) -> None:
        self._transport.abort()

    def _close_if_done(self) -> None:
        if self._leaving is not None and not self._streams and not self._ended:
            self._flush()
            self._ended = True
            self._transport.close()

    def _look(self) -> None:
        """Now and then: is anybody there?"""
        silent_s = self._loop.time() - self._heard_s
        if not self._configured or (self._pinged and silent_s >= PING_AFTER_S):
            self._transport.abort()
            return
        if silent_s >= PING_AFTER_S:
            self._pinged = True
            self._send(frame(PING, 0, 0, b"anybody?"))
        self._timer = self._loop.call_later(PING_AFTER_S, self._look)

    # ---- reading

    def data_received(self, data: bytes) -> None:
        if self._ended:
            return
        self._heard_s = self._loop.time()
        self._pinged = False
        if self._unread:
            data = self._unread + data
        self._in_turn = True
        try:
            self._unread = data[self._take(data) :]
        except BrokenProtocol as error:
            self._lose(error)
        except Exception as error:
            self._front.observer.unexpected(error)
            self._lose(BrokenProtocol(INTERNAL_ERROR, ""))
        finally:
            self._in_turn = False
            self._flush()

    def _take(self, data: bytes) -> int:
        """Deal with every frame that is whole; where the rest begins."""
        at, end = 0, len(data)
        if not self._greeted:
            if not data.startswith(PREFACE[: min(end, len(PREFACE))]):
                raise BrokenProtocol(PROTOCOL_ERROR, "this is not HTTP/2")
            if end < len(PREFACE):
                return 0
            self._greeted, at = True, len(PREFACE)
        while end - at >= 9 and not self._ended:
            length = data[at] << 16 | data[at + 1] << 8 | data[at + 2]
            if length > FRAME_BYTES_LEAST:
                raise BrokenProtocol(FRAME_SIZE_ERROR, "a frame is too large")
            after = at + 9 + length
            if after > end:
                break
            kind, flags = data[at + 3], data[at + 4]
            stream = int.from_bytes(data[at + 5 : at + 9], "big") & STREAM_ID_MOST
            try:
                if kind == HEADERS and flags == END_HEADERS and self._configured and self._block is None:
                    # Nearly always the whole request comes in these two frames.
                    size = _size_of_whole_request(data, at, after, end)
                    if size:
                        block, after = data[at + 9 : after], after + 9 + size
                        self._whole_request(stream, block, data[after - size : after])
                        at = after
                        continue
                self._frame(kind, flags, stream, data[at + 9 : after])
            except StreamError as error:
                self._reset(error.stream, error.code)
            at = after
        return at

    def _frame(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if self._block is not None and (kind != CONTINUATION or stream != self._block[0]):
            raise BrokenProtocol(PROTOCOL_ERROR, "a head was not finished")
        if not self._configured and kind != SETTINGS:
            raise BrokenProtocol(PROTOCOL_ERROR, "settings come first")
        if kind == HEADERS:
            self._on_headers(flags, stream, payload)
        elif kind == DATA:
            self._on_data(flags, stream, payload)
        elif kind == WINDOW_UPDATE:
            self._on_window_update(stream, payload)
        elif kind == RST_STREAM:
            self._on_reset(stream, payload)
        elif kind == PING:
            self._on_ping(flags, stream, payload)
        elif kind == SETTINGS:
            self._on_settings(flags, stream, payload)
        elif kind == CONTINUATION:
            self._on_continuation(flags, payload)
        elif kind == PRIORITY:
            self._note_idle_work()
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
            self._note_idle_work()

    def _note_idle_work(self) -> None:
        self._idle_work += 1
        if self._idle_work > IDLE_WORK_MOST:
            raise BrokenProtocol(ENHANCE_YOUR_CALM, "too many frames that ask for nothing")

    @staticmethod
    def _unpadded(flags: int, payload: bytes) -> bytes:
        if not flags & PADDED:
            return payload
        if not payload or payload[0] >= len(payload):
            raise BrokenProtocol(PROTOCOL_ERROR, "more padding than frame")
        return payload[1 : len(payload) - payload[0]]

    @staticmethod
    def _check_dependency(stream: int, payload: bytes) -> None:
        if unpack_from(">I", payload)[0] & STREAM_ID_MOST == stream:
            raise StreamError(stream, PROTOCOL_ERROR)

    # ---- heads

    def _on_headers(self, flags: int, stream: int, payload: bytes) -> None:
        if flags & (PADDED | PRIORITISED):
            payload = self._unpadded(flags, payload)
            if flags & PRIORITISED:
                if len(payload) < 5:
                    raise BrokenProtocol(FRAME_SIZE_ERROR, "half a priority")
                dependency, payload = payload[:5], payload[5:]
                if unpack_from(">I", dependency)[0] & STREAM_ID_MOST == stream:
                    raise BrokenProtocol(PROTOCOL_ERROR, "a stream depends on itself")
        if flags & END_HEADERS:
            self._head(flags, stream, payload)
        else:
            self._block = (stream, flags, [payload])

    def _on_continuation(self, flags: int, payload: bytes) -> None:
        if self._block is None:
            raise BrokenProtocol(PROTOCOL_ERROR, "nothing to continue")
        stream, first_flags, pieces = self._block
        pieces.append(payload)
        if len(pieces) > PIECES_MOST or sum(map(len, pieces)) > BLOCK_BYTES_MOST:
            raise BrokenProtocol(ENHANCE_YOUR_CALM, "a head is too large, or in too many pieces")
        if flags & END_HEADERS:
            self._block = None
            self._head(first_flags, stream, b"".join(pieces))

    def _head(self, flags: int, number: int, block: bytes) -> None:
        self._on_head(flags, number, self._read(block))

    def _read(self, block: bytes) -> Head:
        try:
            return self._reader(block)
        except Mangled:
            raise BrokenProtocol(COMPRESSION_ERROR, "a head cannot be read") from None
        except TooLarge:
            return Head(status=431)

    def _whole_request(self, number: int, block: bytes, data: bytes) -> None:
        """A head, and all the data of its stream, which is one message."""
        head = self._read(block)
        method = self._front.methods.get(head.path)
        if (
            not isinstance(method, Unary)
            or head.status != 200
            or number <= self._last_id
            or not number & 1
            or self._leaving is not None
            or len(self._streams) + self._untold >= STREAMS_MOST
            or (head.length is not None and head.length != len(data))
            or not self._may_ask(head)
        ):
            try:
                self._on_head(END_HEADERS, number, head)
            except StreamError as error:
                self._reset(error.stream, error.code)
            self._on_data(END_STREAM, number, data)
            return
        self._last_id = number
        state = self._streams[number] = _StreamState(number, head, self._stream_window)
        state.asked = True
        self._received += len(data)
        self._give_back(len(data))
        self._idle_work = 0
        method.call(data[5:], _Answer(self, number).told)

    def _on_head(self, flags: int, number: int, head: Head) -> None:
        state = self._streams.get(number)
        if state is not None:
            self._trailers(state, head, flags)
            return
        if not number & 1:
            raise BrokenProtocol(PROTOCOL_ERROR, "callers have odd streams")
        if number <= self._last_id:
            if number in self._refused:
                return
            raise BrokenProtocol(STREAM_CLOSED, "a head of a stream that is over")
        self._last_id = number
        if self._leaving is not None or len(self._streams) + self._untold >= STREAMS_MOST:
            raise StreamError(number, REFUSED_STREAM)
        if head.malformed or head.trailers:
            raise StreamError(number, PROTOCOL_ERROR)
        state = self._streams[number] = _StreamState(number, head, self._stream_window)
        method = self._front.methods.get(head.path) if head.status == 200 else None
        if isinstance(method, Stream) and self._may_ask(head):
            if self._stream_calls >= STREAM_CALLS_MOST:
                raise StreamError(number, REFUSED_STREAM)
            self._stream_calls += 1
            state.call = StreamCall(method, self, number)
        if flags & END_STREAM:
            self._end_of_request(state)

    def _trailers(self, state: _StreamState, head: Head, flags: int) -> None:
        if state.asked:
            raise StreamError(state.id, STREAM_CLOSED)
        if not head.trailers or not flags & END_STREAM:
            raise StreamError(state.id, PROTOCOL_ERROR)
        self._end_of_request(state)

    def _may_ask(self, head: Head) -> bool:
        wanted = self._front.authorization
        return wanted is None or hmac.compare_digest(head.authorization, wanted)

    def _refuse(self, state: _StreamState) -> None:
        """Answer what is no gRPC call, as HTTP does."""
        self._send(frame(HEADERS, END_HEADERS, state.id, _STATUS[state.head.status] + _TEXT))
        state.pending, state.last_data = _NOT_GRPC, True
        self._send_pending(state)

    # ---- bodies

    def _on_data(self, flags: int, number: int, payload: bytes) -> None:
        if not number:
            raise BrokenProtocol(PROTOCOL_ERROR, "data of no stream")
        size = len(payload)
        self._received += size
        if self._received - self._consumed > WINDOW:
            raise BrokenProtocol(FLOW_CONTROL_ERROR, "more than the window")
        state = self._streams.get(number)
        if state is None:
            self._give_back(size)
            if number > self._last_id:
                raise BrokenProtocol(PROTOCOL_ERROR, "data of a stream that never was")
            if number in self._refused:
                return
            raise StreamError(number, STREAM_CLOSED)
        state.received += size
        if state.asked:
            raise StreamError(number, STREAM_CLOSED)
        if state.received > STREAM_WINDOW:
            raise StreamError(number, FLOW_CONTROL_ERROR)
        data = self._unpadded(flags, payload) if flags & PADDED else payload
        state.length += len(data)
        if not data and not flags & END_STREAM:
            self._note_idle_work()
        if state.head.length is not None and state.length > state.head.length:
            raise StreamError(number, PROTOCOL_ERROR)
        if state.head.status == 200:
            if state.reader is None:
                state.reader = MessageReader()
            try:
                messages = state.reader.feed(data)
            except Failed as error:
                self.fail(number, error)
                return
            if state.call is not None:
                for message in messages:
                    state.call.feed(message)
        if flags & END_STREAM:
            self._end_of_request(state)

    def consumed(self, number: int, size: int) -> None:
        """A message of ``size`` bytes of a call of many has been taken up."""
        state = self._streams.get(number)
        if state is not None:
            given = min(size, state.received)
            state.received -= given
            self._give_back(given)
            if given:
                self._send(window_update(number, given))

    def _give_back(self, size: int) -> None:
        self._consumed += size
        if self._consumed >= WINDOW // 2:
            self._send(window_update(0, self._consumed))
            self._received -= self._consumed
            self._consumed = 0

    def _end_of_request(self, state: _StreamState) -> None:
        state.asked = True
        if state.head.length is not None and state.length != state.head.length:
            raise StreamError(state.id, PROTOCOL_ERROR)
        self._idle_work = 0
        if state.call is not None:
            state.call.end()
            return
        head, reader = state.head, state.reader
        if head.status != 200:
            self._refuse(state)
            return
        method = self._front.methods.get(head.path)
        if method is None:
            self.fail(state.id, Failed(UNIMPLEMENTED, "no such method here"))
            return
        if not self._may_ask(head):
            self.fail(state.id, Failed(UNAUTHENTICATED, "a bearer token is needed"))
            return
        if reader is None or len(reader.whole) != 1 or reader.unread:
            self.fail(state.id, Failed(UNIMPLEMENTED, "one whole message is asked for"))
            return
        assert isinstance(method, Unary)
        number = state.id
        method.call(reader.whole[0], _Answer(self, number).told)

    def answered(self, number: int, outcome: bytes | Exception) -> None:
        if self._resets:
            self._resets -= 1
        if isinstance(outcome, Exception):
            self.fail(number, outcome)
            return
        state = self._streams.get(number)
        if state is None or self._ended:
            return
        size = len(outcome) + 5
        if size <= self._window and size <= state.window and size <= self._frame_most:
            # Nearly always: head, message and trailers at once.
            self._window -= size
            stream = number.to_bytes(4, "big")
            self._send(
                b"%b%b%b%b\x00\x00%b\x00%b%b%b%b%b"
                % (
                    _HEAD_BEFORE,
                    stream,
                    _HEAD_AFTER,
                    size.to_bytes(3, "big"),
                    stream,
                    (size - 5).to_bytes(4, "big"),
                    outcome,
                    _TRAILERS_BEFORE,
                    stream,
                    _TRAILERS_AFTER,
                )
            )
            self._gone(state)
            return
        self._send(frame(HEADERS, END_HEADERS, number, _GRPC_HEAD))
        state.pending = b"\x00" + len(outcome).to_bytes(4, "big") + outcome
        state.trailers = _OK_TRAILERS
        self._send_pending(state)

    # ---- calls of many messages

    def send_head(self, number: int) -> None:
        if number in self._streams:
            self._send(frame(HEADERS, END_HEADERS, number, _GRPC_HEAD))

    def send_message(self, number: int, message: bytes) -> None:
        state = self._streams.get(number)
        if state is not None:
            state.pending += b"\x00" + len(message).to_bytes(4, "big") + message
            self._send_pending(state)

    def is_blocked(self, number: int) -> bool:
        """Whether messages wait for the caller to take earlier ones."""
        state = self._streams.get(number)
        return state is not None and bool(state.pending)

    def end_call(self, number: int, error: Exception | None) -> None:
        """A call of many messages is over; its head has been sent."""
        state = self._streams.get(number)
        if state is None:
            return
        if error is not None:
            end = failed(error, self._front.observer)
            state.trailers = _trailers_of(end)
        else:
            state.trailers = _OK_TRAILERS
        self._send_pending(state)

    def fail(self, number: int, error: Exception) -> None:
        """End a call without a message."""
        state = self._streams.get(number)
        if state is not None and not self._ended:
            end = failed(error, self._front.observer)
            self._end(state, _GRPC_HEAD + _trailers_of(end))

    # ---- sending

    def _end(self, state: _StreamState, block: bytes) -> None:
        """Send the only, or the last, headers of a stream."""
        self._send(frame(HEADERS, END_HEADERS | END_STREAM, state.id, block))
        if not state.asked:
            # The rest of the request is not wanted.
            self._send(reset(state.id, NO_ERROR))
            self._refused.append(state.id)
        self._gone(state)

    def _send_pending(self, state: _StreamState) -> None:
        while state.pending:
            size = min(len(state.pending), self._window, state.window, self._frame_most)
            if size <= 0:
                if state.id not in self._blocked:
                    self._blocked.append(state.id)
                return
            self._window -= size
            state.window -= size
            is_last = state.last_data and size == len(state.pending)
            self._send(frame(DATA, END_STREAM if is_last else 0, state.id, state.pending[:size]))
            state.pending = state.pending[size:]
            if is_last:
                self._gone(state)
                return
        if state.trailers is not None:
            self._end(state, state.trailers)
        elif state.call is not None:
            state.call.room()

    def _send_blocked(self) -> None:
        for _ in range(len(self._blocked)):
            state = self._streams.get(self._blocked.popleft())
            if state is not None:
                self._send_pending(state)

    def _send(self, data: bytes) -> None:
        self._out.append(data)
        if not (self._in_turn or self._flush_due):
            self._flush_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_due, self._untold = False, 0
        if self._out and not self._transport.is_closing():
            self._transport.write(b"".join(self._out))
        self._out.clear()

    def _reset(self, number: int, code: int) -> None:
        state = self._streams.get(number)
        self._send(reset(number, code))
        self._refused.append(number)
        self._note_idle_work()
        if state is not None:
            self._gone(state)

    def _gone(self, state: _StreamState) -> None:
        self._forget(state)
        if self._leaving is not None:
            self._close_if_done()

    def _forget(self, state: _StreamState) -> None:
        del self._streams[state.id]
        self._untold += 1
        self._give_back(state.received)
        if state.call is not None:
            self._stream_calls -= 1
            state.call.cancel()

    def _lose(self, error: BrokenProtocol) -> None:
        if not self._transport.is_closing():
            self._out.append(go_away(self._last_id, error.code, error.words))
            self._flush()
            self._transport.close()
        self._ended = True
        self._unread = b""

    # ---- the rest of the protocol

    def _on_reset(self, number: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise BrokenProtocol(FRAME_SIZE_ERROR, "a reset has four bytes")
        if not number or number > self._last_id:
            raise BrokenProtocol(PROTOCOL_ERROR, "a reset of a stream that never was")
        state = self._streams.get(number)
        if state is None:
            self._note_idle_work()
            return
        self._resets += 1
        if self._resets > RESETS_MOST:
            raise BrokenProtocol(ENHANCE_YOUR_CALM, "too many streams were opened and reset")
        self._gone(state)

    def _on_ping(self, flags: int, stream: int, payload: bytes) -> None:
        if stream:
            raise BrokenProtocol(PROTOCOL_ERROR, "a ping of a stream")
        if len(payload) != 8:
            raise BrokenProtocol(FRAME_SIZE_ERROR, "a ping has eight bytes")
        if not flags & ACK:
            self._note_idle_work()
            self._send(frame(PING, ACK, 0, payload))

    def _on_settings(self, flags: int, stream: int, payload: bytes) -> None:
        if stream:
            raise BrokenProtocol(PROTOCOL_ERROR, "settings of a stream")
        if flags & ACK:
            if payload:
                raise BrokenProtocol(FRAME_SIZE_ERROR, "an acknowledgement with settings")
            return
        if len(payload) % 6:
            raise BrokenProtocol(FRAME_SIZE_ERROR, "half a setting")
        self._note_idle_work()
        self._configured = True
        for at in range(0, len(payload), 6):
            name, value = unpack_from(">HI", payload, at)
            self._set(name, value)
        self._send(_SETTINGS_ACK)
        self._send_blocked()

    def _set(self, name: int, value: int) -> None:
        if name == ENABLE_PUSH and value > 1:
            raise BrokenProtocol(PROTOCOL_ERROR, "push is on or off")
        if name == MAX_FRAME_SIZE:
            if not FRAME_BYTES_LEAST <= value <= FRAME_BYTES_MOST:
                raise BrokenProtocol(PROTOCOL_ERROR, "no size of frames")
            self._frame_most = value
        elif name == INITIAL_WINDOW_SIZE:
            if value > WINDOW_MOST:
                raise BrokenProtocol(FLOW_CONTROL_ERROR, "the window is too large")
            change = value - self._stream_window
            self._stream_window = value
            for state in self._streams.values():
                state.window += change
                if state.window > WINDOW_MOST:
                    raise BrokenProtocol(FLOW_CONTROL_ERROR, "the window is too large")
                if state.pending and state.id not in self._blocked:
                    self._blocked.append(state.id)

    def _on_window_update(self, number: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise BrokenProtocol(FRAME_SIZE_ERROR, "a window update has four bytes")
        by = unpack_from(">I", payload)[0] & WINDOW_MOST
        if not number:
            if not by:
                raise BrokenProtocol(PROTOCOL_ERROR, "a window that does not grow")
            self._window += by
            if self._window > WINDOW_MOST:
                raise BrokenProtocol(FLOW_CONTROL_ERROR, "the window is too large")
            self._note_idle_work()
            self._send_blocked()
            return
        if number > self._last_id:
            raise BrokenProtocol(PROTOCOL_ERROR, "a window of a stream that never was")
        self._note_idle_work()
        state = self._streams.get(number)
        if state is None:
            return
        if not by:
            raise StreamError(number, PROTOCOL_ERROR)
        state.window += by
        if state.window > WINDOW_MOST:
            raise StreamError(number, FLOW_CONTROL_ERROR)
        if state.pending:
            self._send_pending(state)


def _trailers_of(error: Failed) -> bytes:
    words = quote(error.words, safe=" !\"#$&'()*+,-./:;<=>?@[\\]^_`{|}~")
    return literal(b"grpc-status", b"%d" % error.code) + literal(b"grpc-message", words[:1024].encode())
