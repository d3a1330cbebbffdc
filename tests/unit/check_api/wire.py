"""One connection of a node in memory: bytes in, bytes out, by either protocol class."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import uvicorn
from uvicorn.server import ServerState

from services.check_api.app import NodeApp
from services.check_api.bounded_http import BoundedHttp

QUIET_TURNS = 12


class MemoryTransport(asyncio.Transport):
    """Keeps what is written; ``writes`` has each write apart."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 50000), "sockname": ("127.0.0.1", 80)})
        self.writes: list[bytes] = []
        self.closed = False
        self.paused = False
        self.protocol: asyncio.Protocol | None = None

    def write(self, data: Any) -> None:
        if not self.closed:
            self.writes.append(bytes(data))

    def close(self) -> None:
        self.abort()

    def abort(self) -> None:
        if not self.closed:
            self.closed = True
            assert self.protocol is not None
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def is_reading(self) -> bool:
        return not self.paused


class Connection:
    """A caller's end of a connection to ``node``."""

    def __init__(self, node: NodeApp, kind: type[BoundedHttp], **options: Any) -> None:
        config = uvicorn.Config(
            node,
            http=kind,
            ws="none",
            loop="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            **options,
        )
        config.load()
        self.state = ServerState()
        self.transport = MemoryTransport()
        self.protocol = kind(config, self.state, {}, asyncio.get_running_loop())
        self.transport.protocol = self.protocol
        self.protocol.connection_made(self.transport)

    @property
    def said(self) -> bytes:
        return b"".join(self.transport.writes)

    def send(self, data: bytes) -> None:
        if not self.transport.closed:
            self.protocol.data_received(data)

    async def talk(self, parts: Sequence[bytes], *, patient: bool = False) -> bytes:
        """Send each part when reading is not paused, and wait until nothing more is said.

        ``patient``: wait so after each part.
        """
        for part in parts:
            if patient:
                await self.quiet()
            for _ in range(QUIET_TURNS):
                if not self.transport.paused:
                    break
                await self.quiet()
            self.send(part)
        await self.quiet()
        return self.said

    async def quiet(self) -> None:
        """Until some turns of the loop have passed without a word."""
        turns, words = 0, len(self.transport.writes)
        while turns < QUIET_TURNS:
            await asyncio.sleep(0)
            turns += 1
            if len(self.transport.writes) > words:
                turns, words = 0, len(self.transport.writes)

    async def hang_up(self) -> None:
        self.transport.abort()
        await asyncio.sleep(0)
