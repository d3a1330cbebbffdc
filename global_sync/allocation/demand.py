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
from dataclasses import dataclass, field
from math import ceil, exp, sqrt

from global_sync.protocol.messages import Want
from regional_limiter.model.rule import Rate
from regional_limiter.model.share import SHARE_UNITS

_FAST_US = 150_000
_FAST_US_MOST = 500_000
_TOKENS_AVERAGED = 100
_LEAST_RATE = _TOKENS_AVERAGED * 1_000_000 / _FAST_US_MOST
_SURPRISED_US = 15_000
_SLOW_US = 400_000
_PEAK_US = 60_000_000
_TREND = 0.5 / 0.4  # the slope, over the 0.5 s by which an average and the loop are late
_SURPRISE_SQUARED = 4**2  # standard deviations, of as many tokens as were expected
_FALL_MOST = 0.85
_NEWS = 0.05
_NEAR_NEWS = 0.02
_WRONG = 0.02  # what was said last stands as long as it is no more off
_SETTLED = 0.005  # of the want: so much the last word may be off
_LOOK_UP_US = 1_000_000
_REPORT_GAP_US = 50_000
_JUMP_GAP_US = 20_000
_QUIET_US = 1_000_000
_BEGUN_US = 300_000
_BEGIN_US = 40_000
_LUMP_US = 20_000  # nodes hand on what they were asked for no more often
_UNSURE = 0.5  # standard deviations of what came in a second
_LEAST_STEP_US = 5_000
_GROUPS = 5
_KEYS_A_TICK = 800
_WANT_MOST = 2 * SHARE_UNITS
_NOTHING = Want(0, 0)

RateOf = Callable[[str], Rate | None]
"""key -> the rule's whole refill; None: no such rule (any more)."""

ShareOf = Callable[[str], tuple[int, bool]]
"""key -> (the share that the region has now, whether it holds a lease other than BASE)."""


def _unknown_share(_: str) -> tuple[int, bool]:
    """Where nobody tells the shares, every want counts as near its share."""
    return 0, False


@dataclass(slots=True)
class _Group:
    """Keys that have their turn together; ``stepped_at_us``: the last one."""

    keys: dict[str, _Demand] = field(default_factory=dict)
    stepped_at_us: int = 0


@dataclass(slots=True)
class _Demand:
    group: _Group
    offered: int = 0
    fast: float = 0.0  # tokens a second
    slow: float = 0.0
    peak: float = 0.0
    run: int = 0  # offered over the steps that were all above, or all below, what was expected
    run_expected: float = 0.0
    run_us: int = 0
    averaged_us: int = 0  # since a surprise
    per_token: float = 0.0
    look_up_us: int = 0
    reported: Want = _NOTHING
    reported_at_us: int = 0
    settled: bool = True
    fresh: bool = True
    begun_until_us: int = 0  # what was offered is not known yet, at the latest until then


