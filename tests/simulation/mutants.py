"""One rule broken at a time, by overriding what implements it: the schedules must notice.

A table of name -> the classes to play with.  Production code carries no switches.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from global_sync.agent import Agent
from global_sync.protocol.counts import Bases, Counts, Resting
from global_sync.protocol.escrow import EscrowLeader, EscrowRegion, Grant, WindowLedger
from global_sync.protocol.leader import LeaderSide
from global_sync.protocol.ledger import Ledger
from global_sync.protocol.messages import (
    Kind,
    LeaseRecord,
    Mark,
    Record,
    Report,
    Snapshot,
    Welcome,
    WindowAsk,
    WindowGrant,
)
from global_sync.protocol.points import Point, Rest
from global_sync.protocol.region import RegionSide
from global_sync.protocol.region_state import KeyHistory, KeyState
from global_sync.simulation.parts import Parts
from global_sync.simulation.redis import LIBRARY, RegionStore
from regional_limiter.fallback import Fallback
from regional_limiter.model.decision import ShareKind
from regional_limiter.model.enforcement import BASE, Enforcement, ShareInForce, Write, WriteReply
from regional_limiter.model.escrow import PointWindows, WindowNews
from regional_limiter.model.share import (
    SHARE_UNITS,
    WINDOW_POOL,
    ProtocolTimes,
    domain_of_floor,
    floor_name,
    floor_of,
)
from regional_limiter.nodes_seen import NodesSeen
from regional_limiter.store.base import BucketCall, TokenLease
from regional_limiter.token_lease_table import Ask, TokenLeaseTable

from .cast import Cast

_Part = TypeVar("_Part")
MUTANTS: dict[str, Cast] = {}


def region(cls: type[RegionSide]) -> type[RegionSide]:
    MUTANTS[cls.__name__] = Cast(region=cls, broken=cls.__name__)
    return cls


def leader(cls: type[LeaderSide]) -> type[LeaderSide]:
    MUTANTS[cls.__name__] = Cast(leader=cls, broken=cls.__name__)
    return cls


def counts(cls: type[Counts]) -> type[Counts]:
    class Leader(LeaderSide):
        def _count(self, ledger: Ledger, now_us: int) -> Counts:
            return cls(ledger, self.times, now_us)

    MUTANTS[cls.__name__] = Cast(leader=Leader, broken=cls.__name__)
    return cls


_PARTS = {
    Enforcement: "enforcement",
    Fallback: "fallback",
    NodesSeen: "nodes_seen",
    TokenLeaseTable: "token_leases",
    RegionStore: "store",
    Agent: "agent",
}


def system(cls: type[_Part]) -> type[_Part]:
    part = next(name for real, name in _PARTS.items() if issubclass(cls, real))
    MUTANTS[cls.__name__] = Cast(parts=replace(Parts(), **{part: cls}), broken=cls.__name__)
    return cls


def enforcement(cls: type[Enforcement]) -> type[Enforcement]:
    MUTANTS[cls.__name__] = Cast(enforcement=cls, broken=cls.__name__)
    return cls


# ---- what a region says


@region
class echo_unsettled(RegionSide):
    def report(self, max_keys: int = 2000) -> Report | None:
        report = super().report(max_keys)
        return report and replace(report, echo=self._leader_time)


@region
class ack_on_read(RegionSide):
    def report(self, max_keys: int = 2000) -> Report | None:
        report = super().report(max_keys)
        read = {key: (entry.state.seq, entry.state.value) for key, entry in self._keys.items()}
        return report and replace(report, settled=read)


@region
class cver_on_read(RegionSide):
    def report(self, max_keys: int = 2000) -> Report | None:
        report = super().report(max_keys)
        return report and replace(report, base_version=self.base_version)


@region
class no_rest(RegionSide):
    def on_reply(self, point: str, reply: WriteReply) -> None:
        super().on_reply(point, replace(reply, resting=()))


@region
class base_nowait(RegionSide):
    def on_listing(self, token: int, points: Iterable[str], nodes_base_version: int | None) -> None:
        super().on_listing(token, points, 2**40)


@region
class no_age(RegionSide):
    def on_reply(self, point: str, reply: WriteReply) -> Rest | None:
        return super().on_reply(point, replace(reply, age_us=10**9))


@region
class short_age(RegionSide):
    def on_reply(self, point: str, reply: WriteReply) -> Rest | None:
        return super().on_reply(point, replace(reply, age_us=reply.age_us + self.times.gap_us))


# ---- what a region reads and writes


@region
class ext_always(RegionSide):
    def _extends(self, point: Point) -> bool:
        return True


@region
class nofence(RegionSide):
    def _is_valid(self, epoch: int) -> bool:
        return True


@region
class nomono(RegionSide):
    def _is_old(self, entry: KeyHistory | None, seq: tuple[int, int]) -> bool:
        return False


@region
class noses(RegionSide):
    def _is_own_session(self, session: int) -> bool:
        return True


@region
class nodepose(RegionSide):
    def _depose(self) -> None:
        pass


@region
class keep_raises(RegionSide):
    def _value_after(self, record: LeaseRecord) -> int:
        return record.value


@region
class vouch_early(RegionSide):
    def _vouches(self, point: Point, states: Mapping[str, KeyState]) -> bool:
        return True


@region
class until_from_reply(RegionSide):
    def _extend_session(self, basis: int) -> None:
        for point in self._points.values():
            point.until_us = max(point.until_us, point.time_us + self.times.session_us)


@region
class until_other_inst(RegionSide):
    def _extend_session(self, basis: int) -> None:
        for _, time_us in self._marks.get(basis, {}).values():
            for point in self._points.values():
                point.until_us = max(point.until_us, time_us + self.times.session_us)


@region
class base_raise_early(RegionSide):
    def _base_until_done(self, domain: str) -> int:
        return self._next_bases.get(domain, 0)


@region
class snap_base(RegionSide):
    def _base_from_snapshot(self, domain: str, booked: Mapping[str, int]) -> int:
        return self._next_bases.get(domain, 0)


# ---- several points, keys that come and go


@region
class one_point(RegionSide):
    def _settle(self, written: Iterable[str] | None = None) -> None:
        everywhere, first = self._points, min(self._points, default="")
        self._points = {name: point for name, point in everywhere.items() if name == first}
        if self._points:
            super()._settle(written)
        self._points = everywhere


@region
class listing_any(RegionSide):
    def on_listing(self, token: int, points: Iterable[str], nodes_base_version: int | None) -> None:
        super().on_listing(self.listing_started(), points, nodes_base_version)


@region
class no_watermark(RegionSide):
    def _is_old(self, entry: KeyHistory | None, seq: tuple[int, int]) -> bool:
        return entry is not None and super()._is_old(entry, seq)


@region
class release_stays(RegionSide):
    def _lower_released(self) -> None:
        pass


@leader
class welcome_lost(LeaderSide):
    def _is_hello(self, report: Report, current: int, now_us: int) -> bool:
        known = self._ledger.agents.get(report.region, {}).get(report.agent)
        return (known is None or known == current) and super()._is_hello(report, current, now_us)


# ---- what a leader counts


@counts
class con_no_drift(Counts):
    def raise_consent(self, region: str, echo_us: int) -> None:
        self.consents[region] = max(self.consent(region), echo_us + self.times.consent_us)


@counts
class free_now(Counts):
    def free(self, region: str, now_us: int) -> bool:
        return self.consent(region) <= now_us


@counts
class renew_one_key(Counts):
    def key_fits(self, key: str, now_us: int, resting: Resting) -> bool:
        return not key.endswith("k0") or super().key_fits(key, now_us, resting)


@counts
class no_exempt(Counts):
    """A key on which nobody has more than its base must fit as well."""

    def _all_at_base(self, resting: Resting, key: str, now_us: int) -> bool:
        return False


@counts
class exempt_more(Counts):
    def key_fits(self, key: str, now_us: int, resting: Resting) -> bool:
        held = [self.lease_max(key, name, now_us) - base for name, (base, _) in resting.of.items()]
        return super().key_fits(key, now_us, resting) or max(held) <= 1700


@counts
class fits_unchanged(Counts):
    """Keys that did fit are taken to do so whatever becomes of sessions and bases."""

    def fits(self, now_us: int, booked: Bases | None = None) -> bool:
        if self._fitted:
            self._fitted = (*self._fitted[:2], self.ledger.changes)
        return super().fits(now_us, booked)


@counts
class fits_bound(Counts):
    """Keys that did fit are taken to do so although a region has turned free."""

    def fits(self, now_us: int, booked: Bases | None = None) -> bool:
        if self._fitted:
            bound = frozenset([region for region in self.consents if not self.free(region, now_us)])
            self._fitted = (self._fitted[0], bound, self._fitted[2])
        return super().fits(now_us, booked)


@counts
class rest_once(Counts):
    """What regions use without a lease is added up once for ever."""

    def _resting_of(self, domain: str, now_us: int) -> Resting:
        self._resting_us, self._resting_changes = now_us, self.ledger.changes
        return super()._resting_of(domain, now_us)


@counts
class grow_ignores_free(Counts):
    def room(self, key: str, region: str, now_us: int) -> int:
        others = [name for name in self._resting_of("shop", now_us).of if name != region]
        floors = {name: floor_of(self.ledger.base("shop", name)) for name in others}
        return SHARE_UNITS - sum(max(self.lease_max(key, name, now_us), floors[name]) for name in others)


@counts
class nowait(Counts):
    def room(self, key: str, region: str, now_us: int) -> int:
        total = 0
        for name, (base, resting) in self._resting_of("shop", now_us).of.items():
            newest = self.ledger.keys.get(key, {}).get(name, [])[-1:]
            held = [base if entry.value == BASE else entry.value for entry in newest]
            total += 0 if name == region else max([*held, resting])
        return SHARE_UNITS - total


@counts
class nodrift(Counts):
    def extend(self, region: str, session: int, received_us: int) -> None:
        known = self.ledger.sessions[region, session]
        known.end_us = max(known.end_us, received_us + self.times.session_us)


@counts
class short_end(Counts):
    def extend(self, region: str, session: int, received_us: int) -> None:
        known = self.ledger.sessions[region, session]
        known.end_us = max(known.end_us, received_us + self.times.session_us // 2)


# ---- what a leader does


@leader
class con_from_rx(LeaderSide):
    def on_report(self, now_us: int, report: Report) -> list[Record]:
        return super().on_report(now_us, replace(report, echo=(report.echo[0], now_us)))


@leader
class echo_any_ep(LeaderSide):
    def on_report(self, now_us: int, report: Report) -> list[Record]:
        return super().on_report(now_us, replace(report, echo=(self.epoch, report.echo[1])))


@leader
class stale_ses(LeaderSide):
    def on_report(self, now_us: int, report: Report) -> list[Record]:
        current = self._ledger.current.get(report.region, 0)
        return super().on_report(now_us, replace(report, session=current) if report.session else report)


@leader
class tau_late(LeaderSide):
    def beat(self, now_us: int, leave_out: Any = ()) -> list[Record]:
        return [replace(beat, leader_us=now_us + 300) for beat in super().beat(now_us, leave_out)]  # type: ignore[call-arg]


@leader
class renew_unchecked(LeaderSide):
    def _may_renew(self, now_us: int) -> bool:
        return True


@leader
class takeover_trusts(LeaderSide):
    def _activate(self, now_us: int) -> None:
        super()._activate(now_us)
        for name in self.regions:
            self._counts.raise_consent(name, now_us)


@leader
class last_only(LeaderSide):
    def _activate(self, now_us: int) -> None:
        super()._activate(now_us)
        for by_region in self._ledger.keys.values():
            for name, entries in by_region.items():
                by_region[name] = entries[-1:]


@leader
class old_ses_void(LeaderSide):
    def _activate(self, now_us: int) -> None:
        super()._activate(now_us)
        for name, number in list(self._ledger.sessions):
            if self._ledger.current[name] != number:
                del self._ledger.sessions[name, number]


@leader
class same_epoch(LeaderSide):
    def take_over(self, now_us: int, nonce: str) -> Mark:
        self._own = super().take_over(now_us, nonce)
        return self._own

    def _on_mark(self, now_us: int, mark: Mark) -> None:
        super()._on_mark(now_us, mark)
        if mark == self._own and mark.epoch == self._view and not self.active:
            self._activate(now_us)

    _own: Mark | None = None


@leader
class act_on_append(LeaderSide):
    def take_over(self, now_us: int, nonce: str) -> Mark:
        mark, view = super().take_over(now_us, nonce), self._view
        self._view = mark.epoch
        self._activate(now_us)
        self._view = view
        return mark


@leader
class new_ses_drops(LeaderSide):
    def _welcome(self, now_us: int, report: Report) -> list[Record]:
        for by_region in self._ledger.keys.values():
            by_region.pop(report.region, None)
        return super()._welcome(now_us, report)


@leader
class old_ses_on_report(LeaderSide):
    def _on_current_session(self, now_us: int, report: Report) -> None:
        super()._on_current_session(now_us, report)
        self._end_older_sessions(now_us, report.region, report.session)


@leader
class old_ses_at_once(LeaderSide):
    def _end_older_sessions(self, now_us: int, region: str, session: int) -> None:
        for (name, number), known in self._ledger.sessions.items():
            if name == region and number < session:
                known.end_us = min(known.end_us, now_us)


@leader
class welc_unchecked(LeaderSide):
    def _low(self, region: str, now_us: int) -> dict[str, int]:
        return {}


@leader
class hello_once(LeaderSide):
    def _is_hello(self, report: Report, current: int, now_us: int) -> bool:
        again = report.session == 0 and report.agent in self._ledger.agents.get(report.region, {})
        return not again and super()._is_hello(report, current, now_us)

    def _welcome_again(self, now_us: int, report: Report) -> list[Record]:
        return []


@leader
class keep_as_grow(LeaderSide):
    def lease(self, now_us: int, key: str, region: str, value: int) -> list[Record]:
        records = super().lease(now_us, key, region, value)
        return [replace(record, kind=Kind.GROW) for record in records]  # type: ignore[call-arg]


@leader
class snap_open(LeaderSide):
    @property
    def snapping(self) -> bool:
        return False


@leader
class snap_last(LeaderSide):
    def snapshot(self, now_us: int, max_keys_per_part: int = 1000) -> list[Record]:
        parts = super().snapshot(now_us, max_keys_per_part)
        return [replace(part, ledger=_newest_only(part)) for part in parts]  # type: ignore[call-arg]


def _newest_only(part: Any) -> dict[str, Any]:
    return {key: {name: records[-1:] for name, records in of.items()} for key, of in part.ledger.items()}


# ---- bases


@leader
class base_unacked(LeaderSide):
    def configure(self, now_us: int, version: int, bases: Any) -> list[Record]:
        records = super().configure(now_us, version, bases)
        if records and version > 1:
            self._ledger.booked = {domain: dict(of) for domain, of in bases.items()}
        return records


@leader
class since_ever(LeaderSide):
    """What an older log does not say of bases is taken for always so."""

    def done(self, now_us: int, wall_ms: int = 0) -> list[Record]:
        was_done = self._ledger.done_version == self._ledger.version
        return super().done(now_us, 0 if was_done else wall_ms)


@region
class since_never(RegionSide):
    """Only the first DONE of a configuration counts."""

    def _hear_again(self, since: Mapping[str, int]) -> None:
        pass


@counts
class floor_uncounted(Counts):
    """Takes every floor for the usual one."""

    def resting(self, region: str, base: int, floor: int, now_us: int) -> int:
        return super().resting(region, base, floor_of(base), now_us)


@leader
class floor_unacked(LeaderSide):
    def configure(self, now_us: int, version: int, bases: Any) -> list[Record]:
        records = super().configure(now_us, version, bases)
        if records and version > 1:
            self._ledger.booked[floor_name("shop")] = dict(bases.get(floor_name("shop"), {}))
        return records


@leader
class snap_without_floors(LeaderSide):
    def _on_snapshot(self, part: Snapshot, offset: int) -> None:
        super()._on_snapshot(replace(part, booked={"shop": part.booked["shop"]} if part.booked else {}), offset)


@region
class floor_raised_early(RegionSide):
    def _base_until_done(self, domain: str) -> int:
        until = super()._base_until_done(domain)
        return until if domain_of_floor(domain) is None else self._next_bases.get(domain, 0)


@enforcement
class floor_unused(Enforcement):
    def know_base(self, now_us: int, domain: str, version: int, base: int, floor: int = 0) -> None:
        super().know_base(now_us, domain, version, base)


@enforcement
class floor_order(Enforcement):
    """A floor counts as it was told last, whatever its version."""

    def know_base(self, now_us: int, domain: str, version: int, base: int, floor: int = 0) -> None:
        super().know_base(now_us, domain, version, base, floor)
        known = self._current().bases.get(domain)
        if known is not None:
            known.floor.turn(floor, now_us)


@leader
class ack_old_ver(LeaderSide):
    """Takes the acknowledgement of any version for one of that version's bases."""

    def configure(self, now_us: int, version: int, bases: Any) -> list[Record]:
        self._all = {**getattr(self, "_all", {}), version: bases}
        return super().configure(now_us, version, bases)

    def _on_base_version(self, link: Any, report: Report) -> None:
        super()._on_base_version(link, report)
        acked = self._all.get(report.base_version // 2)
        if acked is None:
            return
        for domain, of in self._ledger.booked.items():
            of[report.region] = min(of.get(report.region, 0), acked[domain][report.region])


@leader
class cfg_old(LeaderSide):
    def configure(self, now_us: int, version: int, bases: Any) -> list[Record]:
        self._ledger.version = min(self._ledger.version, version - 1)
        return super().configure(now_us, version, bases)


@leader
class done_early(LeaderSide):
    def _done_fits(self, now_us: int, booked: Any) -> bool:
        return True

    def _config_read_back(self) -> bool:
        return True


@leader
class done_sum_only(LeaderSide):
    def _done_fits(self, now_us: int, booked: Any) -> bool:
        return all(sum(of.values()) <= SHARE_UNITS for of in booked.values())


@leader
class done_total_only(LeaderSide):
    def _done_fits(self, now_us: int, booked: Any) -> bool:
        return self._counts.fits(now_us, booked)


# ---- the enforcement point


@enforcement
class noinst(Enforcement):
    def write(self, now_us: int, write: Write, replication_id: str = "") -> WriteReply:
        self.enter(now_us)
        return super().write(now_us, replace(write, instance=self.instance or write.nonce), replication_id)


@enforcement
class nocas(Enforcement):
    _calls = 2**40

    def write(self, now_us: int, write: Write, replication_id: str = "") -> WriteReply:
        self._calls += 1
        reply = super().write(now_us, replace(write, version=self._calls), replication_id)
        return replace(reply, version=write.version)


@enforcement
class restart_g(Enforcement):
    def _born(self, now_us: int) -> Any:
        variable = super()._born(now_us)
        variable.consent = now_us
        variable.default.turn(BASE, now_us)
        return variable


@enforcement
class no_consent(Enforcement):
    """The agent's promise is not kept: after the session the base is in force at once."""

    def write(self, now_us: int, write: Write, replication_id: str = "") -> WriteReply:
        return super().write(now_us, replace(write, extend=False), replication_id)


@system
class base_order(Enforcement):
    """A base counts as it was told last, whatever its version."""

    def know_base(self, now_us: int, domain: str, version: int, base: int, floor: int = 0) -> None:
        super().know_base(now_us, domain, version, base, floor)
        known = self._current().bases.get(domain)
        if known is not None:
            known.version = version
            known.series.turn(base, now_us)

    def _learn_bases(self, variable: Any, now_us: int, write: Write) -> None:
        variable.base_version = write.base_version
        super()._learn_bases(variable, now_us, write)


@enforcement
class ses0_writes(Enforcement):
    """A process without a session brings its bases as well."""

    def write(self, now_us: int, write: Write, replication_id: str = "") -> WriteReply:
        reply = super().write(now_us, write, replication_id)
        if write.session == 0 and write.instance == reply.instance:
            self._learn_bases(self._current(), now_us, write)
            return replace(reply, accepted=True)
        return reply


@enforcement
class ses0_writes_base_order(ses0_writes, base_order):
    """Both: what the order of base versions would still hold off."""


@enforcement
class no_gap(Enforcement):
    gap_ignored = True

    def __init__(self, times: ProtocolTimes) -> None:
        super().__init__(times)
        self._gap_us = 10**12


# ---- what the ledger forgets


@leader
class gone_at_once(LeaderSide):
    """An operator's word is taken though the region was heard of just now."""

    def gone(self, now_us: int, region: str) -> list[Record]:
        self._ledger.sessions.pop((region, self._ledger.current[region]), None)
        return super().gone(now_us, region)


@leader
class gone_forgotten(LeaderSide):
    def snapshot(self, now_us: int, max_keys_per_part: int = 1000) -> list[Record]:
        parts = super().snapshot(now_us, max_keys_per_part)
        return [replace(part, gone=()) for part in parts]  # type: ignore[call-arg]


@region
class gone_for_now(RegionSide):
    """A region that has read of its own end comes down, and rises again with the next DONE."""

    def _end_for_good(self) -> None:
        super()._end_for_good()
        self.gone = False


@region
class gone_unread(RegionSide):
    """A region that starts from a snapshot does not look whether it is gone."""

    def _on_snapshot(self, part: Snapshot) -> None:
        super()._on_snapshot(replace(part, gone=()))


@region
class gone_same_version(RegionSide):
    """Base 0 is said as of the version of the base before: nodes, which bring theirs back, never hear of it."""

    @property
    def base_version(self) -> int:
        return 2 * self._config_version + self._done


@leader
class gone_swapped(LeaderSide):
    """What was said to a region and lands after its end counts."""

    def _follow(self, record: Record) -> None:
        if isinstance(record, Welcome):
            self._fold.gone.clear()
        super()._follow(record)


@leader
class snap_first_part(LeaderSide):
    def _on_snapshot(self, part: Snapshot, offset: int) -> None:
        super()._on_snapshot(replace(part, parts=1), offset)


@leader
class snap_repeated(LeaderSide):
    def _on_snapshot(self, part: Snapshot, offset: int) -> None:
        self._parts._whole = self._parts._collecting = (0, 0) if part.part == 0 else self._parts._collecting
        super()._on_snapshot(part, offset)


@leader
class answers_stand_for_nothing(LeaderSide):
    def _stand_for(self, own: Any, seq: tuple[int, int], hold: int) -> None:
        pass


@leader
class late_answers(LeaderSide):
    def _is_late(self, link: Any, report: Any) -> bool:
        return False


@counts
class forget_numbers(Counts):
    """A key is forgotten also at a number that happens to be the base."""

    def is_at_base(self, key: str) -> bool:
        return all(
            entry.value in (BASE, self.ledger.base("shop", name)) and (entry.acked or entry.implicit)
            for name, entries in self.ledger.keys[key].items()
            for entry in entries
        )


# ---- the whole system: buckets, nodes, libraries


@system
class naive_refill(Enforcement):
    """A bucket that is looked at late earns by today's share for all of the past."""

    def share(self, now_us: int, key: str, domain: str) -> ShareInForce:
        share = super().share(now_us, key, domain)
        return replace(share, since_us=0, share_before=share.share, before_since_us=0)


@system
class fallback_at_base(Fallback):
    """A node without its store takes the base, though it may be lent."""

    def _share(self, call: BucketCall, server: str, now_us: int) -> tuple[int, ShareKind]:
        return call.base, ShareKind.BASE


@system
class nodes_forgotten(NodesSeen):
    """After a while without any word each node takes the whole part."""

    def most(self) -> int:
        return 1


@system
class nodes_not_kept(NodesSeen):
    """A node that restarts does not remember how many there were."""

    def begin_with(self, nodes: int) -> None:
        pass


@system
class leases_live_on(TokenLeaseTable):
    """Leased tokens are spent long after the share that they were leased under."""

    def granted(self, ask: Ask, lease: TokenLease, asked_us: int, now_us: int) -> None:
        super().granted(ask, replace(lease, ends_in_us=lease.ends_in_us + 10_000_000), asked_us, now_us)


@system
class own_library_only(RegionStore):
    """The agent, once begun, writes only to the version of the function library that it calls itself."""

    async def list_points(self) -> frozenset[str]:
        points = await super().list_points()
        begins = self._scheduler.now_us < 8_000_000
        return points if begins else frozenset(point for point in points if point.endswith(f"/{LIBRARY}"))


@system
class nodes_unheard(Agent):
    """Bases settle whatever the nodes have stored."""

    def _nodes_base_version(self) -> int | None:
        return self.side.base_version


@system
class nodes_at_once(Agent):
    """An agent that has just begun takes the nodes that it has heard of for all that there are."""

    def _nodes_base_version(self) -> int | None:
        self._listening_since_us = -(10**12)
        return super()._nodes_base_version()


# ---- windows in escrow


def escrow_leader(cls: type[EscrowLeader]) -> type[EscrowLeader]:
    class Leader(LeaderSide):
        def _lead(self, ledger: Ledger, now_us: int) -> None:
            super()._lead(ledger, now_us)
            self._escrow = cls(ledger.windows)

    MUTANTS[cls.__name__] = Cast(leader=Leader, broken=cls.__name__)
    return cls


def escrow_region(cls: type[EscrowRegion]) -> type[EscrowRegion]:
    class Region(RegionSide):
        def _start(self, agent_id: str) -> None:
            super()._start(agent_id)
            self.escrow = cls(self.region)

    MUTANTS[cls.__name__] = Cast(region=Region, broken=cls.__name__)
    return cls


def point_windows(cls: type[PointWindows]) -> type[PointWindows]:
    class Point(Enforcement):
        def _born(self, now_us: int) -> Any:
            variable = super()._born(now_us)
            variable.windows = cls()
            return variable

    MUTANTS[cls.__name__] = Cast(enforcement=Point, broken=cls.__name__)
    return cls


@escrow_leader
class pool_unchecked(EscrowLeader):
    def _left(self, key: str, window: int) -> int:
        return WINDOW_POOL


@leader
class grants_unbooked(LeaderSide):
    """Only what is read back from the log counts."""

    def grant_windows(self, now_us: int, wall_ms: int) -> list[Record]:
        self._ledger.windows = self._fold.windows
        self._escrow._ledger = self._fold.windows
        granted = self._escrow.grants(now_us, wall_ms, len(self.regions), self._reissue_us)
        return [WindowGrant(self.epoch, 1, *one) for one in granted]


@leader
class grants_forgotten(LeaderSide):
    """A new leader begins with full pools."""

    def _lead(self, ledger: Ledger, now_us: int) -> None:
        ledger.windows = WindowLedger(ledger.windows.ended_ms, ledger.windows.from_ms)
        super()._lead(ledger, now_us)


@region
class grants_of_any_epoch(RegionSide):
    def on_record(self, record: Record) -> None:
        if isinstance(record, WindowGrant):
            self._on_window_grant(record)
        else:
            super().on_record(record)


@escrow_region
class grants_add_up(EscrowRegion):
    def _take(self, key: str, window: int, end_ms: int, total: int) -> None:
        if self.held(key, window):
            total += self.held(key, window)
        super()._take(key, window, end_ms, total)


@leader
class snap_without_windows(LeaderSide):
    def _on_snapshot(self, part: Snapshot, offset: int) -> None:
        super()._on_snapshot(replace(part, windows={}), offset)


@leader
class grants_while_snapping(LeaderSide):
    @property
    def snapping(self) -> bool:
        return False


@leader
class ended_forgotten(LeaderSide):
    """Which windows are over is told by the clock alone."""

    def _on_snapshot(self, part: Snapshot, offset: int) -> None:
        super()._on_snapshot(replace(part, windows_ended_ms=0), offset)


@enforcement
class lost_is_empty(Enforcement):
    def window_share(self, now_us: int, key: str, domain: str, window: int, start_us: int) -> ShareInForce:
        return replace(super().window_share(now_us, key, domain, window, start_us), share_before=0)


@escrow_region
class nothing_before(EscrowRegion):
    """An instance is told of every grant as if it had come since it began."""

    def _all(self) -> dict[tuple[str, int], int]:
        return {}


@escrow_region
class told_unconfirmed(EscrowRegion):
    """Whatever instance answers is told, as of what has been read when it does."""

    def was_told(self, point: str, instance: str, news: WindowNews) -> None:
        super().was_told(point, instance, news)
        if point not in self._told and instance:
            self.confirm(point, instance)


@enforcement
class told_any_instance(Enforcement):
    def tell_windows(self, now_us: int, news: WindowNews) -> str:
        return super().tell_windows(now_us, replace(news, instance=self.instance))


@point_windows
class grants_of_any_window(PointWindows):
    def granted(self, key: str, window: int) -> tuple[int, int]:
        rows = self._rows.get(key)
        return (rows[-1].total, rows[-1].before) if rows else (0, 0)


@enforcement
class base_raised_at_once(Enforcement):
    @staticmethod
    def _base_of_window(variable: Any, domain: str, start_us: int) -> int:
        known = variable.bases.get(domain)
        return known.series.now if known else 0


@point_windows
class vouch_any_version(PointWindows):
    def is_vouched(self, domain: str, base_version: int, start_us: int) -> bool:
        return super().is_vouched(domain, self._base_version, start_us)


@escrow_leader
class grants_older_than_the_log(EscrowLeader):
    """What an empty log does not know of was never granted."""

    def _is_known(self, ask: WindowAsk) -> bool:
        return ask.end_ms > self._ledger.ended_ms


@leader
class snap_without_beginning(LeaderSide):
    def _on_snapshot(self, part: Snapshot, offset: int) -> None:
        super()._on_snapshot(replace(part, windows_from_ms=part.windows_from_ms if part.epoch == 0 else 0), offset)


@escrow_leader
class grants_said_once(EscrowLeader):
    def grants(self, now_us: int, wall_ms: int, regions: int, reissue_us: int, deaf: Any = ()) -> list[Grant]:
        return super().grants(now_us, wall_ms, regions, 10**15, deaf)


# ---- T1 is a rule of whoever calls the leader: the schedule itself breaks it

MUTANTS["stale_now_coord"] = Cast(broken="stale_now_coord")
