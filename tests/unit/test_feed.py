"""Following topics: over faults of the transport and malformed records, without an end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from global_sync.transport.base import HISTORY, RULES, Message, Transport
from global_sync.transport.memory import MemoryHub
from services import feed as feed_module
from services.feed import Feed


class Clock:
    """In place of the module ``time``: stands still but for what it is told."""

    now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s


@asynccontextmanager
async def running(feed: Feed) -> AsyncIterator[None]:
    task = asyncio.create_task(feed.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


class Seen:
    def __init__(self) -> None:
        self.values: list[bytes] = []
        self._changed = asyncio.Condition()

    def take(self, message: Message) -> None:
        if message.value == b"bad":
            raise ValueError("no record of ours")
        self.values.append(message.value)

    async def until(self, last: bytes) -> None:
        async with asyncio.timeout(5):
            while last not in self.values:  # noqa: ASYNC110 (the reader runs in between)
                await asyncio.sleep(0)


async def send(transport: Transport, *values: bytes) -> None:
    await transport.send(RULES, list(values))


async def test_a_new_process_reads_what_was_written_before_it() -> None:
    transport, seen = MemoryHub().transport("hub"), Seen()
    await send(transport, b"1", b"2")
    feed = Feed(transport, {RULES: seen.take})
    async with running(feed):
        assert await feed.caught_up(RULES, timeout_s=5)
        await seen.until(b"2")
        await send(transport, b"3")
        await seen.until(b"3")
    assert seen.values == [b"1", b"2", b"3"]


async def test_a_negative_start_reads_only_the_last_ones() -> None:
    transport, seen = MemoryHub().transport("hub"), Seen()
    await send(transport, *(str(i).encode() for i in range(10)))
    async with running(Feed(transport, {RULES: seen.take}, {RULES: -3})):
        await seen.until(b"9")
    assert seen.values == [b"7", b"8", b"9"]


async def test_a_malformed_record_is_counted_and_does_not_stop_the_topic() -> None:
    transport, seen = MemoryHub().transport("hub"), Seen()
    await send(transport, b"bad", b"good")
    feed = Feed(transport, {RULES: seen.take})
    async with running(feed):
        await seen.until(b"good")
    assert feed.topics[RULES].malformed == 1


async def test_a_trimmed_position_starts_again_from_what_is_left() -> None:
    transport, seen = MemoryHub().transport("hub"), Seen()
    await send(transport, b"1", b"2", b"3")
    await transport.delete_before(RULES, 2)
    async with running(Feed(transport, {RULES: seen.take}, {RULES: 0})):
        await seen.until(b"3")
    assert seen.values == [b"3"]


async def test_a_silent_broker_is_noted_and_read_on_from_the_same_place_when_it_is_back() -> None:
    hub, seen = MemoryHub(silence_ms=1), Seen()
    transport = hub.transport("hub")
    await send(transport, b"1")
    feed = Feed(transport, {RULES: seen.take})
    async with running(feed):
        await seen.until(b"1")
        hub.cut("hub")
        async with asyncio.timeout(5):
            while not feed.topics[RULES].error:  # noqa: ASYNC110
                await asyncio.sleep(0)
        hub.heal("hub")
        await send(transport, b"2")
        await seen.until(b"2")
    assert seen.values == [b"1", b"2"]
    assert feed.topics[RULES].error == ""


async def test_not_caught_up_is_said_within_the_time_when_nobody_answers() -> None:
    hub = MemoryHub()
    hub.cut("hub")
    feed = Feed(hub.transport("hub"), {HISTORY: Seen().take})
    async with running(feed):
        assert not await feed.caught_up(HISTORY, timeout_s=0.05)
    assert feed.silent_ms(HISTORY) is None


async def test_a_quiet_topic_is_not_a_silent_transport() -> None:
    feed = Feed(MemoryHub().transport("hub"), {RULES: Seen().take})
    assert feed.silent_ms(RULES) is None
    async with running(feed):
        assert await feed.caught_up(RULES, timeout_s=5)
        silent_ms = feed.silent_ms(RULES)
        assert silent_ms is not None
        assert silent_ms < 1000


async def test_a_gentle_one_lets_others_work_while_it_reads_a_backlog(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(feed_module, "time", clock)
    transport, order = MemoryHub().transport("hub"), []

    def take(message: Message) -> None:
        clock.now_s += feed_module.WORK_MOST_S / 3
        order.append("read")

    async def other() -> None:
        while order.count("read") < 60:
            order.append("other")
            await asyncio.sleep(0)

    await send(transport, *(b"one" for _ in range(60)))
    async with running(Feed(transport, {RULES: take}, gentle=True)):
        async with asyncio.timeout(20):
            await other()
    longest = max(len(run) for run in "".join("r" if one == "read" else " " for one in order).split())
    assert longest <= 4
