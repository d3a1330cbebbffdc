"""Limits of single routes of FastAPI.

    from fastapi import Depends, FastAPI
    from apportion import AsyncClient
    from apportion.fastapi import install, limit

    app = FastAPI()
    install(app, AsyncClient("http://127.0.0.1:8101"))

    @app.post("/orders", dependencies=[Depends(limit("orders", cost=2))])
    async def order() -> ...

A denied request is answered 429 with the rate limit headers, as a problem (RFC 9457); one that no check can be made
of, as its cost is -5, 422 with a problem that names the field.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from fastapi import Depends, FastAPI, Request, Response, params

from apportion._client import AsyncClient
from apportion._types import Answer, InvalidRequest
from apportion.addresses import Network, networks_of
from apportion.texts import fitting
from apportion.web import Headers, check_of, denial, limit_headers, refusal, wait_s


class Limited(Exception):
    """A request that may not pass; ``install`` has it answered."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.reason)
        self.answer = answer


class Refused(Exception):
    """A request that no check can be made of; ``install`` has it answered."""

    def __init__(self, status: int, headers: Headers, body: bytes) -> None:
        super().__init__(body.decode())
        self.response = Response(body, status, dict(headers))


def install(app: FastAPI, limiter: AsyncClient, *, trusted_proxies: Sequence[str] = ()) -> None:
    """Have the routes of ``app`` ask ``limiter``, which its maker closes.

    ``trusted_proxies``: addresses and networks whose ``X-Forwarded-For`` is believed; none by default.
    """
    app.state.apportion = (limiter, networks_of(trusted_proxies))
    app.add_exception_handler(Limited, _denied)
    app.add_exception_handler(Refused, _refused)


async def _denied(request: Request, error: Exception) -> Response:
    assert isinstance(error, Limited)
    status, headers, body = denial(error.answer)
    return Response(body, status, dict(headers))


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refused)
    return error.response


def limit(
    resource: str | None = None,
    *,
    cost: int | Callable[..., int] = 1,
    key: Callable[..., str] | None = None,
    attributes: Callable[..., Mapping[str, str]] | None = None,
) -> Callable[..., Awaitable[Answer]]:
    """A dependency that lets a request pass or raises :class:`Limited`; its value is the answer.

    ``resource``: what rules match; method and route (``GET /orders/{id}``) unless said.  ``cost``: a number, or
    read off the request.  ``key``: whose request it is, the caller's address unless said.  ``attributes``: beside
    ``ip``, ``full_ip`` and ``method``.

    What is read off a request is a dependency itself: FastAPI fills and checks its parameters, and answers 422 by
    itself, with nothing charged, where one is not as declared.  A first parameter without an annotation, as a
    lambda's, is the request.
    """
    of_cost = _filled(cost if callable(cost) else lambda request: cost)
    of_key = _filled(_nothing if key is None else key)
    of_attributes = _filled(_nothing if attributes is None else attributes)

    async def ask(
        request: Request,
        response: Response,
        asked_cost: Any = of_cost,
        client_key: Any = of_key,
        more: Any = of_attributes,
    ) -> Answer:
        limiter, trusted = _installed(request)
        route = getattr(request.scope.get("route"), "path", request.url.path)
        peer = request.client.host if request.client else None
        forwarded = request.headers.getlist("x-forwarded-for")
        check = check_of(request.method, route, peer, forwarded, trusted, resource=resource, cost=asked_cost)
        try:
            answer = await limiter.check(
                check.client_key if client_key is None else fitting(client_key),
                check.resource,
                cost=check.cost,
                attributes={
                    **(check.attributes or {}),
                    **{name: fitting(text) for name, text in (more or {}).items()},
                },
            )
        except InvalidRequest as error:
            raise Refused(*refusal(error)) from error
        if not answer.allowed:
            raise Limited(answer)
        for name, value in limit_headers(answer):
            response.headers[name] = value
        if answer.wait_ms:
            await asyncio.sleep(wait_s(answer))
        return answer

    return ask


async def _nothing() -> None:
    return None


def _filled(read: Callable[..., Any]) -> Any:
    """``read`` as a dependency; its first parameter is the request where that says nothing of itself.

    Of the others, those that say nothing of themselves but a default keep it: no caller is to choose them.
    """
    named = list(inspect.signature(read).parameters.values())
    is_of_request = bool(named) and _says_nothing(named[0]) and named[0].default is named[0].empty
    if not is_of_request or any(_says_nothing(one) and one.default is one.empty for one in named[1:]):
        return Depends(read)
    first, *others = inspect.signature(read, eval_str=True).parameters.values()
    filled = [one.replace(kind=one.KEYWORD_ONLY) for one in others if not _says_nothing(one)]

    async def of_request(**given: Any) -> Any:
        found = read(given.pop(first.name), **given)
        return await found if inspect.isawaitable(found) else found

    the_request = first.replace(annotation=Request, kind=first.KEYWORD_ONLY)
    of_request.__signature__ = inspect.Signature([the_request, *filled])  # type: ignore[attr-defined]
    return Depends(of_request)


def _says_nothing(parameter: inspect.Parameter) -> bool:
    """Of what FastAPI would fill it with."""
    declares = isinstance(parameter.default, (params.Depends, params.Param, params.Body))
    return parameter.annotation is parameter.empty and not declares


def _installed(request: Request) -> tuple[AsyncClient, Sequence[Network]]:
    installed: tuple[AsyncClient, Sequence[Network]] | None = getattr(request.app.state, "apportion", None)
    if installed is None:
        raise RuntimeError("call apportion.fastapi.install(app, limiter) before the first request")
    return installed
