"""One node as a server: listens, and leaves in order.

Leaving (:func:`serve_node`): not ready first, and every answer closes its connection, wait for the balancer to see
it, stop listening, finish what is in flight, and only then return, so that the caller can stop the limiter.  Every
step is bounded in time.
"""

from __future__ import annotations

import asyncio
import gc
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn

from services.bounded_server import BoundedServer, handshake_s
from services.check_api.app import NodeApp
from services.check_api.fast_http import FastHttp

CONNECTIONS_MOST = 8192
BACKLOG = 2048
KEEP_ALIVE_S = 75
"""Longer than callers keep an idle connection: the caller closes it, so no request meets a closed one."""
YOUNG_MOST = 20_000
"""Objects made and not freed before the collector looks for cycles among them: some 3 MB."""
LAST_REQUESTS_S = 0.2
"""For what is on its way through connections that exist when listening ends."""
FINISH_S = 5
"""What is in flight after that is cut off."""


class SignalFreeServer(BoundedServer):
    """Leaves the signals to the process."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Several nodes may live in one process, so the server takes no signals."""
        yield


def settle_collector() -> None:
    """What lives now lives as long as the process, so the garbage collector need not look at it again.

    A check makes some dozens of objects that no cycle holds; by default the collector would look through the young
    ones after every few checks, and find nothing.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_MOST, 10, 50)


def node_config(app: NodeApp) -> uvicorn.Config:
    """(Whose address a caller has is said by ``[check_api.authorize]``: uvicorn's own belief in headers is off.)"""
    return uvicorn.Config(
        app,
        http=FastHttp,
        ws="none",
        loop="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=BACKLOG,
        limit_concurrency=CONNECTIONS_MOST,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=FINISH_S,
    )


async def serve_node(
    app: NodeApp,
    listener: socket.socket,
    stop: asyncio.Event,
    *,
    drain_ms: int = 0,
    hurry: asyncio.Event | None = None,
    tls: ssl.SSLContext | None = None,
) -> None:
    """Serve ``app`` on ``listener`` until ``stop`` is set, then leave in order.

    ``drain_ms``: how long to be not ready and still listen.  ``hurry``, once set, cuts the waiting short.
    """
    config = node_config(app)
    config.load()
    config.ssl = tls
    server = SignalFreeServer(config)
    serving = asyncio.create_task(server.serve(sockets=[listener]), name="serve")
    stopping = asyncio.create_task(stop.wait(), name="stop")
    try:
        await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not serving.done():
            app.draining = True
            hurry = hurry or asyncio.Event()
            await _wait_most(hurry, drain_ms / 1000)
            if server.started:
                await _stop_listening(server, listener)
                await _wait_most(hurry, LAST_REQUESTS_S)
            server.should_exit = True
            server.force_exit = hurry.is_set()
    finally:
        stopping.cancel()
        server.should_exit = True
        await serving


async def _stop_listening(server: SignalFreeServer, listener: socket.socket) -> None:
    """Refuse connections from now on.  Those that the system has accepted are taken over: it would reset them, and
    their callers could not know whether they have been charged."""
    loop = asyncio.get_running_loop()
    listener.setblocking(False)
    accepted: list[socket.socket] = []
    try:
        while len(accepted) < BACKLOG:
            accepted.append(listener.accept()[0])
    except OSError:
        pass
    for one in server.servers:
        one.close()
    for connection in accepted:
        connection.setblocking(False)
        await loop.connect_accepted_socket(
            lambda: FastHttp(config=server.config, server_state=server.server_state, app_state={}, _loop=loop),
            connection,
            ssl=server.config.ssl,
            ssl_handshake_timeout=handshake_s(server.config),
        )


async def _wait_most(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass
