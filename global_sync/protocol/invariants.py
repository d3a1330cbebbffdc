"""What must never happen, checked where it would happen, in production too.  Pure.

A violation leaves evidence, and refuses the record or the claim that would have caused it; it never stops the
process, because the other regions' shares are still right.  Names follow the protocol's invariants:

V1  a GROW or a WELCOME leaves the counts of a key at 10,000 at most, or does not raise them
V3  a report never raises a count
V4  a leader speaks only in the newest epoch that it has read, and leads each epoch once
V5  a settled hold never rises under one seq
B   bases of a domain sum to at most 10,000
W1  what is granted of a window leaves its pool at 0 at least
E   no echo of this epoch is later than the leader's own clock
T   a report comes from a region with the same session, patience and gap
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass

from regional_limiter.model.share import SHARE_UNITS

_KEPT = 100


@dataclass(frozen=True, slots=True)
class InvariantViolated:
    """Evidence: which invariant, where (key, region or epoch), and the numbers that broke it."""

    invariant: str
    place: str
    found: str


class Evidence:
    """The last violations, and how many there were of each kind."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.last: deque[InvariantViolated] = deque(maxlen=_KEPT)
        self._untold: deque[InvariantViolated] = deque(maxlen=_KEPT)

    def require(self, holds: bool, invariant: str, place: str, found: object) -> bool:
        """True when it holds.  Otherwise the evidence is kept, and the caller refuses what it was about to do."""
        if not holds:
            self.counts[invariant] += 1
            violated = InvariantViolated(invariant, place, str(found))
            self.last.append(violated)
            self._untold.append(violated)
        return holds

    def take_untold(self) -> list[InvariantViolated]:
        """For the log: each violation once, the last hundred of a flood."""
        untold, self._untold = list(self._untold), deque(maxlen=_KEPT)
        return untold

    @property
    def total(self) -> int:
        return sum(self.counts.values())


def sum_fits(total_before: int, total_after: int) -> bool:
    """V1 at a decision: the sum fits, or the decision did not raise it (a region may grow below its base)."""
    return total_after <= SHARE_UNITS or total_after <= total_before


def hold_may_follow(hold_before: int, hold: int, base: int) -> bool:
    """V5: under one seq a hold only falls (BASE is the largest)."""
    return hold_before == base or (hold != base and hold <= hold_before)


def bases_fit(bases: Mapping[str, Mapping[str, int]]) -> bool:
    """B: no base is negative, and each domain's bases sum to at most the whole."""
    return all(
        all(base >= 0 for base in by_region.values()) and sum(by_region.values()) <= SHARE_UNITS
        for by_region in bases.values()
    )
