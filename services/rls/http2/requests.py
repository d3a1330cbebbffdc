"""Heads and data of streams, made into calls.

head --> open --END_STREAM--> asked --answered, or reset by either--> gone
"""

from __future__ import annotations

import hmac
from functools import partial
from struct import unpack_from

from services.rls.http2.answers import Answers
from services.rls.http2.bounds import (
    BLOCK_BYTES_MOST,
    PIECES_MOST,
    STREAM_CALLS_MOST,
    STREAM_WINDOW,
    Patience,
)
from services.rls.http2.calls import MessageReader, StreamCall
from services.rls.http2.frames import (
    COMPRESSION_ERROR,
    END_HEADERS,
    END_STREAM,
    ENHANCE_YOUR_CALM,
    FLOW_CONTROL_ERROR,
    FRAME_SIZE_ERROR,
    PADDED,
    PRIORITISED,
    PROTOCOL_ERROR,
    REFUSED_STREAM,
    STREAM_CLOSED,
    STREAM_ID_MOST,
    BrokenProtocol,
    StreamError,
)
from services.rls.http2.heads import Head, read_head
from services.rls.http2.hpack_reader import HpackReader, Mangled, TooLarge
from services.rls.http2.receive_window import ReceiveWindow
from services.rls.http2.streams import Streams, StreamState
from services.rls.methods import Methods, Stream, Unary
from services.rls.rpc import UNAUTHENTICATED, UNIMPLEMENTED, Failed


