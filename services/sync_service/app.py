"""The sync service's own HTTP: probes, metrics, and the region as its agent sees it."""

from __future__ import annotations

from typing import Any

import structlog
from fastapi import FastAPI, Response
from starlette.types import Lifespan

from global_sync.agent import Agent
from global_sync.leader import Leader
from services.errors import install_problem_handlers
from services.sync_service.metrics import SyncMetrics

log = structlog.get_logger(__name__)


def create_app(agent: Agent, leader: Leader, lifespan: Lifespan[FastAPI] | None = None) -> FastAPI:
    """``agent`` and ``leader`` are started and stopped by ``lifespan``, or by the caller."""
    app = FastAPI(title="Apportion sync service", description=f"Region {agent.region}", lifespan=lifespan)
    install_problem_handlers(app, lambda error: log.error("unexpected error", exc_info=error))
    metrics = SyncMetrics(agent.region, agent.view, leader.view)

    @app.get("/livez")
    def livez() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/readyz")
    def readyz() -> dict[str, Any]:
        # A standby, and an agent whose link is cut, are ready: they do what can be done.
        return {"status": "ok", "active": agent.active, "leading": leader.active}

    @app.get("/metrics")
    def prometheus() -> Response:
        return Response(metrics.text(), media_type="text/plain; version=0.0.4")

    @app.get("/v1/region")
    def region() -> dict[str, Any]:
        return {"agent": agent.view(), "leader": leader.view()}

    return app
