"""What is counted of a log's requests: by rule and by key, as decided over regions and in one place.  Pure.

*False rejects* are requests that a rule denied though, with everything in one place, all would have allowed them.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from regional_limiter.store.base import BucketCall

ARRIVALS_MOST = 4_000_000
"""Requests whose moments are kept, for the models beside: 12 bytes each."""


@dataclass(slots=True)
class Asked:
    """Of a rule or a key: tokens and requests.  ``excess``: tokens above the limit, in the worst interval.

    ``allowed``, ``at_once``, ``parted``: tokens of the requests that all their rules allowed: over regions, in one
    place, and by parts for good.
    """

    requests: int = 0
    tokens: int = 0
    allowed: int = 0
    at_once: int = 0
    parted: int = 0
    false_rejects: int = 0
    excess: float = 0.0

    def count(self, cost: int, here: bool, at_once: bool, parted: bool, false_reject: bool) -> None:
        self.requests += 1
        self.tokens += cost
        self.allowed += cost * here
        self.at_once += cost * at_once
        self.parted += cost * parted
        self.false_rejects += false_reject

    @property
    def utilisation(self) -> float:
        return self.allowed / self.at_once if self.at_once else 1.0


@dataclass(slots=True, kw_only=True)
class Key(Asked):
    """One bucket.  ``call``: what is asked of it, with its rule's numbers.

    ``moments``: of the requests that no other rule denied in one place, as far as they are kept; see ``arrivals``.
    """

    name: str
    call: BucketCall
    moments: array[int] = field(default_factory=lambda: array("q"))

    def note(self, at_us: int, place: int, cost: int, allowed: bool) -> None:
        self.moments.append(at_us)
        self.moments.append(cost << 17 | place << 1 | allowed)

    def arrivals(self) -> Sequence[tuple[int, int, int, bool]]:
        """(us since the log began, place, tokens, whether the regions allowed them)."""
        pairs = zip(self.moments[::2], self.moments[1::2], strict=True)
        return [(at_us, word >> 1 & 0xFFFF, word >> 17, bool(word & 1)) for at_us, word in pairs]
