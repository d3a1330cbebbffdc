"""What both transports promise, and what Kafka's promises when its link goes dead."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from uuid import uuid4

import pytest
import pytest_asyncio
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from global_sync.transport.base import (
    LOG,
    PROPOSALS,
    REPORTS,
    RULES,
    SUBJECTS,
    Message,
    Reader,
    RecordsMissed,
    Sends,
    Transport,
    TransportUnavailable,
)
from global_sync.transport.kafka import KafkaOptions, KafkaTransport, LogNotKept
from global_sync.transport.memory import MemoryHub
from tests.contract.kafka_broker import BlackHole, broker

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    directory: Path = tmp_path_factory.mktemp("kafka")
    with broker(directory) as address:
        yield address


@pytest_asyncio.fixture(params=["memory", "kafka"])
async def transport(request: pytest.FixtureRequest) -> AsyncIterator[Transport]:
    made: Transport
    if request.param == "memory":
        made = MemoryHub().transport("here")
    else:
        made = KafkaTransport(KafkaOptions(request.getfixturevalue("kafka")))
    await made.start()
    yield made
    await made.close()


async def read_until(reader: Reader, count: int, seconds: float = 10.0) -> list[Message]:
    got: list[Message] = []
    end = time.monotonic() + seconds
    while len(got) < count and time.monotonic() < end:
        got += await reader.read(200)
    return got


async def test_what_is_sent_is_read_in_order_with_its_offsets(transport: Transport) -> None:
    reader = await transport.reader(LOG, "latest")
    values = [f"{n}".encode() for n in range(40)]
    offsets = await transport.send(LOG, values[:30])
    offsets += await transport.send(LOG, values[30:], key=b"k")
    got = await read_until(reader, 40)
    assert [message.value for message in got] == values
    assert [message.offset for message in got] == offsets
    assert [message.key for message in got[29:31]] == [None, b"k"]
    assert reader.next_offset == offsets[-1] + 1 == await reader.end_offset()


async def test_what_has_not_been_read_yet_is_counted_until_its_reader_is_closed(transport: Transport) -> None:
    reader = await transport.reader(PROPOSALS, "latest")
    ahead = await transport.reader(PROPOSALS, "latest")
    await reader.read(300)
    await transport.send(PROPOSALS, [b"1", b"2", b"3"])
    await read_until(ahead, 3)
    for _ in range(300):  # a broker's next answer tells
        if transport.behind().get(PROPOSALS) == 3:
            break
        await asyncio.sleep(0.1)
    assert transport.behind()[PROPOSALS] == 3
    await read_until(reader, 3, 30)
    assert transport.behind()[PROPOSALS] == 0
    for one in (reader, ahead):
        await one.close()
    assert PROPOSALS not in transport.behind()


async def test_nothing_to_read_is_an_empty_answer_in_time(transport: Transport) -> None:
    reader = await transport.reader(REPORTS, "latest")
    await reader.read(300)
    began = time.monotonic()
    assert await reader.read(200) == []
    assert 0.1 <= time.monotonic() - began < 1.0


async def test_a_reader_starts_at_the_beginning_at_the_end_or_at_an_offset(transport: Transport) -> None:
    mark = uuid4().bytes
    offsets = await transport.send(RULES, [mark + b"0", mark + b"1", mark + b"2"], key=b"k")
    first = await transport.reader(RULES, "earliest")
    assert [m.value for m in await read_until(first, offsets[-1] + 1)][-3:] == [
        mark + b"0",
        mark + b"1",
        mark + b"2",
    ]
    middle = await transport.reader(RULES, offsets[1])
    assert [m.value for m in await read_until(middle, 2)] == [mark + b"1", mark + b"2"]
    last = await transport.reader(RULES, "latest")
    assert last.next_offset == offsets[-1] + 1


async def test_a_reader_whose_place_was_deleted_is_told_so(transport: Transport) -> None:
    offsets = await transport.send(LOG, [b"a", b"b", b"c"])
    behind = await transport.reader(LOG, offsets[0])
    await transport.delete_before(LOG, offsets[2])
    with pytest.raises(RecordsMissed):
        await read_until(behind, 3)
    again = await transport.reader(LOG, "earliest")
    assert (await read_until(again, 1))[0].offset == offsets[2]


async def test_a_reader_beyond_the_end_is_told_so(transport: Transport) -> None:
    offsets = await transport.send(SUBJECTS, [b"a"], key=b"k")
    at_end = await transport.reader(SUBJECTS, offsets[-1] + 1)
    assert await at_end.read(300) == []
    beyond = await transport.reader(SUBJECTS, offsets[-1] + 1000)
    with pytest.raises(RecordsMissed):
        await read_until(beyond, 1)


async def test_two_senders_at_once_do_not_tear_each_others_batches(transport: Transport) -> None:
    reader = await transport.reader(LOG, "latest")
    batches = [[f"{who}{n}".encode() for n in range(10)] for who in "abcd"]
    sent = await asyncio.gather(*(transport.send(LOG, batch) for batch in batches))
    got = {message.offset: message.value for message in await read_until(reader, 40)}
    for batch, offsets in zip(batches, sent, strict=True):
        assert [got[offset] for offset in offsets] == batch
        assert offsets == list(range(offsets[0], offsets[0] + 10))


async def test_large_messages_pass(transport: Transport) -> None:
    reader = await transport.reader(RULES, "latest")
    values = [bytes([n]) * 700_000 for n in range(4)]
    await transport.send(RULES, values, key=b"k", timeout_ms=10_000)
    assert [message.value for message in await read_until(reader, 4)] == values


async def test_a_closed_transport_refuses_instead_of_hanging(transport: Transport) -> None:
    reader = await transport.reader(LOG, "latest")
    await transport.close()
    with pytest.raises(TransportUnavailable):
        await transport.send(LOG, [b"x"], timeout_ms=500)
    with pytest.raises(TransportUnavailable):
        await read_until(reader, 1)


# ---- Kafka alone


async def test_a_record_is_read_within_milliseconds(kafka: str) -> None:
    transport = KafkaTransport(KafkaOptions(kafka))
    await transport.start()
    reader = await transport.reader(LOG, "latest")
    await transport.send(LOG, [b"warm"])
    await read_until(reader, 1)
    took = []
    for n in range(40):
        began = time.perf_counter()
        sending = asyncio.create_task(transport.send(LOG, [b"%d" % n]))
        assert await read_until(reader, 1)
        took.append(time.perf_counter() - began)
        await sending
    await transport.close()
    assert sorted(took)[20] < 0.05
    assert {sends: sum(durations.counts) for sends, durations in transport.took.items()} == {
        Sends("kafka", LOG): 41
    }


async def test_without_a_broker_everything_says_so_in_time_and_closes() -> None:
    transport = KafkaTransport(KafkaOptions("127.0.0.1:23099"))
    began = time.monotonic()
    await transport.start()
    with pytest.raises(TransportUnavailable):
        await transport.send(LOG, [b"x"], timeout_ms=500)
    [(sends, durations)] = transport.took.items()
    assert (sends.topic, sum(durations.counts)) == (LOG, 1)
    assert sends.error, "a send that failed is counted by why it did, so that a broker that is away is not silence"
    assert durations.sum_s >= 0.4
    with pytest.raises(TransportUnavailable):
        await transport.reader(LOG, "latest")
    reader = await transport.reader(LOG, 0)
    with pytest.raises(TransportUnavailable):
        await read_until(reader, 1)
    with pytest.raises(TransportUnavailable):
        await transport.delete_before(LOG, 1)
    waiting = asyncio.create_task(transport.send(LOG, [b"x"], timeout_ms=20_000))
    await asyncio.sleep(0.1)
    await transport.close()
    with pytest.raises(TransportUnavailable):  # and not a cancellation that nobody asked for
        await waiting
    assert time.monotonic() - began < 25


async def test_a_link_that_swallowed_everything_is_used_again_soon_after_it_healed(kafka: str) -> None:
    async with BlackHole() as hole:
        far = KafkaTransport(KafkaOptions(hole.address))
        near = KafkaTransport(KafkaOptions(kafka))
        await far.start()
        await near.start()
        reader = await far.reader(LOG, "latest")
        await far.send(LOG, [b"before"])
        assert [m.value for m in await read_until(reader, 1)] == [b"before"]

        hole.cut = True
        began = time.monotonic()
        failures = 0
        missed = await near.send(LOG, [b"during"])
        while time.monotonic() - began < 8:
            for attempt in (far.send(LOG, [b"lost"], timeout_ms=1000), reader.read(200)):
                try:
                    await attempt
                except TransportUnavailable:
                    failures += 1
        assert failures > 5

        hole.cut = False
        healed = time.monotonic()
        sent_s = read_s = 0.0
        got: list[Message] = []
        while not (sent_s and read_s) and time.monotonic() - healed < 10:
            if not sent_s:
                try:
                    await far.send(LOG, [b"after"], timeout_ms=1000)
                    sent_s = time.monotonic() - healed
                except TransportUnavailable:
                    pass
            try:
                got += await reader.read(100)
            except TransportUnavailable:
                continue
            if got and not read_s:
                read_s = time.monotonic() - healed
        assert got[0].offset == missed[0]
        assert 0 < sent_s < 3.0
        assert 0 < read_s < 3.0
        await far.close()
        await near.close()


async def test_a_log_that_the_broker_may_shorten_is_refused_and_taken_once_it_is_mended(kafka: str) -> None:
    transport = KafkaTransport(KafkaOptions(kafka))
    await transport.start()
    await transport.close()
    await _set_retention(kafka, "60000")
    try:
        careless = KafkaTransport(KafkaOptions(kafka))
        with pytest.raises(LogNotKept, match=r"rl\.log has retention\.ms=60000"):
            await careless.start()
        with pytest.raises(LogNotKept):
            await careless.reader(LOG, "latest")
    finally:
        await _set_retention(kafka, "-1")
    await careless.start()
    await (await careless.reader(LOG, "latest")).close()
    await careless.close()


async def _set_retention(kafka: str, retention_ms: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka)
    await admin.start()
    configs = {"cleanup.policy": "delete", "retention.ms": retention_ms, "retention.bytes": "-1"}
    await admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, LOG, configs=configs)])
    await admin.close()
