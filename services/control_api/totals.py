"""What has been used: running totals by rule and region, over nodes and agents that come and go.  Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

FIELDS = ("allowed", "denied", "allowed_cost", "denied_cost", "degraded", "at_floor")
SOURCES_KEPT = 1_000
ENDED_AFTER_MS = 3_600_000
_NONE = (0,) * len(FIELDS)


class UsageTotals:
    """Merged by maximum per incarnation of a node, summed over them: repeats, late messages, and agents that take
    over change nothing.

    Counts what was published since this process began to read: a node that ended before is not in the sums.
    """

    def __init__(self) -> None:
        self._sources: dict[tuple[str, str], tuple[dict[str, tuple[int, ...]], int]] = {}
        self._ended: dict[tuple[str, str], tuple[int, ...]] = {}  # (region, rule)

    def take(self, usage: Mapping[str, Any]) -> None:
        region, at_ms = str(usage["region"]), int(usage["at_ms"])
        counted = usage.get("counted")
        if counted is None:  # of an agent that is too old to tell nodes apart
            self._merge(region, f"agent {usage['agent']}", usage["totals"], at_ms)
            return
        for source, rows in counted.items():
            self._merge(region, f"node {source}", rows, at_ms)

    def _merge(self, region: str, source: str, rows: Mapping[str, Sequence[int]], at_ms: int) -> None:
        totals, heard_ms = self._sources.pop((region, source), ({}, 0))
        self._sources[region, source] = totals, max(heard_ms, at_ms)  # the most recently heard stands last
        if len(self._sources) > SOURCES_KEPT:
            self._forget(at_ms)
        for name, values in rows.items():
            # An agent of an older version counts fewer things.
            counted = zip_longest(totals.get(name, _NONE), map(int, values[: len(FIELDS)]), fillvalue=0)
            totals[name] = tuple(max(pair) for pair in counted)

    def _forget(self, now_ms: int) -> None:
        """The one that was heard longest ago; what it counted stays, unless it might still be heard again."""
        (region, source), (totals, heard_ms) = next(iter(self._sources.items()))
        del self._sources[region, source]
        if now_ms - heard_ms >= ENDED_AFTER_MS:
            for name, values in totals.items():
                self._ended[region, name] = _sum(self._ended.get((region, name), _NONE), values)

    def shown(self) -> dict[str, Any]:
        """``domain/rule`` -> totals over all regions, and of each region."""
        by_rule: dict[str, dict[str, tuple[int, ...]]] = {}
        for (region, name), values in self._ended.items():
            by_rule.setdefault(name, {})[region] = values
        for (region, _), (totals, _) in self._sources.items():
            for name, values in totals.items():
                regions = by_rule.setdefault(name, {})
                regions[region] = _sum(regions.get(region, _NONE), values)
        return {
            name: {
                "total": _named(tuple(sum(column) for column in zip(*regions.values(), strict=True))),
                "regions": {region: _named(values) for region, values in sorted(regions.items())},
            }
            for name, regions in sorted(by_rule.items())
        }


def _sum(known: tuple[int, ...], values: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(a + b for a, b in zip(known, values, strict=True))


def _named(values: tuple[int, ...]) -> dict[str, int]:
    return dict(zip(FIELDS, values, strict=True))
