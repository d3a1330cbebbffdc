"""What a node counts by key: running totals of a window of some minutes, of its busiest keys.  Pure.

Keys come and go, so totals since a node's start would belong to those that were busy once.  Each window begins with
nothing; that it is over is told for some seconds, so that whoever collects has its last totals.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from regional_limiter.store.base import KEYS_TOLD, RuleTotals
from regional_limiter.usage import Totals

WINDOW_US: Final = 300_000_000
LAST_TOLD_FOR_US: Final = 10_000_000
KEYS_COUNTED: Final = 1_000


class KeyWindows:
    """``told`` begins a new window when it is time; every other call counts in the one that is running."""

    def __init__(self, window_us: int = WINDOW_US, keys_counted: int = KEYS_COUNTED) -> None:
        self._window_us = window_us
        self._keys_counted = keys_counted
        self._number: int | None = None
        self._last_number = 0
        self._began_us = 0
        self._last = Totals(keys_counted)
        self._now = Totals(keys_counted)
        self.add = self._now.add
        self.add_allowed = self._now.add_allowed

    def told(self, now_us: int) -> dict[str, Mapping[str, RuleTotals]]:
        """By window, the totals of its busiest keys.  ``now_us``: of a steady clock, the same with every call."""
        number = now_us // self._window_us
        if self._number is None:
            self._number = number
        elif number != self._number:
            self._last, self._now = self._now, Totals(self._keys_counted)
            self.add, self.add_allowed = self._now.add, self._now.add_allowed
            self._last_number, self._number, self._began_us = self._number, number, now_us
        windows = {str(self._number): self._now.snapshot(KEYS_TOLD)}
        if self._began_us and now_us - self._began_us < LAST_TOLD_FOR_US:
            windows[str(self._last_number)] = self._last.snapshot(KEYS_TOLD)
        return {name: totals for name, totals in windows.items() if totals}