class Requests:
    """``authorization``: what a head must carry, None: nothing."""

    def __init__(
        self,
        methods: Methods,
        authorization: bytes | None,
        streams: Streams,
        received: ReceiveWindow,
        patience: Patience,
        answers: Answers,
    ) -> None:
        self._methods = methods
        self._authorization = authorization
        self._streams = streams
        self._received = received
        self._patience = patience
        self._answers = answers
        self._reader = HpackReader(read_head)
        self.block: tuple[int, int, list[bytes]] | None = None
        """The stream, the flags and the pieces of a head that is not whole yet."""

    # ---- heads

    def on_headers(self, flags: int, stream: int, payload: bytes) -> None:
        if flags & (PADDED | PRIORITISED):
            payload = _unpadded(flags, payload)
            if flags & PRIORITISED:
                if len(payload) < 5:
                    raise BrokenProtocol(FRAME_SIZE_ERROR, "half a priority")
                dependency, payload = payload[:5], payload[5:]
                if unpack_from(">I", dependency)[0] & STREAM_ID_MOST == stream:
                    raise BrokenProtocol(PROTOCOL_ERROR, "a stream depends on itself")
        if flags & END_HEADERS:
            self._head(flags, stream, payload)
        else:
            self.block = (stream, flags, [payload])

    def on_continuation(self, flags: int, payload: bytes) -> None:
        if self.block is None:
            raise BrokenProtocol(PROTOCOL_ERROR, "nothing to continue")
        stream, first_flags, pieces = self.block
        pieces.append(payload)
        if len(pieces) > PIECES_MOST or sum(map(len, pieces)) > BLOCK_BYTES_MOST:
            raise BrokenProtocol(ENHANCE_YOUR_CALM, "a head is too large, or in too many pieces")
        if flags & END_HEADERS:
            self.block = None
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

    def on_whole_request(self, number: int, block: bytes, data: bytes) -> None:
        """A head, and all the data of its stream, which is one message."""
        head, streams, answers = self._read(block), self._streams, self._answers
        method = self._methods.get(head.path)
        if (
            not isinstance(method, Unary)
            or head.status != 200
            or number <= streams.last_id
            or not number & 1
            or not streams.have_room()
            or (head.length is not None and head.length != len(data))
            or not self._may_ask(head)
        ):
            try:
                self._on_head(END_HEADERS, number, head)
            except StreamError as error:
                self._answers.reset(error.stream, error.code)
            self.on_data(END_STREAM, number, data)
            return
        streams.last_id = number
        state = streams.open[number] = StreamState(number, head, answers.stream_window)
        state.asked = True
        self._received.received += len(data)
        self._received.give_back(len(data))
        self._patience.idle_work = 0
        method.ask(data[5:], partial(answers.answered, number), head.traceparent)

    def _on_head(self, flags: int, number: int, head: Head) -> None:
        state = self._streams.open.get(number)
        if state is not None:
            self._trailers(state, head, flags)
            return
        if not number & 1:
            raise BrokenProtocol(PROTOCOL_ERROR, "callers have odd streams")
        if number <= self._streams.last_id:
            if number in self._streams.refused:
                return
            raise BrokenProtocol(STREAM_CLOSED, "a head of a stream that is over")
        self._streams.last_id = number
        if not self._streams.have_room():
            raise StreamError(number, REFUSED_STREAM)
        if head.malformed or head.trailers:
            raise StreamError(number, PROTOCOL_ERROR)
        state = self._streams.open[number] = StreamState(number, head, self._answers.stream_window)
        method = self._methods.get(head.path) if head.status == 200 else None
        if isinstance(method, Stream) and self._may_ask(head):
            if self._streams.calls >= STREAM_CALLS_MOST:
                raise StreamError(number, REFUSED_STREAM)
            self._streams.calls += 1
            state.call = StreamCall(method, self._answers, number)
        if flags & END_STREAM:
            self._end_of_request(state)

    def _trailers(self, state: StreamState, head: Head, flags: int) -> None:
        if state.asked:
            raise StreamError(state.id, STREAM_CLOSED)
        if not head.trailers or not flags & END_STREAM:
            raise StreamError(state.id, PROTOCOL_ERROR)
        self._end_of_request(state)

    def _may_ask(self, head: Head) -> bool:
        wanted = self._authorization
        return wanted is None or hmac.compare_digest(head.authorization, wanted)

    # ---- bodies

    def on_data(self, flags: int, number: int, payload: bytes) -> None:
        if not number:
            raise BrokenProtocol(PROTOCOL_ERROR, "data of no stream")
        size = len(payload)
        self._received.take(size)
        state = self._streams.open.get(number)
        if state is None:
            self._received.give_back(size)
            if number > self._streams.last_id:
                raise BrokenProtocol(PROTOCOL_ERROR, "data of a stream that never was")
            if number in self._streams.refused:
                return
            raise StreamError(number, STREAM_CLOSED)
        state.received += size
        if state.asked:
            raise StreamError(number, STREAM_CLOSED)
        if state.received > STREAM_WINDOW:
            raise StreamError(number, FLOW_CONTROL_ERROR)
        data = _unpadded(flags, payload) if flags & PADDED else payload
        state.length += len(data)
        if not data and not flags & END_STREAM:
            self._patience.note_idle_work()
        if state.head.length is not None and state.length > state.head.length:
            raise StreamError(number, PROTOCOL_ERROR)
        if state.head.status == 200:
            if state.reader is None:
                state.reader = MessageReader()
            try:
                messages = state.reader.feed(data)
            except Failed as error:
                self._answers.fail(number, error)
                return
            if state.call is not None:
                for message in messages:
                    state.call.feed(message)
        if flags & END_STREAM:
            self._end_of_request(state)

    def _end_of_request(self, state: StreamState) -> None:
        state.asked = True
        if state.head.length is not None and state.length != state.head.length:
            raise StreamError(state.id, PROTOCOL_ERROR)
        self._patience.idle_work = 0
        if state.call is not None:
            state.call.end()
            return
        head, reader = state.head, state.reader
        if head.status != 200:
            self._answers.refuse(state)
            return
        method = self._methods.get(head.path)
        if method is None:
            self._answers.fail(state.id, Failed(UNIMPLEMENTED, "no such method here"))
            return
        if not self._may_ask(head):
            self._answers.fail(state.id, Failed(UNAUTHENTICATED, "a bearer token is needed"))
            return
        if reader is None or len(reader.whole) != 1 or reader.unread:
            self._answers.fail(state.id, Failed(UNIMPLEMENTED, "one whole message is asked for"))
            return
        assert isinstance(method, Unary)
        method.ask(reader.whole[0], partial(self._answers.answered, state.id), head.traceparent)


def _unpadded(flags: int, payload: bytes) -> bytes:
    if not flags & PADDED:
        return payload
    if not payload or payload[0] >= len(payload):
        raise BrokenProtocol(PROTOCOL_ERROR, "more padding than frame")
    return payload[1 : len(payload) - payload[0]]
