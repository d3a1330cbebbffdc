"""The leases as the log grants them: one consistent cut, whatever the regions have read of it so far.  Pure.

Usage messages tell each region's share as of its own second; shares that move would seem to overlap.  In the
log's order a grow is written only where there is room.  A region may have made that room without a record, by
lowering itself: then its record is older than the grow (``newest``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from global_sync.protocol.messages import Beat, Kind, LeaseRecord, Mark, Record, Seq, Snapshot, Welcome, WindowGrant
from global_sync.protocol.snapshots import SnapshotParts
from regional_limiter.model.enforcement import BASE
from regional_limiter.model.share import SHARE_UNITS

KEYS_MOST = 100_000
SAID_MOST = 8


class _Said(NamedTuple):
    """One record: what it set, and the reader's wall clock when it was read."""

    seq: Seq
    value: int
    read_ms: int


_NOT_WELCOMED = _Said((0, 0), BASE, 0)


@dataclass(slots=True)
class _Region:
    """``leases``: by key what was said, the newest last; before it what may still be in force if that was never
    heard.  A key that is not there is at BASE, by the WELCOME."""

    session: int = 0
    welcome: _Said = _NOT_WELCOMED
    leases: dict[str, list[_Said]] = field(default_factory=dict)


class Granted:
    """Folds log records.  ``epoch`` 0: nothing of a leader has been read yet."""

    def __init__(self) -> None:
        self.epoch = 0
        self.beat_ms: int | None = None
        self._regions: dict[str, _Region] = {}
        self._parts = SnapshotParts()
        self._windows: dict[str, tuple[int, dict[str, int]]] = {}  # key -> (end_ms, region -> total) of the newest

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
            self._take_welcome(record, heard_ms)
        elif isinstance(record, LeaseRecord):
            self._take_lease(record, heard_ms)
        elif isinstance(record, WindowGrant):
            self._take_window(record.key, record.end_ms, {record.region: record.total}, heard_ms)
        elif isinstance(record, Snapshot) and (whole := self._parts.add(record)) is not None:
            self._take_snapshot(whole, heard_ms)

    def of_window(self, key: str, now_ms: int) -> dict[str, int]:
        """What was granted by region of the window of ``key`` that is not over yet, on top of the static parts."""
        end_ms, totals = self._windows.get(key, (0, {}))
        return dict(totals) if now_ms < end_ms else {}

    def windows(self) -> Mapping[str, tuple[int, Mapping[str, int]]]:
        """By key the newest window that something was granted of: when it ends, and by region how much in all."""
        return self._windows

    def _take_window(self, key: str, end_ms: int, totals: Mapping[str, int], now_ms: int) -> None:
        known_end_ms, known = self._windows.get(key, (0, {}))
        if end_ms < known_end_ms:
            return
        if key not in self._windows and len(self._windows) >= KEYS_MOST:
            self._make_room(now_ms)
        known = known if end_ms == known_end_ms else {}
        known.update({region: max(total, known.get(region, 0)) for region, total in totals.items()})
        self._windows[key] = end_ms, known

    def _make_room(self, now_ms: int) -> None:
        """Without the windows that are over; if there is none, without that which was first heard of first."""
        living = {key: one for key, one in self._windows.items() if one[0] > now_ms}
        if len(living) == len(self._windows):
            del living[next(iter(living))]
        self._windows = living

    def share(self, region: str, key: str) -> int | None:
        """The newest value of the region's current session, BASE for its base; None without a session."""
        known = self._regions.get(region)
        if known is None or known.session == 0:
            return None
        said = known.leases.get(key)
        return said[-1].value if said else BASE

    def newest(self, region: str, key: str) -> Seq:
        """The record that said it last."""
        known = self._regions.get(region)
        if known is None:
            return (0, 0)
        return (known.leases.get(key) or [known.welcome])[-1].seq

    def most(self, region: str, key: str, base: int, since_ms: int) -> int | None:
        """The most that any record allows which the region may be following, if it has obeyed what was read here
        up to ``since_ms`` and may have heard nothing later.  None without a session.

        So the leader counts: a record that takes something back is worth nothing until it is acknowledged.
        """
        known = self._regions.get(region)
        if known is None or known.session == 0:
            return None
        said = known.leases.get(key) or [known.welcome]
        followed = [one for one, next_one in pairwise(said) if next_one.read_ms > since_ms]
        return max(base if one.value == BASE else one.value for one in [*followed, said[-1]])

    def keys(self) -> set[str]:
        """Keys with a lease other than BASE somewhere."""
        return {
            key
            for region in self._regions.values()
            for key, said in region.leases.items()
            if any(one.value != BASE for one in said)
        }

    def _region(self, name: str) -> _Region:
        return self._regions.setdefault(name, _Region())

    def _take_welcome(self, welcome: Welcome, read_ms: int) -> None:
        region = self._region(welcome.region)
        if welcome.session <= region.session:
            return
        # Without a session before, there is nothing that could still be followed.
        before = [region.welcome] if region.session else []
        region.session = welcome.session
        region.welcome = _Said((welcome.epoch, welcome.n), BASE, read_ms)
        keys = [*region.leases, *(key for key in welcome.low if key not in region.leases)]
        for key in keys[:KEYS_MOST]:
            newest = region.welcome._replace(value=welcome.low.get(key, BASE))
            region.leases[key] = _with(region.leases.get(key, before), newest)

    def _take_lease(self, record: LeaseRecord, read_ms: int) -> None:
        region, seq = self._region(record.region), (record.epoch, record.n)
        said = region.leases.get(record.key) or [region.welcome]
        newest = said[-1]
        if record.session != region.session or seq <= newest.seq:
            return
        value = record.value
        if record.kind is Kind.KEEP and newest.value != BASE:
            value = min(value, newest.value)
        if record.key in region.leases or len(region.leases) < KEYS_MOST:
            region.leases[record.key] = _with(said, _Said(seq, value, read_ms))

    def _take_snapshot(self, snapshot: Snapshot, read_ms: int) -> None:
        """What it does not name is at BASE again; what it names is all that may still be followed."""
        for key, windows in snapshot.windows.items():
            for _, end_ms, totals in windows:
                self._take_window(key, end_ms, totals, read_ms)
        welcomes = {(region, number): seq for region, number, seq in snapshot.sessions}
        for name, session in snapshot.current.items():
            region = self._region(name)
            if session < region.session:
                continue
            if session > region.session:
                region.welcome = _Said(welcomes.get((name, session), (0, 0)), BASE, read_ms)
            known = {(key, one.seq): one for key, said in region.leases.items() for one in said}
            region.session, region.leases = session, {}
            for key, by_region in snapshot.ledger.items():
                counted = sorted(by_region.get(name, ()))
                said = [
                    known.get((key, seq), _Said(seq, value, read_ms))._replace(value=value)
                    for seq, value, number in counted
                    if number <= session
                ]
                if counted and counted[-1][2] < session:
                    said.append(region.welcome)
                if said and len(region.leases) < KEYS_MOST:
                    region.leases[key] = said[-SAID_MOST:]


def without_released(shares: Mapping[str, int], newest: Mapping[str, Seq]) -> dict[str, int]:
    """The shares of one key by region, none above what is left by the others: never above the whole, by being made
    so.  What the records grant in sum may rightly be more, so this is no check of them.

    A region may lower itself without a record, and a grow of another may use that room: then those whose records
    are older (``newest``) have given what is too much.
    """
    left = dict(shares)
    over = sum(left.values()) - SHARE_UNITS
    for region in sorted(newest, key=lambda region: newest[region]):
        given = min(max(0, over), left[region])
        left[region] -= given
        over -= given
    return left


def _with(said: list[_Said], newest: _Said) -> list[_Said]:
    """``said`` and the newest, without what it covers; bounded, and the older ones, which allow most, kept."""
    open_values = [one for one in said if one.value != newest.value]
    kept = [one for one in open_values if BASE in (one.value, newest.value) or one.value > newest.value]
    if len(kept) >= SAID_MOST:
        del kept[-1]
    return [*kept, newest]
