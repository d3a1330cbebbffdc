"""Limits in front of any ASGI application (Starlette, FastAPI, Quart, ...).

    from apportion import AsyncClient
    from apportion.asgi import LimitMiddleware

    limiter = AsyncClient("http://127.0.0.1:8101")
    app.add_middleware(LimitMiddleware, limiter=limiter)        # Starlette and FastAPI
    app = LimitMiddleware(app, limiter=limiter)                 # any other

A request that is denied is answered 429 and does not reach the application; nor does one of which ``identify``
makes what is no check, such as a cost of -5: 422, with a problem that names the field.  What happens when no node
answers is the client's ``on_no_answer``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any

from apportion._client import AsyncClient
from apportion._types import Check, InvalidRequest
from apportion.addresses import networks_of
from apportion.web import Headers, check_of, denial, fields_of, fitted, limit_headers, refusal, wait_s

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

Identify = Callable[[Scope], Check | None]
"""From a request's scope to what is asked for it; None: it is not limited."""


class LimitMiddleware:
    """``limiter``: open for as long as the application runs.

    ``identify``: what is asked for a request; by default its caller's address, method and path (``check_of``).
    ``trusted_proxies``: addresses and networks whose ``X-Forwarded-For`` is believed; none by default.  A server
    that rewrites the peer itself (``uvicorn --proxy-headers``) needs none.
    """

    def __init__(
        self,
        app: App,
        *,
        limiter: AsyncClient,
        identify: Identify | None = None,
        trusted_proxies: Sequence[str] = (),
    ) -> None:
        self._app = app
        self._limiter = limiter
        self._trusted = networks_of(trusted_proxies)
        self._identify = identify or self._by_address

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        check = fitted(self._identify(scope)) if scope["type"] == "http" else None
        if check is None:
            await self._app(scope, receive, send)
            return
        try:
            answer = await self._limiter.ask(check)
        except InvalidRequest as error:
            await _respond(send, *refusal(error))
            return
        if not answer.allowed:
            await _respond(send, *denial(answer))
            return
        if answer.wait_ms:
            await asyncio.sleep(wait_s(answer))
        added = fields_of(limit_headers(answer))

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), *added]}
            await send(message)

        await self._app(scope, receive, with_headers if added else send)

    def _by_address(self, scope: Scope) -> Check:
        peer = scope.get("client")
        forwarded = [
            value.decode("latin-1") for name, value in scope["headers"] if name.lower() == b"x-forwarded-for"
        ]
        return check_of(scope["method"], scope["path"], peer[0] if peer else None, forwarded, self._trusted)


async def _respond(send: Send, status: int, headers: Headers, body: bytes) -> None:
    await send({"type": "http.response.start", "status": status, "headers": fields_of(headers)})
    await send({"type": "http.response.body", "body": body})
