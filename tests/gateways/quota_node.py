"""A quota service on a limiter in memory, in a thread of its own, whose rules a test changes."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from regional_limiter.in_process import in_memory
from regional_limiter.limiter import Limiter
from regional_limiter.rules import parse_document
from services.quota.service import KEEPALIVE, QuotaService
from services.rls.grpcio_server import GrpcioServer
from services.rls.methods import Observer
from services.rls.serving import FrontOptions

WAIT_S = 30


def rules(capacity: int, refill: str) -> dict[str, Any]:
    rule = {"id": "by-user", "key": ["user"], "capacity": capacity, "refill": refill}
    return {"domain": "edge", "regions": {"here": 1}, "rules": [rule]}


class QuotaNode:
    """``port`` 0: any free one; it stays the same when the service stops and starts again."""

    def __init__(self, document: dict[str, Any]) -> None:
        self._document = document
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="quota node")
        self._limiter: Limiter
        self._service: QuotaService
        self._ends: asyncio.Event
        self._life: asyncio.Task[None]
        self.port = 0

    def _call(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(WAIT_S)

    def start(self) -> None:
        if not self._thread.is_alive():
            self._thread.start()
        self._call(self._start())

    async def _start(self) -> None:
        started = self._loop.create_future()
        self._ends = asyncio.Event()
        self._life = self._loop.create_task(self._live(started))
        await asyncio.wait({started, self._life}, return_when=asyncio.FIRST_COMPLETED)
        if self._life.done():
            await self._life

    async def _live(self, started: asyncio.Future[None]) -> None:
        async with in_memory(self._document) as self._limiter:
            self._service = QuotaService(self._limiter, ttl_s=15, opens_in_ms=0)
            options = FrontOptions("127.0.0.1", self.port, "grpcio")
            server = GrpcioServer(self._service.methods(), options, Observer(), KEEPALIVE)
            await server.start()
            self.port = server.port
            running = self._loop.create_task(self._service.run())
            started.set_result(None)
            await self._ends.wait()
            running.cancel()
            await server.stop(0)

    def stop(self) -> None:
        self._call(self._stop())

    async def _stop(self) -> None:
        self._ends.set()
        await self._life

    def change(self, document: dict[str, Any]) -> None:
        self._call(self._change(document))

    async def _change(self, document: dict[str, Any]) -> None:
        self._limiter.give_rules([parse_document(document)])

    @property
    def counts(self) -> Counter[str]:
        return self._service.counts

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@contextmanager
def quota_node(document: dict[str, Any]) -> Iterator[QuotaNode]:
    node = QuotaNode(document)
    try:
        node.start()
        yield node
        node.stop()
    finally:
        node.close()
