"""Clients of Kafka that were given up: replaced within a bound, and nothing of them is left."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from global_sync.transport.base import HISTORY, LOG, PROPOSALS, REPORTS, RULES, RecordsMissed, TransportUnavailable
from global_sync.transport.kafka import KafkaTransport
from tests.anger.brokers import Brokers
from tests.anger.three_brokers import BY_THEMSELVES, left_behind, nothing_left_behind

pytestmark = [pytest.mark.timeout(600), BY_THEMSELVES]

READ = (LOG, LOG, REPORTS, RULES, RULES, PROPOSALS)
WRITTEN = (HISTORY, REPORTS, REPORTS, HISTORY)


class Traffic:
    """What a process with an agent and a candidate has under way.  ``works``: how often each was answered."""

    def __init__(self, transport: KafkaTransport) -> None:
        self._transport = transport
        self.works = [0] * (len(READ) + len(WRITTEN))

    async def read(self, place: int, topic: str) -> None:
        while True:
            try:
                reader = await self._transport.reader(topic, "latest")
                try:
                    while True:
                        await reader.end_offset()
                        self.works[place] += 1
                        await reader.read(100)
                finally:
                    await reader.close()
            except (TransportUnavailable, RecordsMissed):
                await asyncio.sleep(0.1)

    async def write(self, place: int, topic: str) -> None:
        while True:
            try:
                await self._transport.send(topic, [b"x"])
                self.works[place] += 1
            except TransportUnavailable:
                pass
            await asyncio.sleep(0.1)

    async def all_work(self, within_s: float) -> float:
        """Seconds until each was answered once more."""
        loop = asyncio.get_running_loop()
        began, before = loop.time(), list(self.works)
        while any(now <= then for now, then in zip(self.works, before, strict=True)):
            assert loop.time() - began < within_s, (before, self.works)
            await asyncio.sleep(0.02)
        return loop.time() - began


@asynccontextmanager
async def traffic(brokers: Brokers) -> AsyncIterator[Traffic]:
    transport = KafkaTransport(brokers.options)
    await transport.start()
    under_way = Traffic(transport)
    tasks = [asyncio.create_task(under_way.read(place, topic)) for place, topic in enumerate(READ)]
    tasks += [asyncio.create_task(under_way.write(place, topic)) for place, topic in enumerate(WRITTEN, len(READ))]
    try:
        yield under_way
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await transport.close()


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


async def test_nothing_is_left_of_clients_that_were_given_up(brokers: Brokers) -> None:
    before = open_files()
    async with traffic(brokers) as under_way:
        await under_way.all_work(120)
        usual = len(left_behind())
        for _ in range(2):
            brokers.freeze(0, 1, 2)
            try:
                await asyncio.sleep(2 * brokers.options.silence_ms / 1000)
            finally:
                brokers.thaw(0, 1, 2)
            await under_way.all_work(120)
        await under_way.all_work(120)
        assert len(left_behind()) <= 1.5 * usual
    await nothing_left_behind()
    assert open_files() <= before + 2
