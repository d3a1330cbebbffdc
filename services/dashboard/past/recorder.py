"""Reads the topics for what is remembered, and writes it down every few seconds.  [IO]

Usage and its place in the topic are written together, so that a dashboard that comes back goes on where it was.
Its file may be lost: then the minutes are read again from the end of the usage topic.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import structlog

from global_sync import codec
from global_sync.changes import decode_history
from global_sync.protocol.messages import Kind, LeaseRecord, Record
from global_sync.transport.base import HISTORY, LOG, REPORTS, USAGE, Message, Transport, TransportUnavailable
from regional_limiter.model.keys import rule_of
from regional_limiter.model.share import ProtocolTimes
from services.clock import wall_ms
from services.dashboard.past.bases_over_time import BasesKept, BasesOverTime
from services.dashboard.past.cells import (
    EVERYTHING,
    GROWS,
    KEEPS,
    MINUTE_MS,
    SECOND_MS,
    SECONDS_KEPT_MS,
    Cell,
    Placed,
    add_to,
    empty_cell,
)
from services.dashboard.past.convergence import Convergence
from services.dashboard.past.file import AnswerTookTooLong, PastFile
from services.dashboard.past.growth import GrowthState, UsageGrowth
from services.dashboard.past.incidents import Incident, Noticing, gap_incident, incident_of
from services.dashboard.past.rollups import BYTES_MOST, Rollups
from services.dashboard.past.share_steps import ShareSteps, Step
from services.dashboard.past.stored_incidents import StoredIncidents
from services.dashboard.past.stored_steps import StoredSteps
from services.feed import Feed, StartAt
from services.health import RegionHealth, RegionProbe
from services.picture import usage_document

log = structlog.get_logger(__name__)

USAGE_AGAIN_MOST = 200_000
"""Usage messages that are read again without the file: some eleven hours of five regions."""
HISTORY_BEFORE_END = -2_000
ADD_EVERY_S = 1.0
WRITE_EVERY = 5
SWEEP_EVERY = 60
NAMES_SWEPT_EVERY = 3_600
UNWRITTEN_STEPS_MOST = 50_000
UNWRITTEN_INCIDENTS_MOST = 2_000
PENDING_MOST = 200_000
FORGOTTEN_AFTER_MS = 7 * 86_400_000
OVER_AFTER_MS = 6 * 3_600_000
"""No region tells of a node any more that it has not told of for so long."""
READ_LATELY_MS = 3_000

_USAGE_STATE, _LOG_PLACE, _BASES = "usage", "log", "bases"
_FILE_ERRORS = (sqlite3.Error, AnswerTookTooLong)


@dataclass(frozen=True, slots=True)
class _Batch:
    cells: Iterator[Placed]
    """What is still in it has not been added."""
    steps: list[Step]
    incidents: list[Incident]
    usage: GrowthState
    place: dict[str, Any]
    """In the log."""
    bases: BasesKept | None
    """If they have changed."""


class Recorder:
    """``regions`` and ``probes``: how the regions are, as the displays see them."""

    def __init__(
        self,
        transport: Transport,
        path: Path | None,
        times: ProtocolTimes,
        regions: Callable[[int], Sequence[RegionHealth]],
        probes: Callable[[], Mapping[str, RegionProbe]],
        *,
        bytes_most: int = BYTES_MOST,
        now_ms: Callable[[], int] = wall_ms,
    ) -> None:
        self._transport = transport
        self._regions = regions
        self._probes = probes
        self._now_ms = now_ms
        self.file = PastFile(path)
        self.rollups = Rollups(self.file, bytes_most)
        self.stored_steps = StoredSteps(self.file)
        self.stored_incidents = StoredIncidents(self.file)
        self.convergence = Convergence()
        self.growth = UsageGrowth()
        self.steps = ShareSteps(times.session_us // 1000)
        self.bases = BasesOverTime()
        self._times = times
        self._noticing = Noticing()
        self._pending: dict[tuple[str, str, str, int, bool], Cell] = {}
        self._unwritten_steps: list[Step] = []
        self._unwritten_incidents: list[Incident] = []
        self._last_stamp_ms: int | None = None
        self._retell = False
        self._writing: asyncio.Task[None] | None = None
        self.left_out = 0
        self.problem: str | None = None
        self.feed: Feed | None = None
        self.file.on_begun_anew.append(self._ask_to_retell)

    # ---- living

    async def run(self) -> None:
        """Until cancelled; what has been read by then is written."""
        starts = await self._starts()
        handlers = {
            USAGE: self._take_usage,
            LOG: self._take_log,
            HISTORY: self._take_history,
            REPORTS: self._take_report,
        }
        self.feed = Feed(self._transport, handlers, starts, gentle=True)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.feed.run())
                tasks.create_task(self._keep_writing())
        finally:
            await asyncio.shield(self.write_down(sweep=False))

    def close(self) -> None:
        self.file.close()

    async def _keep_writing(self) -> None:
        turn = 0
        while True:
            await asyncio.sleep(ADD_EVERY_S)
            turn += 1
            try:
                await self._turn(turn)
            except Exception as error:  # whatever it was: recording goes on
                self._fails(error)

    async def _turn(self, turn: int) -> None:
        self._notice()
        if turn % WRITE_EVERY:
            await self._to_its_end(self._add)
        else:
            await self.write_down(sweep=turn % SWEEP_EVERY == 0)
        if turn % NAMES_SWEPT_EVERY == 0:
            self.growth.forget(self._now_ms(), FORGOTTEN_AFTER_MS, OVER_AFTER_MS)
            await asyncio.to_thread(self._forget_names)

    def _fails(self, error: Exception) -> None:
        if self.problem is None:
            log.error("history not kept, tried again", error=repr(error))
        self.problem = str(error) or repr(error)

    # ---- where reading begins

    async def _starts(self) -> dict[str, StartAt]:
        while True:
            try:
                await asyncio.to_thread(self._restore)
                starts: dict[str, StartAt] = {
                    USAGE: await self._usage_start(),
                    LOG: await self._log_start(),
                    HISTORY: HISTORY_BEFORE_END,
                    REPORTS: "latest",
                }
            except _FILE_ERRORS as error:
                self._fails(error)
                await asyncio.sleep(ADD_EVERY_S)
            else:
                self.problem = None
                return starts

    def _restore(self) -> None:
        meta = dict(self.file.ask("select name, value from meta"))
        try:
            if _USAGE_STATE in meta:
                self.growth.restore(msgspec.msgpack.decode(meta[_USAGE_STATE]))
            place = msgspec.msgpack.decode(meta[_LOG_PLACE]) if _LOG_PLACE in meta else {}
            next_offset, self._last_stamp_ms = place.get("next_offset"), place.get("stamp_ms")
        except (msgspec.DecodeError, KeyError, TypeError, ValueError, AttributeError) as error:
            log.warning("place in the topics not readable, reading again", error=str(error))
            self.growth, next_offset = UsageGrowth(), None
        self.bases = _bases(meta.get(_BASES))
        self.steps = ShareSteps(self._times.session_us // 1000, self.stored_steps.known(), next_offset)
        self._noticing = Noticing(self.stored_incidents.cut())

    async def _usage_start(self) -> StartAt:
        first, end = await self._ends(USAGE)
        known = self.growth.next_offset
        if known is not None and known > end:
            self.growth, known = UsageGrowth(), None  # another topic
        if known is not None and known >= first and end - known <= USAGE_AGAIN_MOST:
            return known
        self.growth = UsageGrowth()
        return max(first, end - USAGE_AGAIN_MOST)

    async def _log_start(self) -> StartAt:
        """Always what the log still has: it begins with a snapshot, and the ledger is folded from there."""
        _, end = await self._ends(LOG)
        if self.steps.next_offset is not None and self.steps.next_offset > end:
            self.steps = ShareSteps(self._times.session_us // 1000, self.stored_steps.known())
            self.bases.begin_anew()
        return "earliest"

    async def _ends(self, topic: str) -> tuple[int, int]:
        while True:
            try:
                reader = await self._transport.reader(topic, "earliest")
                try:
                    return reader.next_offset, await reader.end_offset()
                finally:
                    await reader.close()
            except TransportUnavailable:
                await asyncio.sleep(1)

    # ---- taking

    def _take_usage(self, message: Message) -> None:
        usage = usage_document(message.value)
        for one in self.growth.take(usage, message.offset, message.timestamp_ms):
            self._hold(one)
        where, refused = f"the agent of {usage['region']}", usage.get("violations")
        if isinstance(refused, int):
            self._tell(self._noticing.refusals(where, usage["agent"], refused, message.timestamp_ms))

    def _take_log(self, message: Message) -> None:
        records = codec.decode_records(message.value)
        known = self.steps.next_offset
        is_new = known is None or message.offset >= known
        if known is not None and message.offset > known and self._last_stamp_ms is not None:
            self._tell([gap_incident(self._last_stamp_ms, message.timestamp_ms, "shares")])
        steps = self.steps.take(records, message.offset, message.timestamp_ms)
        for record in records:
            self.bases.take(record, message.timestamp_ms)
        if is_new:
            self._last_stamp_ms = message.timestamp_ms
            self.convergence.take(records, message.timestamp_ms)
            self._count(records, message.timestamp_ms)
            self._keep(steps)

    def _count(self, records: Sequence[Record], stamp_ms: int) -> None:
        for record in records:
            if not isinstance(record, LeaseRecord):
                continue
            cell = empty_cell()
            cell[GROWS if record.kind is Kind.GROW else KEEPS] = 1
            try:
                rule = "/".join(rule_of(record.key))
            except ValueError:
                continue
            for name in (rule, EVERYTHING):
                self._hold(Placed(name, name, record.region, stamp_ms - stamp_ms % SECOND_MS, cell))

    def _take_history(self, message: Message) -> None:
        if (incident := incident_of(decode_history(message.value))) is not None:
            self._tell([incident])

    def _take_report(self, message: Message) -> None:
        self.convergence.settled(codec.decode_report(message.value), message.timestamp_ms)

    def _notice(self) -> None:
        now_ms = self._now_ms()
        self._tell(self._noticing.regions(self._regions(now_ms), now_ms))
        for region, probe in self._probes().items():
            leader = probe.leader or {}
            if isinstance(leader.get("violations"), int):
                where = f"the candidate leader of {region}"
                refused = self._noticing.refusals(where, leader.get("candidate"), leader["violations"], now_ms)
                self._tell(refused)
        silent_ms = self.feed.silent_ms(LOG) if self.feed is not None else None
        caught_up = self.feed is not None and self.feed.topics[LOG].caught_up.is_set()
        if caught_up and silent_ms is not None and silent_ms < READ_LATELY_MS:
            self._keep(self.steps.look(now_ms))

    # ---- what waits to be written

    def _hold(self, one: Placed) -> None:
        by_minute = one.by_minute or one.at_ms < self._now_ms() - SECONDS_KEPT_MS
        at_ms = one.at_ms - one.at_ms % (MINUTE_MS if by_minute else SECOND_MS)
        place = (one.name, one.rule, one.region, at_ms, by_minute)
        held = self._pending.get(place)
        if held is not None:
            add_to(held, one.cell)
        elif len(self._pending) < PENDING_MOST:
            self._pending[place] = list(one.cell)
        else:
            self.left_out += 1

    def _taken(self) -> Iterator[Placed]:
        pending, self._pending = self._pending, {}
        return (
            Placed(name, rule, region, at_ms, cell, by_minute)
            for (name, rule, region, at_ms, by_minute), cell in pending.items()
        )

    async def _add(self) -> None:
        """What cannot be added waits again, but for the one cell at which it failed: that may have been added."""
        cells = self._taken()
        try:
            await asyncio.to_thread(self.rollups.add, cells, self._now_ms())
        except BaseException:
            self._hold_again(cells)
            raise

    def _hold_again(self, cells: Iterator[Placed]) -> None:
        for one in cells:
            self._hold(one)

    def _keep(self, steps: Sequence[Step]) -> None:
        self._unwritten_steps += steps
        self.left_out += max(0, len(self._unwritten_steps) - UNWRITTEN_STEPS_MOST)
        del self._unwritten_steps[:-UNWRITTEN_STEPS_MOST]
        self._tell(self._noticing.steps(steps))

    def _tell(self, incidents: Sequence[Incident]) -> None:
        self._unwritten_incidents += incidents
        del self._unwritten_incidents[:-UNWRITTEN_INCIDENTS_MOST]

    def _ask_to_retell(self) -> None:
        self._retell = True

    # ---- writing

    def _batch(self) -> _Batch:
        """All that waits, with the places that it is read up to."""
        if self._retell:  # the file has lost its steps: what holds now, in place of how it came to that
            self._retell = False
            self.bases.changed = True
            self._unwritten_steps = self.steps.standing(self._now_ms())
        batch = _Batch(
            self._taken(),
            self._unwritten_steps,
            self._unwritten_incidents,
            self.growth.state(),
            {"next_offset": self.steps.next_offset, "stamp_ms": self._last_stamp_ms},
            self.bases.state() if self.bases.changed else None,
        )
        self.bases.changed = False
        self._unwritten_steps, self._unwritten_incidents = [], []
        return batch

    async def write_down(self, *, sweep: bool) -> None:
        """All that waits; after what is being written, so that what of that fails is in it."""
        await self._to_its_end(lambda: self._write_batch(sweep))

    async def _to_its_end(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Also when who waits for it is cancelled: it has taken what waited, and alone can say that it must wait
        again."""
        if self._writing is not None:
            await asyncio.wait({self._writing})
        self._writing = asyncio.create_task(work())
        await asyncio.shield(self._writing)

    async def _write_batch(self, sweep: bool) -> None:
        batch, written = self._batch(), False
        try:
            for _ in batch.usage.write_down():
                await asyncio.sleep(0)
            written = await asyncio.to_thread(self._write, batch, sweep)
        finally:
            if not written:
                self._wait_again(batch)

    def _wait_again(self, batch: _Batch) -> None:
        """What was not written: the cells in the rollups, those that were not added to them, and these, here."""
        self._hold_again(batch.cells)
        self.bases.changed = self.bases.changed or batch.bases is not None
        self._unwritten_steps = [*batch.steps, *self._unwritten_steps][-UNWRITTEN_STEPS_MOST:]
        self._unwritten_incidents = [*batch.incidents, *self._unwritten_incidents][-UNWRITTEN_INCIDENTS_MOST:]

    def _write(self, batch: _Batch, sweep: bool) -> bool:
        """In a thread."""
        now_ms = self._now_ms()
        try:
            self.rollups.add(batch.cells, now_ms)
            with self.file.writing() as base:
                chunks = self.rollups.write(base, now_ms)
                self.stored_steps.write(base, batch.steps)
                self.stored_incidents.write(base, batch.incidents)
                meta = {_LOG_PLACE: msgspec.msgpack.encode(batch.place), _USAGE_STATE: batch.usage.encoded()}
                if batch.bases is not None:
                    meta[_BASES] = msgspec.msgpack.encode(batch.bases)
                base.executemany("insert or replace into meta values (?, ?)", list(meta.items()))
                if sweep:
                    for table in (self.rollups, self.stored_steps, self.stored_incidents):
                        table.sweep(base, now_ms)
        except _FILE_ERRORS as error:
            self._fails(error)
            return False
        self.problem = None
        self.rollups.written(chunks, now_ms)
        if sweep:
            self._give_back()
        return True

    def _give_back(self) -> None:
        try:
            with self.file.lock:
                self.file.base.execute("pragma incremental_vacuum(2000)").fetchall()
        except sqlite3.Error as error:
            log.error("room not given back", error=str(error))

    def _forget_names(self) -> None:
        try:
            with self.file.writing():
                self.file.forget_names()
        except sqlite3.Error as error:
            log.error("names not swept", error=str(error))

    # ---- telling

    def shown(self) -> dict[str, Any]:
        """Where the history is and from when on; for whoever looks.  Reads the file: not on the event loop."""
        return {
            "kept_in": "file" if self.file.path is not None else "memory",
            "why_in_memory": self.file.why_in_memory,
            "bytes": self.file.bytes_used(),
            "seconds_since_ms": self.rollups.since_ms(SECOND_MS),
            "minutes_since_ms": self.rollups.since_ms(MINUTE_MS),
            "shares_since_ms": self.stored_steps.since_ms(),
            "left_out": self.left_out + self.rollups.left_out,
            "begun_anew": self.file.begun_anew,
            "problem": self.problem,
            "catching_up": self.feed is None or not self.feed.topics[USAGE].caught_up.is_set(),
        }


def _bases(kept: bytes | None) -> BasesOverTime:
    """Without those that cannot be read: the log tells again of those that are in force."""
    try:
        return BasesOverTime(msgspec.msgpack.decode(kept, type=BasesKept) if kept is not None else None)
    except (msgspec.DecodeError, LookupError) as error:
        log.warning("bases not readable, reading again", error=str(error))
        return BasesOverTime()
