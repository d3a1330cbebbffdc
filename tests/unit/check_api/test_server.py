"""A node as a server on a real socket: serves, and leaves in order."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from regional_limiter.limiter import Done
from regional_limiter.model.decision import Answer, Check
from services.check_api import bounded_http, server
from services.check_api.app import NodeApp
from services.check_api.server import serve_node
from services.cli.drive import drive
from services.listening import bind
from tests.unit.check_api.fakes import FakeLimiter, answer_of, node_of, rule_verdict

CHECK = {"client_key": "a", "resource": "b"}


@dataclass
class SlowLimiter(FakeLimiter):
    """Answers only when released."""

    asked: asyncio.Event = field(default_factory=asyncio.Event)
    released: asyncio.Event = field(default_factory=asyncio.Event)
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    async def check(self, check: Check) -> Answer:
        self.asked.set()
        await self.released.wait()
        return await super().check(check)

    def submit(self, check: Check, done: Done) -> None:
        async def later() -> None:
            done(await self.check(check))

        self.tasks.append(asyncio.create_task(later()))


def url_of(listener: socket.socket) -> str:
    listener.listen()  # whoever connects before the server runs waits for it
    return "http://127.0.0.1:%d" % listener.getsockname()[1]  # noqa: UP031


async def until_draining(node: NodeApp) -> None:
    for _ in range(100):
        if node.draining:
            return
        await asyncio.sleep(0)
    raise AssertionError("the node does not drain")


async def test_a_node_answers_on_a_socket_and_keeps_connections() -> None:
    listener, stop = bind("127.0.0.1", 0), asyncio.Event()
    url = url_of(listener)
    limiter = FakeLimiter(answer_of(rule_verdict(allowed=False, retry_after_ms=334)))
    serving = asyncio.create_task(serve_node(node_of(limiter), listener, stop))
    try:
        async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
            assert (await client.get(f"{url}/livez")).status_code == 200
        result = await drive([url], 200, 0.3, client_key="k", resource="r", timeout_s=30)
        async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
            answer = await client.post(f"{url}/v1/check", json=CHECK)
            too_large = await client.post(f"{url}/v1/check", content=b"x" * 70_000)
            missing = await client.get(f"{url}/nothing")
            scraped = await client.get(f"{url}/metrics")
    finally:
        stop.set()
        await serving
    assert (result.sent, result.denied, result.errors, result.unsent) == (60, 60, 0, 0)
    assert (answer.status_code, answer.json()["allowed"], answer.headers["retry-after"]) == (200, False, "1")
    assert too_large.status_code == 413
    assert (missing.status_code, missing.headers["content-type"]) == (404, "application/problem+json")
    assert "ratelimit_checks_total" in scraped.text


async def test_gubernator_global_go_a_node_leaves_in_order() -> None:
    """Not ready first, in-flight answered, and only then gone."""
    limiter, stop = SlowLimiter(), asyncio.Event()
    listener = bind("127.0.0.1", 0)
    url, node = url_of(listener), node_of(limiter)
    serving = asyncio.create_task(
        serve_node(node, listener, stop, drain_ms=60_000, hurry=(hurry := asyncio.Event()))
    )
    async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
        in_flight = asyncio.create_task(client.post(f"{url}/v1/check", json=CHECK))
        await limiter.asked.wait()
        stop.set()
        await until_draining(node)
        assert (await client.get(f"{url}/readyz")).status_code == 503
        assert (await client.get(f"{url}/livez")).status_code == 200
        assert not serving.done()
        limiter.released.set()
        assert (await in_flight).status_code == 200
        hurry.set()
        await serving
        with pytest.raises(httpx.ConnectError):
            await client.get(f"{url}/livez")


async def test_what_is_in_flight_when_listening_ends_is_still_answered() -> None:
    limiter, stop = SlowLimiter(), asyncio.Event()
    listener = bind("127.0.0.1", 0)
    url, node = url_of(listener), node_of(limiter)
    serving = asyncio.create_task(serve_node(node, listener, stop))
    async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
        in_flight = asyncio.create_task(client.post(f"{url}/v1/check", json=CHECK))
        await limiter.asked.wait()
        stop.set()
        await until_draining(node)
        asyncio.get_running_loop().call_later(0.05, limiter.released.set)
        assert (await in_flight).status_code == 200
        await serving


async def test_a_connection_that_only_the_system_has_accepted_is_answered_when_listening_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    listener, stop, node = bind("127.0.0.1", 0), asyncio.Event(), node_of(FakeLimiter())
    url, late = url_of(listener), []

    async def come_late(event: asyncio.Event, seconds: float) -> None:
        """The loop gets no turn in which it could accept the connection before listening ends."""
        if not late:
            late.append(socket.create_connection(listener.getsockname()[:2]))
        else:
            await event.wait()

    monkeypatch.setattr(server, "_wait_most", come_late)
    hurry = asyncio.Event()
    serving = asyncio.create_task(serve_node(node, listener, stop, hurry=hurry))
    async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
        assert (await client.get(f"{url}/livez")).status_code == 200
    stop.set()
    await until_draining(node)
    async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
        with pytest.raises(httpx.ConnectError):
            await client.get(f"{url}/livez")
    late[0].setblocking(False)
    reader, writer = await asyncio.open_connection(sock=late[0])
    writer.write(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
    said = await reader.read()
    writer.close()
    hurry.set()
    await serving
    assert said.startswith(b"HTTP/1.1 200 OK")
    assert b"\r\nconnection: close\r\n" in said


def test_two_copies_on_one_port_do_not_share_it_in_silence() -> None:
    with bind("127.0.0.1", 0) as first:
        first.listen()
        with pytest.raises(OSError) as caught:
            bind("127.0.0.1", first.getsockname()[1])
    assert caught.value.errno == errno.EADDRINUSE


async def told(url: str, *parts: bytes) -> bytes:
    """What the server says to raw bytes until it closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
    try:
        for part in parts:
            writer.write(part)
            await writer.drain()
        return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


