"""The log on real brokers, for ``make test-anger``: repeats, zombies, readers that lag, an empty disk."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import global_sync.leader
from global_sync import codec
from global_sync.agent import Agent
from global_sync.leader import Leader
from global_sync.protocol.messages import Kind, LeaseRecord, Mark
from global_sync.transport.base import LOG, Message, Reader, Start, Transport, TransportUnavailable
from global_sync.transport.kafka import KafkaTransport
from tests.anger.brokers import Brokers
from tests.anger.three_brokers import BY_THEMSELVES, everything, regions
from tests.anger.world import REGIONS, TIMES, World, lends, until_sent

pytestmark = [pytest.mark.timeout(600), BY_THEMSELVES]

BATCH = 200


async def test_what_stands_in_the_log_already_changes_nothing_when_it_is_appended_again(
    brokers: Brokers, tmp_path: Path
) -> None:
    zombie = KafkaTransport(brokers.options)
    try:
        async with regions(brokers, tmp_path) as (world, _):
            await lends(world, "eu-west")
            await lends(world, "us-east")
            leader = led(world)
            values = [message.value for message in await everything(zombie, LOG)]
            # The oldest records, then all of them, in order and the other way round: what was given up comes late.
            for again in (values[: len(values) // 3], values, values[::-1]):
                for first in range(0, len(again), BATCH):
                    await until_sent(zombie, LOG, again[first : first + BATCH])
                await lends(world, "eu-west")
                await lends(world, "us-east")
            assert led(world) is leader
            # Who was deposed long ago grants everything to itself, and marks its old epoch once more.
            (key,), epoch = world.keys(), leader.side.epoch
            late = [
                LeaseRecord(epoch - 1, 10**6, key, "ap-south", session, Kind.GROW, 10_000) for session in range(9)
            ]
            await until_sent(zombie, LOG, codec.encode_batches([Mark(epoch, "late", 0, TIMES.signature), *late]))
            await lends(world, "eu-west")
            assert led(world) is leader
            # Whoever leads next has read all of that.
            await leader.stop()
            await zombie.close()
            await world.until("another leads", lambda: world.newest_leader() not in (None, leader), 120)
            await lends(world, "us-east")
    finally:
        await zombie.close()


async def test_a_leader_and_an_agent_without_any_memory_begin_at_the_snapshot(
    brokers: Brokers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(global_sync.leader, "TRIM_INTERVAL_BEATS", 3)
    async with regions(brokers, tmp_path) as (world, _):
        transport = world.regions["us-east"].transport
        first = (await begin(transport)) + 1
        while await begin(transport) < first:
            await lends(world, "eu-west")
            await lends(world, "us-east")
        # What a leader has given is known from the log alone; what an agent may use, too.
        for region in world.regions.values():
            await region.leader.stop()
            region.leader = Leader(region.transport, TIMES, REGIONS.index(region.name))
        region = world.regions["eu-west"]
        await region.agent.stop()
        region.agent = Agent("eu-west", region.store, region.transport, TIMES, tmp_path / "nothing")
        await region.agent.start()
        for region in world.regions.values():
            await region.leader.start()
        await world.until("one of the new ones leads", lambda: world.newest_leader() is not None, 120)
        assert led(world).side.has_snapshot
        await world.until("all regions are in session", lambda: world.settled, 120)
        await lends(world, "eu-west")
        await lends(world, "ap-south")


async def test_a_candidate_that_has_not_read_to_the_end_does_not_act(brokers: Brokers, tmp_path: Path) -> None:
    held = HeldTransport(KafkaTransport(brokers.options))
    try:
        async with regions(brokers, tmp_path) as (world, _):
            behind = Leader(held, TIMES, 0)
            await behind.start()
            await world.until("it has caught up", lambda: behind.may_lead, 120)
            held.goes_on.clear()
            await lends(world, "eu-west")
            for region in world.regions.values():
                await region.leader.stop()
            await asyncio.sleep(3 * behind._waits_us() / 1e6)
            assert behind.takeovers == 0
            held.goes_on.set()
            await world.until("it leads", lambda: behind.active, 120)
            assert behind.takeovers == 1
            world.regions["us-east"].leader = behind
            await lends(world, "us-east")
            await behind.stop()
            await held.close()
    finally:
        await held.close()


def led(world: World) -> Leader:
    leader = world.newest_leader()
    assert leader is not None
    return leader


async def begin(transport: Transport) -> int:
    """The first offset that is left of the log."""
    while True:
        try:
            reader = await transport.reader(LOG, "earliest")
        except TransportUnavailable:
            continue
        await reader.close()
        return reader.next_offset


class HeldTransport:
    """Hands nothing of the log on while ``goes_on`` is not set."""

    def __init__(self, transport: KafkaTransport) -> None:
        self._transport = transport
        self.goes_on = asyncio.Event()
        self.goes_on.set()
        self.start, self.send = transport.start, transport.send
        self.delete_before, self.behind, self.close = transport.delete_before, transport.behind, transport.close

    async def reader(self, topic: str, start: Start) -> Reader:
        reader = await self._transport.reader(topic, start)
        return HeldReader(reader, self.goes_on) if topic == LOG else reader


class HeldReader:
    def __init__(self, reader: Reader, goes_on: asyncio.Event) -> None:
        self._reader, self._goes_on = reader, goes_on
        self.end_offset, self.close = reader.end_offset, reader.close

    @property
    def next_offset(self) -> int:
        return self._reader.next_offset

    async def read(self, timeout_ms: int) -> list[Message]:
        await self._goes_on.wait()
        return await self._reader.read(timeout_ms)
