"""Windows in escrow: what regions are granted of a window's pool, in chunks.  Pure.

Of an adaptive window rule every region has a static part of each window, which nobody else is ever granted
(``window_static`` of its base); what is left of 10,000 is the window's **pool**.  The leader grants it in chunks,
each written to the log before anyone uses it.  All numbers are totals that only grow, so a record that is lost,
repeated, late or told by the wrong process is true or void, and there is no clock, session or consent in it.

W1  the leader grants no more of a window than its pool; every valid record counts, also after a takeover and a
    snapshot
W2  of a window of which nothing is known any more nothing is granted: ``ended_ms`` only goes forward, and is in the
    snapshot; so is ``from_ms``: of windows that began earlier a log that was lost may have told
W3  a region takes the largest total of the valid records of its own
W4  a point is told of grants only in the instance in which the session was confirmed: then all that had been in
    force in an earlier one has been read, and goes along as ``before``
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from global_sync.protocol.messages import Report, WindowAsk, WindowGrant, WindowTotals
from global_sync.protocol.snapshot_parts import in_parts
from regional_limiter.model.escrow import (
    WINDOW_KEYS_MOST,
    WINDOWS_A_KEY,
    GrantedWindow,
    WindowNews,
    window_start_ms,
)
from regional_limiter.model.share import WINDOW_POOL

WINDOWS_MOST = 20_000
"""That anything is granted of at a time; of further ones nothing is."""
KEPT_AFTER_END_MS = 10_000
"""A region's clock may be that much late and still be granted something."""
ASKS_MOST = 20_000
GRANTS_AT_ONCE = 500
REISSUE_PAUSES_MOST = 64
"""A grant that is not read of is said again after a pause, which doubles each time up to so many."""
_ROW_BYTES = 48
_TOTAL_BYTES = 12


@dataclass(slots=True)
class _Window:
    end_ms: int
    totals: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class WindowLedger:
    """What has been granted: key -> window -> region -> total.  ``ended_ms``, ``from_ms``: W2."""

    ended_ms: int = 0
    from_ms: int = 0
    _keys: dict[str, dict[int, _Window]] = field(default_factory=dict)
    _count: int = 0

    def __len__(self) -> int:
        return self._count

    def book(self, grant: WindowGrant) -> None:
        """Count a valid record; appends may swap, so the largest total counts."""
        if grant.end_ms <= self.ended_ms:
            return
        self._book(grant.key, grant.window, grant.end_ms, {grant.region: grant.total})

    def _book(self, key: str, window: int, end_ms: int, totals: Mapping[str, int]) -> None:
        windows = self._keys.setdefault(key, {})
        known = windows.get(window)
        if known is None:
            known = windows[window] = _Window(end_ms)
            self._count += 1
        known.end_ms = max(known.end_ms, end_ms)
        for region, total in totals.items():
            known.totals[region] = max(total, known.totals.get(region, 0))

    def total(self, key: str, window: int, region: str) -> int:
        known = self._keys.get(key, {}).get(window)
        return known.totals.get(region, 0) if known is not None else 0

    def left(self, key: str, window: int) -> int:
        """What is left of the window's pool."""
        known = self._keys.get(key, {}).get(window)
        return WINDOW_POOL - (sum(known.totals.values()) if known is not None else 0)

    def may_open(self, key: str, window: int) -> bool:
        return window in self._keys.get(key, {}) or self._count < WINDOWS_MOST

    def is_known(self, window: int, end_ms: int) -> bool:
        """Whether all that was ever granted of the window is here."""
        return end_ms > self.ended_ms and window_start_ms(window, end_ms) >= self.from_ms

    def forget_ended(self, wall_ms: int) -> None:
        """Windows that ended a while ago; from now on nothing may be granted of them."""
        ended_ms = wall_ms - KEPT_AFTER_END_MS
        if ended_ms <= self.ended_ms:
            return
        self.ended_ms = ended_ms
        for key, windows in list(self._keys.items()):
            for window in [window for window, known in windows.items() if known.end_ms <= ended_ms]:
                del windows[window]
                self._count -= 1
            if not windows:
                del self._keys[key]

    def copy(self) -> WindowLedger:
        return WindowLedger.of(dict(self._rows()), self.ended_ms, self.from_ms)

    def _rows(self) -> Iterator[tuple[str, tuple[WindowTotals, ...]]]:
        for key, windows in self._keys.items():
            yield key, tuple((window, known.end_ms, dict(known.totals)) for window, known in windows.items())

    def to_parts(self) -> Iterator[dict[str, tuple[WindowTotals, ...]]]:
        """For a snapshot, in parts of bounded size."""
        return in_parts(self._rows(), _windows_bytes)

    @classmethod
    def of(cls, windows: Mapping[str, Iterable[WindowTotals]], ended_ms: int, from_ms: int) -> WindowLedger:
        ledger = cls(ended_ms, from_ms)
        for key, rows in windows.items():
            for window, end_ms, totals in rows:
                ledger._book(key, window, end_ms, totals)
        return ledger


