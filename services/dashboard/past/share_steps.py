"""The log as steps: from when on which region was granted how much of a key, and whether its session lived.  Pure.

The ledger of :mod:`services.granted` is folded as the log is read; a step is written where what it says has
changed. A region follows a record within some tens of milliseconds, so a step is when the right moved, by the
broker's clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

from global_sync.protocol.messages import Beat, Gone, LeaseRecord, Mark, Record, Snapshot, Welcome, WindowGrant
from regional_limiter.model.enforcement import BASE
from services.granted import Granted

SESSIONS = ""
"""The key of steps that tell of a region's session, or, without a region, of a leader."""

WELCOME, SNAPSHOT = "welcome", "snapshot"
RENEWED, OVER, LEADER, GONE = "renewed", "over", "leader", "gone"
WINDOW, WINDOW_OVER = "window", "window_over"
"""Of a key whose windows are in escrow: what was granted of one, and that it has ended (told, and not kept)."""
BASES = "bases"
"""Told among the steps, and not kept as one: what a region has at rest from then on."""
KEPT_MS = 7 * 86_400_000
WINDOWS_MOST = 100_000
DROP_OVER_EVERY_MS = 1_000
"""While as many as that run, those that are over are looked for no more often: each time all are gone through."""


class Step(NamedTuple):
    """From ``at_ms`` on ``region`` is granted ``units`` of ``key`` (None: its base).  ``kind``: what said so (grow,
    keep, welcome, snapshot).

    Of ``window``, ``units`` of one window were granted beyond the region's static part, and ``session`` is when
    that window ends (ms): no step says so.

    Of SESSIONS, without units: ``welcome`` and ``renewed`` (the session lives), ``over`` (it has ended for want of
    renewals: the region is at its floor, and after its consent at its base), ``leader`` (without a region),
    ``gone`` (said to be destroyed: it holds nothing).
    """

    key: str
    region: str
    at_ms: int
    units: int | None
    kind: str
    log_offset: int
    epoch: int
    n: int
    session: int


@dataclass(slots=True)
class _Session:
    number: int
    basis: int
    renewed_ms: int
    over: bool = False


