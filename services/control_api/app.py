"""The control API: rules, their history, and how the whole is doing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache

import structlog
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse

from global_sync.transport.base import Transport
from regional_limiter.model.errors import InvalidRules
from services.control_api.access_routes import access_router
from services.control_api.document import completed
from services.control_api.explain import explain_router
from services.control_api.guard import Guard
from services.control_api.history_routes import history_router
from services.control_api.knowledge import Hub
from services.control_api.metrics import hub_metrics
from services.control_api.overrides import overrides_router
from services.control_api.own_limits import own_limits
from services.control_api.questions import TookTooLong
from services.control_api.regions import regions_router
from services.control_api.rules import rules_router
from services.control_api.rulesets import rulesets_router
from services.control_api.shadow_routes import shadow_router
from services.control_api.status import status_router
from services.control_api.subjects import subjects_router
from services.control_api.trying import trying_router
from services.control_api.usage_routes import usage_router
from services.docs_page import app_with_docs
from services.errors import install_problem_handlers, problem_response
from services.otlp import sending
from services.settings import HubSettings
from services.tasks import ended, watched
from services.telemetry import Exposition
from services.timed_http import HttpDurations, TimedHttp

log = structlog.get_logger(__name__)

ROUTERS = (
    rules_router,
    rulesets_router,
    regions_router,
    overrides_router,
    history_router,
    access_router,
    shadow_router,
    status_router,
    explain_router,
    subjects_router,
    usage_router,
    trying_router,
)


def create_app(transport: Transport, settings: HubSettings, *, mode: str = "kafka") -> FastAPI:
    """The application.  It starts ``transport`` and, at its end, closes it.  ``mode``: kafka or embedded."""
    hub = Hub(transport, settings, mode)
    guard = Guard(hub, settings.control_api)

    durations: HttpDurations = {}
    exposition = hub_metrics(hub, durations)

    async def metrics() -> Exposition:
        return exposition

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        following = watched(asyncio.create_task(hub.run(), name="follow topics"))
        try:
            async with (
                own_limits(settings.control_api.limits) as guard.limits,
                sending(settings.telemetry, metrics),
            ):
                yield
        finally:
            await ended(following)
            await hub.close()
            await transport.close()

    app = app_with_docs(
        title="Apportion control API",
        description="Rules and their history, shares of the regions, usage. Changes are proposals: accepted in the "
        "order of one log, so that two operators never overwrite each other.",
        version="1",
        lifespan=lifespan,
    )
    app.state.hub = hub
    install_problem_handlers(app, lambda error: log.error("unexpected error", exc_info=error))

    async def invalid_rules(request: Request, error: Exception) -> Response:
        assert isinstance(error, InvalidRules)
        count = len(error.faults)
        detail = "refused whole: one fault" if count == 1 else f"refused whole: {count} faults"
        return problem_response(422, detail, faults=error.faults)

    async def took_too_long(request: Request, error: Exception) -> Response:
        return problem_response(503, str(error))

    app.add_exception_handler(InvalidRules, invalid_rules)
    app.add_exception_handler(TookTooLong, took_too_long)
    app.middleware("http")(guard)
    for router in ROUTERS:
        app.include_router(router(hub))
    app.add_middleware(TimedHttp, durations=durations)  # the outermost: it times the guard too
    _add_probes(app, hub, exposition)
    plain = app.openapi
    app.openapi = cache(lambda: completed(plain()))  # type: ignore[method-assign]
    return app


def _add_probes(app: FastAPI, hub: Hub, exposition: Exposition) -> None:
    @app.get("/livez", summary="Whether this process answers at all")
    async def livez() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/readyz", summary="Whether it knows the accepted rules and reaches Kafka")
    async def readyz() -> Response:
        why = hub.why_not_ready()
        return problem_response(503, why) if why else JSONResponse({"status": "ok"})

    @app.get("/metrics", summary="Counters in the exposition format of Prometheus", response_class=Response)
    async def metrics(request: Request) -> Response:
        told = await exposition.told(request.headers.get("accept", ""))
        return Response(told.text, media_type=told.media_type)
