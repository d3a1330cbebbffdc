"""Limits in front of any WSGI application (Flask, ...).

    from apportion import Client
    from apportion.wsgi import LimitMiddleware

    limiter = Client("http://127.0.0.1:8101")
    app.wsgi_app = LimitMiddleware(app.wsgi_app, limiter=limiter)       # Flask
    application = LimitMiddleware(application, limiter=limiter)         # any other

A request that is denied is answered 429 and does not reach the application; nor does one of which ``identify``
makes what is no check, such as a cost of -5: 422, with a problem that names the field.  What happens when no node
answers is the client's ``on_no_answer``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from http import HTTPStatus
from typing import Any

from apportion._client import Client
from apportion._types import Check, InvalidRequest
from apportion.addresses import networks_of
from apportion.web import Headers, check_of, denial, fitted, limit_headers, refusal, wait_s

Environ = dict[str, Any]
StartResponse = Callable[..., Any]
App = Callable[[Environ, StartResponse], Iterable[bytes]]

Identify = Callable[[Environ], Check | None]
"""From a request's environment to what is asked for it; None: it is not limited."""


class LimitMiddleware:
    """As :class:`apportion.asgi.LimitMiddleware`; one client for all threads of the process."""

    def __init__(
        self,
        app: App,
        *,
        limiter: Client,
        identify: Identify | None = None,
        trusted_proxies: Sequence[str] = (),
    ) -> None:
        self._app = app
        self._limiter = limiter
        self._trusted = networks_of(trusted_proxies)
        self._identify = identify or self._by_address

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        check = fitted(self._identify(environ))
        if check is None:
            return self._app(environ, start_response)
        try:
            answer = self._limiter.ask(check)
        except InvalidRequest as error:
            return _respond(environ, start_response, *refusal(error))
        if not answer.allowed:
            return _respond(environ, start_response, *denial(answer))
        if answer.wait_ms:
            time.sleep(wait_s(answer))
        added = limit_headers(answer)

        def with_headers(status: str, headers: list[tuple[str, str]], *more: Any) -> Any:
            return start_response(status, [*headers, *added], *more)

        return self._app(environ, with_headers)

    def _by_address(self, environ: Environ) -> Check:
        forwarded = environ.get("HTTP_X_FORWARDED_FOR")
        # WSGI hands on the bytes of a path as if they were Latin-1.
        path = environ.get("PATH_INFO", "").encode("latin-1", "replace").decode("utf-8", "backslashreplace")
        return check_of(
            environ["REQUEST_METHOD"],
            environ.get("SCRIPT_NAME", "") + path,
            environ.get("REMOTE_ADDR"),
            [forwarded] if forwarded else [],
            self._trusted,
        )


def _respond(
    environ: Environ, start_response: StartResponse, status: int, headers: Headers, body: bytes
) -> Iterable[bytes]:
    start_response(f"{status} {HTTPStatus(status).phrase}", headers)
    return [b"" if environ["REQUEST_METHOD"] == "HEAD" else body]