def _windows_bytes(key: str, windows: Iterable[WindowTotals]) -> int:
    rows = (_ROW_BYTES + sum(len(region) + _TOTAL_BYTES for region in totals) for _, _, totals in windows)
    return len(key.encode()) + sum(rows)


class _Asked(NamedTuple):
    ask: WindowAsk
    name: tuple[int, int]
    """(session, basis) of the report that said it."""


class _Issued(NamedTuple):
    at_us: int
    pauses: int
    """Until it is said again."""


class Grant(NamedTuple):
    key: str
    region: str
    window: int
    end_ms: int
    total: int


class EscrowLeader:
    """What one leadership was asked for, and what it grants.  ``ledger``: its own."""

    def __init__(self, ledger: WindowLedger) -> None:
        self._ledger = ledger
        self._asked: dict[str, dict[str, _Asked]] = {}
        self._count = 0
        self._issued: dict[tuple[str, str], _Issued] = {}

    def take(self, report: Report) -> None:
        """What a region asks for, by its newest report."""
        for key, ask in report.asks.items():
            by_region = self._asked.get(key, {})
            known = by_region.get(report.region)
            name = (report.session, report.basis)
            if known is not None and known.name >= name:
                continue
            if known is None and self._count >= ASKS_MOST:
                continue
            self._count += known is None
            by_region[report.region] = _Asked(ask, name)
            self._asked[key] = by_region

    def forget_region(self, region: str) -> None:
        """It is gone for good."""
        for key in [key for key, by_region in self._asked.items() if region in by_region]:
            self._drop(key, region)

    def grants(
        self, now_us: int, wall_ms: int, regions: int, reissue_us: int, deaf: Collection[str] = ()
    ) -> list[Grant]:
        """What is to be granted now, at most; to be booked one after the other.

        A region gets one chunk at a time: the next when it has read of the last.  One that it does not seem to have
        read of is said again after ``reissue_us``, and then more and more seldom.  ``deaf``: regions that are not
        heard; nothing is said to them.
        """
        self._ledger.forget_ended(wall_ms)
        grants: list[Grant] = []
        for key in list(self._asked):
            grants += self._grants_of(key, now_us, wall_ms, max(1, regions), reissue_us, deaf)
            if len(grants) >= GRANTS_AT_ONCE:
                break
        return grants

    def _grants_of(
        self, key: str, now_us: int, wall_ms: int, regions: int, reissue_us: int, deaf: Collection[str]
    ) -> list[Grant]:
        by_region, grants, given = self._asked[key], [], 0
        for region in sorted(by_region, key=lambda name: (self._total(key, name), name)):
            ask, total = by_region[region].ask, self._total(key, region)
            if ask.held >= ask.wanted or ask.end_ms <= wall_ms or not self._is_known(ask):
                self._drop(key, region)
                continue
            if region in deaf:
                continue
            pauses = 1
            if ask.held < total:
                issued = self._issued.get((key, region))
                if issued is not None:
                    if now_us - issued.at_us <= issued.pauses * reissue_us:
                        continue
                    pauses = min(2 * issued.pauses, REISSUE_PAUSES_MOST)
            else:
                left = self._left(key, ask.window) - given
                if left <= 0:  # and never will be more of this window
                    self._drop(key, region)
                    continue
                chunk = min(ask.wanted - total, max(ask.least, -(-left // (2 * regions))), left)
                if chunk <= 0 or not self._ledger.may_open(key, ask.window):
                    continue
                total += chunk
                given += chunk
            self._issued[key, region] = _Issued(now_us, pauses)
            grants.append(Grant(key, region, ask.window, ask.end_ms, total))
        return grants

    def _total(self, key: str, region: str) -> int:
        return self._ledger.total(key, self._asked[key][region].ask.window, region)

    def _is_known(self, ask: WindowAsk) -> bool:
        return self._ledger.is_known(ask.window, ask.end_ms)

    def _left(self, key: str, window: int) -> int:
        return self._ledger.left(key, window)

    def _drop(self, key: str, region: str) -> None:
        self._count -= 1
        self._issued.pop((key, region), None)
        del self._asked[key][region]
        if not self._asked[key]:
            del self._asked[key]


@dataclass(slots=True)
class _Told:
    """What a point was told in this ``instance``.  ``before``: what had been granted when it was confirmed."""

    instance: str
    before: dict[tuple[str, int], int]
    totals: dict[tuple[str, int], int] = field(default_factory=dict)


class EscrowRegion:
    """A region's side: what it was granted, what its points have been told of it, and what it asks for."""

    def __init__(self, region: str) -> None:
        self._region = region
        self._totals: dict[str, dict[int, tuple[int, int]]] = {}  # key -> window -> (end_ms, total)
        self._told: dict[str, _Told] = {}
        self._vouched: dict[str, tuple[str, int]] = {}
        self._asks: dict[str, WindowAsk] = {}
        self._unsaid: dict[str, None] = {}
        self._ended_ms = 0

    # ---- W3

    def take(self, grant: WindowGrant) -> bool:
        """A valid record of this region; True when the leader is to hear that it was read."""
        self._take(grant.key, grant.window, grant.end_ms, grant.total)
        ask = self._asks.get(grant.key)
        if ask is None or ask.window != grant.window:
            return False
        return self.ask(grant.key, replace(ask, held=self.held(grant.key, grant.window)))

    def start_from(self, windows: Mapping[str, Iterable[WindowTotals]]) -> None:
        for key, rows in windows.items():
            for window, end_ms, totals in rows:
                if self._region in totals:
                    self._take(key, window, end_ms, totals[self._region])

    def _take(self, key: str, window: int, end_ms: int, total: int) -> None:
        if end_ms <= self._ended_ms:
            return
        windows = self._totals.get(key)
        if windows is None:
            if len(self._totals) >= WINDOW_KEYS_MOST:
                return  # not used, which is the strict side
            windows = self._totals[key] = {}
        if total > windows.get(window, (0, 0))[1]:
            windows[window] = end_ms, total
        if len(windows) > WINDOWS_A_KEY:
            self._forget(key, min(windows, key=lambda one: windows[one][0]))

    def _forget(self, key: str, window: int) -> None:
        del self._totals[key][window]
        if not self._totals[key]:
            del self._totals[key]
        for told in self._told.values():
            told.before.pop((key, window), None)
            told.totals.pop((key, window), None)

    def held(self, key: str, window: int) -> int:
        """What it was granted of the window, as far as it has read."""
        return self._totals.get(key, {}).get(window, (0, 0))[1]

    def forget_ended(self, time_ms: int) -> None:
        """``time_ms``: of the region's stores.  Windows that are over by it are of no use here any more."""
        self._ended_ms = max(self._ended_ms, time_ms - KEPT_AFTER_END_MS)
        for key, windows in list(self._totals.items()):
            for window in [window for window, (end_ms, _) in windows.items() if end_ms <= self._ended_ms]:
                self._forget(key, window)
        for key in [key for key, ask in self._asks.items() if ask.end_ms <= time_ms]:
            self.ask(key, None)

    # ---- W4

    def keep_points(self, points: Collection[str]) -> None:
        """The region has no others: a point that comes back is confirmed anew."""
        for known in (self._told, self._vouched):
            for gone in [point for point in known if point not in points]:
                del known[gone]

    def confirm(self, point: str, instance: str) -> None:
        """A record that answers a report of this instance has been read: the session lives on in it."""
        told = self._told.get(point)
        if told is None or told.instance != instance:
            self._told[point] = _Told(instance, self._all())

    def _all(self) -> dict[tuple[str, int], int]:
        return {
            (key, window): total for key, windows in self._totals.items() for window, (_, total) in windows.items()
        }

    def to_tell(self, point: str, base_version: int, since: Mapping[str, int], limit: int = 200) -> WindowNews:
        """What the point does not know yet.  ``since``: for bases of ``base_version`` (see ``WindowNews``)."""
        instance, granted = self._grants_to_tell(point, limit)
        vouched_in, version = self._vouched.get(point, ("", -1))
        if version == base_version and instance in ("", vouched_in):
            return WindowNews(instance, granted)
        return WindowNews(instance, granted, base_version, since)

    def _grants_to_tell(self, point: str, limit: int) -> tuple[str, list[GrantedWindow]]:
        """("", nothing) while no instance is confirmed."""
        told = self._told.get(point)
        if told is None:
            return "", []
        news: list[GrantedWindow] = []
        for key, windows in self._totals.items():
            for window, (end_ms, total) in windows.items():
                if told.totals.get((key, window), 0) < total and len(news) < limit:
                    news.append(GrantedWindow(key, window, end_ms, total, told.before.get((key, window), 0)))
        return told.instance, news

    def was_told(self, point: str, instance: str, news: WindowNews) -> None:
        """The point has answered; ``instance``: its own."""
        if news.base_version >= 0:
            self._vouched[point] = instance, news.base_version
        elif self._vouched.get(point, ("", 0))[0] != instance:
            self._vouched.pop(point, None)
        told = self._told.get(point)
        if told is None or told.instance != instance:
            self._told.pop(point, None)
            return
        if news.instance != instance:
            return
        for one in news.granted:
            name = (one.key, one.window)
            told.totals[name] = max(one.total, told.totals.get(name, 0))

    # ---- asking

    def ask(self, key: str, ask: WindowAsk | None) -> bool:
        """What the region would have of a window of ``key`` (None: nothing more); True when that is news."""
        if ask is None:
            self._asks.pop(key, None)
            self._unsaid.pop(key, None)
            return False
        if self._asks.get(key) == ask or (key not in self._asks and len(self._asks) >= WINDOW_KEYS_MOST):
            return False
        self._asks[key] = ask
        self._unsaid[key] = None
        return True

    def say_all_again(self) -> None:
        """A new leader has heard none of it."""
        self._unsaid = dict.fromkeys(self._asks)

    def asks_to_say(self, most: int) -> dict[str, WindowAsk]:
        """The asks that have no receipt yet, in turn."""
        keys = [key for _, key in zip(range(max(0, most)), self._unsaid, strict=False)]
        if len(keys) < len(self._unsaid):
            for key in keys:
                del self._unsaid[key]
                self._unsaid[key] = None
        return {key: self._asks[key] for key in keys}

    def on_receipt(self, said: Mapping[str, WindowAsk]) -> None:
        for key, ask in said.items():
            if self._asks.get(key) == ask:
                self._unsaid.pop(key, None)
                if ask.held >= ask.wanted:
                    del self._asks[key]
