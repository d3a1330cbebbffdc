"""The listener of HTTP/2: who only holds connections, or does not shake hands, is not served before who asks."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import grpc.aio
import pytest

from services.rls.http2 import server
from services.rls.http2.connection import PREFACE
from services.rls.http2.frames import SETTINGS, frame
from services.rls.http2.server import Http2Server
from services.rls.messages import METHOD
from services.rls.methods import Observer, Unary
from services.rls.serving import FrontOptions, Tls
from tests.certificates import make_certificates
from tests.unit.rls.http2_peer import echo


async def started(tls: Tls | None = None) -> Http2Server:
    made = Http2Server({METHOD: Unary(echo)}, FrontOptions("127.0.0.1", 0, "own", tls=tls), Observer())
    await made.start()
    return made


@pytest.mark.parametrize("said", [b"", PREFACE + frame(SETTINGS, 0, 0)], ids=["nothing", "only settings"])
async def test_who_only_holds_connections_makes_room_for_who_asks(
    monkeypatch: pytest.MonkeyPatch, said: bytes
) -> None:
    monkeypatch.setattr(server, "CONNECTIONS_MOST", 4)
    front = await started()
    address = f"127.0.0.1:{front.port}"
    async with grpc.aio.insecure_channel(address) as first, asyncio.timeout(30):
        assert await first.unary_unary(METHOD)(b"a") == b"a" * 10
        idle = []
        for _ in range(10):
            idle.append(await asyncio.open_connection("127.0.0.1", front.port))
            idle[-1][1].write(said)
        async with grpc.aio.insecure_channel(address) as another:
            assert await another.unary_unary(METHOD)(b"b") == b"b" * 10
        assert await first.unary_unary(METHOD)(b"c") == b"c" * 10
        for reader, _ in idle[:-4]:
            with contextlib.suppress(ConnectionError):
                await reader.read()  # to its end
        for _, writer in idle:
            writer.close()
    await front.stop(1)


async def test_who_begins_to_shake_hands_and_stops_is_hung_up_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "HANDSHAKE_S", 0.2)
    make_certificates(tmp_path)
    front = await started(Tls(tmp_path / "server.pem", tmp_path / "server.key"))
    async with asyncio.timeout(20):
        reader, writer = await asyncio.open_connection("127.0.0.1", front.port)
        writer.write(bytes.fromhex("160301"))
        assert await reader.read() == b""
        writer.close()
    await front.stop(1)
