"""One node's HTTP: a raw ASGI path for checks and probes, FastAPI beside it for what a person or a scraper asks.

The raw path exists because it costs a fifth of FastAPI's (no routing, no models, no dependency graph).  Most checks
do not even come here: ``fast_http`` answers what is plain, with the replies that are made here.  Whatever goes
wrong ends as a problem with a status of its own; an exception that nobody foresaw is a 500 and is counted.  There
is no way from an error to ``"allowed": true``.

FastAPI and OpenTelemetry take longer to import than everything else together.  They are imported in a thread,
when first asked for or by :meth:`NodeApp.warm_up`, while checks are being answered.
"""

from __future__ import annotations

import asyncio
import importlib
import secrets
import time
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import structlog

from regional_limiter.model.decision import Answer, Check
from regional_limiter.model.errors import InvalidCheck, StoreUnavailable
from regional_limiter.plan import answer_in_full
from regional_limiter.store.base import Allowed
from services.beside import beside
from services.check_api.answers import (
    encode_acquired,
    encode_answer,
    encode_batch,
    encode_detailed,
    encode_error,
    encode_held,
    encode_inspection,
    encode_released,
    encode_reset,
)
from services.check_api.authorize import (
    AUTHORIZE_PATH,
    AUTHORIZE_PREFIX,
    METHODS,
    Asked,
    AuthorizeOptions,
    Authorizer,
)
from services.check_api.authorize_heads import HEADS_MOST as AUTHORIZE_HEADS_MOST
from services.check_api.authorize_heads import AuthorizeHeads
from services.check_api.batches import Batches, Outcomes
from services.check_api.bodies import (
    BATCH_BYTES_MOST,
    BODY_BYTES_MOST,
    parse_acquire,
    parse_batch,
    parse_check,
    parse_lease,
    parse_peek,
    parse_reset,
    wants_detail,
)
from services.check_api.check_limiter import CheckLimiter, HomeLimiter, leased_by, plainest
from services.check_api.counts import SERIES_MOST, Counts, StoreCalls
from services.check_api.explaining import EXPLAIN_PATH, explain_body, parse_explain
from services.check_api.headers import HeaderMode, LegacyReset, Lines, answer_lines, as_headers
from services.check_api.heads import BATCH_PATH, CHECK_PATH, HEADS_MOST, Heads
from services.check_api.home_wire import BYTES_MOST as HOME_BYTES_MOST
from services.check_api.home_wire import HOME_PATH, OtherRegion, WrongQuestion
from services.check_api.homes import answer_home
from services.check_api.known_bodies import BODIES_MOST, KnownBodies
from services.check_api.lending import LEASE_PATH, encode_lent, parse_token_lease
from services.check_api.replies import (
    CLOSE,
    JSON_LINES,
    MSGPACK_LINES,
    NO_RULES,
    UNEXPECTED,
    Reply,
    ok,
    problem,
    told,
    unauthorised,
    unavailable,
    wrong_method,
)
from services.check_api.templates import Templates
from services.check_api.traced import NodeTracing, WatchedCalls
from services.patient_timer import patient_timeout
from services.rls import protojson
from services.rls.messages import OK as RLS_OK
from services.rls.messages import BadRequest
from services.rls.rpc import INVALID_ARGUMENT, Failed
from services.rls.service import RateLimitService
from services.tokens import bears_either, bears_token
from services.tracing import Tracer, working_at

if TYPE_CHECKING:
    from services.telemetry import Exposition

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

BODY_DEADLINE_S = 5.0
PARSED_AT_ONCE_BYTES = 4096
PARSED_BESIDE_MOST = 8
"""Large batches that are parsed, or wait to be parsed, in threads: each holds up to a MiB."""
LOG_ERRORS_EVERY_S = 1.0
LEASE_ID_BYTES = 16
"""Of the ids of leases that are made here: nobody guesses another's."""

_EPOCH = LegacyReset.EPOCH

