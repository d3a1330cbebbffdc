"""What a leader knows: ledger, counts, links to the regions, wants, records that wait for their answer.  Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from global_sync.protocol.counts import UNKNOWN_CONSENT, Counts
from global_sync.protocol.escrow import EscrowLeader
from global_sync.protocol.invariants import Evidence
from global_sync.protocol.ledger import Entry, Ledger
from global_sync.protocol.messages import Mark, Record, Seq, Want
from global_sync.protocol.snapshots import SnapshotParts
from regional_limiter.durations import LONG_BOUNDS_S, Durations
from regional_limiter.model.enforcement import BASE
from regional_limiter.model.share import ProtocolTimes

REISSUE_AFTER_BEATS = 1
"""A record that waits longer for its acknowledgement is said again, as a KEEP of the same value."""
SLOW_AFTER_BEATS = 2
"""A region whose records wait longer is left out of renewals: it lapses alone instead of blocking the rest."""
LEDGER_BYTES_MOST = 700_000
"""Bound on the keys with records: a WELCOME may have to name them all in one message."""
KEY_OVERHEAD_BYTES = 16
CROWDED_BYTES = LEDGER_BYTES_MOST // 4


@dataclass(frozen=True, slots=True)
class Waiting:
    """A record that its region has not acknowledged yet."""

    key: str
    region: str
    waiting_us: int


@dataclass(slots=True)
class Link:
    """What the current session's reports say: the newest, when it came, and the base version it settled.

    ``taken``: the newest whose claims were taken, which is what a receipt is given for (0: none yet).
    ``settles``: one of them has been the answer to a record.
    """

    agent: str
    session: int
    basis: int
    received_us: int
    base_version: int = 0
    taken: int = 0
    settles: bool = False


@dataclass(slots=True)
class Issued:
    """A record that is repeated verbatim until its effect is seen."""

    records: tuple[Record, ...]
    issued_us: int


class Wait(NamedTuple):
    """``seq``: the first record that has no answer.  ``inherited``: an earlier leader's, not said again yet."""

    seq: Seq
    since_us: int
    inherited: bool = False


@dataclass(slots=True)
class WantKnown:
    want: Want
    session: int
    basis: int


