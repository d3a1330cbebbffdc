"""What is counted of a run: for the real code and for every model beside it, under the same requests.  Pure.

*Utilisation*: admitted, of what one bucket without any distance would have admitted.  *Excess*: by how many tokens
what was admitted in some interval of t seconds was above capacity + rate x t (the worst interval).  *False
rejects*: denied, though one bucket would have allowed it, while less than nine tenths of the limit were asked for;
of all that was asked for then.  *Convergence*: how long after a jump of what is fair every region that should have
more had 95 % of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from global_sync.allocation.fair_share import fair_share
from regional_limiter.model.share import SHARE_UNITS

LOW_LOAD = 0.9
CONVERGED = 0.95
_JUMP_UNITS = SHARE_UNITS // 10
_EXTRA_TOKENS = 1e-6


@dataclass(slots=True)
class Counts:
    """Of one way to split the limit.  ``level``: tokens above the refill since the worst interval began."""

    rate: float
    capacity: int
    offered: int = 0
    admitted: int = 0
    offered_when_low: int = 0
    denied_when_low: int = 0
    by_region: list[int] = field(default_factory=list)
    level: float = 0.0
    level_most: float = 0.0
    at_s: float = 0.0

    def tick(self, at_s: float) -> None:
        self.level = max(0.0, self.level - self.rate * (at_s - self.at_s))
        self.at_s = at_s

    def count(self, place: int, allowed: bool, is_low: bool, ideal: bool, cost: int = 1) -> None:
        """``ideal``: whether one bucket without any distance allowed it."""
        self.offered += 1
        self.offered_when_low += is_low
        if allowed:
            self.admitted += 1
            self.by_region[place] += 1
            self.level += cost
            self.level_most = max(self.level_most, self.level)
        elif is_low and ideal:
            self.denied_when_low += 1

    @property
    def excess(self) -> float:
        over = self.level_most - self.capacity
        return over if over > _EXTRA_TOKENS else 0.0

    @property
    def false_rejects(self) -> float:
        return self.denied_when_low / self.offered_when_low if self.offered_when_low else 0.0


@dataclass(slots=True)
class Convergence:
    """Watches shares against what is fair by the rates that are asked for at the moment."""

    weights: Sequence[int]
    limit: float
    times_s: list[float] = field(default_factory=list)
    unfinished: int = 0
    _fair: list[int] = field(default_factory=list)
    _since_s: float | None = None
    _rising: list[int] = field(default_factory=list)

    def tick(self, at_s: float, rates: Sequence[float], shares: Sequence[int]) -> None:
        fair = self._fair_for(rates)
        if self._fair and max(abs(a - b) for a, b in zip(fair, self._fair, strict=True)) > _JUMP_UNITS:
            self.unfinished += self._since_s is not None
            self._since_s = at_s
            self._rising = [place for place, value in enumerate(fair) if value > self._fair[place]]
        self._fair = fair
        if self._since_s is not None and all(shares[p] >= CONVERGED * fair[p] for p in self._rising):
            self.times_s.append(at_s - self._since_s)
            self._since_s = None

    def _fair_for(self, rates: Sequence[float]) -> list[int]:
        wants = {str(place): round(SHARE_UNITS * rate / self.limit) for place, rate in enumerate(rates)}
        weights = {str(place): max(1, weight) for place, weight in enumerate(self.weights)}
        return list(fair_share(SHARE_UNITS, wants, weights).values())


def jain(values: Sequence[float]) -> float:
    """Jain's index of fairness: 1 when all are equal, 1/n when one has everything."""
    squares = len(values) * sum(value * value for value in values)
    return sum(values) ** 2 / squares if squares else 1.0


def percentile(values: Sequence[float], part: float) -> float:
    """The smallest value that ``part`` of them do not exceed (0 of nothing)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))] if ordered else 0.0