_log = structlog.get_logger("check_api")


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """How a node presents itself.  ``token``: what callers of ``/v1`` must bear, None if nothing.

    ``tells_keys``: in traces, keys in clear.  ``home_token``: what nodes of other regions must bear that ask for
    buckets which are here; "": none is answered.
    """

    region: str
    node: str
    token: str | None = None
    headers: HeaderMode = HeaderMode.BOTH
    legacy_reset: LegacyReset = LegacyReset.SECONDS
    rls_headers: HeaderMode = HeaderMode.DRAFT_11
    rls_metadata: bool = False
    authorize: AuthorizeOptions = field(default_factory=AuthorizeOptions)
    tells_keys: bool = False
    home_token: str = ""


_ANY_METHOD = "*"


class _Route(NamedTuple):
    """``method``: the one that it answers, or any.  ``is_open``: needs no caller's token, though perhaps another,
    and no rules.  ``is_probe``: is not traced."""

    method: str
    handler: Callable[[Scope, Receive], Awaitable[Reply]]
    is_open: bool = False
    is_probe: bool = False


class _ClientGone(Exception):
    """The caller hung up before it had sent its request: nobody is there to be answered."""


class _Unread(Exception):
    """The body has not been read to its end; ``reply`` says why, and closes the connection."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(reply.status)
        self.reply = reply


def create_app(
    limiter: CheckLimiter,
    options: NodeOptions,
    store_calls: StoreCalls | None = None,
    tracer: Tracer | None = None,
    watched: WatchedCalls | None = None,
) -> NodeApp:
    """The ASGI application of one node.  Its maker starts and stops ``limiter``."""
    return NodeApp(limiter, options, store_calls, tracer, watched)


class NodeApp:
    """See the module.  ``draining`` True: not ready any more, but checks are still answered.

    ``store_calls``: what the limiter's store counts, None where it counts nothing.  ``tracer``: None: nothing is
    traced.  ``watched``: the calls that are told of in a request's trace.
    """

    def __init__(
        self,
        limiter: CheckLimiter,
        options: NodeOptions,
        store_calls: StoreCalls | None = None,
        tracer: Tracer | None = None,
        watched: WatchedCalls | None = None,
    ) -> None:
        self.limiter = limiter
        self.options = options
        self.store_calls = store_calls
        self.draining = False
        self.counts = Counts()
        self.tracing = None if tracer is None else NodeTracing(tracer, self.counts, options.tells_keys, watched)
        self._token = options.token or None
        self._logged_at_s = float("-inf")
        self._unlogged = 0
        self._web: Callable[[Scope, Receive, Send], Awaitable[None]] | None = None
        self._loading = asyncio.Lock()
        self.exposition: Exposition | None = None
        """The node's metrics, once the routes beside the raw path are imported."""
        self.was_ready = False
        """Once it is, it stays so."""
        self.submit = plainest(limiter)
        self.leased = leased_by(limiter)
        self.batches = Batches(self.submit)
        self._parsed_beside = 0
        self.heads = Heads(self._token)
        self.bodies = KnownBodies()
        self.templates = Templates(options.headers, options.legacy_reset)
        self._authorizer = Authorizer(options.authorize)
        self.authorize_heads = AuthorizeHeads(self._authorizer, self._token)
        self.rls = RateLimitService(
            limiter,
            self.counts.checked,
            self.counts.count,
            headers=options.rls_headers,
            tells_metadata=options.rls_metadata,
            missed_domain=self.counts.missed_domain,
            traced=None if self.tracing is None else self.tracing.decided,
        )
        self._routes = {
            CHECK_PATH: _Route("POST", self._check),
            BATCH_PATH: _Route("POST", self._check_batch),
            AUTHORIZE_PATH: _Route(_ANY_METHOD, self._authorize),
            "/v1/refund": _Route("POST", self._refund),
            "/v1/acquire": _Route("POST", self._acquire),
            "/v1/renew": _Route("POST", self._renew),
            "/v1/release": _Route("POST", self._release),
            LEASE_PATH: _Route("POST", self._lend),
            HOME_PATH: _Route("POST", self._home, is_open=True),
            "/v1/reset": _Route("POST", self._reset),
            "/v1/peek": _Route("GET", self._peek),
            "/v1/inspect": _Route("GET", self._inspect),
            EXPLAIN_PATH: _Route("GET", self._explain),
            "/json": _Route("POST", self._rate_limit),
            "/livez": _Route("GET", self._livez, is_open=True, is_probe=True),
            "/readyz": _Route("GET", self._readyz, is_open=True, is_probe=True),
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            web = await self.warm_up()
            await web(scope, receive, send)
            return
        path: str = scope["path"].removeprefix(scope.get("root_path") or "")
        if path.startswith(AUTHORIZE_PREFIX):
            path = AUTHORIZE_PATH
        route = self._routes.get(path)
        if route is not None:
            await self._serve(path, route, scope, receive, send)
        elif self._may_ask(scope):
            await self._serve_web(scope, receive, send)
        else:
            await _send(send, unauthorised())

    async def warm_up(self) -> Callable[[Scope, Receive, Send], Awaitable[None]]:
        """The FastAPI application, imported in a thread the first time; checks go on meanwhile."""
        async with self._loading:
            if self._web is None:
                routes = await beside(_import_routes)
                self._web = routes.build_web(self)
            return self._web

    async def metrics(self) -> Exposition:
        """The node's metrics, imported the first time as :meth:`warm_up` says."""
        await self.warm_up()
        assert self.exposition is not None
        return self.exposition

    def tables(self) -> dict[str, tuple[int, int]]:
        """By table of the HTTP layer: entries, and how many there may be."""
        return {
            "heads": (len(self.heads.known), HEADS_MOST),
            "authorize_heads": (len(self.authorize_heads.known), AUTHORIZE_HEADS_MOST),
            "bodies": (len(self.bodies.known), BODIES_MOST),
            "series": (len(self.counts.checks), SERIES_MOST),
        }

    def is_ready(self) -> bool:
        """Whether checks can be answered."""
        self.was_ready = self.limiter.ready
        return self.was_ready

    # ---- the raw path

    async def _serve(self, path: str, route: _Route, scope: Scope, receive: Receive, send: Send) -> None:
        if self.tracing is None or route.is_probe:
            await self._serve_untraced(path, route, scope, receive, send)
            return
        traceparent = next((value for name, value in scope["headers"] if name == b"traceparent"), None)
        method: str = scope["method"]
        label, original = (method, None) if method in METHODS else ("_OTHER", method)
        span = self.tracing.begin(label, path, traceparent, scope.get("scheme", "http"), original)
        if span is None:
            await self._serve_untraced(path, route, scope, receive, send)
            return
        started_s = time.perf_counter()
        try:
            with working_at(span):
                status = await self._serve_untraced(path, route, scope, receive, send)
        except BaseException as error:
            self.tracing.unanswered(span, type(error).__name__)
            raise
        if status:
            self.tracing.ended(span, label, path, status, time.perf_counter() - started_s)
        else:
            self.tracing.unanswered(span, "caller_gone")

    async def _serve_untraced(self, path: str, route: _Route, scope: Scope, receive: Receive, send: Send) -> int:
        """The status of the answer; 0 if nobody is there to be answered."""
        started_s = time.perf_counter()
        method, handler = route.method, route.handler
        try:
            if method not in (scope["method"], _ANY_METHOD):
                reply = wrong_method(path, method)
            elif route.is_open:
                reply = await handler(scope, receive)
            elif self._token is not None and not self._bears_token(scope):
                reply = unauthorised()
            elif not self.limiter.ready:
                reply = unavailable(NO_RULES)
            else:
                reply = await handler(scope, receive)
        except _ClientGone:
            return 0
        except Exception as error:
            reply = self.failed(error)
        await _send(send, reply)
        label = scope["method"] if scope["method"] in (method, *_labels(method)) else "_OTHER"
        self.counts.served(label, path, reply.status, time.perf_counter() - started_s)
        return reply.status

    async def _check(self, scope: Scope, receive: Receive) -> Reply:
        check = parse_check(await _read_body(scope, receive))
        answer = await self.limiter.check(check)
        if self.tracing is not None:
            self.tracing.told(check, answer)
        return self.decided(check, answer, wants_detail(scope["query_string"]))

    async def _authorize(self, scope: Scope, receive: Receive) -> Reply:
        asked = self._authorizer.read(scope)
        try:
            outcome: Answer | Exception = await self.limiter.check(asked.check)
        except InvalidCheck as error:
            outcome = error
        if self.tracing is not None:
            self.tracing.told(asked.check, outcome)
        return self.authorized(asked, outcome)

    async def _check_batch(self, scope: Scope, receive: Receive) -> Reply:
        body = await _read_body(scope, receive, BATCH_BYTES_MOST)
        # What comes here is wrong in some place, nearly always; a large one would hold up everybody else.
        if len(body) <= PARSED_AT_ONCE_BYTES:
            checks = parse_batch(body)
        elif self._parsed_beside >= PARSED_BESIDE_MOST:
            return TOO_MANY_BATCHES
        else:
            self._parsed_beside += 1
            try:
                checks = await asyncio.to_thread(parse_batch, body)
            finally:
                self._parsed_beside -= 1
        future: asyncio.Future[Outcomes] = asyncio.get_running_loop().create_future()

        def done(outcomes: Outcomes) -> None:
            if not future.done():
                future.set_result(outcomes)

        if not self.batches.submit(checks, done):
            return TOO_MANY_BATCHES
        return self.decided_batch(checks, await future)

    async def _refund(self, scope: Scope, receive: Receive) -> Reply:
        check = parse_check(await _read_body(scope, receive))
        try:
            await self.limiter.refund(check)
        except StoreUnavailable as error:
            return unavailable(f"the refund could not be delivered: {error.cause}")
        return ok(b'{"refunded":true}')

    async def _acquire(self, scope: Scope, receive: Receive) -> Reply:
        check = parse_acquire(await _read_body(scope, receive))
        lease_id = check.lease_id or secrets.token_hex(LEASE_ID_BYTES)
        check = replace(check, lease_id=lease_id)
        answer = await self.limiter.check(check)
        self.counts.checked(check.domain, answer)
        return ok(encode_acquired(answer, lease_id), self._lines(answer))

    async def _renew(self, scope: Scope, receive: Receive) -> Reply:
        check = parse_lease(await _read_body(scope, receive))
        try:
            held = await self.limiter.renew(check)
        except StoreUnavailable as error:
            return unavailable(f"the lease could not be renewed: {error.cause}")
        return ok(encode_held(held))

    async def _release(self, scope: Scope, receive: Receive) -> Reply:
        check = parse_lease(await _read_body(scope, receive))
        try:
            released = await self.limiter.release(check)
        except StoreUnavailable as error:
            return unavailable(f"not every slot could be released: {error.cause}")
        return ok(encode_released(released))

    async def _lend(self, scope: Scope, receive: Receive) -> Reply:
        check, want, brought = parse_token_lease(await _read_body(scope, receive))
        try:
            lent = await self.limiter.lend(check, want, brought)
        except StoreUnavailable as error:
            return unavailable(f"no tokens can be lent, or taken back: {error.cause}")
        return ok(encode_lent(lent))

    async def _home(self, scope: Scope, receive: Receive) -> Reply:
        """Of nodes of other regions, whose token follows from the deployment's key secret."""
        token = self.options.home_token
        given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        if not token or not bears_token(given, token) or not isinstance(self.limiter, HomeLimiter):
            return unauthorised()
        body = await _read_body(scope, receive, HOME_BYTES_MOST)
        try:
            return Reply(200, MSGPACK_LINES, await answer_home(self.limiter, self.options.region, body))
        except WrongQuestion as error:
            return problem(400, str(error))
        except OtherRegion as error:
            return problem(421, str(error))

    async def _reset(self, scope: Scope, receive: Receive) -> Reply:
        check = parse_reset(await _read_body(scope, receive))
        try:
            keys = await self.limiter.reset(check)
        except StoreUnavailable as error:
            return unavailable(f"not every bucket could be reset: {error.cause}")
        _log.info("reset", domain=check.domain, buckets=len(keys))
        return ok(encode_reset(keys))

    async def _peek(self, scope: Scope, receive: Receive) -> Reply:
        check, detail = parse_peek(scope["query_string"])
        return self.told(await self.limiter.peek(check), detail)

    async def _inspect(self, scope: Scope, receive: Receive) -> Reply:
        check, _ = parse_peek(scope["query_string"])
        return ok(encode_inspection(check.domain, await self.limiter.inspect(check)))

    async def _explain(self, scope: Scope, receive: Receive) -> Reply:
        check = parse_explain(scope["query_string"])
        explained = await self.limiter.explain(check)
        version = self.limiter.status().rules_version
        body = explain_body(explained, check, self.options.region, self.options.node, version)
        return ok(msgspec.json.encode(body))

    async def _rate_limit(self, scope: Scope, receive: Receive) -> Reply:
        """Envoy's rate limit service for callers without gRPC."""
        try:
            request = protojson.read_request(await _read_body(scope, receive))
            response = await self.rls.answer(request)
        except BadRequest as error:
            return problem(400, str(error))
        except Failed as error:
            return problem(400, error.words) if error.code == INVALID_ARGUMENT else unavailable(error.words)
        status = 200 if response.code == RLS_OK else 429
        return Reply(status, JSON_LINES, protojson.write_response(response))

    @property
    def serving(self) -> bool:
        """Whether the node wants traffic."""
        return self.limiter.ready and not self.draining

    # ---- replies, on either path

    def response(self, check: Check, answer: Answer | Allowed, default_lines: Lines) -> bytes | None:
        """Count and tell the answer to a check as a whole response; None: nothing was done, use :meth:`decided`."""
        if isinstance(answer, Allowed):
            said = self.templates.response_to(answer, default_lines)
            if said is None:
                return None
            series, text = said
            self.counts.count(series)
            return text
        response = self.templates.response(answer, default_lines)
        if response is not None:
            self.counts.checked(check.domain, answer)
        return response

    def decided(self, check: Check, answer: Answer | Allowed, detail: bool = False) -> Reply:
        """Count and tell the answer to a check."""
        if isinstance(answer, Allowed):
            answer = answer_in_full(answer)
        self.counts.checked(check.domain, answer)
        return self.told(answer, detail)

    def authorized(self, asked: Asked, outcome: Answer | Allowed | Exception) -> Reply:
        """Count and tell the answer to a gateway's question.  Raises what is no answer to it."""
        if isinstance(outcome, Allowed):
            said = self.templates.lines_to(outcome)
            if said is not None:
                self.counts.count(said[0])
                return asked.passed(said[1])
            outcome = answer_in_full(outcome)
        if isinstance(outcome, InvalidCheck):
            return asked.refused(outcome)
        if isinstance(outcome, Exception):
            raise outcome
        self.counts.checked(asked.check.domain, outcome)
        return asked.reply(outcome, self._lines(outcome))

    def decided_batch(self, checks: Sequence[Check | Exception], outcomes: Outcomes) -> Reply:
        """Count and tell the answers to a batch; an error is told in its own place."""
        said: list[bytes] = []
        body_to, count = self.templates.body_to, self.counts.count
        for check, outcome in zip(checks, outcomes, strict=True):
            if isinstance(outcome, Exception):
                said.append(encode_error(self.failed(outcome).body))
                continue
            if isinstance(outcome, Allowed):
                shortly = body_to(outcome)
                if shortly is not None:
                    count(shortly[0])
                    said.append(shortly[1])
                    continue
                outcome = answer_in_full(outcome)
            assert isinstance(check, Check)
            self.counts.checked(check.domain, outcome)
            said.append(self.templates.body(outcome) or encode_answer(outcome))
        return ok(encode_batch(said))

    def failed(self, error: Exception) -> Reply:
        """The reply to an error: never an allow; what nobody foresaw is counted."""
        if isinstance(error, _Unread):
            return error.reply
        reply = told(error)
        if reply is None:
            self.note_unexpected(error)
            return UNEXPECTED
        return reply

    def told(self, answer: Answer, detail: bool) -> Reply:
        """The reply that tells an answer."""
        return ok(encode_detailed(answer) if detail else encode_answer(answer), self._lines(answer))

    def _lines(self, answer: Answer) -> Lines:
        options = self.options
        epoch_now_s = int(time.time()) if options.legacy_reset is _EPOCH else 0
        return answer_lines(answer, options.headers, options.legacy_reset, epoch_now_s)

    async def _livez(self, scope: Scope, receive: Receive) -> Reply:
        """Whether the process should go on: looks at no dependency."""
        return ok(b'{"live":true}')

    async def _readyz(self, scope: Scope, receive: Receive) -> Reply:
        """Whether to send traffic here.  A node whose Redis is down still answers, so it is ready and degraded."""
        if self.draining:
            return unavailable("the node is shutting down")
        if not self.limiter.ready:
            return unavailable(NO_RULES)
        status = self.limiter.status()
        well = [shard.answers and shard.breaker == "closed" for shard in status.shards]
        degraded = not well or not all(well)
        said: dict[str, object] = {"ready": True, "degraded": degraded}
        if status.refused_domains:
            said["refused_domains"] = sorted(status.refused_domains)
        return ok(msgspec.json.encode(said))

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
                await _send(watched, UNEXPECTED)
        route = getattr(scope.get("route"), "path", "_other")
        method = scope["method"] if scope["method"] in ("GET", "HEAD", "POST") else "_OTHER"
        self.counts.served(method, route, status, time.perf_counter() - started_s)

    def _may_ask(self, scope: Scope) -> bool:
        return self._token is None or self._bears_token(scope)

    def _bears_token(self, scope: Scope) -> bool:
        return self._token is not None and bears_either(scope["headers"], self._token)

    def note_unexpected(self, error: Exception) -> None:
        """Count an exception that nobody foresaw, and log one a second of them."""
        self.counts.unexpected_errors += 1
        now_s = time.monotonic()
        if now_s - self._logged_at_s < LOG_ERRORS_EVERY_S:
            self._unlogged += 1
            return
        _log.error("unexpected error", unlogged_since_last=self._unlogged, exc_info=error)
        self._logged_at_s, self._unlogged = now_s, 0


def _labels(method: str) -> tuple[str, ...]:
    return METHODS if method == _ANY_METHOD else ()


def _import_routes() -> Any:
    return importlib.import_module("services.check_api.routes")


async def _read_body(scope: Scope, receive: Receive, bytes_most: int = BODY_BYTES_MOST) -> bytes:
    """The whole body.  Raises _Unread when it is too large, or too slow: then the rest is not read."""
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit() and (len(value) > 9 or int(value) > bytes_most):
            raise _too_large(bytes_most)
    parts: list[bytes] = []
    size = 0
    try:
        async with patient_timeout(BODY_DEADLINE_S):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise _ClientGone
                part: bytes = message.get("body", b"")
                parts.append(part)
                size += len(part)
                if size > bytes_most:
                    raise _too_large(bytes_most)
                if not message.get("more_body", False):
                    return b"".join(parts)
    except TimeoutError:
        raise _Unread(problem(408, f"the body did not come within {BODY_DEADLINE_S:g} s", CLOSE)) from None


def _too_large(bytes_most: int) -> _Unread:
    return _Unread(problem(413, f"a body may have at most {bytes_most:,} bytes", CLOSE))


async def _send(send: Send, reply: Reply) -> None:
    headers = [*as_headers(reply.lines), (b"content-length", str(len(reply.body)).encode())]
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": reply.body})


TOO_MANY_BATCHES = unavailable("too many batches are waiting here; ask again, or another node")
