"""``http.server.request.duration`` of a FastAPI application.  Plain ASGI: a stream passes through untouched."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from time import perf_counter
from typing import Any, Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from regional_limiter.durations import LONG_BOUNDS_S, REQUEST_BOUNDS_S, Durations, Seen

HttpDurations = dict[tuple[str, str, int], Durations]
"""By method, route and status.  The labels are our own routes' and never what a caller sent."""

BOUNDS_S: Final = (*(bound for bound in REQUEST_BOUNDS_S if bound < LONG_BOUNDS_S[0]), *LONG_BOUNDS_S)
METHODS: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
SERIES_MOST: Final = 1000


class TimedHttp:
    """``durations`` is filled by it."""

    def __init__(self, app: ASGIApp, durations: HttpDurations) -> None:
        self._app = app
        self._durations = durations

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started_s = perf_counter()
        status = 500

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, watched)
        finally:
            self._count(scope, status, perf_counter() - started_s)

    def _count(self, scope: Scope, status: int, duration_s: float) -> None:
        route = getattr(scope.get("route"), "path", "_other")
        method = scope["method"] if scope["method"] in METHODS else "_OTHER"
        known = self._durations.get((method, route, status))
        if known is None:
            if len(self._durations) >= SERIES_MOST:
                method, route, status = "_OTHER", "_other", 0
            known = self._durations.setdefault((method, route, status), Durations(BOUNDS_S))
        known.record(duration_s)


def seen_of(durations: HttpDurations) -> Iterator[tuple[Mapping[str, Any], Seen]]:
    """As an Exposition tells it."""
    for (method, route, status), known in list(durations.items()):
        labels = {"http.request.method": method, "http.route": route, "http.response.status_code": status}
        yield labels, known.seen()
