"""Limits of single routes of FastAPI.

    from fastapi import Depends, FastAPI
    from apportion import AsyncClient
    from apportion.fastapi import install, limit

    app = FastAPI()
    install(app, AsyncClient("http://127.0.0.1:8101"))

    @app.post("/orders", dependencies=[Depends(limit("orders", cost=2))])
    async def order() -> ...

A denied request is answered 429 with the rate limit headers, as a problem (RFC 9457).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence

from fastapi import FastAPI, Request, Response

from apportion._client import AsyncClient
from apportion._types import Answer
from apportion.addresses import Network, networks_of
from apportion.texts import fitting
from apportion.web import check_of, denial, limit_headers, wait_s


class Limited(Exception):
    """A request that may not pass; ``install`` has it answered."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.reason)
        self.answer = answer


def install(app: FastAPI, limiter: AsyncClient, *, trusted_proxies: Sequence[str] = ()) -> None:
    """Have the routes of ``app`` ask ``limiter``, which its maker closes.

    ``trusted_proxies``: addresses and networks whose ``X-Forwarded-For`` is believed; none by default.
    """
    app.state.apportion = (limiter, networks_of(trusted_proxies))
    app.add_exception_handler(Limited, _denied)


async def _denied(request: Request, error: Exception) -> Response:
    assert isinstance(error, Limited)
    status, headers, body = denial(error.answer)
    return Response(body, status, dict(headers))


def limit(
    resource: str | None = None,
    *,
    cost: int | Callable[[Request], int] = 1,
    key: Callable[[Request], str] | None = None,
    attributes: Callable[[Request], Mapping[str, str]] | None = None,
) -> Callable[[Request, Response], Awaitable[Answer]]:
    """A dependency that lets a request pass or raises :class:`Limited`; its value is the answer.

    ``resource``: what rules match; method and route (``GET /orders/{id}``) unless said.  ``cost``: a number, or
    read off the request.  ``key``: whose request it is, the caller's address unless said.  ``attributes``: beside
    ``ip``, ``full_ip`` and ``method``.
    """

    async def ask(request: Request, response: Response) -> Answer:
        limiter, trusted = _installed(request)
        route = getattr(request.scope.get("route"), "path", request.url.path)
        peer = request.client.host if request.client else None
        check = check_of(
            request.method,
            route,
            peer,
            request.headers.getlist("x-forwarded-for"),
            trusted,
            resource=resource,
            cost=cost if isinstance(cost, int) else cost(request),
        )
        more = {} if attributes is None else {name: fitting(text) for name, text in attributes(request).items()}
        answer = await limiter.check(
            check.client_key if key is None else fitting(key(request)),
            check.resource,
            cost=check.cost,
            attributes={**(check.attributes or {}), **more},
        )
        if not answer.allowed:
            raise Limited(answer)
        for name, value in limit_headers(answer):
            response.headers[name] = value
        if answer.wait_ms:
            await asyncio.sleep(wait_s(answer))
        return answer

    return ask


def _installed(request: Request) -> tuple[AsyncClient, Sequence[Network]]:
    installed: tuple[AsyncClient, Sequence[Network]] | None = getattr(request.app.state, "apportion", None)
    if installed is None:
        raise RuntimeError("call apportion.fastapi.install(app, limiter) before the first request")
    return installed
