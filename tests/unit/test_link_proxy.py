"""A link that is cut is a black hole, not a closed door; what was under way arrives when it heals."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import pytest_asyncio

from infra.local import link_proxy
from infra.local.link_proxy import Link, LinkProxy, command

Connect = Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]
HOST = "127.0.0.1"


class Served:
    """A proxy with one link to a server that echoes, and its clients."""

    def __init__(self) -> None:
        self.proxy = LinkProxy()
        self.port = 0
        self.control_port = 0
        self.accepted = 0
        self._writers: list[asyncio.StreamWriter] = []
        self._serving: list[asyncio.Task[None]] = []

    @property
    def link(self) -> Link:
        return self.proxy.links["us-east"]

    async def start(self) -> None:
        self._echo = await asyncio.start_server(self._serve, HOST, 0)
        target = self._echo.sockets[0].getsockname()[1]
        self.port = await self.proxy.add("us-east", HOST, 0, target)
        self.control_port = await self.proxy.control(HOST, 0)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        self._serving += [task] if (task := asyncio.current_task()) else []
        try:
            while chunk := await reader.read(65536):
                writer.write(chunk)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.transport.abort()

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(HOST, self.port)
        self._writers.append(writer)
        return reader, writer

    async def stop(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
        await self.proxy.close()
        self._echo.close()
        await asyncio.gather(*self._serving)
        await asyncio.sleep(0)


@pytest_asyncio.fixture
async def served() -> AsyncIterator[Served]:
    served = Served()
    await served.start()
    yield served
    await served.stop()


async def silent(reader: asyncio.StreamReader) -> bool:
    """Nothing comes for a moment (a reader that is asked again goes on where it was)."""
    try:
        await asyncio.wait_for(reader.read(1), 0.05)
    except TimeoutError:
        return True
    return False


async def ended(reader: asyncio.StreamReader) -> bool:
    try:
        return await asyncio.wait_for(reader.read(1), 2) == b""
    except ConnectionResetError:
        return True


async def test_bytes_pass_both_ways_and_so_does_the_end(served: Served) -> None:
    reader, writer = await served.connect()
    writer.write(b"hello")
    assert await reader.readexactly(5) == b"hello"
    writer.write_eof()
    assert await reader.read() == b""


async def test_a_cut_link_keeps_connections_open_and_delivers_late(served: Served) -> None:
    reader, writer = await served.connect()
    writer.write(b"before")
    assert await reader.readexactly(6) == b"before"
    served.link.cut()
    writer.write(b"during")
    assert await silent(reader)
    assert not reader.at_eof()
    served.link.heal()
    assert await reader.readexactly(6) == b"during"


async def test_a_cut_link_accepts_but_reaches_nobody(served: Served) -> None:
    served.link.cut()
    reader, writer = await served.connect()
    writer.write(b"hello")
    assert await silent(reader)
    assert served.accepted == 0
    served.link.heal()
    assert await reader.readexactly(5) == b"hello"


async def test_a_slow_link_delays_each_direction_but_not_its_throughput(served: Served) -> None:
    served.link.slow(30)
    reader, writer = await served.connect()
    clock = asyncio.get_running_loop().time
    began = clock()
    for _ in range(20):
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(0)
    await reader.readexactly(20)
    assert 0.06 <= clock() - began < 0.6


async def test_order_is_kept_when_the_delay_shrinks(served: Served) -> None:
    reader, writer = await served.connect()
    served.link.slow(80)
    writer.write(b"first ")
    await writer.drain()
    await asyncio.sleep(0.02)
    served.link.slow(0)
    writer.write(b"second")
    assert await reader.readexactly(12) == b"first second"


async def test_what_waits_on_a_cut_link_is_bounded(served: Served) -> None:
    reader, writer = await served.connect()
    writer.write(b"x")
    await reader.readexactly(1)
    served.link.cut()
    writer.write(bytes(32 * 1024 * 1024))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(writer.drain(), 0.2)
    served.link.heal()
    received = 0
    while received < 32 * 1024 * 1024:
        received += len(await asyncio.wait_for(reader.read(1 << 20), 5))
    assert received == 32 * 1024 * 1024


async def test_the_oldest_connection_gives_way_when_there_are_too_many(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_proxy, "CONNECTIONS_MOST", 2)
    served.link.cut()
    first, _ = await served.connect()
    await served.connect()
    await served.connect()
    assert await ended(first)
    assert len(served.link.connections) == 2


async def test_a_dead_target_ends_the_connection(served: Served) -> None:
    served.link.target = (HOST, 1)
    reader, _ = await served.connect()
    assert await ended(reader)
    assert not served.link.connections


async def test_the_control_port_obeys_and_explains(served: Served) -> None:
    async def say(line: str) -> dict[str, object]:
        return await asyncio.to_thread(command, served.control_port, line)

    assert (await say("cut us-east"))["us-east"] == served.link.describe()
    assert served.link.state == "cut"
    await say("slow us-east 5")
    assert (served.link.state, served.link.delay_ms) == ("slow", 5)
    await say("heal us-east")
    assert (served.link.state, served.link.delay_ms) == ("up", 0)
    assert set(await say("status")) == {"us-east"}
    for line, word in (
        ("cut mars", "are: us-east"),
        ("slow us-east 99999999", "60000"),
        ("what", "commands"),
    ):
        with pytest.raises(ValueError, match=word):
            await say(line)
