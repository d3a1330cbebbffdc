"""The leader's side of the share protocol: who may use how much, written to the log before anyone uses it.  Pure.

``now_us`` is the candidate's own clock (CLOCK_BOOTTIME), read **after** the message it comes with was received
and **before** anything is appended.  What a method returns is booked already: append it in that order.  Appends
may be delayed, lost, repeated or swapped; nothing is ever taken back.

C1  take_over: append a MARK with the next epoch
C2  leader once the own MARK is read back, first with its number: every record of the log counts, sessions may
    live a whole D from now, no consent is known
C3  hello, or any known process after the current session's end: WELCOME
C4  an echo of this epoch extends the region's consent, whoever says it; the rest only from the current session
C5  acknowledgements lower the counts; the first one of a session ends the region's older sessions
C6  BEAT: renews every session with a report, if the counts fit; otherwise nobody's
C7  lease: KEEP when it does not raise, else GROW into the room
C8  CONFIG, its acknowledgements, DONE
C9  snapshot: nothing but BEATs until it is read back; then the log before it may be trimmed
C12 window grants: chunks of what is left of a window's pool, booked before they are appended (``escrow.py``)
C11 GONE: an operator's word that a region is destroyed ends what it holds, once its session is over
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence

from global_sync.protocol.invariants import bases_fit, sum_fits
from global_sync.protocol.leader_state import (
    KEY_OVERHEAD_BYTES,
    LEDGER_BYTES_MOST,
    Issued,
    LeaderState,
    Link,
    Waiting,
    WantKnown,
)
from global_sync.protocol.ledger import Entry, Ledger, domain_of
from global_sync.protocol.messages import (
    Beat,
    Config,
    Done,
    Gone,
    Kind,
    LeaseRecord,
    Mark,
    Record,
    Report,
    Seq,
    Snapshot,
    Want,
    Welcome,
    WindowGrant,
)
from regional_limiter.model.enforcement import BASE
from regional_limiter.model.share import SHARE_UNITS, domain_of_floor

REISSUES_AT_ONCE = 1000
WANTS_MOST = 100_000


class LeaderSide(LeaderState):
    """A candidate: follows the log, and leads while its MARK is the newest."""

    # ---- the log: C1, C2

    @property
    def view(self) -> int:
        """The newest valid epoch read."""
        return self._view

    @property
    def pending(self) -> bool:
        """A MARK has been appended and not been decided yet."""
        return self._pending is not None

    def take_over(self, now_us: int, nonce: str) -> Mark:
        """C1.  ``nonce`` is fresh and random.  Nothing else may be done until the MARK is read back."""
        self.active = False
        self._pending = Mark(self._view + 1, nonce, now_us, self.times.signature)
        return self._pending

    def on_record(self, now_us: int, record: Record, offset: int) -> None:
        """Take the next record of the log; ``offset``: of the message that carried it."""
        if isinstance(record, Mark):
            self._on_mark(now_us, record)
            return
        if isinstance(record, Snapshot) and self._view == 0:
            self._view = record.epoch
        if record.epoch != self._view:
            return
        if isinstance(record, Snapshot):
            self._on_snapshot(record, offset)
        else:
            self._follow(record)

    def _on_mark(self, now_us: int, mark: Mark) -> None:
        if mark.epoch <= self._view:
            return
        self._view = mark.epoch
        self.active = False
        if mark == self._pending:
            self._activate(now_us)
        self._pending = None

    def _follow(self, record: Record) -> None:
        if isinstance(record, Welcome):
            self._fold.book_welcome(record)
        elif isinstance(record, LeaseRecord):
            self._fold.book_lease(record)
        elif isinstance(record, Config):
            self._fold.book_config(record)
        elif isinstance(record, Done):
            self._fold.book_done(record)
        elif isinstance(record, Gone):
            self._fold.book_gone(record.region)
        elif isinstance(record, WindowGrant):
            self._fold.windows.book(record)

    def _on_snapshot(self, part: Snapshot, offset: int) -> None:
        whole = self._parts.add(part, offset)
        if whole is None:
            return
        self.has_snapshot = True
        config = Config(whole.epoch, self._fold.version, self._fold.bases)
        self._fold = Ledger.from_snapshot(whole)
        self._fold.book_config(config)
        if self.active and whole.epoch == self.epoch:
            self._snapshot = None
            self.trim_before = self._parts.first_offset

    def _activate(self, now_us: int) -> None:
        if not self.evidence.require(self._view > self.epoch, "V4", f"MARK {self._view}", self.epoch):
            return
        self.epoch, self.active = self._view, True
        self._lead(self._fold.copy(), now_us)
        for key, by_region in self._ledger.keys.items():
            for region in by_region:
                self._wait_for_newest(key, region, now_us)

    # ---- reports: C3, C4, C5, C8

    def on_report(self, now_us: int, report: Report) -> list[Record]:
        """Take a region's report; what it makes necessary to append (a WELCOME, or nothing)."""
        if not self.active or not self._has_same_times(report):
            return []
        if report.region in self._ledger.gone:
            self.heard_of_gone.add(report.region)
            return []
        if report.echo[0] == self.epoch and self._is_past(now_us, report):
            self._counts.raise_consent(report.region, report.echo[1])
        current = self._ledger.current.get(report.region, 0)
        if self._is_hello(report, current, now_us):
            return self._welcome(now_us, report)
        if current == 0 or report.session != current:
            return self._welcome_again(now_us, report)
        self._on_current_session(now_us, report)
        return []

    def _has_same_times(self, report: Report) -> bool:
        """Another session or consent than ours would be counted wrongly: such a region stays at its base."""
        same = report.times in ((), self.times.signature)
        return self.evidence.require(same, "T", report.region, report.times)

    def _is_past(self, now_us: int, report: Report) -> bool:
        """Nobody can have read of a time that this leader's clock has not shown yet."""
        return self.evidence.require(report.echo[1] <= now_us, "E", report.region, (report.echo, now_us))

    def _is_hello(self, report: Report, current: int, now_us: int) -> bool:
        known = self._ledger.agents.get(report.region, {}).get(report.agent)
        if known is None:
            return report.session == 0
        # Also a process that was replaced, or that never read its newest WELCOME: nothing else would answer it.
        its_own = report.session <= known
        return its_own and not self._counts.alive(report.region, current, now_us)

    def _welcome(self, now_us: int, report: Report) -> list[Record]:
        if self.snapping:
            return []
        region = report.region
        self._known_regions.add(region)
        low = self._low(region, now_us)
        if not all(self._welcome_fits(now_us, key, region, low.get(key, BASE)) for key in self._ledger.keys):
            return []
        self._n += 1
        session = self._ledger.current.get(region, 0) + 1
        welcome = Welcome(self.epoch, self._n, region, report.agent, session, report.basis, low)
        self._ledger.book_welcome(welcome)
        self._counts.extend(region, session, now_us)
        self._links.pop(region, None)
        for key in self._ledger.keys:
            self._wait_for_newest(key, region, now_us)
        self._welcomes[region] = Issued((welcome,), now_us)
        return [welcome]

    def _welcome_fits(self, now_us: int, key: str, region: str, value: int) -> bool:
        """A session that starts with ``value`` leaves the key's counts as they must be."""
        before, count = self._counts.total(key, now_us), self._counts.count(key, region, now_us)
        starts_with = self._ledger.base(domain_of(key), region) if value == BASE else value
        after = before - count + max(count, starts_with)
        return self.evidence.require(sum_fits(before, after), "V1", f"WELCOME {region} {key}", (before, after))

    def _low(self, region: str, now_us: int) -> dict[str, int]:
        """Keys of which the region's base is lent out at present: it starts with what is left."""
        low = {}
        for key in self._ledger.keys:
            room = self._counts.room(key, region, now_us)
            if room < self._ledger.base(domain_of(key), region):
                low[key] = max(0, room)
        return low

    def _welcome_again(self, now_us: int, report: Report) -> list[Record]:
        """The agent speaks as if it had not been welcomed: the record may have been lost; a repeat is void."""
        issued = self._welcomes.get(report.region)
        if issued is None or self.snapping or not self._due(issued, now_us):
            return []
        welcome = issued.records[0]
        if not isinstance(welcome, Welcome) or welcome.agent != report.agent or report.session > welcome.session:
            return []
        issued.issued_us = now_us
        return [welcome]

    def _on_current_session(self, now_us: int, report: Report) -> None:
        region, link = report.region, self._links.get(report.region)
        self._welcomes.pop(region, None)
        if link is None or link.session != report.session:
            link = Link(report.agent, report.session, report.basis, now_us)
            self._links[region] = link
        elif report.basis > link.basis:
            link.agent, link.basis, link.received_us = report.agent, report.basis, now_us
        self._on_base_version(link, report)
        if not self._is_late(link, report):
            link.taken = report.basis
            for key, (seq, hold) in report.settled.items():
                self._on_settled(now_us, link, report, key, seq, hold)
        for key, want in report.wants.items():
            self._on_want(report, key, want)
        self._escrow.take(report)

    def _is_late(self, link: Link, report: Report) -> bool:
        """What it says is settled may be of an earlier life of a key, which was forgotten and opened again since.

        A report that comes after a newer one adds nothing: the newer one says all that no receipt was read of.
        The first that a leader takes in a session must have been made after one of its beats was read, or it may
        have been under way since long before.  There is no receipt for one that is not taken, so its claims are
        said again.
        """
        if link.taken == 0:
            return report.echo[0] != self.epoch
        return report.basis < link.taken

    def _on_base_version(self, link: Link, report: Report) -> None:
        link.base_version = max(link.base_version, report.base_version)
        if self._is_newest(report.base_version):
            self._ledger.lower_booked(report.region)

    def _is_newest(self, base_version: int) -> bool:
        return self._ledger.version > 0 and base_version // 2 == self._ledger.version

    def _on_settled(self, now_us: int, link: Link, report: Report, key: str, seq: Seq, hold: int) -> None:
        """C5: records of that session up to ``seq`` allow no more than ``hold``."""
        region, session, keys = report.region, report.session, self._ledger.keys
        if key not in keys and not self._open_released(now_us, report, key, seq, hold):
            return
        entries = keys[key].get(region, [])
        if len(entries) == 1 and self._is_repeated(now_us, entries[0], region, key, session, seq, hold):
            self._settles(now_us, link, region)
            return
        own = [entry for entry in entries if entry.session == session]
        if not own or own[-1].seq < seq:
            return  # nothing would be left to count: not an answer to anything that was said
        before = self._counts.lease_max(key, region, now_us)
        self._settles(now_us, link, region)
        self._stand_for(own, seq, hold)
        for entry in own:
            if entry.seq == seq:
                entry.acked = True
                entry.value = self._least(key, region, entry.value, hold)
            elif entry.seq > seq and hold != BASE and entry.grown is not None and entry.grown <= seq:
                entry.value = min(entry.value, hold)  # KEEPs on top of what has been lowered
        keys[key][region] = [
            entry
            for entry in entries
            if not (entry.session == session and entry.seq < seq)
            and self._counts.alive(region, entry.session, now_us)
        ]
        self._ledger.touch(key)
        after = self._counts.lease_max(key, region, now_us)
        self.evidence.require(after <= before, "V3", f"{region} {key}", (before, after))
        self._stop_waiting(key, region, seq, now_us)
        if after != before:
            self._changed.add(key)

    def _is_repeated(
        self, now_us: int, only: Entry, region: str, key: str, session: int, seq: Seq, hold: int
    ) -> bool:
        """The answer to the only record of the region, which has been taken before: it is said until a receipt is
        read."""
        return (
            only.acked
            and only.seq == seq
            and only.session == session
            and (hold in (BASE, only.value) or self._least(key, region, only.value, hold) == only.value)
            and self._counts.alive(region, session, now_us)
        )

    def _settles(self, now_us: int, link: Link, region: str) -> None:
        if not link.settles:
            link.settles = True
            self._end_older_sessions(now_us, region, link.session)

    def _stand_for(self, own: Sequence[Entry], seq: Seq, hold: int) -> None:
        """If the record that was answered is not here (any more), the newest before it stands for it.

        So it is when a key was forgotten and has records again: the answer that came before is repeated, and what
        was written down anew must not go for it while a KEEP on top has not been answered.
        """
        older = [entry for entry in own if entry.seq < seq]
        if older and not any(entry.seq == seq for entry in own):
            newest = older[-1]
            newest.seq, newest.value, newest.implicit, newest.grown = seq, hold, False, None

    def _end_older_sessions(self, now_us: int, region: str, session: int) -> None:
        """Something of ``session`` is settled, so every point has accepted a write of it: what the region held by
        older sessions is gone there, and their writes lose from now on (E3).  What nodes leased of it, of any key,
        may be spent for one more life of a token lease."""
        end_us = now_us + self.times.stretch(self.times.token_lease_us)
        for (name, number), known in self._ledger.sessions.items():
            if name == region and number < session:
                known.end_us = min(known.end_us, end_us)

    def _least(self, key: str, region: str, value: int, hold: int) -> int:
        """BASE stays BASE when the hold is larger: a region lowers with its base what it has released of it."""
        if hold == BASE:
            return value
        if value == BASE:
            return hold if hold <= self._ledger.base(domain_of(key), region) else BASE
        return min(value, hold)

    def _open_released(self, now_us: int, report: Report, key: str, seq: Seq, hold: int) -> bool:
        """A region has lowered itself on a key without records: that is worth one."""
        session = self._ledger.sessions.get((report.region, report.session))
        if session is None or session.seq != seq or hold == BASE or not self._may_open(key):
            return False
        self._open_key(key)
        return True

    def _on_want(self, report: Report, key: str, want: Want) -> None:
        by_region = self._wants.get(key, {})
        if not by_region and len(self._wants) >= WANTS_MOST:
            return
        known = by_region.get(report.region)
        if known is not None and (known.session, known.basis) >= (report.session, report.basis):
            return
        if known is not None and known.session == report.session and known.want == want:
            by_region[report.region] = WantKnown(want, report.session, report.basis)  # said until a receipt is read
            return
        if want.want == 0 and want.peak == 0:
            by_region.pop(report.region, None)
        else:
            by_region[report.region] = WantKnown(want, report.session, report.basis)
        if by_region:
            self._wants[key] = by_region
        else:
            self._wants.pop(key, None)
        self._changed.add(key)

    # ---- C6

    def beat(self, now_us: int, leave_out: Container[str] = ()) -> list[Record]:
        """The leader's clock; renews the sessions of all regions but those to be left out, if the counts fit."""
        if not self.active or not self.evidence.require(self.epoch == self._view, "V4", "BEAT", self._view):
            return []
        self._counts.forget_dead(now_us)
        renewals: dict[str, tuple[int, int]] = {}
        if self._may_renew(now_us):
            for region, link in self._links.items():
                if region not in leave_out and self.live(region, now_us):
                    self._counts.extend(region, link.session, link.received_us)
                    renewals[region] = (link.session, link.basis)
        receipts = {region: (link.agent, link.taken) for region, link in self._links.items() if link.taken}
        return [Beat(self.epoch, now_us, renewals, receipts)]

    def _may_renew(self, now_us: int) -> bool:
        return self._counts.fits(now_us)

    # ---- C7

    def lease(self, now_us: int, key: str, region: str, value: int) -> list[Record]:
        """Give ``region`` the share ``value`` of ``key`` (or BASE), or as much of it as there is room for."""
        if not self.active or self.snapping or not self.live(region, now_us) or not self._may_open(key):
            return []
        newest = self._newest(key, region)
        if (newest.value if newest else BASE) == value:
            return []
        held = self._counts.lease_max(key, region, now_us)
        if value == BASE:
            base = self._ledger.base(domain_of(key), region)
            if base > self._counts.room(key, region, now_us):
                return []
            return self._issue(now_us, key, region, Kind.GROW, BASE)
        if value <= held:
            return self._issue(now_us, key, region, Kind.KEEP, max(0, value))
        value = min(value, self._counts.room(key, region, now_us))
        return self._issue(now_us, key, region, Kind.GROW, value) if value > held else []

    def _issue(self, now_us: int, key: str, region: str, kind: Kind, value: int) -> list[Record]:
        """Book a record of the current session, then hand it out."""
        self._n += 1
        record = LeaseRecord(self.epoch, self._n, key, region, self._ledger.current[region], kind, value)
        self._open_key(key)
        before = self._newest(key, region)
        grown = (before.grown or before.seq) if before is not None and kind is Kind.KEEP else None
        booked = self._ledger.keys[key].get(region, [])
        self._ledger.book_lease(record, now_us, grown)
        if kind is Kind.GROW and not self._require_fit(now_us, key, region, booked):
            return []
        self._wait_for_newest(key, region, now_us)
        return [record]

    def _require_fit(self, now_us: int, key: str, region: str, booked: list[Entry]) -> bool:
        """V1 of a GROW that was booked on top of what had been ``booked``; taken back where it must not be."""
        total = self._counts.total(key, now_us)
        if total <= SHARE_UNITS:
            return True
        by_region = self._ledger.keys[key]
        grown, by_region[region] = by_region[region], booked
        before = self._counts.total(key, now_us)
        fits = self.evidence.require(sum_fits(before, total), "V1", f"GROW {key}", (before, total))
        if fits:
            by_region[region] = grown
        return fits

    def _may_open(self, key: str) -> bool:
        size = len(key) + KEY_OVERHEAD_BYTES
        return key in self._ledger.keys or self._key_bytes + size <= LEDGER_BYTES_MOST

    def _open_key(self, key: str) -> None:
        if key not in self._ledger.keys:
            self._key_bytes += len(key) + KEY_OVERHEAD_BYTES
            self._ledger.open_key(key)

    # ---- what keeps the ledger small and moving

    def tend(self, now_us: int) -> list[Record]:
        """Every second or so: say again what waits too long, and forget keys that are back at base."""
        if not self.active or self.snapping:
            return []
        for key in list(self._ledger.keys):
            self._forget_if_at_base(key, now_us)
        records: list[Record] = []
        for (key, region), wait in list(self._waiting.items()):
            entry = self._newest(key, region)
            if entry is None or not self._counts.alive(region, entry.session, now_us):
                del self._waiting[key, region]
            elif now_us - max(wait.since_us, entry.issued_us) > self._reissue_us and self.live(region, now_us):
                records += self._say_again(now_us, key, region, entry)
            if len(records) >= REISSUES_AT_ONCE:
                break
        return records

    def _say_again(self, now_us: int, key: str, region: str, entry: Entry) -> list[Record]:
        value = self._ledger.base(domain_of(key), region) if entry.value == BASE else entry.value
        return self._issue(now_us, key, region, Kind.KEEP, value)

    def rest(self, now_us: int, key: str) -> list[Record]:
        """One step of bringing a key that nobody needs back to base: cut what is above, then BASE for all."""
        records: list[Record] = []
        for region in sorted(self._ledger.keys.get(key, {})):
            base = self._ledger.base(domain_of(key), region)
            if self._counts.lease_max(key, region, now_us) > base:
                records += self.lease(now_us, key, region, base)
            else:
                records += self.lease(now_us, key, region, BASE)
        return records

    def _forget_if_at_base(self, key: str, now_us: int) -> None:
        self._counts.drop_dead_records(key, now_us)
        if self._counts.is_at_base(key):
            del self._ledger.keys[key]
            self._key_bytes -= len(key) + KEY_OVERHEAD_BYTES
            for region in self.regions:
                self._waiting.pop((key, region), None)

    # ---- C8

    def configure(self, now_us: int, version: int, bases: Mapping[str, Mapping[str, int]]) -> list[Record]:
        """New bases.  An older version than the current is ignored; the current one is said again when lost."""
        if not self.active or self.snapping or version < self._ledger.version or version <= 0:
            return []
        if version == self._ledger.version:
            return self._say_config_again(now_us)
        if not self.evidence.require(bases_fit(bases), "B", f"CONFIG {version}", bases):
            return []
        config = Config(self.epoch, version, {domain: dict(of) for domain, of in bases.items()})
        self._ledger.book_config(config)
        self._config, self._done = Issued((config,), now_us), None
        return [config]

    def _say_config_again(self, now_us: int) -> list[Record]:
        if self._config is None or self._config_read_back() or not self._due(self._config, now_us):
            return []
        self._config.issued_us = now_us
        return list(self._config.records)

    def _config_read_back(self) -> bool:
        return self._fold.version == self._ledger.version

    def done(self, now_us: int, wall_ms: int = 0) -> list[Record]:
        """DONE of the newest CONFIG, once everything fits with its bases; again while a region has not read it, or
        if it did not say since when.

        ``wall_ms``: since 1970; windows that began before are not to see a base that was raised.
        """
        if not self.active or self.snapping or self._ledger.version == 0:
            return []
        was_said = self._ledger.done_version == self._ledger.version and not self._ledger.lacks_since()
        if was_said and not self._done_missing(now_us):
            return []
        booked = self._ledger.booked_after_done()
        if not self._config_read_back() or not self._done_fits(now_us, booked):
            return []
        done = Done(self.epoch, self._ledger.version, self._ledger.since_after_done(wall_ms))
        self._ledger.book_done(done)
        self._done = Issued((done,), now_us)
        return [done]

    def _done_fits(self, now_us: int, booked: Mapping[str, Mapping[str, int]]) -> bool:
        return bases_fit(booked) and self._counts.fits(now_us, booked)

    def _done_missing(self, now_us: int) -> bool:
        """A live region has settled no DONE of this version, and the last one was a while ago."""
        if self._done is not None and not self._due(self._done, now_us):
            return False
        wanted = 2 * self._ledger.version + 1
        return any(link.base_version < wanted for region, link in self._links.items() if self.live(region, now_us))

    def waiting_for_bases(self) -> dict[str, dict[str, int]]:
        """Regions whose booked base is above the newest CONFIG's: domain -> region -> booked base."""
        return {name: above for name, above in self._above_config() if domain_of_floor(name) is None}

    def waiting_for_floors(self) -> dict[str, dict[str, int]]:
        """As :meth:`waiting_for_bases`, of the floors that sets name."""
        return {
            domain: above for name, above in self._above_config() if (domain := domain_of_floor(name)) is not None
        }

    def _above_config(self) -> Iterator[tuple[str, dict[str, int]]]:
        for name, by_region in self._ledger.booked.items():
            configured = self._ledger.bases.get(name, {})
            above = {region: part for region, part in by_region.items() if part > configured.get(region, 0)}
            if above:
                yield name, above

    # ---- C9

    def snapshot(self, now_us: int, max_keys_per_part: int = 1000) -> list[Record]:
        """The ledger, in parts.  While it is not read back: the same parts again, a second after the last time."""
        if not self.active:
            return []
        if self._snapshot is not None:
            if not self._due(self._snapshot, now_us):
                return []
            self._snapshot.issued_us = now_us
            return list(self._snapshot.records)
        self._snapshots += 1
        parts = self._ledger.to_snapshot(
            self.epoch, self._snapshots, now_us, max_keys_per_part, self.times.signature
        )
        self._snapshot = Issued(tuple(parts), now_us)
        return list(parts)

    # ---- C12

    def grant_windows(self, now_us: int, wall_ms: int) -> list[Record]:
        """What regions ask for of windows, as far as the pools reach.  ``wall_ms``: since 1970, only to tell which
        windows are over."""
        if not self.active or self.snapping:
            return []
        regions = self.regions
        deaf = [region for region in regions if not self.live(region, now_us)]
        granted = self._escrow.grants(now_us, wall_ms, len(regions), self._reissue_us, deaf)
        records: list[Record] = []
        for one in granted:
            self._n += 1
            record = WindowGrant(self.epoch, self._n, *one)
            self._ledger.windows.book(record)
            left = self._ledger.windows.left(record.key, record.window)
            if self.evidence.require(left >= 0, "W1", f"WINDOW {record.key}", (record, left)):
                records.append(record)
        return records

    # ---- C11

    def gone(self, now_us: int, region: str) -> list[Record]:
        """An operator says that ``region`` is destroyed for good.  Again until it has been read back.

        Nothing while its session may live: who has been heard of lately is not gone.
        """
        if not self.active or self.snapping or region in self._fold.gone:
            return []
        if region in self._ledger.gone:
            return self._say_gone_again(now_us, region)
        session = self._ledger.current.get(region, 0)
        if self._counts.alive(region, session, now_us):
            return []
        self._ledger.book_gone(region)
        self._links.pop(region, None)
        self._welcomes.pop(region, None)
        for key in [key for key, by_region in self._wants.items() if region in by_region]:
            del self._wants[key][region]
            if not self._wants[key]:
                del self._wants[key]
        self._escrow.forget_region(region)
        for key in self._ledger.keys:
            self._waiting.pop((key, region), None)
            self._changed.add(key)
        record = Gone(self.epoch, region)
        self._gone[region] = Issued((record,), now_us)
        return [record]

    def _say_gone_again(self, now_us: int, region: str) -> list[Record]:
        issued = self._gone.get(region)
        if issued is None or not self._due(issued, now_us):
            return []
        issued.issued_us = now_us
        return list(issued.records)


__all__ = ["LeaderSide", "Waiting"]
