"""What the nodes of a region have counted by key, window by window: as they told it, each once.  Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from regional_limiter.store.base import RuleTotals

WINDOWS_MOST = 400
FORGOTTEN_AFTER_US = 600_000_000
"""Well before readers forget a window, so that they never hear of one that they do not know any more."""
ROWS_TOLD = 500
OTHERS_TOLD = 100


Totals = tuple[int, int, int, int, int, int]
"""As the fields of RuleTotals: allowed, denied, allowed cost, denied cost, degraded, at the floor."""


def totals_of(usage: RuleTotals) -> Totals:
    return (
        usage.allowed,
        usage.denied,
        usage.allowed_cost,
        usage.denied_cost,
        usage.degraded,
        usage.at_floor,
    )


@dataclass(slots=True)
class _Window:
    """``grown``: the keys whose totals have grown since they were told; ``in_turn``: those to be told again."""

    heard_us: int
    totals: dict[str, Totals] = field(default_factory=dict)
    grown: dict[str, None] = field(default_factory=dict)
    in_turn: list[str] = field(default_factory=list)


class KeyUsage:
    """``take`` is given what each beat tells, as often as it is seen."""

    def __init__(self) -> None:
        self._windows: dict[str, _Window] = {}
        self._told: dict[str, int] = {}

    def take(self, source: str, told: int, windows: Mapping[str, Mapping[str, RuleTotals]], now_us: int) -> None:
        """``source``: a node's incarnation; ``told``: how often it has told, so the same beat is taken once."""
        if told <= self._told.get(source, 0):
            return
        self._told.pop(source, None)
        self._told[source] = told
        while len(self._told) > WINDOWS_MOST:
            del self._told[next(iter(self._told))]
        for number, usage in windows.items():
            name = f"{source}/{number}"
            window = self._windows.pop(name, None) or _Window(now_us)
            window.heard_us = now_us
            self._windows[name] = window  # the most recently heard stands last
            for key, counted in usage.items():
                known = window.totals.get(key)
                totals = totals_of(counted)
                if known is None or any(map(int.__gt__, totals, known)):
                    a, b, c, d, e, f = map(max, totals, known or totals)
                    window.totals[key] = (a, b, c, d, e, f)
                    window.grown[key] = None
        while len(self._windows) > WINDOWS_MOST:
            del self._windows[next(iter(self._windows))]

    def rows(self, now_us: int) -> dict[str, dict[str, Totals]]:
        """By window: the totals of keys that have grown since they were told, and of some others in turn."""
        for name in [name for name, one in self._windows.items() if now_us - one.heard_us > FORGOTTEN_AFTER_US]:
            del self._windows[name]
        found: dict[str, dict[str, Totals]] = {}
        grown_left, others_left = ROWS_TOLD, OTHERS_TOLD
        for name, window in reversed(self._windows.items()):
            due = list(window.grown)[:grown_left]
            for key in due:
                del window.grown[key]
            grown_left -= len(due)
            if not window.in_turn:
                window.in_turn = list(window.totals)
            others = window.in_turn[-others_left:] if others_left else []
            del window.in_turn[len(window.in_turn) - len(others) :]
            others_left -= len(others)
            if due or others:
                found[name] = {key: window.totals[key] for key in (*due, *others)}
        return found
