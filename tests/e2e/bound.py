"""What a run of checks against real processes admitted, for the checker of the simulated world.

An admission is known to lie between the moment its check was sent and the moment its answer came.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from math import ceil, floor

from global_sync.simulation.bound import BoundChecker, WindowBound
from regional_limiter.model.rule import Rate

Event = tuple[int, int, Callable[[], None]]
"""(us, which of the events of one moment comes first, what happens)."""


def worst_excess(admitted: Iterable[tuple[float, float]], burst: float, rate: int, slack: float = 0.001) -> float:
    """The largest excess over the bound in any window, in requests of cost 1 (<= 0: the bound holds).

    ``admitted``: (sent at, answered at) in seconds of one clock.  ``rate``: a second.
    """
    checker = BoundChecker(burst, Rate(rate, 1000), slack_per_mille=round(1000 * slack))
    replay(moments(admitted, checker))
    return checker.worst


def moments(admitted: Iterable[tuple[float, float]], checker: BoundChecker) -> list[Event]:
    """Each check sent and answered, to the microsecond around it."""
    events: list[Event] = []
    for sent, answered in admitted:
        sent_us, answered_us = floor(sent * 1e6), ceil(answered * 1e6)
        events.append((sent_us, 1, partial(checker.sent, sent_us, 1)))
        events.append((answered_us, 2, partial(checker.answered, answered_us, 1)))
    return events


def replay(events: list[Event]) -> None:
    """In the order of their time."""
    for _, _, happen in sorted(events, key=lambda event: event[:2]):
        happen()


def windows_of(
    admitted: Iterable[tuple[float, float]], capacity: int, length_s: float, clock_ahead_s: float
) -> dict[int, WindowBound]:
    """What was surely admitted in each window, by its number: sent and answered within it.

    ``clock_ahead_s``: by how much the stores' clocks, which name the windows, are ahead of the one of ``admitted``.
    """
    windows: dict[int, WindowBound] = {}
    for sent, answered in admitted:
        first, last = (floor((at + clock_ahead_s) / length_s) for at in (sent, answered))
        if first == last:
            windows.setdefault(first, WindowBound(capacity)).admit(ceil(answered * 1e6), 1)
    return windows


def rate_between(admitted: Iterable[tuple[float, float]], start: float, end: float) -> float:
    """Admitted checks a second among those answered in [start, end)."""
    return sum(start <= answered < end for _, answered in admitted) / (end - start)
