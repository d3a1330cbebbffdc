"""uvicorn's server with a bound that it does not set: how long a caller may take to shake hands.  [IO]"""

from __future__ import annotations

import asyncio
import socket
import sys

import uvicorn

HANDSHAKE_S = 5.0
"""A connection counts among the others only once it has shaken hands: until then only time bounds it."""
LIFESPAN_FAILED = 3


def handshake_s(config: uvicorn.Config) -> float | None:
    """What listeners are told of it; None without TLS."""
    return HANDSHAKE_S if config.ssl is not None else None


class BoundedServer(uvicorn.Server):
    """Listens on the sockets that it is given."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await self.lifespan.startup()
        if self.lifespan.should_exit:
            sys.exit(LIFESPAN_FAILED)
        config, loop = self.config, asyncio.get_running_loop()

        def accept() -> asyncio.Protocol:
            made: asyncio.Protocol = config.http_protocol_class(  # type: ignore[call-arg]
                config=config, server_state=self.server_state, app_state=self.lifespan.state, _loop=loop
            )
            return made

        self.servers: list[asyncio.base_events.Server] = [
            await loop.create_server(
                accept,
                sock=one,
                ssl=config.ssl,
                backlog=config.backlog,
                ssl_handshake_timeout=handshake_s(config),
            )
            for one in sockets or []
        ]
        self.started = True
