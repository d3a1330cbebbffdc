"""The streams of one connection: those that are open, and what is still known of those that are over."""

from __future__ import annotations

from collections import deque

from services.rls.http2.bounds import REFUSED_MOST, STREAMS_MOST
from services.rls.http2.calls import Call, MessageReader
from services.rls.http2.heads import Head


class StreamState:
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


class Streams:
    """``open``: by number.  ``last_id``: of the newest.  ``calls``: how many of them are calls of many messages."""

    __slots__ = ("calls", "is_leaving", "last_id", "open", "refused", "untold")

    def __init__(self) -> None:
        self.open: dict[int, StreamState] = {}
        self.last_id = 0
        self.calls = 0
        self.refused: deque[int] = deque(maxlen=REFUSED_MOST)
        """Those that we ended first: of them more may come."""
        self.untold = 0
        """Streams that are over, whose caller cannot know it yet."""
        self.is_leaving = False
        """Whether those that come now are refused."""

    def have_room(self) -> bool:
        return not self.is_leaving and len(self.open) + self.untold < STREAMS_MOST
