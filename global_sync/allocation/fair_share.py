"""Who gets how much of a limit: weighted max-min with floors, in exact integers.  Pure.

Every region gets what it wants as long as that fits.  When it does not, a level rises over all regions in
proportion to their weights; whoever reaches its want stays there, and nobody is under its floor (or its want,
if that is less).  Claiming more than one needs gains nothing, unlike with proportional schemes.

The result is the same in every process: no floats, remainders by size, ties to the region that already held
the unit and then by a hash that does not depend on the process.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from math import lcm


def fair_share(
    capacity: int,
    wants: Mapping[str, int],
    weights: Mapping[str, int],
    floors: Mapping[str, int] | None = None,
    *,
    held: Mapping[str, int] | None = None,
    peaks: Mapping[str, int] | None = None,
    tie_key: str = "",
) -> dict[str, int]:
    """The share of each region of ``wants``, in the units of ``capacity``.

    ``wants`` >= 0, ``weights`` > 0, ``floors`` >= 0 with a sum of at most ``capacity``.  ``held``: what each
    region has now; it only breaks ties.  Without ``peaks`` the shares sum to min(capacity, sum of wants); with
    ``peaks`` what nobody wants is handed out too: first towards the peaks, then in equal parts.

    Raises ValueError for arguments outside these ranges.
    """
    floors, held = floors or {}, held or {}
    low = {region: min(floors.get(region, 0), want) for region, want in wants.items()}
    _check(capacity, wants, weights, floors)
    if sum(wants.values()) > capacity:
        return _rise(capacity, wants, weights, low, held, tie_key)
    shares = dict(wants)
    if peaks is None or not shares:
        return shares
    ones = dict.fromkeys(shares, 1)
    gaps = {region: max(0, peaks.get(region, 0) - share) for region, share in shares.items()}
    for bounds in (gaps, dict.fromkeys(shares, capacity)):
        rest = capacity - sum(shares.values())
        held_above = {region: held.get(region, 0) - share for region, share in shares.items()}
        # A rest that reaches every bound leaves something over for the next round.
        fits = sum(bounds.values()) <= rest
        more = bounds if fits else _rise(rest, bounds, ones, dict.fromkeys(shares, 0), held_above, tie_key)
        shares = {region: share + more[region] for region, share in shares.items()}
    return shares


def _check(capacity: int, wants: Mapping[str, int], weights: Mapping[str, int], floors: Mapping[str, int]) -> None:
    if capacity < 0 or any(want < 0 for want in wants.values()) or any(low < 0 for low in floors.values()):
        raise ValueError("capacity, wants and floors are never negative")
    if any(weights.get(region, 0) <= 0 for region in wants):
        raise ValueError("every region that wants something has a weight above 0")
    if sum(floors.get(region, 0) for region in wants) > capacity:
        raise ValueError("the floors sum to more than the capacity")


def _rise(
    capacity: int,
    wants: Mapping[str, int],
    weights: Mapping[str, int],
    low: Mapping[str, int],
    held: Mapping[str, int],
    tie_key: str,
) -> dict[str, int]:
    """The level at which sum of clamp(level * weight, low, want) is ``capacity`` < sum of wants."""
    # Levels are counted in 1/scale, so that every point where a region starts or stops to rise is an integer.
    scale = lcm(*(weights[region] for region in wants))
    points: list[tuple[int, int, int]] = []
    for region, want in wants.items():
        if low[region] == want:
            continue  # never rises: its start and its stop, at one level, could come in the wrong order
        weight = weights[region]
        points.append((low[region] * (scale // weight), weight, -low[region]))
        points.append((want * (scale // weight), -weight, want))
    points.sort()
    # Sum of the shares at level x/scale: resting + rising * x / scale.
    resting, rising = sum(low.values()), 0
    for level, weight_change, rest_change in points:
        if resting * scale + rising * level >= capacity * scale and rising:
            break
        rising += weight_change
        resting += rest_change
    above = capacity - resting
    shares: dict[str, int] = {}
    remainders: dict[str, int] = {}
    for region, want in wants.items():
        exact = weights[region] * above  # over `rising`
        if rising == 0 or exact <= low[region] * rising:
            shares[region] = low[region]
        elif exact >= want * rising:
            shares[region] = want
        else:
            shares[region], remainders[region] = divmod(exact, rising)
    missing = capacity - sum(shares.values())
    if missing > 0:
        for region in _by_remainder(remainders, shares, held, tie_key)[:missing]:
            shares[region] += 1
    return shares


def _by_remainder(
    remainders: Mapping[str, int], shares: Mapping[str, int], held: Mapping[str, int], tie_key: str
) -> list[str]:
    ranks = {
        region: (-remainder, held.get(region, 0) <= shares[region]) for region, remainder in remainders.items()
    }
    if len(set(ranks.values())) == len(ranks):
        return sorted(ranks, key=lambda region: ranks[region])
    return sorted(ranks, key=lambda region: (*ranks[region], _hash(tie_key, region)))


def _hash(tie_key: str, region: str) -> bytes:
    return blake2b(f"{tie_key}\0{region}".encode(), digest_size=8).digest()
