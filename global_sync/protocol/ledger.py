"""The ledger: what every live session may hold of every key, by every record that may still count.  Pure.

Followers fold the log into a ledger as they read it; whoever becomes leader starts from that.  A follower
knows no acknowledgement, so **every** record counts until a snapshot leaves it out.  Only records that another
one covers are dropped at once: an older record of the same session with no larger value can never be the
largest again.

Keys without a record are not here at all: every live session holds BASE of them.  When a key gets its first
record, that BASE is written down for each session known, and counts until acknowledged or dead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache

from global_sync.protocol.escrow import WindowLedger
from global_sync.protocol.messages import Config, Done, LeaseRecord, Seq, Snapshot, Times, Welcome
from global_sync.protocol.snapshot_parts import in_parts
from regional_limiter.model.enforcement import BASE
from regional_limiter.model.keys import rule_of

AGENTS_KEPT = 16
CHANGED = -1
"""Since when: a domain of which a CONFIG without its DONE has changed the bases."""
_NO_END = 0

_RECORD_BYTES = 64


@lru_cache(maxsize=100_000)
def domain_of(key: str) -> str:
    """The domain of a bucket key; "" (a domain without bases) for what is no bucket key."""
    try:
        return rule_of(key)[0]
    except ValueError:
        return ""


@dataclass(slots=True)
class Entry:
    """One record that counts.  ``implicit``: nobody wrote it, so nobody acknowledges it (BASE of a WELCOME).

    ``acked``: by this seq the region's points are known to hold no more than ``value``.  ``grown``: nothing after
    that seq and up to this one may have raised the session's lease (None: this one may have).
    """

    seq: Seq
    value: int
    session: int
    implicit: bool = False
    acked: bool = False
    issued_us: int = 0
    grown: Seq | None = None


@dataclass(slots=True)
class Session:
    """``end_us``: on the leader's clock, surely over from then on.  ``seq``: of its WELCOME."""

    seq: Seq
    end_us: int = _NO_END


KeyLedger = dict[str, list[Entry]]
"""region -> records, oldest first."""


