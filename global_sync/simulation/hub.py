"""The hub's topics, and a transport over a link that delays, loses, repeats and can be cut each way by itself.

It keeps the contract of ``global_sync.transport.base``: one send at a time per topic and process, an
acknowledgement after the record is there, a time-out that is no failure (the record may come later), readers that
see the records of a topic in their one order, each after a delay of its own.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from random import Random

from global_sync.simulation.links import Law, Link, Way
from global_sync.simulation.process import Process
from global_sync.simulation.scheduler import Scheduler
from global_sync.transport.base import IN_FLIGHT, Message, Reader, RecordsMissed, Sends, Start, TransportUnavailable
from regional_limiter.durations import Durations

MESSAGES_A_READ = 500
REQUEST_TIMEOUT_US = 1_500_000
SILENCE_US = 3_000_000
LATE_WRITE_US_MOST = 10_000_000
"""A send that waited longer than this for a cut link has been given up by its producer."""


class Topic:
    """One ordered partition.  ``readers`` are told of every record."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.first_offset = 0
        self.messages: list[Message] = []
        self.readers: list[SimReader] = []

    @property
    def next_offset(self) -> int:
        return self.first_offset + len(self.messages)

    def trim(self, offset: int) -> None:
        offset = min(offset, self.next_offset)
        if offset > self.first_offset:
            del self.messages[: offset - self.first_offset]
            self.first_offset = offset

    def between(self, start: int, end: int) -> list[Message]:
        first = start - self.first_offset
        return self.messages[first : min(end - self.first_offset, first + MESSAGES_A_READ)]


class Hub:
    """``append_law``: how long an append takes at the hub.  ``written`` is told every message that is appended."""

    def __init__(self, scheduler: Scheduler, random: Random, append_law: Law) -> None:
        self.scheduler = scheduler
        self.random = random
        self.append_law = append_law
        self.written: Callable[[Message], None] = lambda message: None
        self.messages: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()
        self._topics: dict[str, Topic] = {}
        self._gate = Way(Law(0))

    def topic(self, name: str) -> Topic:
        return self._topics.setdefault(name, Topic(name))

    @property
    def is_down(self) -> bool:
        return self._gate.is_cut

    def go_down(self) -> None:
        """No broker answers; what is written stays."""
        self._gate.cut()

    def come_up(self) -> None:
        self._gate.heal()

    def when_up(self, act: Callable[[], None]) -> None:
        self._gate.when_open(act)

    def append(self, topic: str, value: bytes, key: bytes | None) -> int:
        """Write a record now, and tell the readers of it."""
        found = self.topic(topic)
        message = Message(topic, found.next_offset, key, value, self.scheduler.now_us // 1000)
        found.messages.append(message)
        self.messages[topic] += 1
        self.bytes[topic] += len(value)
        self.written(message)
        for reader in found.readers:
            reader.appended(message)
        return message.offset


class SimTransport:
    """Fulfils ``Transport`` for one process over ``link``."""

    def __init__(self, hub: Hub, process: Process, link: Link) -> None:
        self.hub = hub
        self.process = process
        self.link = link
        self._turns: dict[str, asyncio.Semaphore] = {}
        self._closed = False
        self.took: Mapping[Sends, Durations] = {}

    @property
    def _is_closed(self) -> bool:
        return self._closed or not self.process.alive

    async def start(self) -> None:
        return None

    async def send(
        self,
        topic: str,
        values: list[bytes],
        *,
        key: bytes | None = None,
        keys: Sequence[bytes] | None = None,
        timeout_ms: int = 3000,
    ) -> list[int]:
        if keys is not None:
            raise NotImplementedError("no subjects are stored in the simulated world")
        if self._is_closed:
            raise TransportUnavailable("closed")
        try:
            async with asyncio.timeout(timeout_ms / 1000), self._turn(topic):
                answer: asyncio.Future[list[int]] = asyncio.get_running_loop().create_future()
                self._leave(topic, values, key, answer)
                async with asyncio.timeout(REQUEST_TIMEOUT_US / 1e6):
                    return await answer
        except TimeoutError as error:
            raise TransportUnavailable(f"send to {topic}: no answer") from error

    def _turn(self, topic: str) -> asyncio.Semaphore:
        return self._turns.setdefault(topic, asyncio.Semaphore(IN_FLIGHT.get(topic, 1)))

    def _leave(self, topic: str, values: list[bytes], key: bytes | None, answer: asyncio.Future[list[int]]) -> None:
        up, random, scheduler = self.link.up, self.hub.random, self.hub.scheduler
        sent_us = scheduler.now_us
        for value in values:
            up.count(len(value))
        if up.law.loss and random.random() < up.law.loss:
            return

        def arrive() -> None:
            if scheduler.now_us - sent_us <= LATE_WRITE_US_MOST:
                self.hub.when_up(write)

        def write() -> None:
            scheduler.later(self.hub.append_law.draw(random), append)

        def append() -> None:
            offsets = [self.hub.append(topic, value, key) for value in values]
            scheduler.later(
                self.link.down.law.draw(random), lambda: self.link.down.when_open(lambda: told(offsets))
            )

        def told(offsets: list[int]) -> None:
            if not answer.done() and self.process.alive:
                answer.set_result(offsets)

        copies = 2 if up.law.repeat and random.random() < up.law.repeat else 1
        for number in range(copies):
            scheduler.later(up.law.draw(random) * (1 + 2 * number), lambda: up.when_open(arrive))

    async def reader(self, topic: str, start: Start) -> Reader:
        await self._round_trip(f"read {topic}")
        found = self.hub.topic(topic)
        offset = (
            start if isinstance(start, int) else found.first_offset if start == "earliest" else found.next_offset
        )
        return SimReader(self, found, offset)

    async def end_offset_of(self, topic: Topic) -> int:
        await self._round_trip(f"end of {topic.name}")
        return topic.next_offset

    def behind(self) -> dict[str, int]:
        return {}

    async def delete_before(self, topic: str, offset: int) -> None:
        await self._round_trip(f"delete records of {topic}")
        self.hub.topic(topic).trim(offset)

    async def _round_trip(self, what: str) -> None:
        if self._is_closed:
            raise TransportUnavailable("closed")
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        link, random, later = self.link, self.hub.random, self.hub.scheduler.later

        def asked() -> None:
            later(link.down.law.draw(random), lambda: link.down.when_open(answered))

        def answered() -> None:
            if not answer.done() and self.process.alive:
                answer.set_result(None)

        later(link.up.law.draw(random), lambda: link.up.when_open(lambda: self.hub.when_up(asked)))
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_US / 1e6):
                await answer
        except TimeoutError as error:
            raise TransportUnavailable(f"{what}: no answer") from error

    async def close(self) -> None:
        self._closed = True


