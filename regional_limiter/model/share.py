"""Shares: the part of a global limit that one region may use.  Pure.

A share is an integer out of 10,000 of a rule's limit. What it means in tokens follows from the rule's
numbers (:func:`region_capacity`), so the share protocol never sees a token.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

SHARE_UNITS = 10_000
"""The whole of a limit, in share units."""

FLOOR_PER_MILLE = 20
"""The part of a base that is never lent, in thousandths (2 %)."""

WINDOW_STATIC_PER_MILLE = 500
"""The part of a base that is a region's own in every window of an adaptive window rule, in thousandths."""

LARGEST_EXACT_INTEGER = 2**53
"""Lua numbers are doubles: every integer below this is exact in both implementations."""

ADAPTIVE_EDGE_EVERY_MS = 50
"""Token leases of adaptive rules end on multiples of this (see ``algorithms/token_lease.py``)."""

TOKEN_LEASE_US_MOST = 2 * ADAPTIVE_EDGE_EVERY_MS * 1000
"""A token that was leased under a share is spent no later than this after the share has ended."""


def floor_of(base: int, named: int = 0) -> int:
    """The floor of a base: what a region may use when nothing better is known while its base may be lent.

    ``named``: the floor that a set names, a share too; it counts where it is larger, and never beyond the base.
    """
    usual = base * FLOOR_PER_MILLE // 1000
    return usual if named <= usual else min(named, base)


_FLOOR_MARK = "#floor"


def floor_name(domain: str) -> str:
    """Where the floors of a domain stand among the bases, if its set names one: no domain is called so."""
    return domain + _FLOOR_MARK


def domain_of_floor(name: str) -> str | None:
    """The domain whose floors stand under ``name``; None: it is the name of a domain, whose bases stand there."""
    return name.removesuffix(_FLOOR_MARK) if name.endswith(_FLOOR_MARK) else None


def named_floors(bases: Mapping[str, int], per_mille: int) -> dict[str, int]:
    """The floor of each region where ``per_mille`` of its base is more than the usual one; else nothing."""
    floors = {region: base * per_mille // 1000 for region, base in bases.items()}
    return floors if any(floor > floor_of(bases[region]) for region, floor in floors.items()) else {}


def window_static(base: int) -> int:
    """What is a region's own in every window, whatever it hears from anyone; never granted to others."""
    return base * WINDOW_STATIC_PER_MILLE // 1000


WINDOW_POOL = SHARE_UNITS - window_static(SHARE_UNITS)
"""What the leader grants of a window, on top of the static parts."""


def region_capacity(capacity: int, share: int, regions: int) -> int:
    """Tokens that a region with ``share`` may hold of a limit of ``capacity`` over ``regions`` regions.

    One token a region, the rest in proportion: the sum over regions never exceeds ``capacity`` as long as
    the shares sum to at most 10,000.  A limit that has fewer tokens than there are regions is split plainly.
    """
    if share <= 0 or capacity <= 0:
        return 0
    if capacity < regions:
        return capacity * share // SHARE_UNITS
    return 1 + (capacity - regions) * share // SHARE_UNITS


def left_over(capacity: int, bases: Mapping[str, int], region: str) -> int:
    """What ``region`` may hold beyond :func:`region_capacity`, so that the parts sum to ``capacity``.

    The units that rounding down leaves over go to the regions that it took most from (largest remainder), of equals
    to the first by name.  Every region reckons it from the same bases; it holds only for all of them together.
    """
    regions = len(bases)
    proportional = capacity - regions if capacity >= regions else capacity
    takers = sorted(
        (name for name, base in bases.items() if base > 0),
        key=lambda name: (-(proportional * bases[name] % SHARE_UNITS), name),
    )
    if region not in takers:
        return 0
    left = capacity - sum(region_capacity(capacity, base, regions) for base in bases.values())
    each, some = divmod(left, len(takers))
    return each + (takers.index(region) < some)


def bases_by_weight(weights: Mapping[str, int]) -> dict[str, int]:
    """Base share per region in proportion to its weight: integers that sum to 10,000 (largest remainder).

    Ties go to the region named first.  Weights are integers >= 0, not all 0.
    """
    total = sum(weights.values())
    bases = {region: SHARE_UNITS * weight // total for region, weight in weights.items()}
    order = sorted(weights, key=lambda region: -(SHARE_UNITS * weights[region] % total))
    for region in order[: SHARE_UNITS - sum(bases.values())]:
        bases[region] += 1
    return bases


@dataclass(frozen=True, slots=True)
class ProtocolTimes:
    """The protocol's durations in microseconds.  All scale together; the ratios carry the safety argument.

    But for ``token_lease_us``: how long a token that was leased under a share may be spent after its end.
    """

    session_us: int = 20_000_000
    patience_us: int = 10_000_000
    gap_us: int = 1_000_000
    beat_us: int = 1_000_000
    report_us: int = 500_000
    write_us: int = 300_000
    drift_ppm: int = 1000
    token_lease_us: int = TOKEN_LEASE_US_MOST

    @classmethod
    def scaled(cls, scale: float) -> ProtocolTimes:
        """All durations times ``scale`` (1.0 = the defaults; a third is the least a busy machine bears)."""
        plain = cls()
        return cls(
            session_us=round(plain.session_us * scale),
            patience_us=round(plain.patience_us * scale),
            gap_us=round(plain.gap_us * scale),
            beat_us=round(plain.beat_us * scale),
            report_us=round(plain.report_us * scale),
            write_us=round(plain.write_us * scale),
        )

    @property
    def signature(self) -> tuple[int, int, int]:
        """The times that two parties count on of each other: session, patience, gap."""
        return self.session_us, self.patience_us, self.gap_us

    @property
    def consent_us(self) -> int:
        """D_c = D + P: how long a region promises to stay at its lease or floor."""
        return self.session_us + self.patience_us

    @property
    def touch_us(self) -> int:
        """How often nodes touch every primary, also when idle: a third of the gap."""
        return self.gap_us // 3

    def stretch(self, duration_us: int) -> int:
        """The most that one clock shows while another shows ``duration_us``."""
        return -(-duration_us * (1_000_000 + self.drift_ppm) // (1_000_000 - self.drift_ppm)) + 2

    def squeeze(self, duration_us: int) -> int:
        """The least that one clock shows while another shows ``duration_us``."""
        return duration_us * (1_000_000 - self.drift_ppm) // (1_000_000 + self.drift_ppm) - 2

    @property
    def session_counted_us(self) -> int:
        """S(D): the most the leader's clock shows while a session lives."""
        return self.stretch(self.session_us) + self.gap_us

    @property
    def consent_counted_us(self) -> int:
        """s(D_c): the least the leader's clock shows while a consent lives."""
        return self.squeeze(self.consent_us) - self.gap_us

    @property
    def lease_remembered_us(self) -> int:
        """For how long at least a point knows that a key was leased from, though its clock may step by the gap."""
        return self.stretch(self.token_lease_us) + self.gap_us

    @property
    def settle_age_us(self) -> int:
        """A variable younger than this settles nothing (there and back within the gap)."""
        return self.stretch(2 * self.gap_us)
