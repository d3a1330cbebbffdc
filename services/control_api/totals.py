"""What has been used: running totals by rule and region, over agents that come and go.  Pure."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import zip_longest
from typing import Any

FIELDS = ("allowed", "denied", "allowed_cost", "denied_cost", "degraded", "at_floor")
AGENTS_KEPT = 1_000
_NONE = (0,) * len(FIELDS)


class UsageTotals:
    """Merged by maximum per (region, agent), summed over agents: repeats and late messages change nothing.

    Counts what was published since this process began to read: an agent that ended before is not in the sums.
    """

    def __init__(self) -> None:
        self._agents: dict[tuple[str, str], dict[str, tuple[int, ...]]] = {}

    def take(self, usage: Mapping[str, Any]) -> None:
        source = (str(usage["region"]), str(usage["agent"]))
        totals = self._agents.pop(source, {})
        self._agents[source] = totals  # the most recently heard stands last
        if len(self._agents) > AGENTS_KEPT:
            del self._agents[next(iter(self._agents))]
        for name, values in usage["totals"].items():
            known = totals.get(name, _NONE)
            # An agent of an older version counts fewer things.
            counted = zip_longest(known, map(int, values[: len(FIELDS)]), fillvalue=0)
            totals[name] = tuple(max(pair) for pair in counted)

    def shown(self) -> dict[str, Any]:
        """``domain/rule`` -> totals over all regions, and of each region."""
        by_rule: dict[str, dict[str, tuple[int, ...]]] = {}
        for (region, _), totals in self._agents.items():
            for name, values in totals.items():
                regions = by_rule.setdefault(name, {})
                known = regions.get(region, _NONE)
                regions[region] = tuple(a + b for a, b in zip(known, values, strict=True))
        return {
            name: {
                "total": _named(tuple(sum(column) for column in zip(*regions.values(), strict=True))),
                "regions": {region: _named(values) for region, values in sorted(regions.items())},
            }
            for name, regions in sorted(by_rule.items())
        }


def _named(values: tuple[int, ...]) -> dict[str, int]:
    return dict(zip(FIELDS, values, strict=True))
