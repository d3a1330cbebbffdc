"""The transport within one process: embedded mode, simulation and tests.

One :class:`MemoryHub` holds the topics; every region (and the operator's side) has a :class:`Link` to it that
can be cut, slowed down, and made to lose or repeat.  A send over a cut or losing link raises
TransportUnavailable, and like with a real broker the record may have been written all the same.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from weakref import WeakSet

from global_sync.transport.base import (
    IN_FLIGHT,
    LOG,
    RULES,
    SUBJECTS,
    Message,
    Reader,
    RecordsMissed,
    Sends,
    Start,
    TransportUnavailable,
    furthest_behind,
    keys_for,
)
from regional_limiter.durations import Durations

_MESSAGES_A_READ = 500
_KEPT_MESSAGES = 20_000
"""Of every topic but the log, which its leader trims, and the compacted ones: of them twice what was left."""


@dataclass(slots=True)
class Link:
    """The way between one place and the hub.

    ``delay_ms``: one way.  ``loss``: the part of sends that are not written; ``lost_answers``: the part that
    are written and all the same raise; ``repeat``: the part that are written twice.
    """

    cut: bool = False
    delay_ms: int = 0
    loss: float = 0.0
    lost_answers: float = 0.0
    repeat: float = 0.0
    random: Random = field(default_factory=lambda: Random(0))


@dataclass(slots=True)
class _Topic:
    name: str
    first_offset: int = 0
    next_offset: int = 0
    messages: deque[tuple[float, Message]] = field(default_factory=deque)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    kept_most: int = _KEPT_MESSAGES

    def append(self, value: bytes, key: bytes | None) -> int:
        now = asyncio.get_running_loop().time()
        message = Message(self.name, self.next_offset, key, value, time.time_ns() // 1_000_000)
        self.messages.append((now, message))
        self.next_offset += 1
        if len(self.messages) > self.kept_most:
            self._bound()
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()
        return message.offset

    def _bound(self) -> None:
        if self.name == LOG:
            return
        if self.name in (RULES, SUBJECTS):
            last = {message.key: message.offset for _, message in self.messages}
            self.messages = deque(m for m in self.messages if last[m[1].key] == m[1].offset)
            self.kept_most = max(_KEPT_MESSAGES, 2 * len(self.messages))
        else:
            self.trim(self.messages[0][1].offset + _KEPT_MESSAGES // 10)

    def trim(self, offset: int) -> None:
        while self.messages and self.messages[0][1].offset < offset:
            self.messages.popleft()
        self.first_offset = max(self.first_offset, min(offset, self.next_offset))

    def between(self, offset: int, written_before: float) -> list[Message]:
        # The messages are few behind a reader that keeps up: search from the newest.
        found: list[Message] = []
        for written, message in reversed(self.messages):
            if message.offset < offset:
                break
            if written <= written_before:
                found.append(message)
        found.reverse()
        return found[:_MESSAGES_A_READ]


class MemoryHub:
    """The topics of one process, and the links to them by the name of who uses them."""

    def __init__(self, *, silence_ms: int = 3000) -> None:
        self.links: dict[str, Link] = {}
        self.silence_ms = silence_ms
        self._topics: dict[str, _Topic] = {}

    def link(self, name: str) -> Link:
        return self.links.setdefault(name, Link())

    def transport(self, name: str) -> MemoryTransport:
        return MemoryTransport(self, self.link(name))

    def topic(self, name: str) -> _Topic:
        return self._topics.setdefault(name, _Topic(name))

    # ---- what an operator does to a link

    def cut(self, name: str) -> None:
        self.link(name).cut = True

    def heal(self, name: str) -> None:
        link = self.link(name)
        link.cut, link.delay_ms, link.loss, link.lost_answers, link.repeat = False, 0, 0.0, 0.0, 0.0

    def slow(self, name: str, delay_ms: int) -> None:
        self.link(name).delay_ms = delay_ms


class MemoryTransport:
    """Fulfils :class:`global_sync.transport.base.Transport` over one link."""

    def __init__(self, hub: MemoryHub, link: Link) -> None:
        self._hub = hub
        self._link = link
        self._turns: dict[str, asyncio.Semaphore] = {}
        self._readers: WeakSet[_MemoryReader] = WeakSet()
        self.closed = False
        self.took: Mapping[Sends, Durations] = {}

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
        keyed = list(zip(values, keys_for(values, key, keys), strict=True))
        try:
            async with asyncio.timeout(timeout_ms / 1000), self._turn(topic):
                await self._way()
                link = self._link
                if link.random.random() < link.loss:
                    raise TransportUnavailable(f"send to {topic}: lost")
                append = self._hub.topic(topic).append
                offsets = [append(*one) for one in keyed]
                if link.random.random() < link.repeat:
                    for one in keyed:
                        append(*one)
                if link.random.random() < link.lost_answers:
                    raise TransportUnavailable(f"send to {topic}: no answer")
                await self._way()
                return offsets
        except TimeoutError as error:
            raise TransportUnavailable(f"send to {topic}: no answer") from error

    def _turn(self, topic: str) -> asyncio.Semaphore:
        return self._turns.setdefault(topic, asyncio.Semaphore(IN_FLIGHT.get(topic, 1)))

    async def _way(self) -> None:
        """One way over the link; over a cut one, for ever."""
        if self.closed:
            raise TransportUnavailable("closed")
        if self._link.delay_ms:
            await asyncio.sleep(self._link.delay_ms / 1000)
        while self._link.cut:  # noqa: ASYNC110 (whoever cuts and heals only sets a flag)
            await asyncio.sleep(0.05)

    async def reader(self, topic: str, start: Start) -> Reader:
        found = self._hub.topic(topic)
        if isinstance(start, int):
            offset = start
        elif self._link.cut or self.closed:
            raise TransportUnavailable(f"read {topic}: no answer")
        else:
            offset = found.first_offset if start == "earliest" else found.next_offset
        reader = _MemoryReader(self, self._hub, self._link, topic, offset)
        self._readers.add(reader)
        return reader

    def behind(self) -> dict[str, int]:
        return furthest_behind((reader.topic, reader.behind()) for reader in self._readers)

    async def delete_before(self, topic: str, offset: int) -> None:
        if self._link.cut or self.closed:
            raise TransportUnavailable(f"delete records of {topic}: no answer")
        self._hub.topic(topic).trim(offset)

    async def close(self) -> None:
        self.closed = True

    def forget(self, reader: _MemoryReader) -> None:
        self._readers.discard(reader)


class _MemoryReader:
    def __init__(self, transport: MemoryTransport, hub: MemoryHub, link: Link, topic: str, offset: int) -> None:
        self.next_offset = offset
        self._transport = transport
        self._hub = hub
        self._link = link
        self.topic = topic
        self._cut_at: float | None = None

    async def read(self, timeout_ms: int) -> list[Message]:
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout_ms / 1000
        while True:
            topic = self._hub.topic(self.topic)
            changed = topic.changed
            self._refuse_when_silent(loop.time())
            wait_s = end - loop.time()
            if self._link.cut:
                wait_s = min(wait_s, 0.05)
            else:
                if not topic.first_offset <= self.next_offset <= topic.next_offset:
                    raise RecordsMissed(f"{self.topic} has no offset {self.next_offset}")
                messages = topic.between(self.next_offset, loop.time() - self._link.delay_ms / 1000)
                if messages:
                    self.next_offset = messages[-1].offset + 1
                    return messages
                if topic.next_offset > self.next_offset:
                    wait_s = min(wait_s, 0.005)  # written, and still on its way to us
            if loop.time() >= end:
                return []
            try:
                async with asyncio.timeout(max(0.0, wait_s)):
                    await changed.wait()
            except TimeoutError:
                continue

    def _refuse_when_silent(self, now: float) -> None:
        if self._transport.closed:
            raise TransportUnavailable("closed")
        if not self._link.cut:
            self._cut_at = None
            return
        self._cut_at = now if self._cut_at is None else self._cut_at
        if (now - self._cut_at) * 1000 > self._hub.silence_ms:
            raise TransportUnavailable(f"nothing heard of {self.topic} for {now - self._cut_at:.1f} s")

    def behind(self) -> int | None:
        """Nothing is heard of the end over a cut link."""
        return None if self._link.cut else max(0, self._hub.topic(self.topic).next_offset - self.next_offset)

    async def end_offset(self) -> int:
        if self._link.cut or self._transport.closed:
            raise TransportUnavailable(f"end of {self.topic}: no answer")
        return self._hub.topic(self.topic).next_offset

    async def close(self) -> None:
        self._transport.forget(self)
