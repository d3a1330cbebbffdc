"""One region's side of the share protocol: a state machine without a clock.  Pure.

It reads the leader's log, decides what every enforcement point of the region is to be told, and says to the
coordinators only what is *settled*: what all points have accepted and no failover there and back can undo.
It may be paused, killed or run twice at any line: whatever it writes late is void or strict.

A0  a MARK with a higher epoch opens it; records of any other epoch are void
A1  WELCOME for this agent opens a session: every key at BASE, but for ``low``
A2  BEAT carries the leader's time, and renews the session from the report that it names
A3  lease records: GROW sets, KEEP takes the minimum, in the order of their seq
A4  CONFIG may lower bases, DONE may raise them
A5  writes and their replies, point by point; settling
A6  reports; release: a region may lower itself at any time
A7  it starts at the first record left, which may be a snapshot; records missed mean a new process

**Settling.** Every change of what points are to hold gets a *stamp*.  A listing of the points settles only
what had been read before it began, and only once each of its points has accepted that or something later: a
point that it does not name was born afterwards, and has been written with at least that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from global_sync.protocol.invariants import Evidence, hold_may_follow
from global_sync.protocol.ledger import domain_of
from global_sync.protocol.messages import (
    Beat,
    Config,
    Done,
    Kind,
    LeaseRecord,
    Mark,
    Record,
    Report,
    Seq,
    Snapshot,
    Want,
    Welcome,
)
from global_sync.protocol.points import NEVER, LeaderTime, Listing, ListingStart, Point, SentWrite
from global_sync.protocol.snapshots import SnapshotParts
from regional_limiter.model.enforcement import BASE, Write, WriteReply
from regional_limiter.model.share import ProtocolTimes

MAX_KEYS = 100_000
MARKS_KEPT = 400
_STATES_KEPT = 16
_LISTINGS_KEPT = 16
_NO_SEQ: Seq = (0, 0)


class KeyState(NamedTuple):
    """A key's lease value from ``stamp`` on, by records up to ``seq``."""

    stamp: int
    seq: Seq
    value: int


@dataclass(slots=True)
class _Key:
    """``states``: the newest last, from the last settled one on.

    ``void_up_to``: records up to this seq belong to an earlier life of the key.  ``released``: the newest record
    says BASE, and the region holds less by its own will.
    """

    states: list[KeyState]
    void_up_to: Seq
    released: bool = False
    settled: tuple[Seq, int] | None = None

    @property
    def state(self) -> KeyState:
        return self.states[-1]

    def add(self, state: KeyState) -> None:
        self.states.append(state)
        if len(self.states) > _STATES_KEPT:
            del self.states[1]


@dataclass(slots=True)
class _SentReport:
    settled: dict[str, tuple[Seq, int]] = field(default_factory=dict)
    wants: dict[str, Want] = field(default_factory=dict)


