"""Rates out of running totals: what a region allowed and denied per second between two of its messages.  Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from regional_limiter.usage import is_own_row

STALE_MS = 5_000
"""A rate older than this is not shown: not known is better than no longer true."""

Rate = tuple[float, float]
"""Allowed and denied cost per second."""


@dataclass(frozen=True, slots=True)
class Totals:
    """One usage message: who counted, when (the agent's wall clock, ms), and the running totals."""

    agent: str
    at_ms: int
    rules: Mapping[str, tuple[int, ...]]
    keys: Mapping[str, tuple[int, ...]]


@dataclass(slots=True)
class RegionRates:
    """``heard_ms``: this process's clock at the last message that counted."""

    last: Totals
    heard_ms: int
    without_store: float = 0.0
    at_floor: float = 0.0
    rules: dict[str, Rate] = field(default_factory=dict)
    keys: dict[str, Rate] = field(default_factory=dict)


class UsageRates:
    """Folds usage documents by region.  Repeated and late ones change nothing."""

    def __init__(self) -> None:
        self._regions: dict[str, RegionRates] = {}

    def take(self, usage: Mapping[str, Any], now_ms: int) -> None:
        region = str(usage["region"])
        new = Totals(
            agent=str(usage["agent"]),
            at_ms=int(usage["at_ms"]),
            rules={name: tuple(values) for name, values in usage["totals"].items() if is_own_row(name)},
            keys={name: tuple(entry["totals"]) for name, entry in usage["keys"].items()},
        )
        known = self._regions.get(region)
        if known is None or known.last.agent != new.agent:
            if known is None or new.at_ms > known.last.at_ms:
                self._regions[region] = RegionRates(new, now_ms)
            return
        elapsed_ms = new.at_ms - known.last.at_ms
        if elapsed_ms <= 0:
            return
        degraded, at_floor = (_grown(known.last, new, place) * 1000 / elapsed_ms for place in (4, 5))
        known.without_store, known.at_floor = max(0.0, degraded - at_floor), at_floor
        known.rules = _rates(known.last.rules, new.rules, elapsed_ms)
        known.keys = _rates(known.last.keys, new.keys, elapsed_ms)
        known.last, known.heard_ms = new, now_ms

    def silent_ms(self, region: str, now_ms: int) -> int | None:
        """Since a region's last message that counted; None before the first."""
        known = self._regions.get(region)
        return None if known is None else now_ms - known.heard_ms

    def rule(self, region: str, name: str, now_ms: int) -> Rate | None:
        """Of ``domain/rule``; (0, 0) when the region speaks but not of this rule, None when it is silent."""
        known = self._fresh(region, now_ms)
        return None if known is None else known.rules.get(name, (0.0, 0.0))

    def all_rules(self, region: str, now_ms: int) -> Rate | None:
        known = self._fresh(region, now_ms)
        if known is None:
            return None
        return sum(rate[0] for rate in known.rules.values()), sum(rate[1] for rate in known.rules.values())

    def degraded(self, region: str, now_ms: int) -> tuple[float, float] | None:
        """Decisions per second that were made without the region's store, and at the floor by the store."""
        known = self._fresh(region, now_ms)
        return None if known is None else (known.without_store, known.at_floor)

    def keys_of(self, region: str, now_ms: int) -> Mapping[str, Rate]:
        known = self._fresh(region, now_ms)
        return {} if known is None else known.keys

    def _fresh(self, region: str, now_ms: int) -> RegionRates | None:
        known = self._regions.get(region)
        return known if known is not None and now_ms - known.heard_ms <= STALE_MS else None


def _grown(before: Totals, after: Totals, place: int) -> int:
    """By how much one of the totals has grown, over all rules; an older agent has fewer of them."""
    old, new = (sum(sum(values[place : place + 1]) for values in one.rules.values()) for one in (before, after))
    return max(0, new - old)


def _rates(
    old: Mapping[str, tuple[int, ...]], new: Mapping[str, tuple[int, ...]], elapsed_ms: int
) -> dict[str, Rate]:
    """A name that was not there before began to be published in between: its past is not this second's."""
    return {
        name: (
            max(0, totals[2] - old[name][2]) * 1000 / elapsed_ms,
            max(0, totals[3] - old[name][3]) * 1000 / elapsed_ms,
        )
        for name, totals in new.items()
        if name in old
    }
