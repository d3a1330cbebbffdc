"""What is sent: all that becomes ready in one turn of the loop leaves in one write.  I/O."""

from __future__ import annotations

import asyncio
from typing import Any

from services.rls.http2.streams import Streams


class Outbox:
    """``in_turn``: while frames are read, after which whoever reads them flushes."""

    __slots__ = ("_flush_due", "_loop", "_out", "_streams", "ended", "in_turn", "transport")

    def __init__(self, loop: asyncio.AbstractEventLoop, streams: Streams) -> None:
        self.transport: Any = None
        self.in_turn = False
        self.ended = False
        """Whether the connection has: nothing more is read or answered."""
        self._loop = loop
        self._streams = streams
        self._out: list[bytes] = []
        self._flush_due = False

    def send(self, data: bytes) -> None:
        self._out.append(data)
        if not (self.in_turn or self._flush_due):
            self._flush_due = True
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        self._flush_due, self._streams.untold = False, 0
        if self._out and not self.transport.is_closing():
            self.transport.write(b"".join(self._out))
        self._out.clear()

    def close(self) -> None:
        """Once what is ready has been sent."""
        self.flush()
        self.ended = True
        self.transport.close()
