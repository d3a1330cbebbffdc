"""What the leader wants: who should hold how much of which key, and in which order to get there.  Pure.

:class:`LeaderSide` decides what *may* be said; nothing here can break the bound.  Here is decided what is worth
saying:

- targets by weighted max-min over what regions say they want, a little more than that, never below the floor;
- lazy reclaim: nobody is cut unless somebody is short, and small changes are left alone (the dead-band);
- cut before grow: a grow takes what room there is, and the rest when the cuts have been acknowledged;
- listen before cutting: a region at its base tells little of its demand (a key at base costs no message), so it
  is first put just below its base, which makes its demand visible, and cut a moment later by what it then wants
  (the sooner, the less it seems to want);
- a region that has fallen silent keeps what it holds; shortly before its consent ends the others are cut back
  so that its base fits again (the late cut), while their sessions are still renewed;
- a key that nobody needs beyond its base goes back to base everywhere, and is forgotten.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import NamedTuple

from global_sync.allocation.fair_share import fair_share
from global_sync.protocol.leader import LeaderSide
from global_sync.protocol.ledger import domain_of
from global_sync.protocol.messages import Record
from regional_limiter.model.enforcement import BASE
from regional_limiter.model.share import SHARE_UNITS, ProtocolTimes, floor_name, floor_of

_HEADROOM_PER_MILLE = 7
_HEADROOM_UNITS = SHARE_UNITS // 2000
_ROOM_TO_GROW = 4
_ROOM_UNITS = SHARE_UNITS // 200
"""A quarter, and half a hundredth, before anyone gets back what it wanted lately."""
_DEAD_BAND_UNITS = SHARE_UNITS // 500
_CALM_US = 1_000_000
_RETRY_US = 300_000
_RETRY_US_MOST = 2_000_000
_LOOK_AROUND_BEATS = 30
_LISTEN_US = 250_000
_LISTEN_TO_WANTS_US = 1_000_000
"""A region that asks for something is heard out: after 250 ms twenty requests a second may look like five."""
_SILENT_BEATS = 2
_LATE_CUT_BEATS = 5
"""Before its consent ends.  Nobody is renewed from S(D) before that end on, so the others' sessions end some
3 beats before it: the gap, and a beat, a report and a write that the last renewal was old."""
_SLOW_BEATS = 2
_REST_BEATS, _REST_BEATS_CROWDED = 35, 5
"""Whoever asks again within half a minute finds what it held, as long as there is plenty of room for keys."""
KEYS_A_STEP = 200
RECORDS_A_STEP = 1_000
_RETRIES_A_KEY = 4
"""Queued at most, over all keys."""


@dataclass(slots=True)
class _Region:
    """One region's place in one key, as the policy sees it.  ``due``: what it should come to hold."""

    base: int
    held: int
    want: int
    peak: int
    moves: bool  # it hears us: it can be given more or less
    fixed: int  # what is set aside for it while it does not move
    heard: bool  # its want is all that it would use
    late: bool = False
    next_base: int = 0  # its base once the newest configuration is in force, if that is more, else its base
    floor: int = 0  # never lent, as it is or, if that is more, once the newest configuration is in force
    floor_grows: bool = False
    at_base: bool = False  # it holds its base, whatever that is
    due: int = 0

    @property
    def needs_more(self) -> bool:
        """More than its base: as it says, or, while it cannot say anything, as it holds."""
        return self.want > 0 and self.asks > self.base if self.moves else self.fixed > self.base

    @property
    def asks(self) -> int:
        if self.want == 0:
            return self.floor
        return max(self.floor, self.want + self.want * _HEADROOM_PER_MILLE // 1000 + _HEADROOM_UNITS)


class _BaseAndFloor(NamedTuple):
    """Of a domain and region: base and floor, as they are and, if that is more, once the newest configuration is in
    force."""

    region: str
    base: int
    floor: int
    next_base: int
    next_floor: int


@dataclass(frozen=True, slots=True)
class _Situation:
    """The regions at one moment.  ``hearing``: they can be given more or less.  ``late``: not heard for a while,
    and the consent ends soon, or has ended."""

    hearing: frozenset[str]
    late: frozenset[str]
    free: frozenset[str]
    version: int


@dataclass(slots=True)
class _Plan:
    """``idle_us``: since when nobody needs more than its base (None: somebody does).  ``retry_us``: look again
    then, although nothing was reported (0: no need); later each time in vain.
    ``queued_us``: the newest retry that waits for its time.  ``left_base_us``: since when a region is known to use
    another share than its base."""

    changed_us: int
    idle_us: int | None = None
    retry_us: int = 0
    left_base_us: dict[str, int] = field(default_factory=dict)
    pause_us: int = _RETRY_US
    queued_us: int = 0


class LeaderPolicy:
    """The wishes of one leadership; made anew at each takeover."""

    def __init__(self, times: ProtocolTimes) -> None:
        self._beat_us = times.beat_us
        self._began_us: int | None = None
        self._swept_us = 0
        self._blocked = False
        self._due: dict[str, None] = {}
        self._plans: dict[str, _Plan] = {}
        self._retries: list[tuple[int, str]] = []
        self._regions_of: dict[str, list[_BaseAndFloor]] = {}
        self._turn: list[str] = []
        self._situation: _Situation | None = None

    def step(self, now_us: int, leader: LeaderSide) -> list[Record]:
        """The records that should be appended now, already booked by ``leader``.  Call every 10 to 50 ms."""
        if self._began_us is None:
            self._began_us = now_us
        changed = leader.take_changed()
        self._due.update(dict.fromkeys(changed))
        if not leader.active or leader.snapping:
            return []
        records: list[Record] = []
        situation = self._situation_now(now_us, leader)
        if now_us - self._swept_us >= self._beat_us:
            self._swept_us = now_us
            records += leader.tend(now_us)
            self._look_around(leader)
        if situation != self._situation:
            self._situation = situation
            self._due.update(dict.fromkeys(leader.keys))
            self._due.update(dict.fromkeys(leader.wanted_keys()))
        self._take_retries(now_us)
        self._regions_of.clear()
        for key in list(islice(self._due, KEYS_A_STEP)):
            del self._due[key]
            records += self._step_key(now_us, leader, key, situation)
            if len(records) >= RECORDS_A_STEP:
                break
        if self._blocked and changed and leader.fits(now_us):
            records += leader.beat(now_us, self.leave_out(now_us, leader))
        return records

    def _take_retries(self, now_us: int) -> None:
        retries = self._retries
        while retries and retries[0][0] <= now_us:
            retry_us, key = heappop(retries)
            plan = self._plans.get(key)
            if plan is None:
                continue
            if plan.queued_us == retry_us:
                plan.queued_us = 0
            if plan.retry_us == retry_us:
                self._due[key] = None

    def _look_around(self, leader: LeaderSide) -> None:
        """A few keys that nobody has spoken of, in turn: what was missed is found within a minute or so."""
        if not self._turn:
            self._turn = list(leader.keys)
        for _ in range(min(len(self._turn), max(1, len(self._plans) // _LOOK_AROUND_BEATS))):
            self._due[self._turn.pop()] = None

    def _situation_now(self, now_us: int, leader: LeaderSide) -> _Situation:
        silent = {region for region in leader.regions if self._is_silent(region, now_us, leader)}
        soon_us = _LATE_CUT_BEATS * self._beat_us
        return _Situation(
            # Not heard by anyone yet: a fresh leader knows no consent, and that alone is no reason to cut.
            hearing=frozenset(name for name in leader.regions - silent if leader.live(name, now_us)),
            late=frozenset(name for name in silent if leader.consent_left(name, now_us) < soon_us),
            free=frozenset(name for name in leader.regions if leader.free(name, now_us)),
            version=leader.config_version + leader.done_version,
        )

    def leave_out(self, now_us: int, leader: LeaderSide) -> set[str]:
        """To be called for every BEAT.  Regions that do not acknowledge: not renewed, so that they lapse alone
        and block nobody."""
        # Only a region that is free can keep things from fitting; then a BEAT is due as soon as they do.
        some_free = any(leader.free(region, now_us) for region in leader.regions)
        self._blocked = some_free and not leader.fits(now_us)
        return leader.slow_regions(now_us, _SLOW_BEATS * self._beat_us)

    def _is_silent(self, region: str, now_us: int, leader: LeaderSide) -> bool:
        """Nothing heard for two beats.  A fresh leader gives everyone as long to be heard at all."""
        silent_us = leader.silent_us(region, now_us)
        if silent_us is None:
            silent_us = now_us - (self._began_us or now_us)
        return silent_us > _SILENT_BEATS * self._beat_us

    # ---- one key

    def _step_key(self, now_us: int, leader: LeaderSide, key: str, situation: _Situation) -> list[Record]:
        has_records = key in leader.counts.ledger.keys
        if not has_records and not leader.wants(key):
            self._plans.pop(key, None)
            return []
        plan = self._plans.get(key)
        if plan is None:
            plan = self._plans[key] = _Plan(now_us - _CALM_US)
        plan.retry_us = 0
        records = self._records_of_key(now_us, leader, key, situation, plan, has_records)
        if plan.retry_us not in (0, plan.queued_us):
            self._queue(key, plan)
        return records

    def _queue(self, key: str, plan: _Plan) -> None:
        """Most that are queued are overtaken by a newer one before their time: now and then those go."""
        plan.queued_us = plan.retry_us
        heappush(self._retries, (plan.retry_us, key))
        if len(self._retries) > _RETRIES_A_KEY * len(self._plans):
            for one in self._plans.values():
                one.queued_us = one.retry_us
            self._retries = [(one.retry_us, name) for name, one in self._plans.items() if one.retry_us]
            heapify(self._retries)

    def _records_of_key(
        self, now_us: int, leader: LeaderSide, key: str, situation: _Situation, plan: _Plan, has_records: bool
    ) -> list[Record]:
        regions = self._look(now_us, leader, key, situation, plan)
        if any(one.needs_more for one in regions.values()):
            plan.idle_us = None
        elif has_records:
            plan.idle_us = now_us if plan.idle_us is None else plan.idle_us
            rest_us = plan.idle_us + (_REST_BEATS_CROWDED if leader.is_crowded else _REST_BEATS) * self._beat_us
            plan.retry_us = max(rest_us, now_us + _RETRY_US)
            if now_us >= rest_us:
                return leader.rest(now_us, key)
        self._share_out(key, regions)
        records = self._hold_back(now_us, leader, key, regions) if has_records else []
        records += self._move(now_us, leader, key, regions, plan)
        if records:
            plan.changed_us, plan.pause_us = now_us, _RETRY_US
        else:
            plan.pause_us = min(2 * plan.pause_us, _RETRY_US_MOST)
        return records

    def _look(
        self, now_us: int, leader: LeaderSide, key: str, situation: _Situation, plan: _Plan
    ) -> dict[str, _Region]:
        wants = leader.wants(key)
        regions: dict[str, _Region] = {}
        counts = leader.counts
        records = counts.ledger.keys.get(key)
        for region, base, floor, next_base, next_floor in self._regions_of_domain(leader, domain_of(key)):
            value = leader.lease_value(key, region)
            lease = counts.lease_at(records, region, base, now_us)
            want = wants.get(region)
            late = region in situation.late
            if value == BASE:
                plan.left_base_us.pop(region, None)
            elif lease != base:
                plan.left_base_us.setdefault(region, now_us)
            listened_us = now_us - plan.left_base_us.get(region, now_us)
            regions[region] = _Region(
                base=base,
                held=base if value == BASE else value,
                want=want.want if want else 0,
                peak=want.peak if want else 0,
                moves=region in situation.hearing,
                fixed=max(lease, base if late else floor),
                late=late,
                next_base=next_base,
                floor=next_floor,
                floor_grows=next_floor > floor,
                at_base=value == BASE,
                heard=base <= 1 or listened_us >= (_LISTEN_TO_WANTS_US if want and want.want else _LISTEN_US),
            )
        return regions

    def _regions_of_domain(self, leader: LeaderSide, domain: str) -> list[_BaseAndFloor]:
        """Every region that may use something of the domain; worked out once a step."""
        known = self._regions_of.get(domain)
        if known is None:
            known = self._regions_of[domain] = _bases_and_floors(leader, domain)
        return known

    def _share_out(self, key: str, regions: Mapping[str, _Region]) -> None:
        """Set what is due to each region that hears us, of what is not set aside for those that do not."""
        moving = {name: one for name, one in regions.items() if one.moves}
        floors = {name: one.floor for name, one in moving.items()}
        left = SHARE_UNITS - sum(one.fixed for one in regions.values() if not one.moves)
        left = max(left, sum(floors.values()))
        asks = {name: one.asks for name, one in moving.items()}
        needs = {name: max(one.floor, one.want) for name, one in moving.items()}
        peaks = {name: one.peak for name, one in moving.items()}
        grown = {name: ask + ask // _ROOM_TO_GROW + _ROOM_UNITS for name, ask in asks.items()}
        # In this order: what is wanted, some headroom, room to grow, what was wanted lately.
        if sum(asks.values()) > left >= sum(needs.values()):
            asks, peaks = needs, asks
        elif sum(grown.values()) > left:
            peaks = grown
        else:
            asks = grown
        shares = fair_share(
            left,
            asks,
            {name: max(1, one.base) for name, one in moving.items()},
            floors,
            held={name: one.held for name, one in moving.items()},
            peaks=peaks,
            tie_key=key,
        )
        for name, one in moving.items():
            one.due = shares[name]

    def _hold_back(self, now_us: int, leader: LeaderSide, key: str, regions: Mapping[str, _Region]) -> list[Record]:
        """Who is to have a larger base keeps the one that it has until others have made room: else the new one
        would count at once, never fit beside what they were lent of it, and never come into force."""
        return [
            record
            for name, one in regions.items()
            if one.moves and one.at_base and one.next_base > one.base
            for record in leader.lease(now_us, key, name, one.base)
        ]

    def _move(
        self, now_us: int, leader: LeaderSide, key: str, regions: Mapping[str, _Region], plan: _Plan
    ) -> list[Record]:
        calm_us = now_us - plan.changed_us
        moving = {name: one for name, one in regions.items() if one.moves}
        short = {
            name: one
            for name, one in moving.items()
            if 100 * one.want > 95 * one.held and one.due > one.held + _dead_band(one.held, calm_us)
        }
        more_comes = any(one.late or one.next_base > one.base or one.floor_grows for one in regions.values())
        make_room = more_comes and not self._what_comes_fits(now_us, leader, key, regions)
        if not short and not make_room:
            return []
        retry_us = now_us + plan.pause_us
        plan.retry_us = min(plan.retry_us, retry_us) if plan.retry_us else retry_us
        records: list[Record] = []
        missing = sum([one.due - one.held for one in short.values()])
        room = SHARE_UNITS - leader.counts.total(key, now_us)
        if make_room or room < missing:
            for name, one in moving.items():
                band = 0 if make_room else _dead_band(one.held, calm_us)
                if one.held <= one.due + band:
                    continue
                target = one.due
                if not (one.heard or make_room):
                    target = max(one.due, one.base - 1)
                    plan.retry_us = now_us + _LISTEN_US
                if target < one.held:
                    records += leader.lease(now_us, key, name, target)
        for name, one in sorted(short.items(), key=lambda item: item[1].held - item[1].due):
            if leader.room(key, name, now_us) >= min(one.due, one.held + _dead_band(one.held, calm_us)):
                records += leader.lease(now_us, key, name, one.due)
        return records

    @staticmethod
    def _what_comes_fits(now_us: int, leader: LeaderSide, key: str, regions: Mapping[str, _Region]) -> bool:
        """Whether everything fits once the silent regions whose consent ends soon are back at their bases, and the
        newest configuration is in force."""
        counts = {name: leader.count(key, name, now_us) for name in regions}
        ahead = sum(max(counts[name], one.base if one.late else one.floor) for name, one in regions.items())
        return ahead <= SHARE_UNITS


def _bases_and_floors(leader: LeaderSide, domain: str) -> list[_BaseAndFloor]:
    ledger, floors_of = leader.counts.ledger, floor_name(domain)
    booked, floors = ledger.booked.get(domain, {}), ledger.booked.get(floors_of, {})
    named = ledger.bases.get(domain, {})
    pending = leader.config_version != leader.done_version
    next_floors = ledger.bases.get(floors_of, {})
    found = []
    for region in booked.keys() | named.keys():
        base = next_base = booked.get(region, 0)
        floor = next_floor = floor_of(base, floors.get(region, 0))
        if pending:
            next_base = max(base, named.get(region, 0))
            next_floor = max(floor, floor_of(next_base, next_floors.get(region, 0)))
        found.append(_BaseAndFloor(region, base, floor, next_base, next_floor))
    return found


def _dead_band(held: int, calm_us: int) -> int:
    """A quarter after a second without a change, and a sixteenth after three: what stays wrong is put right."""
    band = max(held // 100, _DEAD_BAND_UNITS)
    if calm_us < _CALM_US:
        return band
    return band // 4 if calm_us < 3 * _CALM_US else band // 16
