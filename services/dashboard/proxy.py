"""What the pages ask of the control API, passed on with the viewer's own token.  [IO]

The dashboard lends nobody its rights.  A token comes in a header that no other site can make a browser send, is
passed on, and is never kept; the dashboard has none of its own.  A control API that asks for no token is open to
its own machine alone, so a request without one is passed on only for a viewer who could as well ask it directly,
and only where the settings say so: a proxy in front may say nothing of itself, and all its callers look local.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping
from typing import Final
from urllib.parse import quote

import httpx
import msgspec
from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from services.errors import problem_response
from services.own_machine import names_loopback
from services.settings import HubSettings, is_loopback

TOKEN_HEADER: Final = "apportion-control-token"
OURS_HEADER: Final = "apportion-dashboard"
"""On every request of our pages: another site would have to ask first, and is told no."""
BODY_BYTES_MOST: Final = 1_000_000
ANSWER_BYTES_MOST: Final = 16_000_000
AT_ONCE: Final = 16
FORWARDED_MOST: Final = 2_000
"""Of the list of addresses: what stands last is what counts."""
TIMEOUT_S: Final = 20.0
"""A change waits for its outcome, which a leader may have to be elected for."""

_NAME = r"[a-z0-9._-]{1,64}"
_ALLOWED: Final[Mapping[str, re.Pattern[str]]] = {
    "GET": re.compile(
        rf"rules(/{_NAME})?|rulesets(/{_NAME}(/versions(/[0-9]+)?|/diff)?)?|overrides(/[0-9a-f]{{16}})?|subjects"
        r"|history(/[0-9]+)?|v1/(me|shadow|explain|status|usage/minutes)"
    ),
    "PUT": re.compile(rf"rules/{_NAME}|overrides"),
    "DELETE": re.compile(rf"rules/{_NAME}|overrides/[0-9a-f]{{16}}"),
    "POST": re.compile(rf"rulesets/{_NAME}:(rollback|validate)|v1/try"),
}
"""What pages need; whatever else the control API can is not reached through here."""
_PASSED_ON = ("accept", "content-type", "if-match", "if-none-match", "apportion-reason")
_PASSED_BACK = ("content-type", "etag", "retry-after")
_FORWARDED = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "via")


def is_known(method: str, path: str) -> bool:
    allowed = _ALLOWED.get(method)
    return allowed is not None and allowed.fullmatch(path) is not None


def could_ask_directly(listens_on: str, headers: Mapping[str, str]) -> bool:
    """Whether whoever sent a request without a token is on this machine: it came to a loopback listener, by a
    loopback name (another site's name may lead here too), and through no proxy."""
    by_name = names_loopback(headers.get("host", ""))
    return is_loopback(listens_on) and by_name and not any(one in headers for one in _FORWARDED)


def forwarded(came_from: Iterable[str]) -> str:
    """The addresses of these lists, in this order, as one list: the last of them, each whole, of those that could
    be addresses at all."""
    addresses = [one.strip() for line in came_from for one in line.split(",")]
    kept: list[str] = []
    length = 0
    for one in reversed([one for one in addresses if one and one.isascii() and one.isprintable()]):
        length += len(one) + 2
        if length > FORWARDED_MOST:
            break
        kept.append(one)
    return ", ".join(reversed(kept))


class ControlProxy:
    """``transport``: for tests, in place of the network."""

    def __init__(self, settings: HubSettings, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self._url = settings.dashboard.control_api or settings.control_api.url
        self._listens_on = settings.dashboard.host
        self._without_token = settings.dashboard.control_without_token
        verify = settings.calls.contexts()() if settings.calls else True
        self._client = httpx.AsyncClient(timeout=TIMEOUT_S, transport=transport, trust_env=False, verify=verify)
        self._limit = asyncio.Semaphore(AT_ONCE)

    async def close(self) -> None:
        await self._client.aclose()

    def router(self) -> APIRouter:
        router = APIRouter(prefix="/control")

        @router.get("/whoami")
        async def whoami(request: Request) -> Response:
            """Who the viewer is to the control API; answered also where nobody is known."""
            answer = await self._passed(request, "v1/me")
            document = answer if isinstance(answer, Response) else _answer(answer)
            if document.status_code == 200:
                return _as_document(document, known=True, status=200)
            return _as_document(document, known=False, status=document.status_code)

        @router.api_route("/{path:path}", methods=list(_ALLOWED))
        async def pass_on(path: str, request: Request) -> Response:
            if not is_known(request.method, path):
                return problem_response(404, f"pages do not ask {request.method} /{path} of the control API")
            answer = await self._passed(request, path)
            return answer if isinstance(answer, Response) else _answer(answer)

        return router

    async def _passed(self, request: Request, path: str) -> httpx.Response | Response:
        if (refused := self._refused(request)) is not None:
            return refused
        body = await _body(request)
        if body is None:
            return problem_response(413, f"a body may have at most {BODY_BYTES_MOST:,} bytes")
        headers = {name: request.headers[name] for name in _PASSED_ON if name in request.headers}
        if (token := request.headers.get(TOKEN_HEADER)) is not None:
            headers["authorization"] = f"Bearer {token}"
        else:
            headers["apportion-author"] = "dashboard"
        # Whom the audit names: the control API believes it of the dashboards that it trusts.
        came_from = [*request.headers.getlist("x-forwarded-for"), request.client.host if request.client else ""]
        headers["x-forwarded-for"] = forwarded(came_from)
        url = f"{self._url}/{quote(path, safe='/:')}"
        async with self._limit:
            try:
                return await self._ask(request.method, url, request.url.query, headers, body)
            except httpx.HTTPError as error:
                detail = f"the control API does not answer the dashboard ({type(error).__name__})"
                return problem_response(503, detail, headers={"Retry-After": "2"})

    async def _ask(
        self, method: str, url: str, query: str, headers: Mapping[str, str], body: bytes
    ) -> httpx.Response | Response:
        target = f"{url}?{query}" if query else url
        async with self._client.stream(method, target, headers=dict(headers), content=body or None) as answer:
            content = bytearray()
            async for part in answer.aiter_bytes():
                content += part
                if len(content) > ANSWER_BYTES_MOST:
                    return problem_response(502, "the control API's answer is too large for a page")
            kept = {name: answer.headers[name] for name in _PASSED_BACK if name in answer.headers}
            return httpx.Response(answer.status_code, headers=kept, content=bytes(content))

    def _refused(self, request: Request) -> Response | None:
        if OURS_HEADER not in request.headers:
            return problem_response(403, f"only the dashboard's pages ask here: {OURS_HEADER} is missing")
        if request.headers.get("sec-fetch-site", "same-origin") != "same-origin":
            return problem_response(403, "another site asks here")
        if TOKEN_HEADER in request.headers:
            return None
        if self._without_token and could_ask_directly(self._listens_on, request.headers):
            return None
        return problem_response(401, "a token of the control API is needed")


def _answer(answer: httpx.Response) -> Response:
    return Response(answer.content, answer.status_code, headers={**answer.headers, "Cache-Control": "no-store"})


def _as_document(answer: Response, *, known: bool, status: int) -> Response:
    try:
        document = msgspec.json.decode(bytes(answer.body))
    except msgspec.DecodeError:
        document = {"detail": "the control API's answer was not understood"}
        known = False
    said = document if isinstance(document, dict) else {}
    return JSONResponse({**said, "known": known, "status": status}, headers={"Cache-Control": "no-store"})


async def _body(request: Request) -> bytes | None:
    """None: it is too long."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > BODY_BYTES_MOST:
            return None
    return bytes(body)
