"""The dashboard: one page, one stream of frames, everything from what this process reads itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated

import structlog
from fastapi import Depends, FastAPI, HTTPException, Query, Request, Response
from fastapi.responses import FileResponse, JSONResponse, RedirectResponse
from fastapi.sse import EventSourceResponse, ServerSentEvent
from fastapi.staticfiles import StaticFiles
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from global_sync.transport.base import Transport
from services.dashboard.board import Board
from services.dashboard.metrics import board_metrics
from services.dashboard.past.recorder import Recorder
from services.dashboard.past.routes import Past, past_router
from services.dashboard.proxy import ControlProxy
from services.dashboard.region_look import RegionLooks, agent_shown, hot_by_shard
from services.dashboard.stream import Broadcaster, Subscriber, TooManySubscribers
from services.errors import install_problem_handlers, problem_response
from services.otlp import sending
from services.own_machine import is_for_own_machine, why_not_own
from services.probes import Probes
from services.settings import HubSettings
from services.tasks import ended, watched
from services.telemetry import Exposition
from services.tokens import bears_token, is_token

log = structlog.get_logger(__name__)

STATIC = Path(__file__).with_name("static")
LOOK_EVERY_S = 2.0
IN_MEMORY_BYTES_MOST = 64_000_000
"""Of what is remembered without a file."""
KEYS_OF_A_REGION = 10
KEYS_BY_SHARD = 200
HOT_KEYS_OF_A_SHARD = 3
OVERDUE_EVERY_S = 0.25
OVERDUE_ASKED_MOST = 16
COOKIE = "apportion_dashboard"
OPEN_PATHS = ("/livez", "/readyz")
SECURITY_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data:; object-src 'none'; form-action 'none';"
    " frame-ancestors 'none'; base-uri 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def create_app(transport: Transport, settings: HubSettings, *, mode: str = "kafka") -> FastAPI:
    """The application.  It starts ``transport`` and, at its end, closes it.  ``mode``: kafka or embedded."""
    probes = Probes(settings.regions, calls=settings.calls)
    board = Board(transport, settings, probes.last, mode)
    broadcaster = Broadcaster(board.tick, board.hello)
    control = ControlProxy(settings)
    recorder = _recorder(transport, settings, board, probes, mode)
    region_looks = RegionLooks(probes, settings.regions)
    exposition = board_metrics(board, broadcaster)

    async def metrics() -> Exposition:
        return exposition

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await transport.start()
        tasks = [
            watched(asyncio.create_task(board.feed.run(), name="follow topics")),
            watched(asyncio.create_task(broadcaster.run(), name="frames")),
            watched(asyncio.create_task(_look(probes), name="look at regions")),
            watched(asyncio.create_task(recorder.run(), name="remember")),
            watched(asyncio.create_task(_watch_links(board, probes, broadcaster), name="watch links")),
        ]
        try:
            async with sending(settings.telemetry, metrics):
                yield
        finally:
            broadcaster.close()
            for task in tasks:
                await ended(task)
            await control.close()
            recorder.close()
            await probes.close()
            await transport.close()

    app = FastAPI(title="Apportion dashboard", lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    app.state.board, app.state.broadcaster, app.state.recorder = board, broadcaster, recorder
    install_problem_handlers(app, lambda error: log.error("unexpected error", exc_info=error))
    if settings.dashboard.token is not None:
        app.middleware("http")(_token_guard(settings.dashboard.token.get_secret_value()))
    if is_for_own_machine(settings.dashboard):
        app.add_middleware(_OwnMachine)
    app.add_middleware(_Headers)
    _add_routes(app, board, broadcaster, exposition)
    app.include_router(control.router())
    app.include_router(
        past_router(Past(recorder, board.bases_of, board.in_windows, board.region_names, board.sync_shown))
    )
    _add_region(app, board, region_looks)
    app.mount("/static", StaticFiles(directory=STATIC), name="static")
    return app


def _recorder(transport: Transport, settings: HubSettings, board: Board, probes: Probes, mode: str) -> Recorder:
    in_file = settings.dashboard.history if mode == "kafka" else None
    most = settings.dashboard.history_mb_most * 1_000_000 if in_file is not None else IN_MEMORY_BYTES_MOST
    return Recorder(
        transport,
        in_file,
        settings.times(),
        lambda now_ms: board.picture.health(probes.last(), now_ms),
        probes.last,
        bytes_most=most,
    )


async def _subscriber(request: Request) -> AsyncIterator[Subscriber]:
    broadcaster: Broadcaster = request.app.state.broadcaster
    try:
        mine = broadcaster.subscribe()
    except TooManySubscribers:
        raise HTTPException(503, "as many pages as this process serves are open") from None
    try:
        yield mine
    finally:
        broadcaster.leave(mine)


def _add_routes(app: FastAPI, board: Board, broadcaster: Broadcaster, exposition: Exposition) -> None:
    @app.get("/")
    async def page() -> Response:
        return FileResponse(STATIC / "index.html")

    @app.get("/events", response_class=EventSourceResponse)
    async def events(mine: Annotated[Subscriber, Depends(_subscriber)]) -> AsyncIterator[ServerSentEvent]:
        async for event in broadcaster.events(mine):
            yield event

    @app.get("/metrics")
    async def metrics(request: Request) -> Response:
        told = await exposition.told(request.headers.get("accept", ""))
        return Response(told.text, media_type=told.media_type)

    @app.get("/livez")
    async def livez() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/readyz")
    async def readyz() -> Response:
        why = board.why_not_ready()
        return problem_response(503, why) if why else JSONResponse({"status": "ok"})


def _add_region(app: FastAPI, board: Board, looks: RegionLooks) -> None:
    @app.get("/v1/region")
    async def region(name: Annotated[str, Query(max_length=100)]) -> Response:
        found = await looks.look(name)
        if found is None:
            return problem_response(404, f"no region {name} is configured here")
        # An agent that cannot be asked directly has said the same in its usage.
        agent = found["agent"] or agent_shown(*board.picture.usage_heard(name, found["now_ms"]))
        busiest = board.busiest_of(name, KEYS_BY_SHARD)
        hot = hot_by_shard(busiest, found["nodes"], HOT_KEYS_OF_A_SHARD, board.split_of)
        shown = {**found, "agent": agent, "busiest": busiest[:KEYS_OF_A_REGION], "hot": hot}
        return JSONResponse(shown, headers={"Cache-Control": "no-store"})


Next = Callable[[Request], Awaitable[Response]]


class _OwnMachine:
    """Refuses what another site makes a browser ask.  Plain ASGI: a stream passes through untouched."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in OPEN_PATHS:
            why = why_not_own(scope["method"], Headers(scope=scope), by_name=True)
            if why is not None:
                await problem_response(403, why)(scope, receive, send)
                return
        await self._app(scope, receive, send)


