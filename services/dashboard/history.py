"""Five minutes of points per key, one a second, in bounded memory.  Pure."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

POINTS_KEPT = 300
KEYS_KEPT = 400


@dataclass(frozen=True, slots=True)
class Point:
    """One key at one second.  ``rates``: region -> (allowed, denied) cost per second; None: not known."""

    shares: Mapping[str, int | None]
    wants: Mapping[str, int | None]
    rates: Mapping[str, tuple[float, float] | None]

    @property
    def allowed(self) -> float | None:
        return _sum([rate[0] if rate else None for rate in self.rates.values()])

    @property
    def denied(self) -> float | None:
        return _sum([rate[1] if rate else None for rate in self.rates.values()])

    def frame(self) -> dict[str, Any]:
        return {
            "a": _short(self.allowed),
            "d": _short(self.denied),
            "s": dict(self.shares),
            "w": dict(self.wants),
            "r": {region: rate and [_short(rate[0]), _short(rate[1])] for region, rate in self.rates.items()},
        }


class History:
    """Points by (rule, key); the keys that were shown longest ago make room for new ones."""

    def __init__(self) -> None:
        self._series: OrderedDict[tuple[str, str], deque[tuple[int, Point]]] = OrderedDict()

    def add(self, rule: str, key: str, now_ms: int, point: Point) -> None:
        name = (rule, key)
        series = self._series.get(name)
        if series is None:
            series = self._series[name] = deque(maxlen=POINTS_KEPT)
            if len(self._series) > KEYS_KEPT:
                self._series.popitem(last=False)
        self._series.move_to_end(name)
        series.append((now_ms, point))

    def columns(self, rule: str, key: str, regions: Sequence[str]) -> dict[str, Any]:
        """Seconds, allowed, denied, and shares by region, each a column; empty for a key without a past."""
        series = self._series.get((rule, key), ())
        return {
            "t": [at_ms / 1000 for at_ms, _ in series],
            "a": [_short(point.allowed) for _, point in series],
            "d": [_short(point.denied) for _, point in series],
            "s": {region: [point.shares.get(region) for _, point in series] for region in regions},
        }


def _sum(values: Sequence[float | None]) -> float | None:
    """Of what is known; None when nothing is."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _short(value: float | None) -> float | None:
    return None if value is None else round(value, 1)
