"""One connection for many calls: replies meet their own calls, whatever happens to some of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from time import monotonic

import hiredis
import pytest

from regional_limiter.model.errors import StoreUnavailable
from regional_limiter.store.connection import ConnectionOptions, ReplyError, Server, pack

LONG_S = 5.0


class FakeRedis:
    """Answers PING and AUTH; other commands wait in ``asked`` until the test answers with ``say``."""

    def __init__(self) -> None:
        self.asked: asyncio.Queue[list[bytes]] = asyncio.Queue()
        self.logins: list[list[bytes]] = []
        self.silent = False
        self.connections = 0
        self.reconnected = asyncio.Event()
        self.reads = 0
        self._writers: list[asyncio.StreamWriter] = []
        self._served: set[asyncio.Task[None]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._served.add(task)
        self.connections += 1
        if self.connections > 1:
            self.reconnected.set()
        self._writers.append(writer)
        parser = hiredis.Reader()
        while data := await reader.read(65536):
            self.reads += 1
            parser.feed(data)
            while (command := parser.gets()) is not False:
                if self.silent:
                    continue
                if command[0] == b"PING":
                    writer.write(b"+PONG\r\n")
                elif command[0] == b"AUTH":
                    self.logins.append(command[1:])
                    writer.write(b"+OK\r\n")
                else:
                    self.asked.put_nowait(command)
        writer.close()

    def say(self, reply: bytes) -> None:
        self._writers[-1].write(reply)

    async def end(self) -> None:
        for writer in self._writers:
            writer.close()
        await asyncio.gather(*self._served, return_exceptions=True)


@asynccontextmanager
async def connected(
    options: ConnectionOptions | None = None, on_down: Callable[[str, str], None] | None = None
) -> AsyncIterator[tuple[FakeRedis, Server]]:
    fake = FakeRedis()
    listener = await asyncio.start_server(fake.serve, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    server = Server(f"127.0.0.1:{port}", options or ConnectionOptions(), on_down)
    try:
        assert await server.ready(LONG_S)
        yield fake, server
    finally:
        await server.close()
        listener.close()
        await fake.end()


async def unavailable(call: Awaitable[object]) -> StoreUnavailable:
    with pytest.raises(StoreUnavailable) as caught:
        await call
    return caught.value


async def test_replies_meet_their_calls_in_order() -> None:
    async with connected() as (fake, server):
        calls = [server.call(pack("GET", str(i)), LONG_S) for i in range(3)]
        for i in range(3):
            assert (await fake.asked.get())[1] == b"%d" % i
        fake.say(b"$1\r\na\r\n:7\r\n-ERR no\r\n")
        assert await calls[0] == b"a"
        assert await calls[1] == 7
        assert isinstance(await calls[2], ReplyError)


async def test_calls_of_one_turn_leave_in_one_write() -> None:
    async with connected() as (fake, server):
        before = fake.reads
        for i in range(50):
            server.call(pack("GET", i), LONG_S).cancel()
        for _ in range(50):
            await fake.asked.get()
        assert fake.reads == before + 1


async def test_a_caller_that_went_away_does_not_shift_the_replies() -> None:
    async with connected() as (fake, server):
        gone, stays = server.call(pack("GET", "gone"), LONG_S), server.call(pack("GET", "stays"), LONG_S)
        gone.cancel()
        await fake.asked.get()
        fake.say(b"+for the gone\r\n+for the one that stays\r\n")
        assert await stays == b"for the one that stays"


async def test_a_deadline_ends_the_connection_and_everything_that_waits_on_it() -> None:
    downs: list[str] = []
    async with connected(on_down=lambda address, cause: downs.append(cause)) as (fake, server):
        short, patient = server.call(pack("GET", "a"), 0.01), server.call(pack("GET", "b"), LONG_S)
        for call in (short, patient):
            error = await unavailable(call)
            assert (error.cause, error.may_have_run) == ("timeout", True)
        assert await server.ready(LONG_S)
        assert fake.connections == 2
        assert downs == ["timeout"]
        again = server.call(pack("GET", "c"), LONG_S)
        while (await fake.asked.get())[1] != b"c":
            pass
        fake.say(b"+mine\r\n")
        assert await again == b"mine"


async def test_without_a_connection_calls_fail_at_once_and_have_not_run() -> None:
    server = Server("127.0.0.1:1", ConnectionOptions())
    with pytest.raises(StoreUnavailable) as caught:
        server.call(pack("GET", "a"), LONG_S)
    assert not caught.value.may_have_run


async def test_a_server_that_accepts_but_never_answers_is_not_connected() -> None:
    async with connected(ConnectionOptions(connect_timeout_s=0.05)) as (fake, server):
        fake.silent = True
        error = await unavailable(server.call(pack("GET", "a"), 0.01))
        assert error.cause == "timeout"
        assert not await server.ready(0.2)
        fake.silent = False
        assert await server.ready(LONG_S)


async def test_a_full_queue_refuses_without_sending() -> None:
    async with connected(ConnectionOptions(in_flight_max=2)) as (fake, server):
        waiting = [server.call(pack("GET", "a"), LONG_S) for _ in range(2)]
        with pytest.raises(StoreUnavailable) as caught:
            server.call(pack("GET", "b"), LONG_S)
        assert (caught.value.cause, caught.value.may_have_run) == ("queue_full", False)
        await fake.asked.get()
        fake.say(b"+1\r\n+2\r\n")
        assert await asyncio.gather(*waiting) == [b"1", b"2"]


async def test_a_queue_past_three_quarters_of_its_bound_is_crowded_until_it_is_answered() -> None:
    async with connected(ConnectionOptions(in_flight_max=4)) as (fake, server):
        waiting = [server.call(pack("GET", "a"), LONG_S) for _ in range(3)]
        assert not server.crowded
        waiting.append(server.call(pack("GET", "a"), LONG_S))
        assert server.crowded
        await fake.asked.get()
        fake.say(b"+1\r\n+2\r\n+3\r\n+4\r\n")
        await asyncio.gather(*waiting)
        assert not server.crowded


async def test_what_was_never_written_cannot_have_run() -> None:
    async with connected() as (_, server):
        call = server.call(pack("GET", "a"), LONG_S)
        await server.close()
        assert not (await unavailable(call)).may_have_run


async def test_a_closed_socket_fails_what_waits_and_is_opened_again() -> None:
    async with connected() as (fake, server):
        call = server.call(pack("GET", "a"), LONG_S)
        await fake.asked.get()
        await fake.end()
        assert (await unavailable(call)).may_have_run
        assert await server.ready(LONG_S)


async def test_asking_and_its_command_leave_together_and_count_as_one_call() -> None:
    async with connected() as (fake, server):
        before = fake.reads
        call = server.call(pack("GET", "a"), LONG_S, asking=True)
        assert await fake.asked.get() == [b"ASKING"]
        assert await fake.asked.get() == [b"GET", b"a"]
        assert fake.reads == before + 1
        fake.say(b"+OK\r\n+mine\r\n")
        assert await call == b"mine"


async def test_an_answer_that_nobody_asked_for_ends_the_connection() -> None:
    async with connected() as (fake, server):
        call = server.call(pack("GET", "a"), LONG_S)
        await fake.asked.get()
        fake.say(b"+mine\r\n+whose\r\n")
        assert await call == b"mine"
        await asyncio.wait_for(fake.reconnected.wait(), LONG_S)


async def test_a_login_comes_before_the_first_call() -> None:
    async with connected(ConnectionOptions(username="node", password="secret")) as (fake, _):
        assert fake.logins == [[b"node", b"secret"]]


async def test_a_completion_that_raises_does_not_shift_the_replies(caplog: pytest.LogCaptureFixture) -> None:
    told: list[object] = []

    def raises(reply: object) -> None:
        raise IndexError("as the reader itself might")

    async with connected() as (fake, server):
        deadline = monotonic() + LONG_S
        server.submit(pack("GET", "a"), deadline, raises)
        server.submit(pack("GET", "b"), deadline, told.append)
        last = server.call(pack("GET", "c"), LONG_S)
        await fake.asked.get()
        fake.say(b"+a\r\n+b\r\n+c\r\n")
        assert await last == b"c"
    assert told == [b"b"]
    assert "what waited for a reply failed" in caplog.text


async def test_a_callback_is_told_of_a_lost_connection_once_and_may_ask_again() -> None:
    told: list[object] = []

    async with connected() as (fake, server):

        def ask_again(outcome: object) -> None:
            told.append(outcome)
            with pytest.raises(StoreUnavailable):
                server.submit(pack("GET", "again"), monotonic() + LONG_S, told.append)

        server.submit(pack("GET", "a"), monotonic() + LONG_S, ask_again)
        await fake.asked.get()
        await fake.end()
        async with asyncio.timeout(LONG_S):
            while not told:  # noqa: ASYNC110 - nothing here sets an event
                await asyncio.sleep(0)
    [lost] = told
    assert isinstance(lost, StoreUnavailable)
    assert lost.may_have_run
