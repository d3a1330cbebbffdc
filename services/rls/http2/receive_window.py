"""The window that a connection gives its caller: it grows again by what has been consumed, and by no more."""

from __future__ import annotations

from services.rls.http2.bounds import WINDOW
from services.rls.http2.frames import FLOW_CONTROL_ERROR, BrokenProtocol, window_update
from services.rls.http2.outbox import Outbox


class ReceiveWindow:
    """``received``: bytes of the window that have come, and ``consumed`` of them, since it was last given back."""

    __slots__ = ("_outbox", "consumed", "received")

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self.received = 0
        self.consumed = 0

    def take(self, size: int) -> None:
        """Raises BrokenProtocol when it is more than the window."""
        self.received += size
        if self.received - self.consumed > WINDOW:
            raise BrokenProtocol(FLOW_CONTROL_ERROR, "more than the window")

    def give_back(self, size: int) -> None:
        self.consumed += size
        if self.consumed >= WINDOW // 2:
            self._outbox.send(window_update(0, self.consumed))
            self.received -= self.consumed
            self.consumed = 0
