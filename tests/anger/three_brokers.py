"""What becomes of shares, and of what was acknowledged, while brokers of a hub are lost: the steps of the tests."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiokafka.admin import AIOKafkaAdminClient

from global_sync.transport.base import HISTORY, LOG, Message, Reader, RecordsMissed, TransportUnavailable
from global_sync.transport.kafka import KafkaTransport
from tests.anger.brokers import Brokers
from tests.anger.world import World, lends, living

APPEND_EVERY_S = 0.05
BY_THEMSELVES = pytest.mark.filterwarnings("ignore::ResourceWarning")
"""aiokafka's connections close themselves, with a warning, where an attempt to connect was given up."""


async def leader_of(brokers: Brokers, topic: str = LOG) -> int:
    """The place of the broker that leads ``topic``, as the living ones say."""
    async with asyncio.timeout(120):
        while True:
            admin = AIOKafkaAdminClient(bootstrap_servers=brokers.options.bootstrap, request_timeout_ms=1500)
            try:
                await admin.start()
                (described,) = await admin.describe_topics([topic])
                leader = int(described["partitions"][0]["leader"])
                if leader > 0:
                    return leader - 1
            except Exception:
                await asyncio.sleep(0.1)
            finally:
                await admin.close()


class Writer:
    """Appends numbered records to a topic through everything, and remembers what was acknowledged."""

    def __init__(self, transport: KafkaTransport) -> None:
        self._transport = transport
        self.acknowledged: dict[int, bytes] = {}
        self.failures = 0

    async def run(self) -> None:
        number = 0
        while True:
            value = b"%d" % number
            number += 1
            try:
                (offset,) = await self._transport.send(HISTORY, [value], timeout_ms=1500)
                self.acknowledged[offset] = value
            except TransportUnavailable:
                self.failures += 1
            await asyncio.sleep(APPEND_EVERY_S)


def left_behind() -> list[str]:
    """What Kafka clients that were given up still run."""
    names = [getattr(task.get_coro(), "__qualname__", "") for task in asyncio.all_tasks() if not task.done()]
    return [name for name in names if name.startswith(("AIOKafka", "Fetcher", "Sender", "MessageAccumulator"))]


async def nothing_left_behind(within_s: float = 60) -> None:
    """Once its transports are closed, nothing of a client is left (but what closes itself when it is collected)."""
    end = asyncio.get_running_loop().time() + within_s
    gc.collect()
    while left_behind() and asyncio.get_running_loop().time() < end:
        await asyncio.sleep(0.5)
        gc.collect()
    assert not left_behind(), left_behind()


@asynccontextmanager
async def writing(brokers: Brokers) -> AsyncIterator[Writer]:
    """In the end nothing that was acknowledged is lost, or stands elsewhere."""
    transport = KafkaTransport(brokers.options)
    await transport.start()
    writer = Writer(transport)
    appending = asyncio.create_task(writer.run())
    try:
        yield writer
        appending.cancel()
        await asyncio.gather(appending, return_exceptions=True)
        found = {message.offset: message.value for message in await everything(transport, HISTORY)}
        assert writer.acknowledged
        assert {offset: found.get(offset) for offset in writer.acknowledged} == writer.acknowledged
    finally:
        appending.cancel()
        await asyncio.gather(appending, return_exceptions=True)
        await transport.close()


async def everything(transport: KafkaTransport, topic: str, within_s: float = 120) -> list[Message]:
    """All that ``topic`` holds."""
    async with asyncio.timeout(within_s):
        while True:
            try:
                reader = await transport.reader(topic, "earliest")
                return await read_to_the_end(reader)
            except (TransportUnavailable, RecordsMissed):
                await asyncio.sleep(0.1)


async def read_to_the_end(reader: Reader) -> list[Message]:
    end, found = await reader.end_offset(), []
    while reader.next_offset < end:
        found += await reader.read(200)
    await reader.close()
    return found


@asynccontextmanager
async def regions(brokers: Brokers, tmp_path: Path) -> AsyncIterator[tuple[World, Writer]]:
    """Three regions that lend over these brokers, and a writer whose acknowledged records stay where they are."""
    async with (
        living(World(lambda _: KafkaTransport(brokers.options), tmp_path)) as world,
        writing(brokers) as writer,
    ):
        await lends(world, "us-east")
        yield world, writer
    await nothing_left_behind()
