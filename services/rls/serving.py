"""A node's gRPC front: which server stands there, where it listens, and how it leaves.  [W]"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from services.rls.methods import Methods, Observer

FINISH_S = 5.0


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM files.  ``client_ca``: whose certificates callers must show, None if none."""

    certificate: Path
    key: Path
    client_ca: Path | None = None


@dataclass(frozen=True, slots=True)
class FrontOptions:
    """``token``: what callers must bear as ``authorization`` metadata, None if nothing.  ``port`` 0: any."""

    host: str
    port: int
    server: Literal["own", "grpcio"] = "own"
    token: str | None = None
    tls: Tls | None = None


class GrpcServer(Protocol):
    port: int

    async def start(self) -> None:
        """Listen.  Raises OSError when the address cannot be had, ValueError when the certificates are wrong."""
        ...

    def drain(self) -> None:
        """Callers should go elsewhere; what they ask is answered."""
        ...

    async def stop(self, finish_s: float) -> None:
        """Listen no more, and give what is under way ``finish_s``."""
        ...


def build_server(methods: Methods, options: FrontOptions, observer: Observer) -> GrpcServer:
    """The server that ``options`` ask for, not started.  Only that one is imported."""
    if options.server == "own":
        from services.rls.http2.server import Http2Server

        return Http2Server(methods, options, observer)
    from services.rls.grpcio_server import GrpcioServer

    return GrpcioServer(methods, options, observer)


async def serve_grpc(
    server: GrpcServer, stop: asyncio.Event, *, drain_ms: int, hurry: asyncio.Event | None = None
) -> None:
    """Keep a started ``server`` until ``stop`` is set, then leave in order, as ``serve_node`` does."""
    await stop.wait()
    server.drain()
    hurry = hurry or asyncio.Event()
    try:
        async with asyncio.timeout(drain_ms / 1000):
            await hurry.wait()
    except TimeoutError:
        pass
    await server.stop(0 if hurry.is_set() else FINISH_S)
