"""What agent and leader tell of the way of a share, if somebody traces it.  Pure: whoever listens is handed in.

A context is a ``traceparent`` of W3C as text; "" is none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

CAUSES_MOST = 32
"""Contexts that are kept until what they led to is told."""


class Doing:
    """Something under way.  This one is not traced."""

    context = ""
    """Under which what follows from it goes on, elsewhere."""

    def end(self, failed: str | None = None) -> None:
        """It is done; ``failed``: why it was not."""


_UNTRACED = Doing()


class Traces:
    """``is_on`` False: nobody listens, and nothing need be remembered."""

    is_on = False

    def begin(
        self, what: str, causes: Sequence[str] = (), parent: str = "", told: Mapping[str, str | int] | None = None
    ) -> Doing:
        """``causes``: what led to it, several things perhaps; ``parent``: the one thing that it is part of."""
        return _UNTRACED


UNTRACED = Traces()


class Causes:
    """Contexts that have been heard of and led to nothing yet; the oldest give way."""

    def __init__(self) -> None:
        self._waiting: dict[str, None] = {}
        self._heard: dict[str, None] = {}

    def hear(self, context: str) -> None:
        """One context may be heard of many times, and counts once."""
        if not context or context in self._heard:
            return
        for known, most in ((self._heard, 4 * CAUSES_MOST), (self._waiting, CAUSES_MOST)):
            if len(known) >= most:
                del known[next(iter(known))]
            known[context] = None

    def take(self) -> list[str]:
        """All that wait; they wait no longer."""
        taken = list(self._waiting)
        self._waiting.clear()
        return taken
