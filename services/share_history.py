"""What the log granted of each key lately: who was given how much of a limit, and when.  Pure and bounded."""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass

from global_sync.protocol.messages import LeaseRecord, Record
from regional_limiter.model.enforcement import BASE

KEYS_MOST = 2_000
ENTRIES_MOST = 50


@dataclass(frozen=True, slots=True)
class Entry:
    """``units``: of 10,000; None: the region's base.  ``kind``: grow, keep or shrink, as the record says."""

    at_ms: int
    region: str
    units: int | None
    kind: str
    epoch: int
    n: int


class ShareHistory:
    """The last ``ENTRIES_MOST`` records of each of the ``KEYS_MOST`` keys that were spoken of last."""

    def __init__(self, keys_most: int = KEYS_MOST, entries_most: int = ENTRIES_MOST) -> None:
        self._keys_most = keys_most
        self._entries_most = entries_most
        self._by_key: OrderedDict[str, deque[Entry]] = OrderedDict()

    def take(self, record: Record, heard_ms: int) -> None:
        """``heard_ms``: the reader's wall clock when the record came."""
        if not isinstance(record, LeaseRecord):
            return
        entries = self._by_key.get(record.key)
        if entries is None:
            if len(self._by_key) >= self._keys_most:
                self._by_key.popitem(last=False)
            entries = self._by_key[record.key] = deque(maxlen=self._entries_most)
        self._by_key.move_to_end(record.key)
        units = None if record.value == BASE else record.value
        entries.append(Entry(heard_ms, record.region, units, record.kind.name.lower(), record.epoch, record.n))

    def of(self, key: str) -> list[Entry]:
        """The newest first."""
        return list(reversed(self._by_key.get(key, ())))