@asynccontextmanager
async def serving(limiter: FakeLimiter, send_buffer: int | None = None) -> AsyncIterator[str]:
    listener, stop = bind("127.0.0.1", 0), asyncio.Event()
    if send_buffer is not None:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
    url = url_of(listener)
    task = asyncio.create_task(serve_node(node_of(limiter), listener, stop))
    try:
        yield url
    finally:
        stop.set()
        await task


def problem_of(response: bytes) -> dict[str, Any]:
    head, _, body = response.partition(b"\r\n\r\n")
    assert b"\r\ncontent-type: application/problem+json\r\n" in head
    assert b"\r\nconnection: close\r\n" in head
    assert b"\r\ncontent-length: %d" % len(body) in head
    return dict(json.loads(body))


async def test_a_head_without_end_is_cut_off_by_size_and_by_time(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = b"POST /v1/check HTTP/1.1\r\nHost: x\r\nX-Long: "
    async with serving(FakeLimiter()) as url:
        monkeypatch.setattr(bounded_http, "HEAD_DEADLINE_S", 3600)
        too_long = await told(url, begin, *[b"x" * 65_536] * 20)  # ends: by its size alone
        monkeypatch.setattr(bounded_http, "HEAD_DEADLINE_S", 0.05)
        assert await told(url, begin) == b""
    if too_long:  # a reset that overtakes it takes the answer away
        assert problem_of(too_long)["status"] == 431


@pytest.mark.parametrize("size", [140_000, 190_000])
async def test_a_long_head_in_one_write_is_refused_whole_or_not(size: int) -> None:
    limiter = FakeLimiter()
    head = b"GET /livez HTTP/1.1\r\nHost: x\r\n" + b"X-Long: " + b"x" * size + b"\r\n\r\n"
    async with serving(limiter) as url:
        assert problem_of(await told(url, head))["status"] == 431


async def test_what_is_not_http_is_a_problem_too_and_comes_after_the_answers_before_it() -> None:
    limiter = SlowLimiter()
    body = json.dumps(CHECK).encode()
    request = b"POST /v1/check?x=1 HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    broken = b"POST /v1/check HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nnot a length\r\n"
    async with serving(limiter) as url:
        assert problem_of(await told(url, b"\x00\x01\r\n\r\n"))["status"] == 400
        assert problem_of(await told(url, broken))["status"] == 400
        for ending in (b"\x00\x01\r\n\r\n", broken):
            limiter.released.clear()
            waiting = asyncio.create_task(told(url, request + request + ending))
            await limiter.asked.wait()
            asyncio.get_running_loop().call_later(0.01, limiter.released.set)
            first, second, last = (b"HTTP/1.1 " + part for part in (await waiting).split(b"HTTP/1.1 ")[1:])
            assert first.startswith(b"HTTP/1.1 200 ")
            assert second.startswith(b"HTTP/1.1 200 ")
            assert problem_of(last)["status"] == 400


LIVEZ = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"


async def connected(url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    parts = urlsplit(url)
    return await asyncio.open_connection(parts.hostname, parts.port)


async def asked(connection: tuple[asyncio.StreamReader, asyncio.StreamWriter], request: bytes) -> bytes:
    """The answer's head."""
    connection[1].write(request)
    head = await connection[0].readuntil(b"\r\n\r\n")
    length = next(line for line in head.split(b"\r\n") if line.startswith(b"content-length: "))
    await connection[0].readexactly(int(length.partition(b": ")[2]))
    return head


async def test_one_connection_too_many_is_a_problem_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "CONNECTIONS_MOST", 1)
    async with serving(FakeLimiter()) as url:
        first = await connected(url)
        assert (await asked(first, LIVEZ)).startswith(b"HTTP/1.1 200 ")
        assert problem_of(await told(url, LIVEZ))["status"] == 503
        assert (await asked(first, LIVEZ)).startswith(b"HTTP/1.1 200 ")
        first[1].close()


@pytest.mark.parametrize("path", [b"/v1/check", b"/v1/check?x=1"], ids=["fast path", "slow path"])
async def test_who_asks_and_never_reads_is_hung_up_on(monkeypatch: pytest.MonkeyPatch, path: bytes) -> None:
    monkeypatch.setattr(bounded_http, "UNREAD_S", 0.2)
    body = json.dumps(CHECK).encode()
    check = b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (path, len(body), body)
    async with serving(FakeLimiter(), send_buffer=4096) as url, asyncio.timeout(50):
        caller = await connected(url)
        with socket.socket() as deaf:
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)  # so that little is soon too much
            deaf.connect(("127.0.0.1", urlsplit(url).port))
            deaf.setblocking(False)
            with contextlib.suppress(ConnectionError):  # the end of it
                while True:
                    await asyncio.get_running_loop().sock_sendall(deaf, check * 100)
        assert (await asked(caller, check)).startswith(b"HTTP/1.1 200 ")
        caller[1].close()


@pytest.mark.parametrize("said", [b"", b"POST /v1/check HTTP/1.1\r\nHost: x\r\n"], ids=["nothing", "half a head"])
async def test_who_only_holds_connections_makes_room_for_who_asks(
    monkeypatch: pytest.MonkeyPatch, said: bytes
) -> None:
    monkeypatch.setattr(server, "CONNECTIONS_MOST", 4)
    body = json.dumps(CHECK).encode()
    check = b"POST /v1/check HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    async with serving(FakeLimiter()) as url:
        caller = await connected(url)
        assert (await asked(caller, check)).startswith(b"HTTP/1.1 200 ")
        idle = []
        for _ in range(20):
            idle.append(await connected(url))
            idle[-1][1].write(said)
            assert (await asked(caller, check)).startswith(b"HTTP/1.1 200 ")
        another = await connected(url)
        assert (await asked(another, check)).startswith(b"HTTP/1.1 200 ")
        async with asyncio.timeout(20):
            for reader, _ in idle[:-2]:  # what did not make room for those after it, did for the caller
                with contextlib.suppress(ConnectionError):
                    assert await reader.read() == b""
        for _, writer in [*idle, caller, another]:
            writer.close()
