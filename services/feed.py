"""Follows topics of the transport and hands their messages on, for as long as the process lives.  [IO]

What only displays or answers questions needs no place of its own in a topic: it reads again after every fault.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import structlog

from global_sync.transport.base import Message, Reader, RecordsMissed, Transport, TransportUnavailable

log = structlog.get_logger(__name__)

READ_MS = 500
USAGE_BEFORE_END = -600
"""Where displays begin to read usage: some minutes of it."""
SILENT_MOST_MS = 10_000
WORK_MOST_S = 0.02
"""How long one that is gentle works before it rests."""
PAUSE_LEAST_S = 0.2
PAUSE_MOST_S = 3.0

Handler = Callable[[Message], Awaitable[None] | None]
"""Takes one message; while it is awaited, no later one of its topic is read."""
StartAt = Literal["earliest", "latest"] | int
"""Where the first read begins; a negative number: so many messages before the end."""


@dataclass(slots=True)
class TopicState:
    """What is known of one topic's reading.  Monotonic seconds; ``read_at`` is the last read that succeeded."""

    caught_up: asyncio.Event = field(default_factory=asyncio.Event)
    read_at: float | None = None
    error: str = ""
    malformed: int = 0


class Feed:
    """Reads every topic of ``handlers`` from its ``starts`` (default: earliest) into its handler.

    ``gentle``: rests as long as it worked, so that a backlog takes half of a core and what else the process does
    goes on. A handler that raises ValueError (also msgspec's errors) has met a malformed record: counted, and
    skipped.
    """

    def __init__(
        self,
        transport: Transport,
        handlers: Mapping[str, Handler],
        starts: Mapping[str, StartAt] | None = None,
        *,
        gentle: bool = False,
    ) -> None:
        self._transport = transport
        self._gentle = gentle
        self._handlers = handlers
        self._starts = starts or {}
        self.topics = {topic: TopicState() for topic in handlers}
        self._behind: Mapping[str, int] = {}

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for topic in self._handlers:
                tasks.create_task(self._follow(topic), name=f"follow {topic}")

    async def caught_up(self, *topics: str, timeout_s: float) -> bool:
        """Whether the first read of these topics has reached their end within the time."""
        waits = [self.topics[topic].caught_up.wait() for topic in topics]
        try:
            await asyncio.wait_for(asyncio.gather(*waits), timeout_s)
        except TimeoutError:
            return False
        return True

    def behind(self) -> Mapping[str, int]:
        """By topic, of all that this transport reads: messages that it knew of and had not read when it read last.
        May be asked in a thread."""
        return self._behind

    def silent_ms(self, topic: str) -> int | None:
        """Milliseconds since the transport last answered for ``topic``; None before it ever did."""
        read_at = self.topics[topic].read_at
        return None if read_at is None else round((time.monotonic() - read_at) * 1000)

    def why_not_ready(self, topic: str, what: str) -> str | None:
        """None when ``topic``, which holds ``what``, has been read to its end once and Kafka answered lately."""
        if not self.topics[topic].caught_up.is_set():
            return f"{what} have not been read yet"
        silent_ms = self.silent_ms(topic)
        if silent_ms is None or silent_ms > SILENT_MOST_MS:
            return "Kafka does not answer"
        return None

    async def _follow(self, topic: str) -> None:
        state = self.topics[topic]
        start = self._starts.get(topic, "earliest")
        pause_s = PAUSE_LEAST_S
        while True:
            try:
                reader = await self._open(topic, start)
            except TransportUnavailable as error:
                _note(state, topic, error)
                await asyncio.sleep(pause_s)
                pause_s = min(PAUSE_MOST_S, pause_s * 2)
                continue
            pause_s = PAUSE_LEAST_S
            try:
                await self._drain(topic, reader, state)
            except RecordsMissed:
                start = "earliest"
            except TransportUnavailable as error:
                _note(state, topic, error)
                start = reader.next_offset
                await asyncio.sleep(PAUSE_LEAST_S)
            finally:
                await _close(reader)
                self._behind = self._transport.behind()

    async def _open(self, topic: str, start: StartAt) -> Reader:
        if isinstance(start, str) or start >= 0:
            return await self._transport.reader(topic, start)
        probe = await self._transport.reader(topic, "latest")
        try:
            end = await probe.end_offset()
        finally:
            await _close(probe)
        return await self._transport.reader(topic, max(0, end + start))

    async def _drain(self, topic: str, reader: Reader, state: TopicState) -> None:
        end = await reader.end_offset()
        state.read_at, state.error = time.monotonic(), ""
        while True:
            if reader.next_offset >= end:
                state.caught_up.set()
            messages = await reader.read(READ_MS)
            self._behind = self._transport.behind()
            began = state.read_at = time.monotonic()
            state.error = ""
            for message in messages:
                try:
                    taking = self._handlers[topic](message)
                    if taking is not None:
                        await taking
                except ValueError as error:
                    state.malformed += 1
                    log.warning("malformed record", topic=topic, offset=message.offset, error=str(error))
                except Exception:
                    # One record that nobody foresaw must not end the reading of all topics.
                    state.malformed += 1
                    log.exception("record not taken", topic=topic, offset=message.offset)
                if self._gentle and (worked_s := time.monotonic() - began) > WORK_MOST_S:
                    await asyncio.sleep(worked_s)
                    began = time.monotonic()


def _note(state: TopicState, topic: str, error: Exception) -> None:
    if not state.error:
        log.warning("topic not readable", topic=topic, error=str(error))
    state.error = str(error) or type(error).__name__


async def _close(reader: Reader) -> None:
    try:
        await reader.close()
    except TransportUnavailable:
        pass
