"""Everything that the control API knows: what it has read of the topics, and whom it can ask.  [IO]"""

from __future__ import annotations

import asyncio

from global_sync.changes import decode_history
from global_sync.transport.base import HISTORY, LOG, RULES, USAGE, Message, Transport, TransportUnavailable
from services.accepted_rules import Book
from services.clock import wall_ms
from services.control_api.access import Tokens
from services.control_api.history import HistoryIndex
from services.control_api.proposals import Proposer
from services.control_api.subject_index import SubjectIndex, SubjectsRead
from services.control_api.totals import UsageTotals
from services.control_api.usage_minutes import UsageMinutes
from services.feed import USAGE_BEFORE_END, Feed, Handler
from services.picture import Picture, usage_document
from services.probes import Probes
from services.settings import HubSettings

HISTORY_FILE = "history.db"
MINUTES_FILE = "usage.db"
SUBJECTS_FILE = "subjects.db"
MINUTES_BEFORE_END = 20_000
"""Usage messages that are read again without the file: some hours of them."""
MINUTES_BEHIND_MOST = 200_000
"""Further back it is not gone on: reading the rest would take minutes."""


class Hub:
    """``run`` follows the topics until cancelled."""

    def __init__(self, transport: Transport, settings: HubSettings, mode: str = "kafka") -> None:
        in_file = mode == "kafka" and settings.control_api.state_dir.is_dir()
        self.history = HistoryIndex(settings.control_api.state_dir / HISTORY_FILE if in_file else None)
        self.minutes = UsageMinutes(settings.control_api.state_dir / MINUTES_FILE if in_file else None)
        self.subjects = SubjectsRead(
            transport, SubjectIndex(settings.control_api.state_dir / SUBJECTS_FILE if in_file else None)
        )
        self.tokens = Tokens()
        self.mode = mode
        self.transport = transport
        self.settings = settings
        self.book = Book(sorted(settings.regions))
        self.picture = Picture(settings.regions, settings.times())
        self.totals = UsageTotals()
        self.proposer = Proposer(transport)
        self.probes = Probes(settings.regions, calls=settings.calls)
        handlers: dict[str, Handler] = {
            RULES: self._take_rules,
            HISTORY: self._take_history,
            LOG: self._take,
            USAGE: self._take,
        }
        self.feed = Feed(transport, handlers, {USAGE: USAGE_BEFORE_END})

    async def run(self) -> None:
        await self.transport.start()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.feed.run())
            tasks.create_task(self._run_minutes())
            tasks.create_task(self.subjects.run())

    async def _run_minutes(self) -> None:
        start = await self._minutes_start()
        await Feed(self.transport, {USAGE: self._take_minutes}, {USAGE: start}, gentle=True).run()

    async def _minutes_start(self) -> int:
        """Where the reading of usage by the minute goes on."""
        while True:
            try:
                reader = await self.transport.reader(USAGE, "latest")
                try:
                    end = await reader.end_offset()
                finally:
                    await reader.close()
                break
            except TransportUnavailable:
                await asyncio.sleep(1)
        known = self.minutes.next_offset
        if known is not None and known > end:
            self.minutes.clear()
            known = None
        if known is None or end - known > MINUTES_BEHIND_MOST:
            return max(0, end - MINUTES_BEFORE_END)
        return known

    async def _take_minutes(self, message: Message) -> None:
        # It writes to a file, some milliseconds each time: not while answers wait.
        await asyncio.to_thread(lambda: self.minutes.take(usage_document(message.value), message.offset))

    async def close(self) -> None:
        await self.probes.close()
        self.history.close()
        self.minutes.close()
        self.subjects.index.close()

    def why_not_ready(self) -> str | None:
        """None when the accepted rules have been read and Kafka answered lately."""
        return self.feed.why_not_ready(RULES, "the accepted rules")

    def why_tokens_unknown(self) -> str | None:
        """None when the history, which tells who may, has been read to its end once."""
        if self.feed.topics[HISTORY].caught_up.is_set():
            return None
        return "the history, which tells whose token this is, has not been read yet"

    async def history_known(self, timeout_s: float = 3.0) -> bool:
        return await self.feed.caught_up(HISTORY, timeout_s=timeout_s)

    async def rules_known(self, timeout_s: float = 3.0) -> bool:
        """Whether the accepted rules have been read to their end once."""
        return await self.feed.caught_up(RULES, timeout_s=timeout_s)

    def _take_history(self, message: Message) -> None:
        entry = decode_history(message.value)
        if self.history.take(entry):
            self.tokens.take(entry)
            self.proposer.take(entry)

    async def _take_rules(self, message: Message) -> None:
        await self.book.take(message)
        self._take(message)

    def _take(self, message: Message) -> None:
        live = self.feed.topics[message.topic].caught_up.is_set()
        self.picture.take(message, wall_ms(), live=live)
        if message.topic == USAGE:
            self.totals.take(usage_document(message.value))
