"""Requests in the order of their times.  Pure.

A log is written when a request ends, so its lines are not in the order in which requests began, and several files
interleave.  Within ``most`` lines they are put in order; what comes later than that is taken when it comes, at the
time of the line before it, and counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from operator import itemgetter
from typing import TypeVar

T = TypeVar("T")

_time = itemgetter(0)


class InOrder:
    """``late``: how many came too late to be put in order; ``late_most_ms``: the most by which one did."""

    def __init__(self, most: int = 16_384) -> None:
        self._most = most
        self.late = 0
        self.late_most_ms = 0

    def of(self, requests: Iterable[tuple[int, T]]) -> Iterator[tuple[int, T]]:
        """(time in ms, anything), in order; of equal times as they came.  Times never go back."""
        held: list[tuple[int, T]] = []
        now_ms = 0
        for request in requests:
            held.append(request)
            if len(held) >= 2 * self._most:
                held.sort(key=_time)
                yield from self._forward(held[: self._most], now_ms)
                now_ms = max(now_ms, held[self._most - 1][0])
                del held[: self._most]
        held.sort(key=_time)
        yield from self._forward(held, now_ms)

    def _forward(self, requests: list[tuple[int, T]], now_ms: int) -> Iterator[tuple[int, T]]:
        for request in requests:
            if request[0] < now_ms:
                self.late += 1
                self.late_most_ms = max(self.late_most_ms, now_ms - request[0])
                yield now_ms, request[1]
            else:
                yield request


def spread(requests: Iterable[tuple[int, T]], most: int = 16_384) -> Iterator[tuple[int, T]]:
    """Requests of one whole second, spread evenly over it; at most ``most`` are held back for that."""
    held: list[tuple[int, T]] = []
    for request in requests:
        if held and (request[0] != held[0][0] or len(held) >= most):
            yield from _spread(held)
            held.clear()
        held.append(request)
    yield from _spread(held)


def _spread(held: list[tuple[int, T]]) -> Iterator[tuple[int, T]]:
    for index, (time_ms, request) in enumerate(held):
        yield time_ms + index * 1000 // len(held), request
