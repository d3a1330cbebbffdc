"""What a Redis server may answer, and what is no answer."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from infra.region.resp import Server, ServerError


class Scripted:
    """A server that answers each command with the next of its answers, whatever it was."""

    def __init__(self) -> None:
        self.answers: list[bytes] = []
        self.heard = b""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        connection, _ = self._listener.accept()
        with connection:
            while heard := connection.recv(65536):
                self.heard += heard
                if self.answers:
                    connection.sendall(self.answers.pop(0))
                if not self.answers:
                    return

    def close(self) -> None:
        self._listener.close()
        self._thread.join(5)


@pytest.fixture
def scripted() -> Iterator[Scripted]:
    scripted = Scripted()
    yield scripted
    scripted.close()


def test_every_kind_of_answer(scripted: Scripted) -> None:
    scripted.answers = [b"+PONG\r\n", b":-3\r\n", b"$4\r\na\r\nb\r\n", b"$-1\r\n", b"*2\r\n:1\r\n*1\r\n$0\r\n\r\n"]
    with Server("127.0.0.1", scripted.port) as server:
        assert [server.call("ECHO", "a b") for _ in range(5)] == ["PONG", -3, "a\r\nb", None, [1, [""]]]
    assert scripted.heard.startswith(b"*2\r\n$4\r\nECHO\r\n$3\r\na b\r\n")


@pytest.mark.parametrize("answer", [b"-ERR no\r\n", b"HTTP/1.1 400\r\n", b"$x\r\n", b"$9\r\nshort"])
def test_an_error_and_nonsense_are_errors(scripted: Scripted, answer: bytes) -> None:
    scripted.answers = [answer]
    with Server("127.0.0.1", scripted.port) as server, pytest.raises(ServerError):
        server.call("PING")


def test_an_end_in_place_of_an_answer_is_an_error(scripted: Scripted) -> None:
    with Server("127.0.0.1", scripted.port) as server, pytest.raises(ServerError):
        server.call("PING")


def test_a_wrong_password_leaves_no_connection(scripted: Scripted) -> None:
    scripted.answers = [b"-WRONGPASS\r\n"]
    with pytest.raises(ServerError, match="WRONGPASS"):
        Server("127.0.0.1", scripted.port, "name", "word")
    assert scripted.heard == b"*3\r\n$4\r\nAUTH\r\n$4\r\nname\r\n$4\r\nword\r\n"


def test_nobody_there_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(ServerError, match=str(port)):
        Server("127.0.0.1", port)