class _Gains:
    """How far the averages move in one step; the same for all keys."""

    __slots__ = ("peak", "slow", "step_us", "surprised")

    def __init__(self, step_us: int) -> None:
        self.step_us = step_us
        self.surprised = 1 - exp(-step_us / _SURPRISED_US)
        self.slow = 1 - exp(-step_us / _SLOW_US)
        self.peak = exp(-step_us / _PEAK_US)


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
        self._groups = [_Group() for _ in range(_GROUPS)]
        self._turn = 0
        self._full = False
        self.refused = 0

    def __len__(self) -> int:
        return len(self._keys)

    def offer(self, key: str, cost: int, now_us: int) -> None:
        """``cost`` tokens were asked for since the last offer (``now_us``: any clock that only goes forward)."""
        demand = self._keys.get(key)
        if demand is None:
            if len(self._keys) >= self._max_keys and (self._full or not self._make_room()):
                self._full = True  # looked at again after the next tick
                self.refused += 1
                return
            group = min(self._groups, key=lambda one: len(one.keys))
            if not group.keys:
                group.stepped_at_us = now_us - _BEGIN_US
            demand = self._keys[key] = group.keys[key] = _Demand(group, reported_at_us=now_us)
        demand.offered += cost

    def __contains__(self, key: str) -> bool:
        return key in self._keys

    def begin_at(self, key: str, tokens_a_second: float, now_us: int) -> None:
        """A key that nothing was offered of yet, though so much was asked for in the last second."""
        self.offer(key, 0, now_us)
        demand = self._keys.get(key)
        if demand is not None and self._look_up(key, demand, now_us):
            demand.fast = demand.slow = demand.peak = tokens_a_second
            demand.averaged_us = _FAST_US
            demand.begun_until_us = now_us + _BEGUN_US

    def needed(self, key: str) -> int | None:
        """The share that is surely enough for what is asked for of ``key`` at present: as much as chance may hide
        of a second's requests comes on top.  None: not known."""
        demand = self._keys.get(key)
        if demand is None or not demand.per_token:
            return None
        return ceil((1.02 * demand.fast + _UNSURE * sqrt(demand.fast)) * demand.per_token) + 1

    def say(self, key: str, now_us: int) -> Want:
        """The want at present, without its trend, as reported now."""
        demand = self._keys[key]
        demand.reported = Want(
            min(_WANT_MOST, ceil(demand.fast * demand.per_token)),
            min(_WANT_MOST, ceil(demand.peak * demand.per_token)),
        )
        demand.reported_at_us, demand.settled, demand.fresh = now_us, False, False
        return demand.reported

    def want(self, key: str) -> Want:
        """What was last reported of ``key``."""
        demand = self._keys.get(key)
        return demand.reported if demand else _NOTHING

    def current(self) -> dict[str, Want]:
        """Every want that is not nothing, as last reported (for a new leader, who has heard none of them)."""
        return {key: demand.reported for key, demand in self._keys.items() if demand.reported.want}

    def drop(self, key: str) -> None:
        """Forget a key, for example when its rule is gone."""
        demand = self._keys.pop(key, None)
        if demand is not None:
            del demand.group.keys[key]

    def tick(self, now_us: int) -> dict[str, Want]:
        """Take in what was offered until now; the wants that are worth a report.

        With more than some thousand keys only a part of them has its turn, so that a tick stays short.
        """
        self._full = False
        changed: dict[str, Want] = {}
        stepped = 0
        for _ in self._groups:
            group = self._groups[self._turn]
            self._turn = (self._turn + 1) % len(self._groups)
            self._tick_group(group, now_us, changed)
            stepped += len(group.keys)
            if stepped >= _KEYS_A_TICK:
                break
        return changed

    def _tick_group(self, group: _Group, now_us: int, changed: dict[str, Want]) -> None:
        step_us = now_us - group.stepped_at_us
        if step_us < _LEAST_STEP_US or not group.keys:
            return
        group.stepped_at_us = now_us
        gains = _Gains(step_us)
        gone: list[str] = []
        for key, demand in group.keys.items():
            if demand.look_up_us <= now_us and not self._look_up(key, demand, now_us):
                if demand.reported.want:
                    changed[key] = _NOTHING
                gone.append(key)
                continue
            if demand.begun_until_us:
                if now_us < demand.begun_until_us and not demand.offered:
                    continue
                demand.begun_until_us = demand.offered = 0  # of a part of the step only
                continue
            self._step(demand, gains)
            want = self._due(key, demand, now_us)
            if want is not None:
                demand.reported, demand.reported_at_us = want, now_us
                changed[key] = want
            elif demand.fast < 0.01 and self._over(demand) and not self._share_of(key)[1]:
                gone.append(key)
        for key in gone:
            self.drop(key)

    def _look_up(self, key: str, demand: _Demand, now_us: int) -> bool:
        """Once a second: what a token a second is in share units.  False: there is no such rule."""
        rate = self._rate_of(key)
        if rate is None:
            return False
        demand.per_token = SHARE_UNITS * rate.period_ms / (1000 * rate.tokens)
        demand.look_up_us = now_us + _LOOK_UP_US
        return True

    def _step(self, demand: _Demand, gains: _Gains) -> None:
        # Thousands of keys come by here twenty times a second: no calls, no roots, one division or two.
        step_us, offered, fast = gains.step_us, demand.offered, demand.fast
        demand.offered = 0
        expected = fast * step_us / 1_000_000
        if (offered - expected) * (demand.run - demand.run_expected) < 0:
            demand.run, demand.run_expected, demand.run_us = 0, 0.0, 0
        demand.run += offered
        demand.run_expected += expected
        demand.run_us += step_us
        off = demand.run - demand.run_expected
        chance = _SURPRISE_SQUARED * (demand.run_expected + 1)
        if off * off > chance and abs(off) > sqrt(chance) + fast * _LUMP_US / 1_000_000:
            # More than chance and lumps explain.  The whole run, all to one side, shows the new rate best, and
            # from here on the average is of what comes now: of this step perhaps not all came at the new rate.
            sample, gain = demand.run * 1_000_000 / demand.run_us, gains.surprised
            demand.run, demand.run_expected, demand.run_us, demand.averaged_us = 0, 0.0, 0, 0
        else:
            sample = offered * 1_000_000 / step_us
            rate = max(fast, sample, _LEAST_RATE)
            span_us = max(_FAST_US, _TOKENS_AVERAGED * 1_000_000 / rate)
            gain = step_us / (step_us + min(span_us, demand.averaged_us))
            demand.averaged_us += step_us
        demand.fast = fast = fast + (sample - fast) * gain
        if demand.averaged_us:
            demand.slow += (fast - demand.slow) * gains.slow
        else:
            demand.slow = fast  # a jump is no trend
        peak = demand.peak * gains.peak
        demand.peak = fast if fast > peak else peak

    def _due(self, key: str, demand: _Demand, now_us: int) -> Want | None:
        trend = demand.fast - demand.slow
        # Of few requests a difference is mostly chance.
        noise = 0.4 * sqrt(max(demand.fast, 0.0) * 1_000_000 / (2 * _FAST_US_MOST))
        trend = max(0.0, trend - noise) if trend > 0 else min(0.0, trend + noise)
        tokens = demand.fast + _TREND * trend
        tokens = max(_FALL_MOST * demand.fast, min(tokens, 2 * max(demand.fast, 1.0)))
        units = tokens * demand.per_token
        want = 0 if units < 1 or tokens < 0.01 else min(_WANT_MOST, ceil(units))
        last = demand.reported
        off = abs(want - last.want)
        if off <= _SETTLED * last.want and (
            demand.settled or (want > 0 and demand.reported_at_us + _QUIET_US > now_us)
        ):
            return None  # so little that it cannot matter, whatever the share is
        since_us = now_us - demand.reported_at_us
        now = Want(want, min(_WANT_MOST, int(demand.peak * demand.per_token)))
        share, has_lease = self._share_of(key)
        scale = max(last.want, share, 1)
        if demand.fresh:
            # The first word about a key need not wait for a gap since a report that there never was.
            since_us = max(since_us, _REPORT_GAP_US)
        jumps = off > 0.5 * scale
        matters = has_lease or want >= 0.7 * share or jumps
        # Few tokens make a rough average: what chance explains is no news.
        averaged = demand.fast * _FAST_US_MOST / 1_000_000
        chance = 0.7 * want / sqrt(2 * averaged) if 0 < averaged < _TOKENS_AVERAGED else 0.0
        # Who is short of a share, or holds what others are short of, has to say so in time.
        least = _NEAR_NEWS if has_lease or want >= 0.9 * share else _NEWS
        if off > max(least * scale, chance) and matters and since_us >= (_JUMP_GAP_US if jumps else _REPORT_GAP_US):
            demand.fresh = demand.settled = False
            return now
        ended = want == 0 and last.want > 0
        if since_us < _QUIET_US or (demand.settled and not ended and (off <= _WRONG * scale or not matters)):
            return None
        # A second without a report: what is left of the difference is said, until nothing is left to say.
        if off > _SETTLED * scale or ended:
            return now
        demand.settled = True
        return None

    def _over(self, demand: _Demand) -> bool:
        return demand.reported.want == 0 and demand.settled and demand.fast < 0.01 and not demand.offered

    def _make_room(self) -> bool:
        quiet = next((key for key, demand in self._keys.items() if self._over(demand)), None)
        if quiet is None:
            return False
        self.drop(quiet)
        return True
