"""How a region's agent reads the log: A0 to A4, A7, and the receipts of A6.  Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from global_sync.protocol.ledger import domain_of
from global_sync.protocol.messages import (
    Beat,
    Config,
    Done,
    Gone,
    Kind,
    LeaseRecord,
    Mark,
    Record,
    Seq,
    Snapshot,
    Welcome,
    WindowGrant,
)
from global_sync.protocol.region_state import LAST_SESSION, KeyHistory, RegionState
from regional_limiter.model.enforcement import BASE

CLOCKS_APART_MS = 10_000
"""The leader's wall clock and those of the regions' stores agree within this, or a change of bases may be seen by a
window that began before it."""


class RegionLog(RegionState):
    """The transitions that records of the log cause."""

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
        self.escrow.say_all_again()

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
            if self.region in whole.gone:
                self._end_for_good()

    def _start_from(self, snapshot: Snapshot) -> None:
        """Bases as of a snapshot: what is booked for the region, or less where a CONFIG has lowered it."""
        self.escrow.start_from(snapshot.windows)
        if snapshot.version < self._config_version:
            return
        self._next_bases = self._own(snapshot.bases)
        booked = self._own(snapshot.booked)
        domains = self._next_bases.keys() | booked.keys() | self._bases.keys()
        self._bases = {d: self._base_from_snapshot(d, booked) for d in domains}
        self._config_version = snapshot.version
        self._done = 0 < snapshot.version == snapshot.done_version
        self._bases_since = _with_clocks_apart(snapshot.since)
        self._stamp += 1

    def _base_from_snapshot(self, domain: str, booked: Mapping[str, int]) -> int:
        return min(booked.get(domain, 0), self._next_bases.get(domain, 0))

    def _own(self, bases: Mapping[str, Mapping[str, int]]) -> dict[str, int]:
        """The region's own part.  Of a region that is gone others have it, also where a set still names it."""
        return {domain: 0 if self.gone else by_region.get(self.region, 0) for domain, by_region in bases.items()}

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
                self.escrow.confirm(name, instance)

    def _on_lease(self, record: LeaseRecord) -> None:
        if record.region != self.region or self.session == 0 or not self._is_own_session(record.session):
            return
        seq, entry = (record.epoch, record.n), self._keys.get(record.key)
        if self._is_old(entry, seq):
            return
        self._set(record.key, seq, self._value_after(record))
        if record.key in self._keys:
            self._keys[record.key].released = False

    def _is_old(self, entry: KeyHistory | None, seq: Seq) -> bool:
        if entry is None:
            return seq <= self._watermark
        return seq <= entry.state.seq or seq <= entry.void_up_to

    def _value_after(self, record: LeaseRecord) -> int:
        if record.kind is Kind.GROW:
            return record.value
        present = self._present(record.key)
        return present if record.value == BASE else min(present, record.value)

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
        if done.version != self._config_version or self._config_version == 0:
            return
        since = _with_clocks_apart(done.since)
        if self._done:
            self._hear_again(since)
            return
        self._done = True
        self._bases = {domain: self._next_bases.get(domain, 0) for domain in self._bases}
        self._bases_since = since
        self._stamp += 1

    def _hear_again(self, since: Mapping[str, int]) -> None:
        """Only what the first DONE did not say is new."""
        self._bases_since = {**since, **self._bases_since}

    def _on_gone(self, gone: Gone) -> None:
        if gone.region == self.region:
            self._end_for_good()

    def _end_for_good(self) -> None:
        """It was not true: then what still is in reach comes down to nothing, and stays there.

        Every point and node is told base 0 as the newest there can ever be, in the last session there can be,
        so that it needs no WELCOME, and no CONFIG, and outlives every failover and restart.
        """
        self.gone = True
        self.session = LAST_SESSION
        self._keys, self._open, self._unreported = {}, {}, {}
        self._sent_reports, self._before_base = {}, {}
        for point in self._points.values():
            point.new_session()
        self._bases = dict.fromkeys(self._bases.keys() | self._next_bases.keys(), 0)
        self._next_bases = dict.fromkeys(self._bases, 0)
        self._stamp += 1

    def _on_window_grant(self, grant: WindowGrant) -> None:
        if grant.region == self.region and self.escrow.take(grant):
            self.news = True

    # ---- receipts

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
        self.escrow.on_receipt(sent.asks)

    def _forget_if_at_base(self, key: str, entry: KeyHistory) -> None:
        """A key at BASE by word of the leader, settled and received, is as good as unknown."""
        state = entry.state
        if state.value != BASE or entry.settled != (state.seq, BASE) or key in self._open:
            return
        del self._keys[key]
        self._watermark = max(self._watermark, state.seq)
        for point in self._points.values():
            point.forget(key)


def _with_clocks_apart(since: Mapping[str, int]) -> dict[str, int]:
    return {domain: at_ms + CLOCKS_APART_MS if at_ms else 0 for domain, at_ms in since.items() if at_ms >= 0}


_HANDLERS: dict[type, Callable[[RegionLog, Any], None]] = {
    Welcome: RegionLog._on_welcome,
    Beat: RegionLog._on_beat,
    LeaseRecord: RegionLog._on_lease,
    Config: RegionLog._on_config,
    Done: RegionLog._on_done,
    Gone: RegionLog._on_gone,
    WindowGrant: RegionLog._on_window_grant,
}
