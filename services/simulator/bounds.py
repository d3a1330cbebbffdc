"""What distance leaves at best: what any split of a limit must lose whose parts never sum above it.  Pure.

- A share that moves is out of use from when the giver has let go until the taker has heard of it: the giver's word
  to the hub, and the hub's to the taker.  That is lost even if everything is foreseen.
- Demand that jumps is not foreseen: its word goes to the hub, the hub's to the giver, and only then shares move.
- A region has its part of the burst, and no more, until its share has grown; levels are not raised then.

Demand is taken as a flow; the estimates, sampling and writing of a real system come on top.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from global_sync.allocation.fair_share import fair_share
from regional_limiter.model.share import SHARE_UNITS, region_capacity
from services.simulator.traces import Trace

STEP_S = 0.05


def fair_rates(rates: Sequence[float], limit: float) -> list[float]:
    """What each region of equal weight would be admitted of ``rates`` (a second) without any distance."""
    wants = {str(place): round(SHARE_UNITS * rate / limit) for place, rate in enumerate(rates)}
    shares = fair_share(SHARE_UNITS, wants, dict.fromkeys(wants, 1))
    return [share * limit / SHARE_UNITS for share in shares.values()]


def ideal_tokens(trace: Trace, regions: int, limit: float, capacity: int, seconds: float) -> float:
    """What one bucket without any distance admits of a trace from rest on."""
    admitted, level = 0.0, float(capacity)
    for step in range(round(seconds / STEP_S)):
        asked = STEP_S * sum(trace(place, step * STEP_S) for place in range(regions))
        passed = min(asked, level + STEP_S * limit)
        level = min(capacity, level + STEP_S * limit - passed)
        admitted += passed
    return admitted


def lost_by_moving(trace: Trace, delays_s: Sequence[float], limit: float, seconds: float) -> float:
    """Tokens that are lost while shares move along with demand that changes steadily, all of it foreseen."""
    lost = 0.0
    before = fair_rates([trace(place, 0.0) for place in range(len(delays_s))], limit)
    for step in range(1, round(seconds / STEP_S)):
        now = fair_rates([trace(place, step * STEP_S) for place in range(len(delays_s))], limit)
        # What one region lets go, another takes: each unit waits once for either's distance.
        lost += sum(abs(after - was) * delay for after, was, delay in zip(now, before, delays_s, strict=True))
        before = now
    return lost


def lost_by_a_jump(
    taker: int, gives: Mapping[int, float], delays_s: Sequence[float], capacity: int, base: int
) -> float:
    """Tokens that are lost when one region wants, all at once and from rest, what others do not use.

    ``gives``: tokens a second by the place of who gives.  ``base``: its share of the burst, out of 10,000.
    """
    moved = sum(rate * 2 * (delays_s[taker] + delays_s[giver]) for giver, rate in gives.items())
    return moved + capacity - region_capacity(capacity, base, len(delays_s))


def gifts(rates: Sequence[float], limit: float, taker: int) -> dict[int, float]:
    """What each other region has at its base and does not use, as far as ``taker`` is due it."""
    base = limit / len(rates)
    fair = fair_rates(rates, limit)
    spare = {place: max(0.0, base - rate) for place, rate in enumerate(fair) if place != taker}
    part = min(1.0, max(0.0, fair[taker] - base) / (sum(spare.values()) or 1.0))
    return {place: part * rate for place, rate in spare.items()}
