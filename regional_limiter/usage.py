"""What a node counts: running totals by rule and by key, and the demand for keys that other regions may lend to.

Pure.  Every table has a bound.
"""

from __future__ import annotations

from collections.abc import Mapping

from regional_limiter.model.decision import Reason, ShareKind, Verdict
from regional_limiter.model.share import region_capacity
from regional_limiter.store.base import BucketCall, RuleTotals, Sharing

SHADOW, SOFT, CANARY = "#shadow", "#soft", "#canary"
"""Rows beside a rule's own: what it would have decided in shadow; what it denied and let pass as a soft rule; and
what of its own row its canary decided."""


def is_own_row(name: str) -> bool:
    """Whether a row counts what a rule decided for callers, and is not one of those beside it."""
    return "#" not in name


_ADAPTIVE, _LEASE = Sharing.ADAPTIVE, ShareKind.LEASE


class Totals:
    """Running totals by name.  Of more than twice ``names_most`` names only the busiest ``names_most`` stay."""

    def __init__(self, names_most: int) -> None:
        self._names_most = names_most
        self._rows: dict[str, list[int]] = {}

    @property
    def filled(self) -> tuple[int, int]:
        """Entries, and how many there may be."""
        return len(self._rows), 2 * self._names_most

    def add(
        self, name: str, allowed: bool, cost: int, degraded: bool, at_floor: bool = False, checks: int = 1
    ) -> None:
        """``at_floor``: degraded for that reason alone.  ``checks``: how many cost that together."""
        row = self._rows.get(name)
        if row is None:
            if len(self._rows) >= 2 * self._names_most:
                self._rows = dict(self._busiest(self._names_most))
            row = self._rows[name] = [0, 0, 0, 0, 0, 0]
        if allowed:
            row[0] += checks
            row[2] += cost
        else:
            row[1] += checks
            row[3] += cost
        if degraded:
            row[4] += 1
        if at_floor:
            row[5] += 1

    def add_allowed(self, name: str, cost: int, checks: int = 1) -> None:
        """:meth:`add` for what nearly all checks are: ``checks`` of them, of ``cost`` each."""
        row = self._rows.get(name)
        if row is None:
            self.add(name, True, cost * checks, False, checks=checks)
        else:
            row[0] += checks
            row[2] += cost * checks

    def snapshot(self, names_most: int) -> dict[str, RuleTotals]:
        """The totals of the busiest names, at most ``names_most``."""
        rows = self._busiest(names_most) if len(self._rows) > names_most else self._rows.items()
        return {name: RuleTotals(*row) for name, row in rows}

    def _busiest(self, count: int) -> list[tuple[str, list[int]]]:
        return sorted(self._rows.items(), key=lambda item: -(item[1][0] + item[1][1]))[:count]


class Demand:
    """Offered cost by key since it was last handed on."""

    def __init__(self, keys_most: int = 5000) -> None:
        self._keys_most = keys_most
        self._costs: dict[str, int] = {}
        self.dropped = 0
        """Costs that found the table full."""

    def __bool__(self) -> bool:
        return bool(self._costs)

    @property
    def filled(self) -> tuple[int, int]:
        """Entries, and how many there may be."""
        return len(self._costs), self._keys_most

    def add(self, key: str, cost: int) -> None:
        known = self._costs.get(key)
        if known is not None:
            self._costs[key] = known + cost
        elif len(self._costs) < self._keys_most:
            self._costs[key] = cost
        else:
            self.dropped += 1

    def take(self, keys_most: int) -> dict[str, int]:
        """Hand on what has gathered, of at most ``keys_most`` keys."""
        if len(self._costs) <= keys_most:
            taken, self._costs = self._costs, {}
            return taken
        keys = list(self._costs)[:keys_most]
        return {key: self._costs.pop(key) for key in keys}

    def put_back(self, costs: Mapping[str, int]) -> None:
        """What could not be handed on."""
        for key, cost in costs.items():
            self.add(key, cost)


def is_interesting(call: BucketCall, verdict: Verdict) -> bool:
    """Whether other regions should hear of the demand for this key.

    Only keys that are short of something, or that already hold another share than their base: a key that keeps
    half of what its region may have costs no message anywhere.  Of windows in escrow the store itself tells.
    """
    if call.sharing is not _ADAPTIVE or call.cost == 0 or call.refill is None:
        return False
    if not verdict.allowed:
        return verdict.reason is Reason.LIMITED
    if verdict.share_kind is _LEASE and verdict.share != call.base:
        return True
    return 2 * verdict.remaining < region_capacity(call.capacity, verdict.share, call.regions)
