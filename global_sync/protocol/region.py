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

from collections.abc import Iterable, Mapping

from global_sync.protocol.invariants import hold_may_follow
from global_sync.protocol.messages import Report, Want, WindowAsk
from global_sync.protocol.points import Listing, ListingStart, Point, Rest, SentWrite
from global_sync.protocol.region_log import RegionLog
from global_sync.protocol.region_state import KEYS_MOST, LISTINGS_KEPT, MARKS_KEPT, KeyHistory, KeyState, SentReport
from regional_limiter.model.enforcement import BASE, Write, WriteReply


class RegionSide(RegionLog):
    """One agent of a region.  ``agent_id`` is random and new for each process."""

    # ---- points: A5

    def listing_started(self) -> int:
        """Call before the points are listed; pass the token to :meth:`on_listing` with what was found."""
        self._listing_token += 1
        self._listings_begun[self._listing_token] = ListingStart(self._stamp, self._leader_time, self.base_version)
        while len(self._listings_begun) > LISTINGS_KEPT:
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
        self.escrow.keep_points(named)
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

    def on_reply(self, point: str, reply: WriteReply) -> Rest | None:
        """What the point answered to one of this process's writes.

        A :class:`Rest`: hand it to :meth:`rested` when ``token_lease_us`` has surely passed from now on.
        """
        known = self._points.get(point)
        if known is None:
            return None
        if reply.instance != known.instance:
            known.another_instance(reply)
            known.pending = dict.fromkeys(self._keys)
            return None
        known.time_us = max(known.time_us, reply.time_us) if reply.accepted else reply.time_us
        sent = known.sent.pop(reply.version, None)
        if not reply.accepted or sent is None or reply.session != self.session or sent.session != self.session:
            return None
        settled_before = known.settles
        known.accepted(sent, reply, self.times)
        for key, stamp in sent.stamps.items():
            entry = self._keys.get(key)
            if entry is None:
                known.forget(key)  # forgotten while the write was on its way
            elif entry.state.stamp <= stamp:
                known.pending.pop(key, None)
        if known.settles:
            self._settle(sent.stamps if settled_before else None)
        return Rest(self.agent_id, point, reply.version) if reply.resting else None

    def rested(self, rest: Rest) -> None:
        """No token is left that was leased under what this write lowered."""
        known = self._points.get(rest.point)
        if known is not None and rest.agent_id == self.agent_id:
            self._settle(known.rested(rest.version))

    def _settle(self, written: Iterable[str] | None = None) -> None:
        """Take as settled what every listed point has, as far as it had been read when the listing began.

        ``written``: the keys that something is new of; None: any of them.
        """
        listing = self._listing
        if listing is None or not listing.points:
            return
        points, start = list(self._points.values()), listing.start
        extended = min(start.leader_time, *(point.settled_extension() for point in points))
        if extended > self._settled_time:
            self._settled_time, self.news = extended, True
        for key in [key for key in written if key in self._open] if written is not None else list(self._open):
            everywhere = min(start.stamp, *(point.settled_stamp(key) for point in points))
            self._settle_key(key, self._keys[key], everywhere)
        if listing.nodes_base_version is not None and not self._before_base:
            accepted = min(point.settled_base_version() for point in points)
            known = min(start.base_version, accepted, listing.nodes_base_version)
            if known > self._settled_base_version:
                self._settled_base_version, self.news = known, True

    def _settle_key(self, key: str, entry: KeyHistory, everywhere: int) -> None:
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
        if self._wants.get(key) == want or (key not in self._wants and len(self._wants) >= KEYS_MOST):
            return
        self._wants[key] = want
        self._unreported_wants[key] = None
        self.news = True

    def ask(self, key: str, ask: WindowAsk | None) -> None:
        """What the region would have granted of a window of ``key``; None: nothing more."""
        if self.escrow.ask(key, ask):
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
        sent = self._sent_reports[self._basis] = SentReport()
        for key in self._next_in_turn(self._unreported, max_keys):
            settled = self._keys[key].settled if key in self._keys else None
            if settled is not None:
                sent.settled[key] = settled
        for key in self._next_in_turn(self._unreported_wants, max_keys - len(sent.settled)):
            sent.wants[key] = self._wants[key]
        sent.asks = self.escrow.asks_to_say(max_keys - len(sent.settled) - len(sent.wants))
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
            times=self.times.signature,
            asks=dict(sent.asks),
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