class _Headers:
    """Puts the security headers on every answer.  Plain ASGI: a stream passes through untouched."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, with_headers if scope["type"] == "http" else send)


def _token_guard(token: str) -> Callable[[Request, Next], Awaitable[Response]]:
    """A bearer token, or the cookie that ``/?token=…`` leaves: a page cannot send headers with its stream."""

    async def guard(request: Request, call_next: Next) -> Response:
        if request.url.path in OPEN_PATHS or _has(token, request):
            return await call_next(request)
        given = request.query_params.get("token", "")
        if request.url.path == "/" and is_token(given, token):
            response: Response = RedirectResponse("./", status_code=303)
            response.set_cookie(
                COOKIE, token, httponly=True, samesite="strict", secure=request.url.scheme == "https"
            )
            return response
        detail = "a token is needed: open the page once as /?token=TOKEN"
        return problem_response(401, detail, headers={"WWW-Authenticate": "Bearer"})

    return guard


def _has(token: str, request: Request) -> bool:
    header, cookie = request.headers.get("authorization", ""), request.cookies.get(COOKIE, "")
    return bears_token(header, token) or is_token(cookie, token)


async def _look(probes: Probes) -> None:
    while True:
        await probes.look()
        await asyncio.sleep(LOOK_EVERY_S)


async def _watch_links(board: Board, probes: Probes, broadcaster: Broadcaster) -> None:
    """A region that should have been heard by now is asked directly, and a link that changes is shown at once."""
    while True:
        await asyncio.sleep(OVERDUE_EVERY_S)
        overdue = board.overdue()[:OVERDUE_ASKED_MOST]
        await asyncio.gather(*map(probes.look_at_agent, overdue))
        if board.links_changed():
            broadcaster.publish()
