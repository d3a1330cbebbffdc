"""What brokers answer when they cannot: each error is survived or told, and nothing is skipped or out of order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress

import pytest
import pytest_asyncio

from global_sync.transport.base import LOG, Reader, RecordsMissed, TransportUnavailable
from global_sync.transport.kafka import KafkaOptions, KafkaTransport
from tests.anger.mock_brokers import FETCH, LIST_OFFSETS, METADATA, PRODUCE, MockBrokers, mock_brokers
from tests.anger.three_brokers import BY_THEMSELVES, nothing_left_behind
from tests.anger.world import until_sent

pytestmark = [pytest.mark.timeout(300), BY_THEMSELVES]

WITHIN_S = 120
OUT_OF_RANGE = 1
ERRORS = {
    -1: "unknown", 1: "offset out of range", 2: "corrupt", 3: "no such topic", 5: "no leader", 6: "not the leader",
    7: "timed out", 8: "not available", 10: "too large", 19: "too few replicas", 20: "too few replicas, appended",
    29: "not authorised", 56: "storage", 74: "fenced leader epoch", 75: "unknown leader epoch", 87: "bad record",
}  # fmt: skip
"""As the protocol numbers them."""


@pytest.fixture
def brokers() -> Iterator[MockBrokers]:
    with mock_brokers() as running:
        yield running


@pytest_asyncio.fixture
async def transport(brokers: MockBrokers) -> AsyncIterator[KafkaTransport]:
    transport = KafkaTransport(KafkaOptions(brokers.bootstrap))
    await transport.start()
    yield transport
    await transport.close()
    await nothing_left_behind()


async def read_all(reader: Reader, count: int) -> list[tuple[int, bytes]]:
    """So many records; whatever else comes of a read is waited out."""
    found: list[tuple[int, bytes]] = []
    async with asyncio.timeout(WITHIN_S):
        while len(found) < count:
            with suppress(TransportUnavailable):
                found += [(message.offset, message.value) for message in await reader.read(200)]
    return found


async def test_an_append_that_a_broker_refuses_is_told_or_tried_again_and_order_is_kept(
    brokers: MockBrokers, transport: KafkaTransport
) -> None:
    acknowledged: list[tuple[int, bytes]] = []
    for code in ERRORS:
        for times in (1, 3):
            brokers.err(PRODUCE, [code] * times)
            value = b"%d, %d times" % (code, times)
            with suppress(TransportUnavailable):
                acknowledged.append(((await transport.send(LOG, [value], timeout_ms=5000))[0], value))
            brokers.forget_errors(PRODUCE)
            value = b"after " + value
            acknowledged.append(((await until_sent(transport, LOG, [value], within_s=WITHIN_S))[0], value))
    assert acknowledged == sorted(acknowledged)
    reader = await transport.reader(LOG, "earliest")
    found = dict(await read_all(reader, await reader.end_offset()))
    assert {offset: found[offset] for offset, _ in acknowledged} == dict(acknowledged)


@pytest.mark.parametrize("api", [FETCH, LIST_OFFSETS, METADATA])
async def test_a_read_that_a_broker_refuses_goes_on_where_it_was(
    brokers: MockBrokers, transport: KafkaTransport, api: int
) -> None:
    reader = await transport.reader(LOG, "earliest")
    # A broker that says that a place was deleted is believed.
    for number, code in enumerate(code for code in ERRORS if code != OUT_OF_RANGE):
        brokers.err(api, [code, code])
        await until_sent(transport, LOG, [b"%d" % number], within_s=WITHIN_S)
        if api == LIST_OFFSETS:
            with suppress(TransportUnavailable):
                assert await reader.end_offset() == number + 1
        assert await read_all(reader, 1) == [(number, b"%d" % number)]
        brokers.forget_errors(api)
    assert await reader.read(100) == []


async def test_a_place_that_was_really_deleted_is_told(brokers: MockBrokers, transport: KafkaTransport) -> None:
    for number in range(5):
        await transport.send(LOG, [b"%d" % number])
    reader = await transport.reader(LOG, 1)
    brokers.delete_before(LOG, 3)
    with pytest.raises(RecordsMissed):
        await read_all(reader, 1)
    again = await transport.reader(LOG, "earliest")
    assert await read_all(again, 2) == [(3, b"3"), (4, b"4")]


async def test_an_append_that_was_given_up_may_be_written_later_and_the_next_does_not_wait_for_it(
    brokers: MockBrokers, transport: KafkaTransport
) -> None:
    await transport.send(LOG, [b"before"])
    brokers.slow(1, 4000)
    with pytest.raises(TransportUnavailable):
        await transport.send(LOG, [b"late"], timeout_ms=700)
    brokers.slow(1, 0)
    brokers.lead(LOG, 2)
    await until_sent(transport, LOG, [b"after"], within_s=WITHIN_S)
    reader = await transport.reader(LOG, "earliest")
    values = [value for _, value in await read_all(reader, await reader.end_offset())]
    assert values[0] == b"before"
    assert set(values) - {b"late"} == {b"before", b"after"}


async def test_a_leader_that_moves_and_brokers_that_go_and_come_are_followed(
    brokers: MockBrokers, transport: KafkaTransport
) -> None:
    reader = await transport.reader(LOG, "latest")
    for number in range(6):
        leads, away = 1 + number % 3, 1 + (number + 1) % 3
        brokers.lead(LOG, leads)
        brokers.down(away)
        offset, *_ = await until_sent(transport, LOG, [b"%d" % number], within_s=WITHIN_S)
        assert (await read_all(reader, 1))[0][0] == offset
        brokers.up(away)
