"""What a connection may hold, and the work that a caller may cause."""

from __future__ import annotations

from typing import Final

from services.rls.http2.frames import ENHANCE_YOUR_CALM, BrokenProtocol
from services.rls.http2.hpack_reader import LIST_BYTES_MOST

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
REFUSED_MOST: Final = 128


class Patience:
    """Counts the work that a caller causes without asking anything.  Raises BrokenProtocol when it is too much.

    ``idle_work``: frames that asked for nothing; set to 0 by a call.  ``resets``: see RESETS_MOST.
    """

    __slots__ = ("idle_work", "resets")

    def __init__(self) -> None:
        self.idle_work = 0
        self.resets = 0

    def note_idle_work(self) -> None:
        self.idle_work += 1
        if self.idle_work > IDLE_WORK_MOST:
            raise BrokenProtocol(ENHANCE_YOUR_CALM, "too many frames that ask for nothing")

    def note_reset(self) -> None:
        """The caller has reset a stream that was open."""
        self.resets += 1
        if self.resets > RESETS_MOST:
            raise BrokenProtocol(ENHANCE_YOUR_CALM, "too many streams were opened and reset")
