"""Snapshots travel in parts; a reader puts them together.  Pure."""

from __future__ import annotations

from dataclasses import replace

from global_sync.protocol.messages import Snapshot


class SnapshotParts:
    """Collects the parts of one snapshot at a time, in any order, each perhaps repeated.

    A snapshot that is not newer than the last complete one is a repeat: taking it would forget every record
    in between.
    """

    def __init__(self) -> None:
        self.first_offset = 0
        self._whole = (0, 0)
        self._collecting = (0, 0)
        self._parts: dict[int, Snapshot] = {}

    def add(self, part: Snapshot, offset: int = 0) -> Snapshot | None:
        """The whole snapshot, when this was the last part missing (``first_offset``: where its parts begin)."""
        name = (part.epoch, part.number)
        if name <= self._whole or name < self._collecting or not 0 <= part.part < part.parts:
            return None
        if name > self._collecting:
            self._collecting, self._parts, self.first_offset = name, {}, offset
        self._parts.setdefault(part.part, part)
        if len(self._parts) < part.parts or 0 not in self._parts:
            return None
        ledger = {key: records for one in self._parts.values() for key, records in one.ledger.items()}
        windows = {key: of for one in self._parts.values() for key, of in one.windows.items()}
        self._whole, head, self._parts = name, self._parts[0], {}
        return replace(head, ledger=ledger, windows=windows)
