"""One node's HTTP: a raw ASGI path for checks and probes, FastAPI beside it for what a person or a scraper asks.

The raw path exists because it costs a fifth of FastAPI's (no routing, no models, no dependency graph).  Whatever
goes wrong in it ends as a problem with a status of its own; an exception that nobody foresaw is a 500 and is
counted.  There is no way from an error to ``"allowed": true``.

FastAPI and OpenTelemetry take longer to import than everything else together.  They are imported in a thread,
when first asked for or by :meth:`NodeApp.warm_up`, while checks are being answered.
"""

from __future__ import annotations

import asyncio
import importlib
import sys
import time
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
import structlog

from regional_limiter.model.decision import Answer, Check
from regional_limiter.model.errors import Fault, InvalidCheck, RulesUnavailable, StoreUnavailable
from services.check_api.answers import encode_answer, encode_detailed
from services.check_api.bodies import MAX_BODY_BYTES, Refused, parse_check, parse_peek, wants_detail
from services.check_api.check_limiter import CheckLimiter
from services.check_api.counts import Counts
from services.check_api.headers import Header, HeaderMode, LegacyReset, answer_headers
from services.errors import MEDIA_TYPE, REDUCED_CAPACITY, problem_body
from services.tokens import bears_token

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

BODY_DEADLINE_S = 5.0
LOG_ERRORS_EVERY_S = 1.0
IMPORT_SWITCH_S = 0.0005
"""How long an import in a thread may keep the interpreter to itself while checks are waiting."""

_NO_RULES = "no valid rule set has been in force here yet"

_NO_STORE = (b"cache-control", b"no-store")
_JSON = (b"content-type", b"application/json")
_PROBLEM = (b"content-type", MEDIA_TYPE.encode())

_log = structlog.get_logger("check_api")


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """How a node presents itself.  ``token``: what callers of ``/v1`` must bear, None if nothing."""

    region: str
    node: str
    token: str | None = None
    headers: HeaderMode = HeaderMode.BOTH
    legacy_reset: LegacyReset = LegacyReset.SECONDS


class Reply(NamedTuple):
    status: int
    headers: list[Header]
    body: bytes


class _Route(NamedTuple):
    """``is_probe``: needs no token, and no rules."""

    method: str
    handler: Callable[[Scope, Receive], Awaitable[Reply]]
    is_probe: bool = False


class _ClientGone(Exception):
    """The caller hung up before it had sent its request: nobody is there to be answered."""


def create_app(limiter: CheckLimiter, options: NodeOptions) -> NodeApp:
    """The ASGI application of one node.  Its maker starts and stops ``limiter``."""
    return NodeApp(limiter, options)


