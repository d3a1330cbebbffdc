"""What is told of a request whose trace is kept: its span, those of its calls to Redis, an exemplar."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Mapping
from functools import lru_cache
from time import monotonic, perf_counter, time_ns
from typing import Any, Final, Protocol

import structlog

from regional_limiter.durations import Exemplar
from regional_limiter.model.decision import Answer, Check, ShareKind
from regional_limiter.model.errors import StoreUnavailable
from regional_limiter.plan import answer_in_full
from regional_limiter.store.base import Allowed
from services.check_api.counts import ALLOWED, DENIED, Counts
from services.rls.methods import Ended
from services.rls.rpc import INTERNAL
from services.tracing import CURRENT, Context, Kind, Span, Tracer, read_traceparent, working_at

_UNTRACED: Final = Context(0, 0, False)
_UNSAMPLED: Final = re.compile(rb"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f][02468ace]")
"""A well-formed ``traceparent`` whose caller does not keep its trace: nearly all of them."""
_SERVER_ERROR: Final = 500
_WHOLE: Final = ShareKind.WHOLE
SHARED_MOST: Final = 8
SHARED_S: Final = 1.0
"""Longer than from one beat of the node to the next."""

_log = structlog.get_logger("check_api")


class WatchedCalls(Protocol):
    """What calls Redis: ``Cluster``."""

    watch: Callable[[str, Callable[[Any], None]], Callable[[Any], None]] | None


class NodeTracing:
    """``tells_keys``: callers' keys in clear; else only the beginning of their keyed hash, as in headers.

    ``calls`` (None: there are none) are watched while a traced request is under way, and not else: nearly always
    there is none.
    """

    def __init__(
        self, tracer: Tracer, counts: Counts, tells_keys: bool = False, calls: WatchedCalls | None = None
    ) -> None:
        self.tracer = tracer
        self._counts = counts
        self._tells_keys = tells_keys
        self._shared: deque[tuple[float, str]] = deque(maxlen=SHARED_MOST)
        self._calls = calls
        self._under_way = 0

    def shared(self) -> tuple[str, ...]:
        """Of checks of global rules that were traced lately: to their agent they are why it asks for shares."""
        since_s = monotonic() - SHARED_S
        return tuple(context for at_s, context in self._shared if at_s >= since_s)

    def begin(
        self, method: str, route: str, traceparent: bytes | None, scheme: str = "http", original: str | None = None
    ) -> Span | None:
        """The span of a request; None: it is not traced, as nearly all are not.

        ``original``: what its caller wrote, where ``method`` is no method that is known.
        """
        if traceparent is None:
            if not self.tracer.wants(None):
                return None
            parent = None
        elif (parent := self._parent(traceparent)) is _UNTRACED:
            return None
        # The path is told as far as it is ours: behind it a gateway's question has whatever somebody asked for.
        attributes = {"http.request.method": method, "http.route": route, "url.path": route, "url.scheme": scheme}
        if original is not None:
            attributes["http.request.method_original"] = original
        name = f"{'HTTP' if original is not None else method} {route}"
        span = self.tracer.begin(name, Kind.SERVER, parent, attributes)
        self._one_more_under_way()
        return span

    def given_up(self, span: Span | None, traceparent: bytes | None) -> None:
        """A request that was begun (``span`` None: untraced) is begun anew elsewhere, as if it had never been."""
        says_nothing = traceparent is None or read_traceparent(traceparent.decode("latin-1")) is None
        self.tracer.asks_again(says_nothing=says_nothing, was_wanted=span is not None)
        if span is not None:
            self._one_less_under_way()

    def _one_more_under_way(self) -> None:
        self._under_way += 1
        if self._calls is not None:
            self._calls.watch = self.watch

    def _one_less_under_way(self) -> None:
        if self._under_way <= 0:
            self._counts.unexpected_errors += 1
            _log.error("a traced request has ended twice")
            return
        self._under_way -= 1
        if self._calls is not None and not self._under_way:
            self._calls.watch = None

    def _parent(self, traceparent: bytes) -> Context | None:
        """What a request's span stands under; _UNTRACED: it shall have none."""
        if _UNSAMPLED.fullmatch(traceparent):
            return _UNTRACED
        parent = read_traceparent(traceparent.decode("latin-1"))
        return parent if self.tracer.wants(parent) else _UNTRACED

    def called(
        self, path: str, traceparent: bytes, call: Callable[[bytes, Ended], None], data: bytes, ended: Ended
    ) -> None:
        """A gRPC call, as CallTracing says."""
        parent = None
        if not traceparent:
            is_traced = self.tracer.wants(None)
        else:
            parent = self._parent(traceparent)
            is_traced = parent is not _UNTRACED
        if not is_traced:
            call(data, ended)
            return
        _, service, method = path.split("/")
        attributes = {"rpc.system": "grpc", "rpc.service": service, "rpc.method": method}
        span = self.tracer.begin(path[1:], Kind.SERVER, parent, attributes)
        self._one_more_under_way()
        started_s = perf_counter()

        def told(outcome: bytes | Exception) -> None:
            self._one_less_under_way()
            code = 0 if isinstance(outcome, bytes) else getattr(outcome, "code", INTERNAL)
            span.attributes["rpc.grpc.status_code"] = code
            self.tracer.end(span, f"ended with {code}" if code else None)
            if (durations := self._counts.calls.get((path, code))) is not None:
                context = span.context
                duration_s = perf_counter() - started_s
                durations.exemplify(Exemplar(context.trace_id, context.span_id, duration_s, time_ns()))
            ended(outcome)

        with working_at(span):
            call(data, told)

    def told(self, check: Check, outcome: Answer | Allowed | Exception) -> None:
        """What the current span's check came to."""
        self._tell(check.domain, outcome, check.attributes.get("client_key", ""))

    def decided(self, domain: str, outcome: Answer | Allowed) -> None:
        """What the current span's request of a gateway came to.  (Its keys are told by their hash alone: a
        descriptor has no ``client_key``.)"""
        self._tell(domain, outcome, None)

    def _tell(self, domain: str, outcome: Answer | Allowed | Exception, key: str | None) -> None:
        span = CURRENT.get()
        if span is None:
            return
        attributes = span.attributes
        attributes["ratelimit.domain"] = domain
        if isinstance(outcome, Exception):
            attributes["error.type"] = type(outcome).__name__
            return
        answer = answer_in_full(outcome) if isinstance(outcome, Allowed) else outcome
        attributes["ratelimit.outcome"] = ALLOWED if answer.allowed else DENIED
        attributes["ratelimit.reason"] = answer.reason.value
        attributes["ratelimit.degraded"] = answer.degraded
        if answer.rule is not None:
            attributes["ratelimit.rule"] = answer.rule
        if any(item.verdict.share_kind is not _WHOLE for item in answer.verdicts):
            self._shared.append((monotonic(), span.context.header()))
        if self._tells_keys and key is not None:
            attributes["ratelimit.key"] = key
        elif (hashed := next((item.key_hash for item in answer.verdicts if item.rule == answer.rule), b"")) != b"":
            attributes["ratelimit.key"] = f"#{hashed.hex()[:12]}"

    def ended(self, span: Span, method: str, route: str, status: int, duration_s: float) -> None:
        """The request has been answered, and counted."""
        self._one_less_under_way()
        attributes = span.attributes
        attributes["http.response.status_code"] = status
        failed = None
        if status >= _SERVER_ERROR:
            failed = f"answered {status}"
            attributes.setdefault("error.type", str(status))
        self.tracer.end(span, failed)
        context = span.context
        self._counts.exemplify(
            method, route, status, Exemplar(context.trace_id, context.span_id, duration_s, time_ns())
        )

    def unanswered(self, span: Span, why: str) -> None:
        """The request has ended without an answer.  ``why``: one of few words, or an exception's name."""
        self._one_less_under_way()
        span.attributes["error.type"] = why
        self.tracer.end(span, f"not answered: {why}")

    def watch(self, address: str, done: Callable[[Any], None]) -> Callable[[Any], None]:
        """A call of a check to Redis, as ``Cluster.watch`` asks: in the current span, if there is one."""
        span = CURRENT.get()
        if span is None:
            return done
        tracer = self.tracer
        call = tracer.begin("FCALL check", Kind.CLIENT, span.context, _of_call(address))

        def ended(outcome: Any) -> None:
            failed = outcome.cause if isinstance(outcome, StoreUnavailable) else None
            if failed is None and isinstance(outcome, Exception):
                failed = type(outcome).__name__
            tracer.end(call, failed)
            with working_at(span):
                done(outcome)

        return ended


@lru_cache(maxsize=256)
def _of_call(address: str) -> Mapping[str, str | int]:
    """What is said of every call to a server."""
    attributes: dict[str, str | int] = {"db.system.name": "redis", "db.operation.name": "FCALL"}
    host, _, port = address.rpartition(":")
    if port.isdigit():
        attributes |= {"server.address": host.strip("[]"), "server.port": int(port)}
    return attributes
