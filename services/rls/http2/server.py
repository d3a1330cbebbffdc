"""Listens for HTTP/2 connections, and leaves in order."""

from __future__ import annotations

import asyncio
import ssl
from typing import Final

from services.bounded_server import HANDSHAKE_S
from services.listening import bind
from services.rls.http2.connection import Connection, Front
from services.rls.methods import Methods, Observer
from services.rls.serving import FrontOptions, Tls
from services.tls import server_context

CONNECTIONS_MOST: Final = 4096
BACKLOG: Final = 1024
LAST_STREAMS_S: Final = 0.1
"""For what callers have sent before they were told that this server leaves."""


class Http2Server:
    """One listener (a GrpcServer)."""

    def __init__(self, methods: Methods, options: FrontOptions, observer: Observer) -> None:
        self._options = options
        self._front = Front(methods, options.token, observer)
        self._server: asyncio.Server | None = None
        self.port = 0

    async def start(self) -> None:
        options = self._options
        context = tls_context(options.tls) if options.tls is not None else None
        try:
            listener = bind(options.host, options.port)
        except OSError as error:
            raise OSError(f"{options.host}:{options.port}: {error.strerror}") from None
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: self._accept(loop),
            sock=listener,
            ssl=context,
            backlog=BACKLOG,
            ssl_handshake_timeout=HANDSHAKE_S if context is not None else None,
        )
        self.port = listener.getsockname()[1]

    def _accept(self, loop: asyncio.AbstractEventLoop) -> asyncio.Protocol:
        if len(self._front.connections) >= CONNECTIONS_MOST:
            oldest = next(iter(self._front.silent), None)
            if oldest is None:
                return _Refusal()
            # Nobody is turned away for those who only hold connections.
            self._front.connections.discard(oldest)
            del self._front.silent[oldest]
            oldest.abort()
        return Connection(self._front, loop)

    def drain(self) -> None:
        """Those who are connected are asked to go elsewhere; who comes all the same is answered."""
        for connection in list(self._front.connections):
            connection.go_away()

    async def stop(self, finish_s: float) -> None:
        if self._server is None:
            return
        self._server.close()
        self.drain()
        if finish_s > 0:
            await asyncio.sleep(LAST_STREAMS_S)
        for connection in list(self._front.connections):
            connection.leave()
        try:
            async with asyncio.timeout(finish_s):
                while self._front.connections:
                    self._front.empty.clear()
                    await self._front.empty.wait()
        except TimeoutError:
            for connection in list(self._front.connections):
                connection.abort()
        self._server = None


class _Refusal(asyncio.Protocol):
    """What a connection beyond the bound meets."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.abort()  # type: ignore[attr-defined]


def tls_context(tls: Tls) -> ssl.SSLContext:
    """HTTP/2 by ALPN, with what is in the files when a connection is made.

    Raises ValueError when a file is not what it should be.
    """
    try:
        return server_context(tls.certificate, tls.key, tls.client_ca, ["h2"])
    except OSError as error:
        raise ValueError(f"{tls.certificate}, {tls.key}, {tls.client_ca or 'no authority'}: {error}") from None
