"""Asking another region over a real socket: what is silent, unsent, misled or renewed."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from regional_limiter.model.decision import Reason, Verdict
from regional_limiter.model.errors import OtherRequest, StoreUnavailable
from regional_limiter.model.home import Elsewhere
from regional_limiter.model.rule import Algorithm
from regional_limiter.store.base import BucketCall
from services.check_api.home_wire import Told, decode_question, encode_told
from services.check_api.homes import HomeClient

SECRET = b"a secret of the deployment"
PATIENT_S = 20.0
ALLOWED = Verdict(True, Reason.OK, 4, 0, 60_000)

Say = Callable[[bytes, asyncio.StreamWriter], Awaitable[None]]


def replies(status: int, body: bytes = b"") -> Say:
    async def say(_: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 %d x\r\ncontent-length: %d\r\n\r\n" % (status, len(body)) + body)

    return say


async def silence(_: bytes, writer: asyncio.StreamWriter) -> None:
    await asyncio.Event().wait()


async def drips(_: bytes, writer: asyncio.StreamWriter) -> None:
    """Never silent for long, and never done."""
    writer.write(b"HTTP/1.1 200 x\r\nx-long: ")
    while True:
        writer.write(b"x")
        await asyncio.sleep(0.02)


@dataclass
class Home:
    """A region's node as far as another sees it."""

    say: Say
    address: str = ""
    connections: int = 0
    asked: list[bytes] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
                body = await reader.readexactly(int(lengths[0].partition(b":")[2]))
                self.asked.append(body)
                await self.say(body, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def listening(say: Say) -> AsyncIterator[Home]:
    home = Home(say)
    tasks: set[asyncio.Task[None]] = set()

    def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(home.serve(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    home.address = "http://127.0.0.1:%d" % server.sockets[0].getsockname()[1]  # noqa: UP031
    try:
        yield home
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def asking(deadline_s: float, tls: Callable[[], ssl.SSLContext] | None = None) -> AsyncIterator[HomeClient]:
    client = HomeClient(SECRET, deadline_s, tls)
    try:
        yield client
    finally:
        await client.close()


def call_to(address: str) -> BucketCall:
    key = "rl:{abcdefgh}:default/a:c"
    return BucketCall(key, Algorithm.FIXED_WINDOW, 5, None, 60_000, 1, elsewhere=Elsewhere("us", address))


async def failure(client: HomeClient, address: str) -> tuple[str, bool]:
    with pytest.raises(StoreUnavailable) as told:
        await client.check([call_to(address)])
    return told.value.cause, told.value.may_have_run


async def test_one_connection_carries_questions_after_one_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")  # a proxy of the machine is none of ours
    async with listening(replies(200, encode_told(Told([ALLOWED])))) as home, asking(PATIENT_S) as client:
        for _ in range(3):
            assert await client.check([call_to(home.address)], "r1") == [ALLOWED]
        question, calls = decode_question(home.asked[0], "us")
        assert (question.act, question.request_id, calls[0].key) == ("check", "r1", "rl:{abcdefgh}:default/a:c")
        assert (len(home.asked), home.connections) == (3, 1)


@pytest.mark.parametrize(
    ("say", "cause", "may_have_run"),
    [
        (replies(401), "home_unreachable", False),
        (replies(404), "home_unreachable", False),
        (replies(421), "home_is_other_region", False),
        (replies(503), "home_unreachable", True),
        (replies(200, b"no answer"), "home_unreachable", True),
        (replies(200, encode_told(Told())), "home_unreachable", True),
        (replies(200, encode_told(Told(silent="deadline"))), "home_unreachable", False),
        (replies(200, encode_told(Told(silent="deadline", may_have_run=True))), "home_unreachable", True),
    ],
)
async def test_what_is_no_decision_says_whether_it_was_charged(say: Say, cause: str, may_have_run: bool) -> None:
    async with listening(say) as home, asking(PATIENT_S) as client:
        assert await failure(client, home.address) == (cause, may_have_run)


@pytest.mark.parametrize("held", [[], [True], [True, True, True]])
async def test_nobody_holds_slots_of_which_a_home_says_nothing(held: list[bool]) -> None:
    say = replies(200, encode_told(Told(held=held)))
    async with listening(say) as home, asking(PATIENT_S) as client:
        calls = [call_to(home.address)] * 2
        with pytest.raises(StoreUnavailable):
            await client.renew(calls)
        with pytest.raises(StoreUnavailable):
            await client.release(calls, "r1")


async def test_the_id_of_another_request_is_said_as_such() -> None:
    async with listening(replies(200, encode_told(Told(other_request=True)))) as home, asking(PATIENT_S) as client:
        with pytest.raises(OtherRequest):
            await client.check([call_to(home.address)], "r1")


async def test_what_was_never_sent_was_not_charged() -> None:
    async with asking(PATIENT_S) as client:
        async with listening(silence) as home:
            pass
        assert await failure(client, home.address) == ("home_unreachable", False)
        assert await failure(client, "") == ("home_unreachable", False)


@pytest.mark.parametrize("say", [silence, drips])
async def test_a_refund_waits_no_longer_than_the_deadline_whatever_comes_meanwhile(say: Say) -> None:
    async with listening(say) as home, asking(0.3) as client:
        with pytest.raises(StoreUnavailable):
            await client.refund([call_to(home.address)])


async def test_a_silent_home_is_left_alone_and_takes_nothing_from_another() -> None:
    well = replies(200, encode_told(Told([ALLOWED])))
    async with listening(silence) as silent, listening(well) as other, asking(0.3) as client:
        while (known := client._homes.get(silent.address)) is None or not known.breaker.is_open:
            if known is not None:
                known.breaker._within_s = float("inf")  # however slow this machine is
            await failure(client, silent.address)
        known.breaker._next_probe_at = float("inf")
        asked = len(silent.asked)
        assert await failure(client, silent.address) == ("home_unreachable", False)
        assert len(silent.asked) == asked
        client._deadline_s = PATIENT_S
        assert await client.check([call_to(other.address)]) == [ALLOWED]
        silent.say = well
        known.breaker._next_probe_at = 0.0
        assert await client.check([call_to(silent.address)]) == [ALLOWED]
        assert not known.breaker.is_open


async def test_certificates_that_are_renewed_are_shown_to_homes() -> None:
    contexts = [ssl.create_default_context(), ssl.create_default_context()]
    now = [contexts[0]]
    async with (
        listening(replies(200, encode_told(Told([ALLOWED])))) as home,
        asking(PATIENT_S, lambda: now[0]) as client,
    ):
        made = []
        for context in (contexts[0], contexts[0], contexts[1]):
            now[0] = context
            if home.address in client._homes:
                client._homes[home.address].looked_s = float("-inf")
            assert await client.check([call_to(home.address)]) == [ALLOWED]
            assert client._homes[home.address].context is context
            made.append(client._homes[home.address].client)
        assert made[0] is made[1] is not made[2]