class LeaderState:
    """A candidate's state, and what others may look at."""

    def __init__(self, candidate: str, regions: Iterable[str], times: ProtocolTimes) -> None:
        """``regions``: those known beforehand; others join by saying hello or through a CONFIG."""
        self.candidate = candidate
        self.times = times
        self.evidence = Evidence()
        self.epoch = 0
        self.active = False
        self.trim_before: int | None = None
        self.has_snapshot = False
        self.answered = Durations(LONG_BOUNDS_S)
        """How long regions took to say that a record is in force there."""
        self._known_regions = set(regions)
        self._view = 0
        self._pending: Mark | None = None
        self._fold = Ledger()
        self._parts = SnapshotParts()
        self._lead(Ledger(), 0)

    def _lead(self, ledger: Ledger, now_us: int) -> None:
        """The state of a leadership, fresh."""
        self._counts = self._count(ledger, now_us)
        self._n = 0
        self._snapshots = 0
        self._snapshot: Issued | None = None
        self._config: Issued | None = None
        self._done: Issued | None = None
        self._welcomes: dict[str, Issued] = {}
        self._gone: dict[str, Issued] = {}
        self.heard_of_gone: set[str] = set()
        """Regions that were said to be destroyed, and report all the same."""
        self._links: dict[str, Link] = {}
        self._wants: dict[str, dict[str, WantKnown]] = {}
        self._escrow = EscrowLeader(ledger.windows)
        self._changed: set[str] = set()
        self._waiting: dict[tuple[str, str], Wait] = {}
        self._key_bytes = sum(len(key) + KEY_OVERHEAD_BYTES for key in ledger.keys)

    def _count(self, ledger: Ledger, now_us: int) -> Counts:
        return Counts(ledger, self.times, now_us)

    # ---- looking

    @property
    def _ledger(self) -> Ledger:
        return self._counts.ledger

    @property
    def counts(self) -> Counts:
        return self._counts

    @property
    def regions(self) -> frozenset[str]:
        configured = (region for by_region in self._ledger.bases.values() for region in by_region)
        known = frozenset(self._known_regions | self._ledger.current.keys()) | frozenset(configured)
        return known - self._ledger.gone

    def is_gone(self, region: str) -> bool:
        """It was said to be destroyed, and that has been read back."""
        return region in self._fold.gone

    def gone_unread(self) -> list[str]:
        """Regions of which that has been said, and not been read back yet."""
        return sorted(self._ledger.gone - self._fold.gone)

    def session_left_us(self, region: str, now_us: int) -> int:
        """Microseconds for which the region's current session may live (0: it is over)."""
        session = self._ledger.sessions.get((region, self._ledger.current.get(region, 0)))
        return max(0, session.end_us - now_us) if session is not None else 0

    @property
    def config_version(self) -> int:
        return self._ledger.version

    @property
    def done_version(self) -> int:
        return self._ledger.done_version

    @property
    def snapping(self) -> bool:
        return self._snapshot is not None

    @property
    def keys(self) -> Iterable[str]:
        """The keys that have records."""
        return self._ledger.keys.keys()

    @property
    def is_crowded(self) -> bool:
        """So many keys have records that those which nobody needs should make way for others soon."""
        return self._key_bytes > CROWDED_BYTES

    def live(self, region: str, now_us: int) -> bool:
        """The region's current session lives, and has reported."""
        session = self._ledger.current.get(region, 0)
        return region in self._links and self._counts.alive(region, session, now_us)

    def free(self, region: str, now_us: int) -> bool:
        return self._counts.free(region, now_us)

    def lease_max(self, key: str, region: str, now_us: int) -> int:
        return self._counts.lease_max(key, region, now_us)

    def count(self, key: str, region: str, now_us: int) -> int:
        return self._counts.count(key, region, now_us)

    def room(self, key: str, region: str, now_us: int) -> int:
        return self._counts.room(key, region, now_us)

    def fits(self, now_us: int) -> bool:
        return self._counts.fits(now_us)

    def consent_left(self, region: str, now_us: int) -> int:
        """Microseconds for which the region's consent surely lasts (0: may be over)."""
        consent = self._counts.consent(region)
        return max(0, consent - now_us) if consent > UNKNOWN_CONSENT else 0

    def silent_us(self, region: str, now_us: int) -> int | None:
        """How long ago the current session last reported; None if it has not."""
        link = self._links.get(region)
        return now_us - link.received_us if link else None

    def lease_value(self, key: str, region: str) -> int:
        """The value that the region's current session was last given (BASE without a record)."""
        entry = self._newest(key, region)
        return entry.value if entry else BASE

    def wants(self, key: str) -> dict[str, Want]:
        """What each region last said it would use of ``key``."""
        return {region: known.want for region, known in self._wants.get(key, {}).items()}

    def wanted_keys(self) -> Iterable[str]:
        return self._wants.keys()

    def take_changed(self) -> set[str]:
        """Keys whose wants or counts have changed by reports since the last call."""
        changed, self._changed = self._changed, set()
        return changed

    def unacked(self, now_us: int, longer_than_us: int = 0) -> list[Waiting]:
        """Records that have waited longer than this for their acknowledgement."""
        return [
            Waiting(key, region, now_us - wait.since_us)
            for (key, region), wait in self._waiting.items()
            if now_us - wait.since_us > longer_than_us
        ]

    def slow_regions(self, now_us: int, longer_than_us: int | None = None) -> set[str]:
        """Regions to leave out of renewals: they have not answered this leader for so long.

        What an earlier leader said does not count: its keys may have been answered and forgotten long ago.
        """
        limit = SLOW_AFTER_BEATS * self.times.beat_us if longer_than_us is None else longer_than_us
        return {
            region
            for (_, region), wait in self._waiting.items()
            if not wait.inherited and now_us - wait.since_us > limit
        }

    @property
    def _reissue_us(self) -> int:
        return REISSUE_AFTER_BEATS * self.times.beat_us

    def _due(self, issued: Issued, now_us: int) -> bool:
        return now_us - issued.issued_us > self._reissue_us

    # ---- records that wait for their answer

    def _newest(self, key: str, region: str) -> Entry | None:
        """The newest record of the region's current session."""
        ledger = self._counts.ledger
        records = ledger.keys.get(key)
        if records is None:
            return None
        session = ledger.current.get(region, 0)
        for entry in reversed(records.get(region, ())):
            if entry.session == session:
                return entry
        return None

    def _wait_for_newest(self, key: str, region: str, now_us: int) -> None:
        newest = self._newest(key, region)
        if newest is not None:
            self._wait_for(key, region, newest, now_us)

    def _wait_for(self, key: str, region: str, entry: Entry, now_us: int) -> None:
        before = self._waiting.get((key, region))
        if entry.acked or entry.implicit:
            self._waiting.pop((key, region), None)
        elif before is None or before.inherited:
            self._waiting[key, region] = Wait(entry.seq, now_us, inherited=entry.seq[0] != self.epoch)

    def _stop_waiting(self, key: str, region: str, settled: Seq, now_us: int) -> None:
        """An answer came: nothing waits any more, or what was said since then waits from now."""
        newest, waiting = self._newest(key, region), self._waiting.get((key, region))
        if newest is None or newest.acked or newest.implicit:
            self._waiting.pop((key, region), None)
        elif waiting is not None and settled >= waiting.seq:
            self._waiting[key, region] = Wait(newest.seq, now_us)
