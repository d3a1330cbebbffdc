"""The index of stored clients: a fault of its file, or a hiccup of Kafka, costs no more than a moment."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from global_sync.subject_records import encode_records
from global_sync.transport.base import SUBJECTS, Message, Start, TransportUnavailable
from global_sync.transport.memory import MemoryHub, MemoryTransport
from services.control_api import subject_index
from services.control_api.subject_index import SubjectIndex, SubjectsRead
from services.tasks import ended


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject_index, "PAUSE_S", 0)
    monkeypatch.setattr(subject_index, "PAUSE_UNWRITABLE_S", 0)


def messages(client_key: str, version: int) -> list[Message]:
    keys, values = encode_records("d", [{"client_key": client_key, "set": {"tier": "gold"}}], version, put=True)
    return [Message(SUBJECTS, version, keys[0], values[0], 0)]


async def tell(hub: MemoryHub, client_key: str, version: int) -> None:
    (message,) = messages(client_key, version)
    await hub.transport("leader").send(SUBJECTS, [message.value], key=message.key)


@asynccontextmanager
async def running(read: SubjectsRead) -> AsyncIterator[None]:
    task = asyncio.create_task(read.run())
    try:
        yield
        assert not task.done()
    finally:
        await ended(task)
        read.index.close()


def test_a_batch_that_was_not_written_is_none_of_it_and_the_next_one_is_taken() -> None:
    index = SubjectIndex()
    index._base.execute("create trigger full before insert on stored begin select raise(fail, 'disk is full'); end")
    with pytest.raises(sqlite3.Error, match="disk is full"):
        index.take(messages("a", 7))
    assert (index.newest, index.count("d")) == (0, 0)
    index._base.execute("drop trigger full")
    index.take(messages("a", 7))
    assert (index.newest, index.count("d")) == (7, 1)
    index.close()


async def test_reading_goes_on_after_a_fault_of_the_file_and_misses_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hub = MemoryHub()
    read = SubjectsRead(hub.transport("control"), SubjectIndex())
    take, faults = read.index.take, [sqlite3.OperationalError("disk I/O error")]

    def once_faulty(batch: Sequence[Message]) -> None:
        if faults:
            raise faults.pop()
        take(batch)

    monkeypatch.setattr(read.index, "take", once_faulty)
    await tell(hub, "a", 1)
    async with running(read):
        assert await read.reached(1, timeout_s=30)
        await tell(hub, "b", 2)
        assert await read.reached(2, timeout_s=30)
        assert read.index.count("d") == 2
    assert faults == []


async def test_after_a_hiccup_of_kafka_it_is_read_on_from_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = MemoryHub()
    transport = hub.transport("control")
    starts: list[Start] = []
    hiccup = asyncio.Event()

    async def reader(self: MemoryTransport, topic: str, start: Start) -> Any:
        starts.append(start)
        one = await really(self, topic, start)
        reading = one.read

        async def read(timeout_ms: int) -> list[Message]:
            if hiccup.is_set():
                hiccup.clear()
                raise TransportUnavailable("hiccup")
            found: list[Message] = await reading(timeout_ms)
            return found

        one.read = read  # type: ignore[method-assign]
        return one

    really = MemoryTransport.reader
    monkeypatch.setattr(MemoryTransport, "reader", reader)
    read = SubjectsRead(transport, SubjectIndex())
    for version in (1, 2, 3):
        await tell(hub, f"c{version}", version)
    async with running(read):
        assert await read.reached(3, timeout_s=30)
        hiccup.set()
        while len(starts) < 2:  # noqa: ASYNC110 (nothing tells; bounded by the test's own timeout)
            await asyncio.sleep(0.01)
        await tell(hub, "c4", 4)
        assert await read.reached(4, timeout_s=30)
    assert starts == ["earliest", 3]