class ShareSteps:
    """``session_ms``: D.  ``known``: what the steps that are kept already end with, ``next_offset`` what they are
    of."""

    def __init__(
        self, session_ms: int, known: Mapping[tuple[str, str], int] | None = None, next_offset: int | None = None
    ) -> None:
        self._session_ms = session_ms
        self._granted = Granted()
        self._units: dict[tuple[str, str], int] = dict(known or {})
        self._sessions: dict[str, _Session] = {}
        self._windows: dict[tuple[str, str], tuple[int, int]] = {}  # (region, key) -> (end_ms, units)
        self._drop_over_ms = 0
        self.next_offset = next_offset
        self.epoch = 0

    def take(self, records: Iterable[Record], offset: int, stamp_ms: int) -> list[Step]:
        """``stamp_ms``: the broker's.  Of a message that was taken before, only the ledger learns."""
        steps: list[Step] = []
        for record in records:
            before = self.epoch
            self._granted.take(record, stamp_ms)
            self.epoch = self._granted.epoch
            if self.epoch == 0 or record.epoch != self.epoch:
                continue
            if isinstance(record, Mark) and before != self.epoch:
                steps.append(Step(SESSIONS, "", stamp_ms, None, LEADER, offset, record.epoch, 0, 0))
            elif isinstance(record, LeaseRecord):
                steps += self._moved([record.key], [record.region], stamp_ms, record.kind.value, offset, record.n)
            elif isinstance(record, WindowGrant):
                steps += self._granted_of_window(record.key, [record.region], stamp_ms, offset, record.n)
            elif isinstance(record, Welcome):
                steps += self._welcomed(record, offset, stamp_ms)
            elif isinstance(record, Beat):
                steps += self._renewed(record, offset, stamp_ms)
            elif isinstance(record, Gone):
                steps += self._gone(record, offset, stamp_ms)
            elif isinstance(record, Snapshot):
                steps += self._snapped(record, offset, stamp_ms)
        if self.next_offset is not None and offset < self.next_offset:
            return []
        self.next_offset = offset + 1
        return steps

    def look(self, now_ms: int) -> list[Step]:
        """Sessions that have ended by now: nobody writes a record of that."""
        steps = []
        for region, session in self._sessions.items():
            end_ms = session.renewed_ms + self._session_ms
            if not session.over and now_ms > end_ms:
                session.over = True
                offset = (self.next_offset or 1) - 1
                steps.append(Step(SESSIONS, region, end_ms, None, OVER, offset, self.epoch, 0, session.number))
        return steps

    def standing(self, at_ms: int) -> list[Step]:
        """All that holds now, as steps: for a file that has lost its own."""
        offset = (self.next_offset or 1) - 1
        steps = [
            Step(SESSIONS, region, at_ms, None, OVER if one.over else RENEWED, offset, self.epoch, 0, one.number)
            for region, one in self._sessions.items()
        ]
        if self.epoch:
            steps.append(Step(SESSIONS, "", at_ms, None, LEADER, offset, self.epoch, 0, 0))
        for (region, key), units in self._units.items():
            number = self._sessions[region].number if region in self._sessions else 0
            steps.append(Step(key, region, at_ms, units, SNAPSHOT, offset, self.epoch, 0, number))
        for (region, key), (end_ms, units) in self._windows.items():
            if end_ms > at_ms:
                steps.append(Step(key, region, at_ms, units, WINDOW, offset, self.epoch, 0, end_ms))
        return steps

    def moved(self, most: int, now_ms: int) -> list[str]:
        """Keys that are away from base somewhere now, or have something granted of their window; those that moved
        last first, leases before windows."""
        keys: dict[str, None] = {}
        running = (key for (_, key), (end_ms, _) in reversed(self._windows.items()) if end_ms > now_ms)
        for key in chain((key for _, key in reversed(self._units)), running):
            keys[key] = None
            if len(keys) == most:
                break
        return list(keys)

    def keys_moved(self, now_ms: int) -> int:
        """How many keys are away from base somewhere, or have something granted of their window."""
        running = {key for (_, key), (end_ms, _) in self._windows.items() if end_ms > now_ms}
        return len({key for _, key in self._units} | running)

    # ---- records

    def _moved(
        self, keys: Iterable[str], regions: Iterable[str], at_ms: int, kind: str, offset: int, n: int
    ) -> list[Step]:
        steps = []
        for key in keys:
            for region in regions:
                units = self._granted.share(region, key)
                if units is None or units == self._units.get((region, key), BASE):
                    continue
                self._units.pop((region, key), None)  # the last moved stands last
                if units != BASE:
                    self._units[region, key] = units
                number = self._sessions[region].number if region in self._sessions else 0
                told = None if units == BASE else units
                steps.append(Step(key, region, at_ms, told, kind, offset, self.epoch, n, number))
        return steps

    def _granted_of_window(self, key: str, regions: Iterable[str], at_ms: int, offset: int, n: int) -> list[Step]:
        """What is over already is no step: it would be told of the window after it."""
        end_ms, totals = self._granted.windows().get(key, (0, {}))
        steps = []
        for region in regions:
            units = totals.get(region, 0)
            if end_ms <= at_ms or units == 0 or (end_ms, units) == self._windows.get((region, key)):
                continue
            self._windows.pop((region, key), None)
            if len(self._windows) >= WINDOWS_MOST and at_ms >= self._drop_over_ms:
                self._windows = {place: one for place, one in self._windows.items() if one[0] > at_ms}
                self._drop_over_ms = at_ms + DROP_OVER_EVERY_MS
            if len(self._windows) < WINDOWS_MOST:
                self._windows[region, key] = end_ms, units
            steps.append(Step(key, region, at_ms, units, WINDOW, offset, self.epoch, n, end_ms))
        return steps

    def _welcomed(self, record: Welcome, offset: int, at_ms: int) -> list[Step]:
        known = self._sessions.get(record.region)
        if known is not None and record.session <= known.number:
            return []
        self._sessions[record.region] = _Session(record.session, record.basis, at_ms)
        step = Step(SESSIONS, record.region, at_ms, None, WELCOME, offset, record.epoch, record.n, record.session)
        keys = {*(key for region, key in self._units if region == record.region), *record.low}
        return [step, *self._moved(sorted(keys), [record.region], at_ms, WELCOME, offset, record.n)]

    def _renewed(self, record: Beat, offset: int, at_ms: int) -> list[Step]:
        """A renewal that names the same moment as before renews nothing."""
        steps = []
        for region, (number, basis) in record.renewals.items():
            known = self._sessions.get(region)
            if known is None:
                known = self._sessions[region] = _Session(number, basis, at_ms, over=True)
            elif number < known.number or (number == known.number and basis <= known.basis):
                continue
            known.number, known.basis, known.renewed_ms = number, basis, at_ms
            if known.over:
                known.over = False
                steps.append(Step(SESSIONS, region, at_ms, None, RENEWED, offset, record.epoch, 0, number))
        return steps

    def _gone(self, record: Gone, offset: int, at_ms: int) -> list[Step]:
        for place in [place for place in self._units if place[0] == record.region]:
            del self._units[place]
        self._sessions.pop(record.region, None)
        return [Step(SESSIONS, record.region, at_ms, None, GONE, offset, record.epoch, 0, 0)]

    def _snapped(self, record: Snapshot, offset: int, at_ms: int) -> list[Step]:
        """What was missed before it, if anything was.  (Cheap to ask: only the last part changes the ledger.)"""
        if record.part + 1 < record.parts:
            return []
        keys = {*self._granted.keys(), *(key for _, key in self._units)}
        regions = sorted({*self._sessions, *record.current} - {*record.gone})
        steps = self._moved(sorted(keys), regions, at_ms, SNAPSHOT, offset, 0)
        for key, (_, totals) in self._granted.windows().items():
            steps += self._granted_of_window(key, totals, at_ms, offset, 0)
        return steps


def with_ends(steps: Iterable[Step], until_ms: int, running_before: Iterable[Step] = ()) -> list[Step]:
    """``steps`` of one key, the oldest first, and one for each window that ended before more was granted.

    ``running_before``: the last grants of windows that run when ``steps`` begin, one a region.
    """
    told: list[Step] = []
    running = {one.region: one for one in running_before}

    def end(by_ms: int) -> None:
        for region, one in sorted(running.items(), key=lambda of: of[1].session):
            if one.session <= by_ms:
                told.append(one._replace(at_ms=one.session, units=None, kind=WINDOW_OVER))
                del running[region]

    for step in steps:
        end(step.at_ms)
        if step.kind == WINDOW:
            running[step.region] = step
        told.append(step)
    end(until_ms)
    return told
