"""What a region would use of each key if nobody limited it: the wants that its agent reports.  Pure.

Demand is what was *offered*, denied included: a region must not take its own reduction for a fall in demand.
Offered cost arrives in lumps, every 10 to 50 ms and late when the machine is busy, so every step uses the time
that really passed.

``fast`` follows demand within 40 ms when it changes by more than chance explains, and otherwise averages over
some hundred tokens, at most half a second: a key with five requests a second is not a key whose demand jumps
between 0 and 20.  ``slow`` follows ``fast``; their difference is the trend that is added on top, because a
want arrives one loop later.  A want is reported when it moved enough to matter, and once more when it settled.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, exp, sqrt

from global_sync.protocol.messages import Want
from regional_limiter.model.rule import Rate
from regional_limiter.model.share import SHARE_UNITS

_FAST_US = 40_000
_FAST_US_MAX = 500_000
_TOKENS_AVERAGED = 100
_SLOW_US = 400_000
_PEAK_US = 60_000_000
_TREND = 0.5 * 0.3 / 0.4  # half of the slope, over the 0.3 s that the loop takes
_SURPRISE = 4  # standard deviations, of as many tokens as were expected
_REPORT_GAP_US = 50_000
_QUIET_US = 1_000_000
_LEAST_STEP_US = 5_000
_WANT_MAX = 2 * SHARE_UNITS
_NOTHING = Want(0, 0)

RateOf = Callable[[str], Rate | None]
"""key -> the rule's whole refill; None: no such rule (any more)."""

ShareOf = Callable[[str], tuple[int, bool]]
"""key -> (the share that the region has now, whether it holds a lease other than BASE)."""


def _unknown_share(_: str) -> tuple[int, bool]:
    """Where nobody tells the shares, every want counts as near its share."""
    return 0, False


@dataclass(slots=True)
class _Demand:
    offered: int = 0
    fast: float = 0.0  # tokens a second
    slow: float = 0.0
    peak: float = 0.0
    run: int = 0  # offered over the steps that were all above, or all below, what was expected
    run_expected: float = 0.0
    run_us: int = 0
    reported: Want = _NOTHING
    reported_at_us: int = 0
    settled: bool = True
    fresh: bool = True


