"""What every service but the nodes is served with: strangers cannot fill its memory or hold its connections."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from services import bounded_server
from services.bounded_server import BoundedServer
from services.check_api.server import node_config
from services.serve import bounded
from services.settings import ServerTls
from tests.certificates import make_certificates


async def app(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})


@contextmanager
def served(tls: ServerTls | None = None) -> Iterator[int]:
    """The port."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        config = bounded(app)
        config.load()
        config.ssl = tls.context("http/1.1") if tls else None
        server = BoundedServer(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        deadline = time.monotonic() + 20
        while not server.started:
            assert time.monotonic() < deadline, "the server did not start"
            time.sleep(0.01)
        yield listener.getsockname()[1]
        server.should_exit = True
        thread.join(10)


@pytest.fixture
def port() -> Iterator[int]:
    with served() as port:
        yield port


def said(port: int, request: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=50) as connection:
        try:
            connection.sendall(request)
        except OSError:
            pass  # refused while it was still being sent
        return connection.recv(1000)


def test_a_plain_request_is_answered(port: int) -> None:
    assert said(port, b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("head", [b"x: " + b"a" * 140_000, b"".join(b"x%05d: a\r\n" % n for n in range(13_000))])
def test_a_head_without_end_is_refused(port: int, head: bytes) -> None:
    assert said(port, b"GET / HTTP/1.1\r\nhost: x\r\n" + head).startswith(b"HTTP/1.1 431")


@pytest.mark.parametrize("config", [bounded(app), node_config(app)])  # type: ignore[arg-type]
def test_no_header_says_who_a_caller_is_before_our_own_rules_do(config: uvicorn.Config) -> None:
    config.load()
    assert config.loaded_app is app


def test_who_begins_to_shake_hands_and_stops_is_hung_up_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_server, "HANDSHAKE_S", 0.2)
    make_certificates(tmp_path)
    with served(ServerTls(certificate=tmp_path / "server.pem", key=tmp_path / "server.key")) as port:
        for begin in (b"", bytes.fromhex("160301")):
            with socket.create_connection(("127.0.0.1", port), timeout=50) as connection:
                connection.sendall(begin)
                assert connection.recv(1000) == b""
