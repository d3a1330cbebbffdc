"""Which bases the log says are to come and which are in force, and which regions are destroyed.  Pure."""

from __future__ import annotations

from collections.abc import Mapping

from global_sync.protocol.messages import Bases, Config, Done, Gone, Mark, Record, Snapshot
from global_sync.protocol.snapshots import SnapshotParts
from regional_limiter.model.share import domain_of_floor


class BasesSeen:
    """Folds log records.

    ``version``: of the newest CONFIG, 0 before one was read; ``done_version``: of the newest that is DONE, from
    which on every region may use its new base.  ``gone``: regions that were said to be destroyed.
    """

    def __init__(self) -> None:
        self.version = 0
        self.done_version = 0
        self.bases: Bases = {}
        self.gone: set[str] = set()
        self._epoch = 0
        self._parts = SnapshotParts()

    def take(self, record: Record) -> None:
        if isinstance(record, Mark):
            self._epoch = max(self._epoch, record.epoch)
            return
        if self._epoch == 0 and isinstance(record, Snapshot):
            self._epoch = record.epoch
        if record.epoch != self._epoch:
            return
        if isinstance(record, Config):
            self._take_config(record.version, record.bases)
        elif isinstance(record, Done):
            self.done_version = max(self.done_version, record.version)
        elif isinstance(record, Gone):
            self.gone.add(record.region)
        elif isinstance(record, Snapshot) and (whole := self._parts.add(record)) is not None:
            self._take_config(whole.version, whole.bases)
            self.done_version = max(self.done_version, whole.done_version)
            self.gone |= set(whole.gone)

    def base_of(self, region: str) -> Mapping[str, int]:
        """Its bases above 0 by domain, as the newest CONFIG has them."""
        return {
            name: by[region]
            for name, by in self.bases.items()
            if by.get(region, 0) > 0 and domain_of_floor(name) is None
        }

    def _take_config(self, version: int, bases: Bases) -> None:
        if version > self.version:
            self.version, self.bases = version, bases
