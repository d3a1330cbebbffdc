"""Among how many nodes a region's part is to be divided when its store does not answer.  Pure."""

from __future__ import annotations

from collections import deque

REMEMBERED_US = 60_000_000


class NodesSeen:
    """The most nodes that were alive together in the last minute *in which anything was heard*.

    While the store is silent no more is heard, and what was known stays: else every node would take the whole part
    for itself after a minute of an outage.
    """

    def __init__(self) -> None:
        self._seen: deque[tuple[int, int]] = deque()
        self._before = 1

    def begin_with(self, nodes: int) -> None:
        """What an earlier process of this node knew, until something is heard."""
        self._before = max(1, nodes)

    def note(self, now_us: int, nodes: int) -> None:
        """A point has said that so many are alive.  ``now_us``: any clock that only goes forward."""
        seen = self._seen
        while seen and seen[0][0] < now_us - REMEMBERED_US:
            seen.popleft()
        # Only what can still be the maximum: counts that fall from left to right.
        while seen and seen[-1][1] <= nodes:
            seen.pop()
        seen.append((now_us, nodes))

    def most(self) -> int:
        """At least 1: this node."""
        return max(1, self._seen[0][1]) if self._seen else self._before