class DemandEstimator:
    """The wants of one region's interesting keys.

    ``max_keys`` bounds the table; when it is full of keys that are wanted, further keys are not estimated
    (they stay at their base) and ``refused`` counts them.
    """

    def __init__(self, rate_of: RateOf, share_of: ShareOf = _unknown_share, *, max_keys: int = 5_000) -> None:
        self._rate_of = rate_of
        self._share_of = share_of
        self._max_keys = max_keys
        self._keys: dict[str, _Demand] = {}
        self._stepped_at_us: int | None = None
        self._full = False
        self.refused = 0

    def __len__(self) -> int:
        return len(self._keys)

    def offer(self, key: str, cost: int, now_us: int) -> None:
        """``cost`` tokens were asked for since the last offer (``now_us``: any clock that only goes forward)."""
        if self._stepped_at_us is None:
            self._stepped_at_us = now_us - _FAST_US
        demand = self._keys.get(key)
        if demand is None:
            if len(self._keys) >= self._max_keys and (self._full or not self._make_room()):
                self._full = True  # looked at again after the next tick
                self.refused += 1
                return
            demand = self._keys[key] = _Demand(reported_at_us=now_us)
        demand.offered += cost

    def want(self, key: str) -> Want:
        """What was last reported of ``key``."""
        demand = self._keys.get(key)
        return demand.reported if demand else _NOTHING

    def current(self) -> dict[str, Want]:
        """Every want that is not nothing, as last reported (for a new leader, who has heard none of them)."""
        return {key: demand.reported for key, demand in self._keys.items() if demand.reported.want}

    def drop(self, key: str) -> None:
        """Forget a key, for example when its rule is gone."""
        self._keys.pop(key, None)

    def tick(self, now_us: int) -> dict[str, Want]:
        """Take in what was offered until now; the wants that are worth a report."""
        if self._stepped_at_us is None:
            return {}
        step_us = now_us - self._stepped_at_us
        if step_us < _LEAST_STEP_US:
            return {}
        self._stepped_at_us, self._full = now_us, False
        slow_gain, peak_decay = 1 - exp(-step_us / _SLOW_US), exp(-step_us / _PEAK_US)
        changed: dict[str, Want] = {}
        gone: list[str] = []
        for key, demand in self._keys.items():
            rate = self._rate_of(key)
            if rate is None:
                if demand.reported.want:
                    changed[key] = _NOTHING
                gone.append(key)
                continue
            self._step(demand, step_us, slow_gain, peak_decay)
            per_token = SHARE_UNITS * rate.period_ms / (1000 * rate.tokens)  # share units for one token a second
            share, has_lease = self._share_of(key)
            want = self._due(demand, per_token, share, has_lease, now_us)
            if want is not None:
                demand.reported, demand.reported_at_us = want, now_us
                changed[key] = want
            elif self._over(demand, has_lease):
                gone.append(key)
        for key in gone:
            del self._keys[key]
        return changed

    def _step(self, demand: _Demand, step_us: int, slow_gain: float, peak_decay: float) -> None:
        sample = demand.offered * 1_000_000 / step_us
        rate = max(demand.fast, demand.slow, sample)
        span_us = min(_FAST_US_MAX, max(_FAST_US, _TOKENS_AVERAGED * 1_000_000 / rate)) if rate else _FAST_US
        if self._is_surprised(demand, step_us):
            # The whole run shows the new rate, better than its last step does.
            sample, span_us = demand.run * 1_000_000 / demand.run_us, _FAST_US
            demand.run, demand.run_expected, demand.run_us = 0, 0.0, 0
        demand.offered = 0
        demand.fast += (sample - demand.fast) * (1 - exp(-step_us / span_us))
        demand.slow += (demand.fast - demand.slow) * slow_gain
        demand.peak = max(demand.fast, demand.peak * peak_decay)

    @staticmethod
    def _is_surprised(demand: _Demand, step_us: int) -> bool:
        """Whether the last steps were off, all to one side, by more than chance explains."""
        expected = demand.fast * step_us / 1_000_000
        if (demand.offered - expected) * (demand.run - demand.run_expected) < 0:
            demand.run, demand.run_expected, demand.run_us = 0, 0.0, 0
        demand.run += demand.offered
        demand.run_expected += expected
        demand.run_us += step_us
        return abs(demand.run - demand.run_expected) > _SURPRISE * sqrt(demand.run_expected + 1)

    def _due(self, demand: _Demand, per_token: float, share: int, has_lease: bool, now_us: int) -> Want | None:
        tokens = min(2 * max(demand.fast, 1.0), max(0.0, demand.fast + _TREND * (demand.fast - demand.slow)))
        units = tokens * per_token
        want = 0 if units < 1 or tokens < 0.01 else min(_WANT_MAX, ceil(units))
        now = Want(want, min(_WANT_MAX, int(demand.peak * per_token)))
        last = demand.reported
        since_us = now_us - demand.reported_at_us
        off, scale = abs(want - last.want), max(last.want, share, 1)
        if demand.fresh:
            # The first word about a key need not wait for a gap since a report that there never was.
            since_us = max(since_us, _REPORT_GAP_US)
        matters = has_lease or want >= 0.7 * share or off > 0.5 * scale
        # Few tokens make a rough average: what chance explains is no news.
        averaged = demand.fast * _FAST_US_MAX / 1_000_000
        chance = 0.7 * want / sqrt(2 * averaged) if 0 < averaged < _TOKENS_AVERAGED else 0.0
        if off > max(0.05 * scale, chance) and matters and since_us >= _REPORT_GAP_US:
            demand.fresh = demand.settled = False
            return now
        if demand.settled or since_us < _QUIET_US:
            return None
        # A second without a report: what is left of the difference is said, until nothing is left to say.
        if off > 0.02 * scale or (want == 0 and last.want):
            return now
        demand.settled = True
        return None

    def _over(self, demand: _Demand, has_lease: bool) -> bool:
        quiet = demand.reported.want == 0 and demand.settled and demand.fast < 0.01
        return quiet and not has_lease and not demand.offered

    def _make_room(self) -> bool:
        quiet = next((key for key, demand in self._keys.items() if self._over(demand, has_lease=False)), None)
        if quiet is None:
            return False
        del self._keys[quiet]
        return True