class SimReader:
    """Sees what has been appended in order, each record after the link's delay, nothing while the way is cut."""

    def __init__(self, transport: SimTransport, topic: Topic, offset: int) -> None:
        self.next_offset = offset
        self._transport = transport
        self._topic = topic
        self._visible = offset
        self._arrives_us = 0
        self._news = asyncio.Event()
        self._heard_us = transport.hub.scheduler.now_us
        topic.readers.append(self)
        if topic.next_offset > offset:
            self._announce(topic.next_offset)

    def appended(self, message: Message) -> None:
        self._transport.link.down.count(len(message.value))
        self._announce(message.offset + 1)

    def _announce(self, end: int) -> None:
        hub, down = self._transport.hub, self._transport.link.down
        now_us = hub.scheduler.now_us
        self._arrives_us = max(self._arrives_us, now_us + down.law.draw(hub.random))
        hub.scheduler.later(
            self._arrives_us - now_us, lambda: down.when_open(lambda: hub.when_up(lambda: self._see(end)))
        )

    def _see(self, end: int) -> None:
        self._visible = max(self._visible, end)
        self._heard_us = self._transport.hub.scheduler.now_us
        if self._transport.process.alive:
            self._news.set()

    async def read(self, timeout_ms: int) -> list[Message]:
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout_ms / 1000
        while True:
            self._refuse_when_silent()
            is_missing = self.next_offset < self._topic.first_offset
            if is_missing and self._can_hear:
                raise RecordsMissed(f"{self._topic.name} no longer has offset {self.next_offset}")
            messages = [] if is_missing else self._topic.between(self.next_offset, self._visible)
            if messages:
                self.next_offset = messages[-1].offset + 1
                return messages
            left = end - loop.time()
            if left <= 0:
                return []
            self._news.clear()
            try:
                async with asyncio.timeout(left):
                    await self._news.wait()
            except TimeoutError:
                continue

    @property
    def _can_hear(self) -> bool:
        return not (self._transport.link.is_cut or self._transport.hub.is_down)

    def _refuse_when_silent(self) -> None:
        """A broker is asked all the time, and answers: silence is known."""
        transport, now_us = self._transport, self._transport.hub.scheduler.now_us
        if transport._is_closed:
            raise TransportUnavailable("closed")
        if self._can_hear:
            self._heard_us = now_us
        elif now_us - self._heard_us > SILENCE_US:
            raise TransportUnavailable(f"nothing heard of {self._topic.name} for a while")

    async def end_offset(self) -> int:
        return await self._transport.end_offset_of(self._topic)

    async def close(self) -> None:
        if self in self._topic.readers:
            self._topic.readers.remove(self)
