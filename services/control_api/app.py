"""The control API: rules, their history, and how the whole is doing."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import structlog
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse

from global_sync.transport.base import Transport
from regional_limiter.model.errors import InvalidRules
from services.control_api.hub import Hub, ended
from services.control_api.rules import rules_router
from services.control_api.status import status_router
from services.errors import install_problem_handlers, problem_response
from services.settings import HubSettings

log = structlog.get_logger(__name__)

OPEN_PATHS = ("/livez", "/readyz")


def create_app(transport: Transport, settings: HubSettings) -> FastAPI:
    """The application.  It starts ``transport`` and, at its end, closes it."""
    hub = Hub(transport, settings)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        following = asyncio.create_task(hub.run(), name="follow topics")
        following.add_done_callback(_log_unexpected_end)
        try:
            yield
        finally:
            await ended(following)
            await hub.close()
            await transport.close()

    app = FastAPI(
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

    app.add_exception_handler(InvalidRules, invalid_rules)
    if settings.control_api.token is not None:
        app.middleware("http")(_token_guard(settings.control_api.token.get_secret_value()))
    app.include_router(rules_router(hub))
    app.include_router(status_router(hub))
    _add_probes(app, hub)
    return app


def _add_probes(app: FastAPI, hub: Hub) -> None:
    @app.get("/livez", summary="Whether this process answers at all")
    async def livez() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/readyz", summary="Whether it knows the accepted rules and reaches Kafka")
    async def readyz() -> Response:
        why = hub.why_not_ready()
        return problem_response(503, why) if why else JSONResponse({"status": "ok"})


Next = Callable[[Request], Awaitable[Response]]


def _token_guard(token: str) -> Callable[[Request, Next], Awaitable[Response]]:
    expected = f"Bearer {token}".encode()

    async def guard(request: Request, call_next: Next) -> Response:
        given = request.headers.get("authorization", "").encode()
        if request.url.path not in OPEN_PATHS and not hmac.compare_digest(given, expected):
            return problem_response(401, "a bearer token is needed", headers={"WWW-Authenticate": "Bearer"})
        return await call_next(request)

    return guard


def _log_unexpected_end(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        log.error("following the topics has ended", exc_info=task.exception())
