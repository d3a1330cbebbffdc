"""A node's rate limit quota service: where it listens, its clock, what is counted of it.  [W]

grpcio and the messages take long to import, so they are imported only where quotas are served.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import structlog

from services.check_api.rls_observer import RlsObserver
from services.rls.serving import FrontOptions

if TYPE_CHECKING:
    from regional_limiter.limiter import Limiter
    from services.check_api.app import NodeApp
    from services.rls.grpcio_server import GrpcioServer
    from services.settings import QuotaSettings

STOP_S = 0.2
"""What streams have to end when the node stops: their gateways go on with what they were granted."""

_log = structlog.get_logger("check_api")


class Quotas:
    """Not started.  ``options``: where it listens."""

    def __init__(self, limiter: Limiter, options: FrontOptions, settings: QuotaSettings) -> None:
        self._limiter = limiter
        self.options = options
        self._settings = settings
        self._server: GrpcioServer | None = None
        self._running: asyncio.Task[None] | None = None

    async def start(self, app: NodeApp) -> None:
        """Listen.  Raises OSError when the address cannot be had, ValueError when the certificates are wrong."""
        from services.quota.service import KEEPALIVE, QuotaService
        from services.rls.grpcio_server import GrpcioServer

        service = QuotaService(self._limiter, ttl_s=self._settings.ttl_s, parts_least=self._settings.gateways)
        app.counts.quota_events = service.counts
        self._server = GrpcioServer(service.methods(), self.options, RlsObserver(app), KEEPALIVE)
        await self._server.start()
        self._running = asyncio.create_task(service.run(), name="quotas")
        _log.info("listening", quota=f"{self.options.host}:{self._server.port}")

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(STOP_S)
        if self._running is not None:
            self._running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._running
