"""Whether a leader's wall clock is to be believed: it tells which windows are over, and that is for good.  Pure.

A clock that is set forward by mistake would end windows that are not over, for this leader and, by its snapshot,
for the next ones.  So it is held against a clock that nobody sets.
"""

from __future__ import annotations

STEP_MS_MOST = 60_000
"""A smaller step is believed at once: what it ends too early would have ended within a minute."""
DOUBTED_US = 300_000_000
"""For so long a larger one is not: time to set the clock right."""


class WallClock:
    """What was seen of it so far.  ``ahead_ms``: by how much it has stepped forward and is not believed yet."""

    def __init__(self) -> None:
        self.ahead_ms = 0
        self._believed: tuple[int, int] | None = None  # (now_us, wall_ms)
        self._doubted_since_us = 0

    def look(self, now_us: int, wall_ms: int) -> bool:
        """Whether ``wall_ms`` (since 1970) is believed; ``now_us``: of a clock that nobody sets.  Call it often."""
        seen_us, seen_ms = self._believed or (now_us, wall_ms)
        ahead_ms = wall_ms - seen_ms - (now_us - seen_us) // 1000
        if ahead_ms > STEP_MS_MOST:
            if not self.ahead_ms:
                self._doubted_since_us = now_us
            if now_us - self._doubted_since_us < DOUBTED_US:
                self.ahead_ms = ahead_ms
                return False
        self.ahead_ms, self._believed = 0, (now_us, wall_ms)
        return True