class NodeApp:
    """See the module.  ``draining`` True: not ready any more, but checks are still answered."""

    def __init__(self, limiter: CheckLimiter, options: NodeOptions) -> None:
        self.limiter = limiter
        self.options = options
        self.draining = False
        self.counts = Counts()
        self._token = options.token or None
        self._logged_at_s = float("-inf")
        self._unlogged = 0
        self._web: Callable[[Scope, Receive, Send], Awaitable[None]] | None = None
        self._loading = asyncio.Lock()
        self._routes = {
            "/v1/check": _Route("POST", self._check),
            "/v1/refund": _Route("POST", self._refund),
            "/v1/peek": _Route("GET", self._peek),
            "/livez": _Route("GET", self._livez, is_probe=True),
            "/readyz": _Route("GET", self._readyz, is_probe=True),
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            web = await self.warm_up()
            await web(scope, receive, send)
            return
        path: str = scope["path"].removeprefix(scope.get("root_path") or "")
        route = self._routes.get(path)
        if route is not None:
            await self._serve(path, route, scope, receive, send)
        elif self._may_ask(path, scope):
            await self._serve_web(scope, receive, send)
        else:
            await _send(send, _unauthorised())

    async def warm_up(self) -> Callable[[Scope, Receive, Send], Awaitable[None]]:
        """The FastAPI application, imported in a thread the first time; checks go on meanwhile."""
        async with self._loading:
            if self._web is None:
                routes = await asyncio.to_thread(_import_routes)
                self._web = routes.build_web(self)
            return self._web

    # ---- the raw path

    async def _serve(self, path: str, route: _Route, scope: Scope, receive: Receive, send: Send) -> None:
        started_s = time.perf_counter()
        method, handler, is_probe = route
        try:
            if scope["method"] != method:
                reply = _problem(405, f"{path} answers {method}", headers=[(b"allow", method.encode())])
            elif is_probe:
                reply = await handler(scope, receive)
            elif self._token is not None and not self._bears_token(scope):
                reply = _unauthorised()
            elif not self.limiter.ready:
                reply = _unavailable(_NO_RULES)
            else:
                reply = await handler(scope, receive)
        except _ClientGone:
            return
        except RulesUnavailable as error:
            reply = _unavailable(f"the rules of domain {error.domain} cannot be read here, and none are in force")
        except Exception as error:
            self.note_unexpected(error)
            reply = _UNEXPECTED
        await _send(send, reply)
        label = method if scope["method"] == method else "_OTHER"
        self.counts.served(label, path, reply.status, time.perf_counter() - started_s)

    async def _check(self, scope: Scope, receive: Receive) -> Reply:
        return await self._with_body(scope, receive, self._decide)

    async def _refund(self, scope: Scope, receive: Receive) -> Reply:
        return await self._with_body(scope, receive, self._give_back)

    async def _peek(self, scope: Scope, receive: Receive) -> Reply:
        try:
            check, detail = parse_peek(scope["query_string"])
            answer = await self.limiter.peek(check)
        except Refused as error:
            return _refused(error)
        except InvalidCheck as error:
            return _refused(Refused(422, [Fault(error.field, error.expected)]))
        return self._answered(answer, detail)

    async def _with_body(
        self, scope: Scope, receive: Receive, act: Callable[[Check, Scope], Awaitable[Reply]]
    ) -> Reply:
        try:
            async with asyncio.timeout(BODY_DEADLINE_S):
                body = await _read_body(scope, receive)
        except TimeoutError:
            return _problem(408, f"the body did not come within {BODY_DEADLINE_S:g} s", headers=_CLOSE)
        if body is None:
            return _problem(413, f"a body may have at most {MAX_BODY_BYTES:,} bytes", headers=_CLOSE)
        try:
            return await act(parse_check(body), scope)
        except Refused as error:
            return _refused(error)
        except InvalidCheck as error:
            return _refused(Refused(422, [Fault(error.field, error.expected)]))

    async def _decide(self, check: Check, scope: Scope) -> Reply:
        answer = await self.limiter.check(check)
        self.counts.checked(check.domain, answer)
        return self._answered(answer, wants_detail(scope["query_string"]))

    async def _give_back(self, check: Check, scope: Scope) -> Reply:
        try:
            await self.limiter.refund(check)
        except StoreUnavailable as error:
            return _unavailable(f"the refund could not be delivered: {error.cause}")
        return Reply(200, [_JSON, _NO_STORE], b'{"refunded":true}')

    def _answered(self, answer: Answer, detail: bool) -> Reply:
        options = self.options
        epoch_now_s = int(time.time()) if options.legacy_reset is LegacyReset.EPOCH else 0
        headers = answer_headers(answer, options.headers, options.legacy_reset, epoch_now_s)
        headers += (_JSON, _NO_STORE)
        return Reply(200, headers, encode_detailed(answer) if detail else encode_answer(answer))

    async def _livez(self, scope: Scope, receive: Receive) -> Reply:
        """Whether the process should go on: looks at no dependency."""
        return Reply(200, [_JSON, _NO_STORE], b'{"live":true}')

    async def _readyz(self, scope: Scope, receive: Receive) -> Reply:
        """Whether to send traffic here.  A node whose Redis is down still answers, so it is ready and degraded."""
        if self.draining:
            return _unavailable("the node is shutting down")
        if not self.limiter.ready:
            return _unavailable(_NO_RULES)
        status = self.limiter.status()
        well = [shard.answers and shard.breaker == "closed" for shard in status.shards]
        degraded = not well or not all(well)
        said: dict[str, object] = {"ready": True, "degraded": degraded}
        if status.refused_domains:
            said["refused_domains"] = sorted(status.refused_domains)
        return Reply(200, [_JSON, _NO_STORE], msgspec.json.encode(said))

    # ---- beside it

    async def _serve_web(self, scope: Scope, receive: Receive, send: Send) -> None:
        started_s = time.perf_counter()
        status = 0

        async def watched(message: MutableMapping[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            web = await self.warm_up()
            await web(scope, receive, watched)
        except Exception as error:
            # Starlette raises again what its handler has answered with 500, counted and logged.
            if status == 0:
                self.note_unexpected(error)
                await _send(watched, _UNEXPECTED)
        route = getattr(scope.get("route"), "path", "_other")
        method = scope["method"] if scope["method"] in ("GET", "HEAD", "POST") else "_OTHER"
        self.counts.served(method, route, status, time.perf_counter() - started_s)

    def _may_ask(self, path: str, scope: Scope) -> bool:
        return self._token is None or not path.startswith("/v1/") or self._bears_token(scope)

    def _bears_token(self, scope: Scope) -> bool:
        given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        return self._token is not None and bears_token(given, self._token)

    def note_unexpected(self, error: Exception) -> None:
        """Count an exception that nobody foresaw, and log one a second of them."""
        self.counts.unexpected_errors += 1
        now_s = time.monotonic()
        if now_s - self._logged_at_s < LOG_ERRORS_EVERY_S:
            self._unlogged += 1
            return
        _log.error("unexpected error", unlogged_since_last=self._unlogged, exc_info=error)
        self._logged_at_s, self._unlogged = now_s, 0


def _import_routes() -> Any:
    usual_s = sys.getswitchinterval()
    sys.setswitchinterval(IMPORT_SWITCH_S)
    try:
        return importlib.import_module("services.check_api.routes")
    finally:
        sys.setswitchinterval(usual_s)


async def _read_body(scope: Scope, receive: Receive) -> bytes | None:
    """The whole body, None if it is larger than allowed (then the rest is not read)."""
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit() and (len(value) > 9 or int(value) > MAX_BODY_BYTES):
            return None
    body: bytes = b""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise _ClientGone
        part: bytes = message.get("body", b"")
        body += part
        if len(body) > MAX_BODY_BYTES:
            return None
        if not message.get("more_body", False):
            return body


async def _send(send: Send, reply: Reply) -> None:
    headers = [*reply.headers, (b"content-length", str(len(reply.body)).encode())]
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": reply.body})


def _problem(status: int, detail: str, *, headers: list[Header] | None = None) -> Reply:
    return Reply(status, [_PROBLEM, _NO_STORE, *(headers or ())], problem_body(status, detail))


def _refused(error: Refused) -> Reply:
    body = problem_body(error.status, str(error), faults=error.faults)
    return Reply(error.status, [_PROBLEM, _NO_STORE], body)


def _unavailable(detail: str) -> Reply:
    body = problem_body(503, detail, type_uri=REDUCED_CAPACITY)
    return Reply(503, [_PROBLEM, _NO_STORE, (b"retry-after", b"1")], body)


def _unauthorised() -> Reply:
    return _problem(401, "a bearer token is needed", headers=[(b"www-authenticate", b"Bearer")])


_UNEXPECTED = _problem(500, "an unexpected error; it has been counted and logged")
_CLOSE: list[Header] = [(b"connection", b"close")]
