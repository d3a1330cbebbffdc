"""How long a lease takes from the log until its region has settled it, and how fast leases are written.  Pure.

Both ends are stamped by the broker, so no two clocks are compared: the record's append, and that of the first
report that says it is settled.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable
from typing import Any

from global_sync.protocol.messages import Kind, LeaseRecord, Record, Report, Seq

WAITING_MOST = 20_000
SEEN_MOST = 20_000
OVER_MS = 60_000
RATE_OVER_MS = 5_000
LATE_MS = 30_000
"""A record that is not settled by then waits for a region that is cut off, and is no longer waited for."""


_NEVER: tuple[Seq, int] = ((0, 0), 0)


class Convergence:
    def __init__(self) -> None:
        self._waiting: OrderedDict[tuple[str, str], tuple[Seq, int]] = OrderedDict()
        # The two topics are read side by side: a report may be read before the record that it settles.
        self._early: OrderedDict[tuple[str, str], tuple[Seq, int]] = OrderedDict()
        self._took: deque[tuple[int, int]] = deque(maxlen=SEEN_MOST)
        self._written: deque[tuple[int, Kind]] = deque(maxlen=SEEN_MOST)

    def take(self, records: Iterable[Record], stamp_ms: int) -> None:
        for record in records:
            if isinstance(record, LeaseRecord):
                self._written.append((stamp_ms, record.kind))
                self._wait((record.region, record.key), (record.epoch, record.n), stamp_ms)

    def _wait(self, place: tuple[str, str], seq: Seq, stamp_ms: int) -> None:
        early = self._early.get(place)
        if early is not None and early[0] >= seq:
            self._took.append((early[1], max(0, early[1] - stamp_ms)))
            return
        # The oldest that waits is the one that is timed: a later one must not make it look quick.
        self._waiting.setdefault(place, (seq, stamp_ms))
        if len(self._waiting) > WAITING_MOST:
            self._waiting.popitem(last=False)

    def settled(self, report: Report, stamp_ms: int) -> None:
        for key, (seq, _) in report.settled.items():
            waits = self._waiting.get((report.region, key))
            if waits is not None and seq >= waits[0]:
                del self._waiting[report.region, key]
                self._took.append((stamp_ms, max(0, stamp_ms - waits[1])))
            elif waits is None and seq > self._early.get((report.region, key), _NEVER)[0]:
                self._early[report.region, key] = seq, stamp_ms
                if len(self._early) > WAITING_MOST:
                    self._early.popitem(last=False)

    def shown(self, now_ms: int) -> dict[str, Any]:
        """Over the last minute: median, 95th part and the longest in ms; None when nothing was settled."""
        self._drop(now_ms)
        took = sorted(ms for _, ms in self._took)
        lately = [kind for at_ms, kind in self._written if at_ms > now_ms - RATE_OVER_MS]
        waiting = [now_ms - at_ms for _, at_ms in self._waiting.values()]
        return {
            "grows_per_s": sum(kind is Kind.GROW for kind in lately) * 1000 / RATE_OVER_MS,
            "keeps_per_s": sum(kind is Kind.KEEP for kind in lately) * 1000 / RATE_OVER_MS,
            "settled": len(took),
            "settled_ms_p50": took[len(took) // 2] if took else None,
            "settled_ms_p95": took[len(took) * 95 // 100] if took else None,
            "settled_ms_max": took[-1] if took else None,
            "waiting": len(waiting),
            "waiting_ms_max": max(waiting, default=None),
        }

    def _drop(self, now_ms: int) -> None:
        while self._took and self._took[0][0] <= now_ms - OVER_MS:
            self._took.popleft()
        while self._written and self._written[0][0] <= now_ms - OVER_MS:
            self._written.popleft()
        while self._waiting and next(iter(self._waiting.values()))[1] <= now_ms - LATE_MS:
            self._waiting.popitem(last=False)