class RegionSide:
    """The agent's protocol state.  ``agent_id`` is random and new for each process."""

    def __init__(self, region: str, agent_id: str, times: ProtocolTimes) -> None:
        self.region = region
        self.times = times
        self.evidence = Evidence()
        self._wants: dict[str, Want] = {}
        self._start(agent_id)

    def _start(self, agent_id: str) -> None:
        self.agent_id = agent_id
        self.epoch = 0
        self.session = 0
        self.deposed = False
        self.keys_refused = 0
        self._welcome_seq: Seq = _NO_SEQ
        self._watermark: Seq = _NO_SEQ
        self._snapshot = SnapshotParts()
        self._at_start = True
        self._leader_time: LeaderTime = NEVER
        self._settled_time: LeaderTime = NEVER
        self._config_version = 0
        self._done = False
        self._bases: dict[str, int] = {}
        self._next_bases: dict[str, int] = {}
        self._settled_base_version = 0
        self._stamp = 1
        self._keys: dict[str, _Key] = {}
        self._open: dict[str, None] = {}
        self._before_base: dict[str, int] = {}
        self._points: dict[str, Point] = {}
        self._version = 0
        self._listing: Listing | None = None
        self._listing_token = 0
        self._listings_begun: dict[int, ListingStart] = {}
        self._basis = 0
        self._marks: dict[int, dict[str, tuple[str, int]]] = {}
        self._sent_reports: dict[int, _SentReport] = {}
        self._unreported: dict[str, None] = {}
        self._unreported_wants: dict[str, None] = dict.fromkeys(self._wants)
        self.news = True

    def restart(self, agent_id: str) -> None:
        """Records were missed (A7): begin again as a new process.  Wants are kept: they are the region's."""
        self._start(agent_id)

    # ---- what others may look at

    @property
    def base_version(self) -> int:
        """2 * the CONFIG's version, plus 1 once its DONE has been read: as written to points and nodes."""
        return 2 * self._config_version + self._done

    @property
    def bases(self) -> Mapping[str, int]:
        return self._bases

    @property
    def points(self) -> frozenset[str]:
        """The points that are written: those of the newest listing."""
        return frozenset(self._points)

    def want(self, key: str) -> Want | None:
        return self._wants.get(key)

    @property
    def settled_echo(self) -> LeaderTime:
        return self._settled_time

    @property
    def settled_base_version(self) -> int:
        return self._settled_base_version

    @property
    def listing_due(self) -> bool:
        """Something has been read since the newest listing began: only another listing can settle it."""
        return self._listing is None or self._stamp > self._listing.start.stamp

    def shares(self) -> dict[str, int]:
        """Lease value by key; a key that is not here is at BASE."""
        return {key: entry.state.value for key, entry in self._keys.items()}

    def held(self, key: str) -> tuple[int, bool]:
        """(the key's share as a number, whether it has a lease of its own)."""
        return self._present(key), key in self._keys

    def point_times(self, point: str) -> tuple[int, int, int]:
        """(time, end of session, end of consent) on the point's clock, as last known."""
        known = self._points.get(point) or Point()
        return known.time_us, known.until_put_us, known.consent_end_us

    # ---- the log: A0 to A4, A7

    def on_record(self, record: Record) -> None:
        """Take the next record of the log, in log order."""
        if isinstance(record, Mark):
            self._on_mark(record)
        elif isinstance(record, Snapshot):
            self._on_snapshot(record)
        elif self._is_valid(record.epoch):
            _HANDLERS[type(record)](self, record)

    def _is_valid(self, epoch: int) -> bool:
        return epoch == self.epoch

    def _on_mark(self, mark: Mark) -> None:
        if mark.epoch <= self.epoch:
            return
        self.epoch = mark.epoch
        self._at_start = False
        self._read_time(mark.epoch, mark.leader_us)
        # The new leader has no report of this region: everything is sent again.
        self._sent_reports = {}
        self._unreported = dict.fromkeys(key for key, entry in self._keys.items() if entry.settled)
        self._unreported_wants = dict.fromkeys(self._wants)

    def _read_time(self, epoch: int, leader_us: int) -> None:
        if (epoch, leader_us) > self._leader_time:
            self._leader_time = (epoch, leader_us)
            self._stamp += 1

    def _on_snapshot(self, part: Snapshot) -> None:
        if not self._at_start:
            return
        if self.epoch == 0:
            self.epoch = part.epoch
        if not self._is_valid(part.epoch):
            return
        whole = self._snapshot.add(part)
        if whole is not None:
            self._at_start = False
            self._start_from(whole)

    def _start_from(self, snapshot: Snapshot) -> None:
        """Bases as of a snapshot: what is booked for the region, or less where a CONFIG has lowered it."""
        if snapshot.version < self._config_version:
            return
        self._next_bases = self._own(snapshot.bases)
        booked = self._own(snapshot.booked)
        domains = self._next_bases.keys() | booked.keys() | self._bases.keys()
        self._bases = {d: self._base_from_snapshot(d, booked) for d in domains}
        self._config_version = snapshot.version
        self._done = snapshot.done_version == snapshot.version
        self._stamp += 1

    def _base_from_snapshot(self, domain: str, booked: Mapping[str, int]) -> int:
        return min(booked.get(domain, 0), self._next_bases.get(domain, 0))

    def _own(self, bases: Mapping[str, Mapping[str, int]]) -> dict[str, int]:
        return {domain: by_region.get(self.region, 0) for domain, by_region in bases.items()}

    def _on_welcome(self, welcome: Welcome) -> None:
        if self.deposed or welcome.region != self.region or welcome.session <= self.session:
            return
        if welcome.agent == self.agent_id:
            self._open_session(welcome)
        elif self.session > 0:
            self._depose()

    def _depose(self) -> None:
        self.deposed = True

    def _open_session(self, welcome: Welcome) -> None:
        self.session = welcome.session
        self._welcome_seq = self._watermark = (welcome.epoch, welcome.n)
        self._keys, self._open, self._unreported = {}, {}, {}
        self._sent_reports, self._before_base = {}, {}
        for point in self._points.values():
            point.new_session()
        self._stamp += 1
        for key, value in welcome.low.items():
            self._set(key, self._welcome_seq, value)
        self._extend_session(welcome.basis)

    def _on_beat(self, beat: Beat) -> None:
        self._read_time(beat.epoch, beat.leader_us)
        session, basis = beat.renewals.get(self.region, (0, 0))
        if self.session > 0 and self._is_own_session(session):
            self._extend_session(basis)
        agent, received = beat.receipts.get(self.region, ("", 0))
        if agent == self.agent_id:
            self._on_receipt(received)

    def _is_own_session(self, session: int) -> bool:
        return session == self.session

    def _extend_session(self, basis: int) -> None:
        """The session lives to the marked reading of each point's clock plus D, if its instance is the same."""
        for name, (instance, time_us) in self._marks.get(basis, {}).items():
            point = self._points.get(name)
            if point is not None and point.instance == instance:
                point.until_us = max(point.until_us, time_us + self.times.session_us)

    def _on_lease(self, record: LeaseRecord) -> None:
        if record.region != self.region or self.session == 0 or not self._is_own_session(record.session):
            return
        seq, entry = (record.epoch, record.n), self._keys.get(record.key)
        if self._is_old(entry, seq):
            return
        self._set(record.key, seq, self._value_after(record))
        if record.key in self._keys:
            self._keys[record.key].released = False

    def _is_old(self, entry: _Key | None, seq: Seq) -> bool:
        if entry is None:
            return seq <= self._watermark
        return seq <= entry.state.seq or seq <= entry.void_up_to

    def _value_after(self, record: LeaseRecord) -> int:
        if record.kind is Kind.GROW:
            return record.value
        present = self._present(record.key)
        return present if record.value == BASE else min(present, record.value)

    def _present(self, key: str) -> int:
        """The key's lease as a number."""
        entry = self._keys.get(key)
        if entry is None or entry.state.value == BASE:
            return self._bases.get(domain_of(key), 0)
        return entry.state.value

    def _set(self, key: str, seq: Seq, value: int) -> None:
        self._stamp += 1
        state = KeyState(self._stamp, seq, value)
        entry = self._keys.get(key)
        if entry is not None:
            entry.add(state)
        elif len(self._keys) < MAX_KEYS:
            self._keys[key] = _Key([state], self._watermark)
        else:
            self.keys_refused += 1  # never acknowledged, so the leader goes on counting it
            return
        self._open[key] = None
        for point in self._points.values():
            point.pending[key] = None

    def _on_config(self, config: Config) -> None:
        if config.version <= self._config_version:
            return
        self._config_version, self._done = config.version, False
        self._next_bases = self._own(config.bases)
        domains = self._bases.keys() | self._next_bases.keys()
        self._bases = {domain: self._base_until_done(domain) for domain in domains}
        self._stamp += 1
        self._lower_released()

    def _lower_released(self) -> None:
        """What was released from a higher base is for the leader still BASE, so it falls with the base.

        And since a point may hold an older number of any key that is open now, the base is settled only after
        what these keys are now.
        """
        for key, entry in self._keys.items():
            base = self._bases.get(domain_of(key), 0)
            if entry.released and entry.state.value > base:
                self._set(key, entry.state.seq, base)
        self._before_base.update((key, self._keys[key].state.stamp) for key in self._open)

    def _base_until_done(self, domain: str) -> int:
        return min(self._bases.get(domain, 0), self._next_bases.get(domain, 0))

    def _on_done(self, done: Done) -> None:
        if done.version != self._config_version or self._config_version == 0 or self._done:
            return
        self._done = True
        self._bases = {domain: self._next_bases.get(domain, 0) for domain in self._bases}
        self._stamp += 1

    # ---- points: A5

    def listing_started(self) -> int:
        """Call before the points are listed; pass the token to :meth:`on_listing` with what was found."""
        self._listing_token += 1
        self._listings_begun[self._listing_token] = ListingStart(self._stamp, self._leader_time, self.base_version)
        while len(self._listings_begun) > _LISTINGS_KEPT:
            del self._listings_begun[next(iter(self._listings_begun))]
        return self._listing_token

    def on_listing(self, token: int, points: Iterable[str], nodes_base_version: int | None) -> None:
        """The region's points, as found after ``listing_started`` gave ``token``.

        ``nodes_base_version``: the least base version of all nodes whose beat is younger than D_c; None while
        none may settle; ``base_version`` when there is no node.  An older listing than the newest one taken is
        ignored.
        """
        start = self._listings_begun.pop(token, None)
        if start is None:
            return
        for older in [begun for begun in self._listings_begun if begun < token]:
            del self._listings_begun[older]
        named = frozenset(points)
        self._listing = Listing(start, named, nodes_base_version)
        self._points = {name: self._points.get(name) or self._new_point() for name in sorted(named)}
        self._settle()

    def _new_point(self) -> Point:
        return Point(pending=dict.fromkeys(self._keys))

    def needs_write(self, point: str) -> bool:
        """There is something that the point lacks (it is written every T_write in any case)."""
        known = self._points.get(point)
        if known is None or self.deposed:
            return False
        if not known.instance:
            return True
        return self.session > 0 and (
            bool(known.pending)
            or known.until_us > known.until_put_us
            or known.base_version < self.base_version
            or self._extends(known)
        )

    def prepare_write(self, point: str, nonce: str, limit: int = 500) -> Write | None:
        """The next write for ``point``, with at most ``limit`` keys.  None: unknown point, or deposed."""
        known = self._points.get(point)
        if known is None or self.deposed:
            return None
        self._version += 1
        chosen = self._keys_to_write(known, limit)
        states = {key: self._keys[key].state for key in chosen if key in self._keys}
        extends = self._leader_time if self._extends(known) else None
        stamps = {key: state.stamp for key, state in states.items()}
        until_us = known.until_us if self.session > 0 else 0
        known.remember(self._version, SentWrite(self.session, extends, stamps, self.base_version, until_us))
        return Write(
            nonce=nonce,
            instance=known.instance,
            session=self.session,
            version=self._version,
            until_us=until_us,
            extend=extends is not None,
            leases={key: state.value for key, state in states.items()},
            all_known=self.session > 0 and self._vouches(known, states),
            base_version=self.base_version,
            bases=dict(self._bases),
        )

    def _keys_to_write(self, point: Point, limit: int) -> list[str]:
        if self.session == 0:
            return []
        return [key for _, key in zip(range(limit), point.pending, strict=False)]

    def _extends(self, point: Point) -> bool:
        """Extend the consent iff a newer leader time was read; not at rest, which would only dip to the floor."""
        return self._leader_time > point.extended and not point.at_rest()

    def _vouches(self, point: Point, states: Mapping[str, KeyState]) -> bool:
        """Every key that is not at BASE has been put here, or is in this write."""
        return all(
            key in point.put or key in states or self._keys[key].state.value == BASE
            for key in point.pending
            if key in self._keys
        )

    def on_reply(self, point: str, reply: WriteReply) -> None:
        """What the point answered to one of this process's writes."""
        known = self._points.get(point)
        if known is None:
            return
        if reply.instance != known.instance:
            known.another_instance(reply)
            known.pending = dict.fromkeys(self._keys)
            return
        known.time_us = max(known.time_us, reply.time_us) if reply.accepted else reply.time_us
        sent = known.sent.pop(reply.version, None)
        if not reply.accepted or sent is None or reply.session != self.session or sent.session != self.session:
            return
        known.accepted(sent, reply, self.times)
        for key, stamp in sent.stamps.items():
            entry = self._keys.get(key)
            if entry is None:
                known.put.pop(key, None)  # forgotten while the write was on its way
            elif entry.state.stamp <= stamp:
                known.pending.pop(key, None)
        if self._may_settle(known):
            self._settle()

    def _may_settle(self, point: Point) -> bool:
        return point.settles

    def _settle(self) -> None:
        """Take as settled what every listed point has, as far as it had been read when the listing began."""
        listing = self._listing
        if listing is None or not listing.points:
            return
        points, start = list(self._points.values()), listing.start
        extended = min(start.leader_time, *(point.settled_extension() for point in points))
        if extended > self._settled_time:
            self._settled_time, self.news = extended, True
        for key in list(self._open):
            everywhere = min(start.stamp, *(point.settled_stamp(key) for point in points))
            self._settle_key(key, self._keys[key], everywhere)
        if listing.nodes_base_version is not None and not self._before_base:
            accepted = min(point.settled_base_version() for point in points)
            known = min(start.base_version, accepted, listing.nodes_base_version)
            if known > self._settled_base_version:
                self._settled_base_version, self.news = known, True

    def _settle_key(self, key: str, entry: _Key, everywhere: int) -> None:
        known = [state for state in entry.states if state.stamp <= everywhere]
        if not known:
            return
        newest = known[-1]
        entry.states = entry.states[len(known) - 1 :]
        if len(entry.states) == 1:
            self._open.pop(key, None)
        if newest.stamp >= self._before_base.get(key, newest.stamp + 1):
            del self._before_base[key]
        claim = (newest.seq, newest.value)
        if claim == entry.settled:
            return
        if entry.settled is not None and entry.settled[0] == newest.seq:
            before = entry.settled[1]
            falls = hold_may_follow(before, newest.value, BASE)
            if not self.evidence.require(falls, "V5", key, (newest.seq, before, newest.value)):
                return
        entry.settled = claim
        self._unreported[key] = None
        self.news = True

    # ---- reports: A6

    def release(self, key: str, value: int) -> None:
        """Lower the region's own lease of ``key`` to ``value``, at once; never raises it."""
        if self.session == 0 or value >= self._present(key):
            return
        entry = self._keys.get(key)
        of_base = entry is None or entry.released or entry.state.value == BASE
        self._set(key, entry.state.seq if entry else self._welcome_seq, max(0, value))
        if key in self._keys:
            self._keys[key].released = of_base

    def set_want(self, key: str, want: Want) -> None:
        """What the region would use of ``key``.  Zero wants are forgotten once the leader has them."""
        if self._wants.get(key) == want or (key not in self._wants and len(self._wants) >= MAX_KEYS):
            return
        self._wants[key] = want
        self._unreported_wants[key] = None
        self.news = True

    def report(self, max_keys: int = 2000) -> Report | None:
        """The next report; what has no receipt yet goes along, at most ``max_keys`` keys, in turn.

        None while deposed, or while no point has answered yet.
        """
        mark = {name: (point.instance, point.time_us) for name, point in self._points.items() if point.instance}
        if self.deposed or not mark:
            return None
        self.news = False
        self._basis += 1
        self._marks[self._basis] = mark
        sent = self._sent_reports[self._basis] = _SentReport()
        for key in self._next_in_turn(self._unreported, max_keys):
            settled = self._keys[key].settled if key in self._keys else None
            if settled is not None:
                sent.settled[key] = settled
        for key in self._next_in_turn(self._unreported_wants, max_keys - len(sent.settled)):
            sent.wants[key] = self._wants[key]
        self._marks.pop(self._basis - MARKS_KEPT, None)
        self._sent_reports.pop(self._basis - MARKS_KEPT, None)
        return Report(
            region=self.region,
            agent=self.agent_id,
            session=self.session,
            basis=self._basis,
            echo=self._settled_time,
            base_version=self._settled_base_version,
            settled=dict(sent.settled),
            wants=dict(sent.wants),
        )

    @staticmethod
    def _next_in_turn(unsent: dict[str, None], count: int) -> list[str]:
        """The first ``count`` keys, which go to the end: each gets its turn."""
        keys = [key for _, key in zip(range(count), unsent, strict=False)]
        if len(keys) < len(unsent):
            for key in keys:
                del unsent[key]
                unsent[key] = None
        return keys

    def _on_receipt(self, basis: int) -> None:
        """The leader has that report: what it carried needs no repeating."""
        sent = self._sent_reports.pop(basis, None)
        if sent is None:
            return
        for key, claim in sent.settled.items():
            entry = self._keys.get(key)
            if entry is not None and entry.settled == claim:
                self._unreported.pop(key, None)
                self._forget_if_at_base(key, entry)
        for key, want in sent.wants.items():
            if self._wants.get(key) == want:
                self._unreported_wants.pop(key, None)
                if want.want == 0 and want.peak == 0:
                    del self._wants[key]

    def _forget_if_at_base(self, key: str, entry: _Key) -> None:
        """A key at BASE by word of the leader, settled and received, is as good as unknown."""
        state = entry.state
        if state.value != BASE or entry.settled != (state.seq, BASE) or key in self._open:
            return
        del self._keys[key]
        self._watermark = max(self._watermark, state.seq)
        for point in self._points.values():
            point.put.pop(key, None)
            point.pending.pop(key, None)


_HANDLERS: dict[type, Callable[[RegionSide, Any], None]] = {
    Welcome: RegionSide._on_welcome,
    Beat: RegionSide._on_beat,
    LeaseRecord: RegionSide._on_lease,
    Config: RegionSide._on_config,
    Done: RegionSide._on_done,
}
