"""The leases as the log grants them: one consistent cut, whatever the regions have read of it so far.  Pure.

Usage messages tell each region's share as of its own second; shares that move would seem to overlap.  In the
log's order a grow is written only where there is room, so the newest values never add up to more than the whole.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from global_sync.protocol.messages import Beat, Kind, LeaseRecord, Mark, Record, Seq, Snapshot, Welcome
from global_sync.protocol.snapshots import SnapshotParts
from regional_limiter.model.enforcement import BASE

KEYS_MOST = 100_000


@dataclass(slots=True)
class _Region:
    """``leases``: of the current session; a key that is not there is at BASE."""

    session: int = 0
    leases: dict[str, tuple[Seq, int]] = field(default_factory=dict)


class Granted:
    """Folds log records.  ``epoch`` 0: nothing of a leader has been read yet."""

    def __init__(self) -> None:
        self.epoch = 0
        self.beat_ms: int | None = None
        self._regions: dict[str, _Region] = {}
        self._parts = SnapshotParts()

    def take(self, record: Record, heard_ms: int) -> None:
        """``heard_ms``: wall clock of the reader when the record came."""
        if isinstance(record, Mark):
            if record.epoch > self.epoch:
                self.epoch, self.beat_ms = record.epoch, heard_ms
            return
        if self.epoch == 0 and isinstance(record, Snapshot):
            self.epoch = record.epoch
        if record.epoch != self.epoch:
            return
        if isinstance(record, Beat):
            self.beat_ms = heard_ms
        elif isinstance(record, Welcome):
            self._take_welcome(record)
        elif isinstance(record, LeaseRecord):
            self._take_lease(record)
        elif isinstance(record, Snapshot) and (whole := self._parts.add(record)) is not None:
            self._take_snapshot(whole)

    def share(self, region: str, key: str) -> int | None:
        """The newest value of the region's current session, BASE for its base; None without a session."""
        known = self._regions.get(region)
        if known is None or known.session == 0:
            return None
        return known.leases.get(key, ((0, 0), BASE))[1]

    def keys(self) -> set[str]:
        """Keys with a lease other than BASE somewhere."""
        return {
            key for region in self._regions.values() for key, (_, value) in region.leases.items() if value != BASE
        }

    def _region(self, name: str) -> _Region:
        return self._regions.setdefault(name, _Region())

    def _take_welcome(self, welcome: Welcome) -> None:
        region = self._region(welcome.region)
        if welcome.session > region.session:
            seq = (welcome.epoch, welcome.n)
            region.session = welcome.session
            region.leases = {key: (seq, value) for key, value in welcome.low.items()}

    def _take_lease(self, record: LeaseRecord) -> None:
        region, seq = self._region(record.region), (record.epoch, record.n)
        known = region.leases.get(record.key)
        if record.session != region.session or (known is not None and seq <= known[0]):
            return
        value = record.value
        if record.kind is Kind.KEEP and known is not None and known[1] != BASE:
            value = min(value, known[1])
        if known is not None or len(region.leases) < KEYS_MOST:
            region.leases[record.key] = (seq, value)

    def _take_snapshot(self, snapshot: Snapshot) -> None:
        """What it does not name is at BASE again; of what it names, the newest record of the session counts."""
        for name, session in snapshot.current.items():
            region = self._region(name)
            if session >= region.session:
                leases: dict[str, tuple[Seq, int]] = {}
                for key, by_region in snapshot.ledger.items():
                    mine = [(seq, value) for seq, value, number in by_region.get(name, ()) if number == session]
                    if mine:
                        leases[key] = max(mine)
                region.session, region.leases = session, leases
