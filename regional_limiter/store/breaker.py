"""When to stop asking a server that does not answer.  Pure: time is an argument, in seconds.

    closed --5 failures within 1 s--> open --one success, or reset()--> closed

While open, one call every half second goes through as a probe; all others are refused without being sent.
Calls that were in flight together fail together and count as one failure: a single hiccup of a busy connection
must not take its shard away.
"""

from __future__ import annotations

from collections import deque
from typing import Final


class Breaker:
    """One server's breaker."""

    __slots__ = (
        "_failures",
        "_next_probe_at",
        "_probe_every_s",
        "_silent_since",
        "_within_s",
        "calm",
        "is_open",
        "opened",
    )

    def __init__(self, failures: int = 5, within_s: float = 1.0, probe_every_s: float = 0.5) -> None:
        self._failures: Final[deque[float]] = deque(maxlen=failures)
        self._within_s = within_s
        self._probe_every_s = probe_every_s
        self._next_probe_at = 0.0
        self.is_open = False
        self.calm = True
        """Whether nothing is held against the server: a success would change nothing."""
        self._silent_since: float | None = None
        self.opened = 0
        """How often it has opened."""

    def admits(self, now: float) -> bool:
        """Whether a call may be sent now.  Saying yes while open makes that call the probe."""
        if not self.is_open:
            return True
        if now < self._next_probe_at:
            return False
        self._next_probe_at = now + self._probe_every_s
        return True

    def silent_since(self, started: float) -> float:
        """A call that began at ``started`` has no answer: when the first one began that had none since the last."""
        self.calm = False
        if self._silent_since is None:
            self._silent_since = started
        return self._silent_since

    def failed(self, started: float, now: float) -> None:
        """A call sent at ``started`` got no answer."""
        failures = self._failures
        self.calm = False
        if failures and started <= failures[-1]:
            return
        failures.append(now)
        if not self.is_open and len(failures) == failures.maxlen and now - failures[0] <= self._within_s:
            self.is_open = True
            self.opened += 1
            self._next_probe_at = now + self._probe_every_s

    def succeeded(self) -> None:
        """A call was answered, whatever the answer."""
        if not self.calm:
            self.reset()

    def reset(self) -> None:
        """Close at once: the topology says that this shard is served by somebody else now."""
        self.is_open = False
        self.calm = True
        self._silent_since = None
        self._failures.clear()