@dataclass(slots=True)
class Ledger:
    """``booked``: the largest base that a region may have in force, by domain and region.  ``gone``: destroyed.

    ``since``: by domain, as of the newest DONE (see there), or CHANGED since.

    ``changes`` grows with whatever the counts of all keys depend on: bases, sessions.  ``touched``: keys whose
    records have changed since somebody who looks has looked (None: nobody does).
    """

    sessions: dict[tuple[str, int], Session] = field(default_factory=dict)
    current: dict[str, int] = field(default_factory=dict)
    agents: dict[str, dict[str, int]] = field(default_factory=dict)
    version: int = 0
    bases: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    done_version: int = 0
    booked: dict[str, dict[str, int]] = field(default_factory=dict)
    keys: dict[str, KeyLedger] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    windows: WindowLedger = field(default_factory=WindowLedger)
    since: dict[str, int] = field(default_factory=dict)
    changes: int = 0
    touched: set[str] | None = None

    # ---- booking: what a record adds

    def book_welcome(self, record: Welcome) -> None:
        seq = (record.epoch, record.n)
        region, number = record.region, record.session
        if region in self.gone:
            return  # appends may swap
        self.changes += 1
        self.current[region] = max(self.current.get(region, 0), number)
        self._know_agent(region, record.agent, number)
        for key in record.low:
            self.open_key(key)
        self.sessions.setdefault((region, number), Session(seq))
        for key, ledger in self.keys.items():
            value = record.low.get(key, BASE)
            self._add(ledger, region, Entry(seq, value, number, implicit=value == BASE))

    def book_lease(self, record: LeaseRecord, issued_us: int = 0, grown: Seq | None = None) -> None:
        """A record whose session is not known yet counts as soon as the WELCOME is read (appends may swap)."""
        if record.region in self.gone:
            return
        ledger = self.open_key(record.key)
        self.touch(record.key)
        seq = (record.epoch, record.n)
        entry = Entry(seq, record.value, record.session, issued_us=issued_us, grown=grown)
        self._add(ledger, record.region, entry)

    def book_config(self, record: Config) -> None:
        if record.version > self.version:
            for domain in self.bases.keys() | record.bases.keys():
                if record.bases.get(domain, {}) != self.bases.get(domain, {}):
                    is_new = domain not in self.bases and domain not in self.booked
                    self.since[domain] = self.windows.from_ms if is_new else CHANGED
            self.version, self.bases = record.version, record.bases
            self.changes += 1

    def book_done(self, record: Done) -> None:
        if record.version == self.version and self.version > 0:
            self.booked = self.booked_after_done()
            self.changes += 1
            self.done_version = record.version
            self.since = dict(record.since)

    def since_after_done(self, wall_ms: int) -> dict[str, int]:
        """Since when nobody has more of a domain than its bases say, if a DONE is written now."""
        since = {domain: self.since.get(domain, CHANGED) for domain in self.bases.keys() | self.since.keys()}
        return {domain: wall_ms if since_ms == CHANGED else since_ms for domain, since_ms in since.items()}

    def lacks_since(self) -> bool:
        """Of some domain it is not known, since a DONE did not say it: the log is older than windows in escrow."""
        return any(self.since.get(domain, CHANGED) == CHANGED for domain in self.bases)

    def book_gone(self, region: str) -> None:
        """Nothing of the region counts any more, nor ever will."""
        self.gone.add(region)
        self.changes += 1
        for name in [name for name in self.sessions if name[0] == region]:
            del self.sessions[name]
        for ledger in self.keys.values():
            ledger.pop(region, None)
        for by_region in self.booked.values():
            if region in by_region:
                by_region[region] = 0

    def booked_after_done(self) -> dict[str, dict[str, int]]:
        """B' = max(B, base of the newest CONFIG), by domain and region."""
        after = {domain: dict(by_region) for domain, by_region in self.booked.items()}
        for domain, by_region in self.bases.items():
            booked = after.setdefault(domain, {})
            for region, base in by_region.items():
                booked[region] = 0 if region in self.gone else max(base, booked.get(region, 0))
        return after

    def lower_booked(self, region: str) -> None:
        """The region has acknowledged the newest CONFIG: B := min(B, its base there)."""
        for domain, by_region in self.booked.items():
            if region in by_region:
                base = self.bases.get(domain, {}).get(region, 0)
                if base < by_region[region]:
                    by_region[region] = base
                    self.changes += 1

    def _know_agent(self, region: str, agent: str, session: int) -> None:
        known = self.agents.setdefault(region, {})
        known[agent] = max(session, known.get(agent, 0))
        while len(known) > AGENTS_KEPT:
            del known[min(known, key=lambda name: known[name])]

    def open_key(self, key: str) -> KeyLedger:
        """The key's records; at its first one, the BASE of every session known is written down."""
        ledger = self.keys.get(key)
        if ledger is None:
            ledger = self.keys[key] = {}
            self.touch(key)
            for (region, number), session in self.sessions.items():
                self._add(ledger, region, Entry(session.seq, BASE, number, implicit=True))
        return ledger

    def touch(self, key: str) -> None:
        if self.touched is not None:
            self.touched.add(key)

    def _add(self, ledger: KeyLedger, region: str, entry: Entry) -> None:
        """Add a record, drop what it covers, or drop it if it is covered (or a repeat)."""
        kept = []
        for known in ledger.get(region, ()):
            if _covers(known, entry):
                return
            if not _covers(entry, known):
                kept.append(known)
        kept.append(entry)
        if len(kept) > 1 and kept[-2].seq > entry.seq:
            kept.sort(key=lambda known: known.seq)
        ledger[region] = kept

    def base(self, domain: str, region: str) -> int:
        return self.booked.get(domain, {}).get(region, 0)

    def copy(self) -> Ledger:
        return Ledger(
            sessions={name: replace(session) for name, session in self.sessions.items()},
            current=dict(self.current),
            agents={region: dict(known) for region, known in self.agents.items()},
            version=self.version,
            bases=self.bases,
            done_version=self.done_version,
            booked={domain: dict(by_region) for domain, by_region in self.booked.items()},
            keys={
                key: {region: [replace(entry) for entry in entries] for region, entries in ledger.items()}
                for key, ledger in self.keys.items()
            },
            gone=set(self.gone),
            windows=self.windows.copy(),
            since=dict(self.since),
        )

    # ---- snapshots

    def to_snapshot(
        self, epoch: int, number: int, now_us: int, keys_per_part: int, times: Times = ()
    ) -> list[Snapshot]:
        """The ledger verbatim, without what is dead at ``now_us``, in parts of bounded size."""
        alive = {name: session for name, session in self.sessions.items() if now_us < session.end_us}
        ledgers = list(in_parts(self._alive_records(alive), _key_bytes, max(1, keys_per_part))) or [{}]
        windows = list(self.windows.to_parts())
        head = Snapshot(
            epoch=epoch,
            number=number,
            part=0,
            parts=len(ledgers) + len(windows),
            sessions=tuple((region, number, session.seq) for (region, number), session in alive.items()),
            current=dict(self.current),
            agents={region: dict(known) for region, known in self.agents.items()},
            version=self.version,
            bases=self.bases,
            done_version=self.done_version,
            booked={domain: dict(by_region) for domain, by_region in self.booked.items()},
            ledger=ledgers[0],
            times=times,
            gone=tuple(sorted(self.gone)),
            windows_ended_ms=self.windows.ended_ms,
            since=dict(self.since),
            windows_from_ms=self.windows.from_ms,
        )
        empty = replace(head, sessions=(), current={}, agents={}, bases={}, booked={}, since={}, windows_from_ms=0)
        rest = [replace(empty, part=part, ledger=ledgers[part]) for part in range(1, len(ledgers))]
        of_windows = [
            replace(empty, part=len(ledgers) + number, ledger={}, windows=part)
            for number, part in enumerate(windows)
        ]
        return [head, *rest, *of_windows]

    def _alive_records(
        self, alive: Mapping[tuple[str, int], Session]
    ) -> Iterator[tuple[str, dict[str, tuple[tuple[Seq, int, int], ...]]]]:
        for key, ledger in self.keys.items():
            records = {
                region: tuple((e.seq, e.value, e.session) for e in entries if (region, e.session) in alive)
                for region, entries in ledger.items()
            }
            yield key, {region: kept for region, kept in records.items() if kept}

    @classmethod
    def from_snapshot(cls, snapshot: Snapshot) -> Ledger:
        """The ledger that a whole snapshot holds."""
        sessions = {(region, number): Session(seq) for region, number, seq in snapshot.sessions}
        return cls(
            sessions=sessions,
            current=dict(snapshot.current),
            agents={region: dict(known) for region, known in snapshot.agents.items()},
            version=snapshot.version,
            bases=snapshot.bases,
            done_version=snapshot.done_version,
            booked={domain: dict(by_region) for domain, by_region in snapshot.booked.items()},
            keys={
                key: {
                    region: [_entry_of(sessions, region, *record) for record in records]
                    for region, records in by_region.items()
                }
                for key, by_region in snapshot.ledger.items()
            },
            gone=set(snapshot.gone),
            windows=WindowLedger.of(snapshot.windows, snapshot.windows_ended_ms, snapshot.windows_from_ms),
            since=dict(snapshot.since),
        )


def after_a_lost_log(wall_ms: int) -> Snapshot:
    """What a log begins with that follows one that is lost: nothing is known of windows that have begun."""
    (head,) = Ledger(windows=WindowLedger(from_ms=wall_ms + 1)).to_snapshot(0, 1, 0, 1)
    return head


def _covers(newer: Entry, older: Entry) -> bool:
    if newer.session != older.session or newer.seq < older.seq:
        return False
    return newer.value == older.value or (newer.value >= older.value and older.value != BASE)


def _entry_of(sessions: Mapping[tuple[str, int], Session], region: str, seq: Seq, value: int, number: int) -> Entry:
    session = sessions.get((region, number))
    implicit = value == BASE and session is not None and session.seq == seq
    return Entry(seq, value, number, implicit)


def _key_bytes(key: str, ledger: Mapping[str, tuple[tuple[Seq, int, int], ...]]) -> int:
    return len(key) + 8 + sum(len(region) + 8 + _RECORD_BYTES * len(kept) for region, kept in ledger.items())
