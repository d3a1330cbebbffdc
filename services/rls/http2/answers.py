"""Answers of calls, as frames: as much at a time as the caller's windows take."""

from __future__ import annotations

from collections import deque

from services.rls.http2.blocks import (
    GRPC_HEAD,
    HEAD_AFTER,
    HEAD_BEFORE,
    NOT_GRPC,
    OK_TRAILERS,
    TRAILERS_AFTER,
    TRAILERS_BEFORE,
    text_head,
    trailers_of,
)
from services.rls.http2.bounds import Patience
from services.rls.http2.frames import (
    DATA,
    END_HEADERS,
    END_STREAM,
    FLOW_CONTROL_ERROR,
    FRAME_BYTES_LEAST,
    HEADERS,
    NO_ERROR,
    WINDOW_AT_FIRST,
    WINDOW_MOST,
    BrokenProtocol,
    StreamError,
    frame,
    reset,
    window_update,
)
from services.rls.http2.outbox import Outbox
from services.rls.http2.receive_window import ReceiveWindow
from services.rls.http2.streams import Streams, StreamState
from services.rls.methods import Observer, failed


class Answers:
    """Also the Sender of calls of many messages.  Whatever ends a stream ends it here.

    ``stream_window``: what may be sent on a stream that is new.  ``frame_most``: bytes of a frame.
    """

    def __init__(
        self,
        streams: Streams,
        outbox: Outbox,
        received: ReceiveWindow,
        patience: Patience,
        observer: Observer,
    ) -> None:
        self.stream_window = WINDOW_AT_FIRST
        self.frame_most = FRAME_BYTES_LEAST
        self._streams = streams
        self._outbox = outbox
        self._received = received
        self._patience = patience
        self._observer = observer
        self._window = WINDOW_AT_FIRST
        self._blocked: deque[int] = deque()

    def answered(self, number: int, outcome: bytes | Exception) -> None:
        patience = self._patience
        if patience.resets:
            patience.resets -= 1
        if isinstance(outcome, Exception):
            self.fail(number, outcome)
            return
        state = self._streams.open.get(number)
        if state is None or self._outbox.ended:
            return
        size = len(outcome) + 5
        if size <= self._window and size <= state.window and size <= self.frame_most:
            # Nearly always: head, message and trailers at once.
            self._window -= size
            stream = number.to_bytes(4, "big")
            self._outbox.send(
                b"%b%b%b%b\x00\x00%b\x00%b%b%b%b%b"
                % (
                    HEAD_BEFORE,
                    stream,
                    HEAD_AFTER,
                    size.to_bytes(3, "big"),
                    stream,
                    (size - 5).to_bytes(4, "big"),
                    outcome,
                    TRAILERS_BEFORE,
                    stream,
                    TRAILERS_AFTER,
                )
            )
            self.gone(state)
            return
        self._outbox.send(frame(HEADERS, END_HEADERS, number, GRPC_HEAD))
        state.pending = b"\x00" + len(outcome).to_bytes(4, "big") + outcome
        state.trailers = OK_TRAILERS
        self._send_pending(state)

    def refuse(self, state: StreamState) -> None:
        """Answer what is no gRPC call, as HTTP does."""
        self._outbox.send(frame(HEADERS, END_HEADERS, state.id, text_head(state.head.status)))
        state.pending, state.last_data = NOT_GRPC, True
        self._send_pending(state)

    def fail(self, number: int, error: Exception) -> None:
        """End a call without a message."""
        state = self._streams.open.get(number)
        if state is not None and not self._outbox.ended:
            end = failed(error, self._observer)
            self._end(state, GRPC_HEAD + trailers_of(end))

    # ---- calls of many messages

    def send_head(self, number: int) -> None:
        if number in self._streams.open:
            self._outbox.send(frame(HEADERS, END_HEADERS, number, GRPC_HEAD))

    def send_message(self, number: int, message: bytes) -> None:
        state = self._streams.open.get(number)
        if state is not None:
            state.pending += b"\x00" + len(message).to_bytes(4, "big") + message
            self._send_pending(state)

    def is_blocked(self, number: int) -> bool:
        """Whether messages wait for the caller to take earlier ones."""
        state = self._streams.open.get(number)
        return state is not None and bool(state.pending)

    def end_call(self, number: int, error: Exception | None) -> None:
        """A call of many messages is over; its head has been sent."""
        state = self._streams.open.get(number)
        if state is None:
            return
        if error is not None:
            end = failed(error, self._observer)
            state.trailers = trailers_of(end)
        else:
            state.trailers = OK_TRAILERS
        self._send_pending(state)

    def consumed(self, number: int, size: int) -> None:
        """A message of ``size`` bytes of a call of many has been taken up."""
        state = self._streams.open.get(number)
        if state is not None:
            given = min(size, state.received)
            state.received -= given
            self._received.give_back(given)
            if given:
                self._outbox.send(window_update(number, given))

    # ---- sending within windows

    def _end(self, state: StreamState, block: bytes) -> None:
        """Send the only, or the last, headers of a stream."""
        self._outbox.send(frame(HEADERS, END_HEADERS | END_STREAM, state.id, block))
        if not state.asked:
            # The rest of the request is not wanted.
            self._outbox.send(reset(state.id, NO_ERROR))
            self._streams.refused.append(state.id)
        self.gone(state)

    def _send_pending(self, state: StreamState) -> None:
        while state.pending:
            size = min(len(state.pending), self._window, state.window, self.frame_most)
            if size <= 0:
                if state.id not in self._blocked:
                    self._blocked.append(state.id)
                return
            self._window -= size
            state.window -= size
            is_last = state.last_data and size == len(state.pending)
            self._outbox.send(frame(DATA, END_STREAM if is_last else 0, state.id, state.pending[:size]))
            state.pending = state.pending[size:]
            if is_last:
                self.gone(state)
                return
        if state.trailers is not None:
            self._end(state, state.trailers)
        elif state.call is not None:
            state.call.room()

    def send_blocked(self) -> None:
        for _ in range(len(self._blocked)):
            state = self._streams.open.get(self._blocked.popleft())
            if state is not None:
                self._send_pending(state)

    # ---- the end of a stream

    def reset(self, number: int, code: int) -> None:
        state = self._streams.open.get(number)
        self._outbox.send(reset(number, code))
        self._streams.refused.append(number)
        self._patience.note_idle_work()
        if state is not None:
            self.gone(state)

    def gone(self, state: StreamState) -> None:
        """A stream has ended."""
        self.forget(state)
        if self._streams.is_leaving:
            self.close_if_done()

    def forget(self, state: StreamState) -> None:
        del self._streams.open[state.id]
        self._streams.untold += 1
        if state.received:
            self._received.give_back(state.received)
        if state.call is not None:
            self._streams.calls -= 1
            state.call.cancel()

    def close_if_done(self) -> None:
        if self._streams.is_leaving and not self._streams.open and not self._outbox.ended:
            self._outbox.close()

    # ---- windows

    def grow(self, by: int) -> None:
        """The connection's window."""
        self._window += by
        if self._window > WINDOW_MOST:
            raise BrokenProtocol(FLOW_CONTROL_ERROR, "the window is too large")

    def grow_stream(self, state: StreamState, by: int) -> None:
        state.window += by
        if state.window > WINDOW_MOST:
            raise StreamError(state.id, FLOW_CONTROL_ERROR)
        if state.pending:
            self._send_pending(state)

    def set_stream_window(self, value: int) -> None:
        """Of streams that are new; those that are open change by as much."""
        if value > WINDOW_MOST:
            raise BrokenProtocol(FLOW_CONTROL_ERROR, "the window is too large")
        change = value - self.stream_window
        self.stream_window = value
        for state in self._streams.open.values():
            state.window += change
            if state.window > WINDOW_MOST:
                raise BrokenProtocol(FLOW_CONTROL_ERROR, "the window is too large")
            if state.pending and state.id not in self._blocked:
                self._blocked.append(state.id)
