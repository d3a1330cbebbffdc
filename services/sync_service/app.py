"""The sync service's own HTTP: probes, metrics, and the region as its agent sees it.

Four routes in plain ASGI: FastAPI would take longer to import than all that the agent needs to begin its work.
What metrics need is imported, in a thread, when they are first asked for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import msgspec
import structlog

from global_sync.agent import Agent
from global_sync.leader import Leader
from services.beside import beside
from services.errors import MEDIA_TYPE, problem_body
from services.tokens import bears_token

if TYPE_CHECKING:
    from services.sync_service.metrics import SyncMetrics
    from services.telemetry import Exposition

log = structlog.get_logger(__name__)

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Reply = tuple[int, str, bytes]
"""Status, content type, body."""

JSON = "application/json"
PROBES = ("/livez", "/readyz")
"""Whoever asks whether the process lives need not be told a secret."""


class SyncApp:
    """``whole_life`` starts and stops agent and leader; without it the caller does.

    ``token``: what callers of all but the probes must bear, None if nothing.
    """

    def __init__(
        self,
        agent: Agent,
        leader: Leader,
        whole_life: AbstractAsyncContextManager[None] | None = None,
        token: str | None = None,
    ) -> None:
        self._agent = agent
        self._leader = leader
        self._whole_life = whole_life or nullcontext()
        self._token = token
        self._metrics: SyncMetrics | None = None
        self._importing = asyncio.Lock()
        self._routes: dict[str, Callable[[Scope], Awaitable[Reply]]] = {
            "/livez": self._livez,
            "/readyz": self._readyz,
            "/metrics": self._prometheus,
            "/v1/region": self._region,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http":
            status, media_type, body = await self._answer(scope)
            headers = [(b"content-type", media_type.encode()), (b"content-length", str(len(body)).encode())]
            await send({"type": "http.response.start", "status": status, "headers": headers})
            await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()  # lifespan.startup
        step = "startup"
        try:
            async with self._whole_life:
                await send({"type": "lifespan.startup.complete"})
                step = "shutdown"
                await receive()  # lifespan.shutdown
        except Exception as error:
            log.exception("failed", step=step)
            await send({"type": f"lifespan.{step}.failed", "message": str(error)})
            return
        await send({"type": "lifespan.shutdown.complete"})

    async def _answer(self, scope: Scope) -> Reply:
        route = self._routes.get(scope["path"])
        if route is None:
            return _problem(404, "known here: " + ", ".join(self._routes))
        if scope["method"] not in ("GET", "HEAD"):
            return _problem(405, f"{scope['path']} answers GET")
        if self._token is not None and scope["path"] not in PROBES and not _bears(scope, self._token):
            return _problem(401, "send the token: Authorization: Bearer …")
        try:
            return await route(scope)
        except Exception:
            log.exception("unexpected error")
            return _problem(500, "an unexpected error; it has been logged")

    async def _livez(self, scope: Scope) -> Reply:
        return _json({"status": "ok"})

    async def _readyz(self, scope: Scope) -> Reply:
        # A standby, and an agent whose link is cut, are ready: they do what can be done.
        return _json({"status": "ok", "active": self._agent.active, "leading": self._leader.active})

    async def _prometheus(self, scope: Scope) -> Reply:
        told = await (await self.metrics()).told(_header(scope, b"accept").decode("latin-1"))
        return 200, told.media_type, told.text

    async def metrics(self) -> Exposition:
        """The process's metrics, imported the first time."""
        async with self._importing:
            if self._metrics is None:
                self._metrics = await beside(self._make_metrics)
        return self._metrics.exposition

    def _make_metrics(self) -> SyncMetrics:
        from services.sync_service.metrics import SyncMetrics

        return SyncMetrics(self._agent, self._leader)

    async def _region(self, scope: Scope) -> Reply:
        return _json({"agent": self._agent.view(), "leader": self._leader.view()})


def _bears(scope: Scope, token: str) -> bool:
    return bears_token(_header(scope, b"authorization"), token)


def _header(scope: Scope, wanted: bytes) -> bytes:
    return next((value for name, value in scope["headers"] if name == wanted), b"")


def _json(document: object) -> Reply:
    return 200, JSON, msgspec.json.encode(document)


def _problem(status: int, detail: str) -> Reply:
    return status, MEDIA_TYPE, problem_body(status, detail)
