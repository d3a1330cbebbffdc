"""Brings what is known of clients from its topic into a region's store, and again where the store lost it.  [IO]

The store keeps how far it has come, group by group, so whoever takes over, and a process that starts anew, go on
from there.  A group that has lost its place is filled from the beginning of the topic.  Each write moves its
group's place (see ``store/subjects.py``), so that what is lost in between is noticed.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Coroutine
from typing import NamedTuple

import structlog

from global_sync.subject_records import decode_record
from global_sync.transport.base import SUBJECTS, Message, Reader, RecordsMissed, Start, Transport
from regional_limiter.store.subjects import CLIENTS_A_WRITE, GROUPS, SubjectStore, SubjectWrite, group_of
from regional_limiter.submitting import all_of

READ_MS = 500
GATHERED_MOST = 10_000
"""Records that are read before they are written, while there are more to read."""
WRITES_AT_ONCE = 16
LOOK_EVERY_S = 10.0
"""How often the places of all groups are looked at, and brought up to date."""

log = structlog.get_logger(__name__)


class _Lost(Exception):
    """A group of the store is not where this process brought it: a primary came back without its keys, or another
    agent writes."""


class _Read(NamedTuple):
    write: SubjectWrite
    offset: int


def _next_place(before: int | None, reached: int) -> int:
    """Of a group into which has been written what lies before ``reached``."""
    if before is None:
        return -1 - secrets.randbits(48)
    return max(before, reached) if before >= 0 else before - 1


class SubjectDelivery:
    """``run`` delivers while ``is_active``.  ``written``: clients; ``fillings``: how often something was filled."""

    def __init__(
        self,
        store: SubjectStore,
        transport: Transport,
        is_active: Callable[[], bool],
        *,
        look_every_s: float = LOOK_EVERY_S,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._transport = transport
        self._is_active = is_active
        self._look_every_s = look_every_s
        self._now_s = now_s
        self._positions: list[int | None] = [None] * GROUPS
        self._missed = False
        self.written = 0
        self.fillings = 0
        self.malformed = 0
        self.caught_up = False

    async def run(self) -> None:
        """Until something fails: raises StoreUnavailable and TransportUnavailable, and may be run again."""
        while True:
            if self._is_active():
                await self._follow()
            await asyncio.sleep(READ_MS / 1000)

    async def _follow(self) -> None:
        """From where the store has come to, until a look finds that it has lost something."""
        self._positions = await self._store.subject_positions()
        known = [position for position in self._positions if position is not None and position >= 0]
        start: Start = min(known) if len(known) == GROUPS and not self._missed else "earliest"
        if len(known) < GROUPS:
            self.fillings += 1
            log.info("filling what is known of clients", groups=GROUPS - len(known))
        reader = await self._transport.reader(SUBJECTS, start)
        self._missed = False
        try:
            await self._deliver_from(reader)
        except RecordsMissed:
            self._missed = True
            log.info("the topic of subjects was trimmed, reading it again")
        except _Lost:
            log.info("what is known of clients is not where it was brought to: looking again")
        finally:
            self.caught_up = False
            await reader.close()

    async def _deliver_from(self, reader: Reader) -> None:
        end = await reader.end_offset()
        await self._begin_above(end)
        gathered: dict[int, list[_Read]] = {}
        count = 0
        looked_s = self._now_s()
        while self._is_active():
            messages = await reader.read(READ_MS)
            for message in messages:
                self._gather(message, gathered)
            count += len(messages)
            behind = reader.next_offset < end
            if count and (not behind or count >= GATHERED_MOST):
                await self._write(gathered, reader.next_offset)
                gathered, count = {}, 0
            if not behind and not self.caught_up:
                await self._settle(reader.next_offset)
                self.caught_up = True
            if self._now_s() - looked_s >= self._look_every_s and not behind:
                looked_s = self._now_s()
                if await self._store.subject_positions() != self._positions:
                    raise _Lost
                await self._settle(reader.next_offset)

    async def _begin_above(self, end: int) -> None:
        """A group whose place is above the topic's end has read another one, and is filled from the beginning of
        this: writes would not move that place, so one that got lost would not be noticed."""
        above = [group for group, position in enumerate(self._positions) if (position or 0) > end]
        if above:
            log.error("the store has read more of the topic of subjects than there is: is this another Kafka?",
                      end=end, groups=len(above))  # fmt: skip
            await self._at_once([self._move(group, [], _next_place(None, 0)) for group in above])
            raise _Lost

    def _gather(self, message: Message, gathered: dict[int, list[_Read]]) -> None:
        try:
            one = decode_record(message.key, message.value)
        except ValueError as error:
            self.malformed += 1
            log.error("subject not understood", offset=message.offset, error=str(error))
            return
        gathered.setdefault(group_of(one.domain, one.client_key), []).append(_Read(one, message.offset))

    async def _write(self, gathered: dict[int, list[_Read]], reached: int) -> None:
        await self._at_once([self._write_group(group, records, reached) for group, records in gathered.items()])

    async def _write_group(self, group: int, records: list[_Read], reached: int) -> None:
        for at in range(0, len(records), CLIENTS_A_WRITE):
            some = records[at : at + CLIENTS_A_WRITE]
            is_last = at + CLIENTS_A_WRITE >= len(records)
            after = _next_place(self._positions[group], reached if is_last else some[-1].offset + 1)
            await self._move(group, [one.write for one in some], after)
        self.written += len(records)

    async def _settle(self, reached: int) -> None:
        """All groups have come as far as ``reached``."""
        behind = [group for group, position in enumerate(self._positions) if position != reached]
        await self._at_once([self._move(group, [], reached) for group in behind])

    async def _move(self, group: int, subjects: list[SubjectWrite], after: int) -> None:
        if not await self._store.write_subjects(group, subjects, (self._positions[group], after)):
            raise _Lost
        self._positions[group] = after

    async def _at_once(self, calls: list[Coroutine[None, None, None]]) -> None:
        """All of them, a few at a time; raises the first of their errors when all have ended."""
        turn = asyncio.Semaphore(WRITES_AT_ONCE)

        async def in_turn(call: Coroutine[None, None, None]) -> None:
            async with turn:
                await call

        await all_of([in_turn(call) for call in calls])
