"""A plain connection to one Redis server, for administration: words out, the answer in.

(A client library takes a third of a second to import, and gives the answers of CLUSTER commands other shapes.)
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

CALL_TIMEOUT_S = 2.0


class ServerError(Exception):
    """The server does not answer, answers with an error, or answers what is no answer."""


class Server:
    """One connection, made at once.  Raises ServerError, and is of no use after that."""

    def __init__(
        self,
        host: str,
        port: int,
        username: str | None = None,
        password: str | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        try:
            self._socket = socket.create_connection((host, port), timeout=CALL_TIMEOUT_S)
            if tls is not None:
                self._socket = tls.wrap_socket(self._socket, server_hostname=host)
        except OSError as error:
            raise ServerError(f"{host}:{port}: {error}") from None
        self._answers = self._socket.makefile("rb")
        if password is not None:
            try:
                self.call("AUTH", *([username] if username else []), password)
            except ServerError:
                self.close()
                raise

    def call(self, *words: str | int) -> Any:
        """The answer: a string, an integer, None, or a list of them."""
        return self.call_all([words])[0]

    def call_all(self, commands: Sequence[Sequence[str | int]]) -> list[Any]:
        """The answers to several commands that are sent together.  Raises with the first that is an error."""
        try:
            self._socket.sendall(b"".join(map(_packed, commands)))
            answers = [self._read_any() for _ in commands]
        except (OSError, ValueError, IndexError) as error:
            raise ServerError(f"{commands[0][0]}: {error or type(error).__name__}") from None
        for answer in answers:
            if isinstance(answer, ServerError):
                raise answer
        return answers

    def _read_any(self) -> Any:
        try:
            return self._read()
        except ServerError as error:
            return error

    def _read(self) -> Any:
        line = self._answers.readline()
        kind, rest = chr(line[0]), line[1:].rstrip(b"\r\n")
        if kind == "+":
            return rest.decode()
        if kind == "-":
            raise ServerError(rest.decode(errors="replace"))
        if kind == ":":
            return int(rest)
        size = int(rest)
        if size < 0:
            return None
        if kind == "$":
            content = self._answers.read(size + 2)
            if len(content) != size + 2:
                raise ValueError("the answer ends too soon")
            return content[:size].decode(errors="surrogateescape")
        if kind == "*":
            return [self._read() for _ in range(size)]
        raise ValueError(f"not an answer: {line!r}")

    def close(self) -> None:
        self._answers.close()
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _packed(words: Sequence[str | int]) -> bytes:
    encoded = [word.encode("utf-8", "surrogateescape") if isinstance(word, str) else b"%d" % word for word in words]
    return b"*%d\r\n" % len(encoded) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in encoded)
