"""What a gRPC client can call here, as bytes in and bytes out: the same table behind both servers.

``ShouldRateLimit``, health (``grpc.health.v1``) and reflection.  Health answers by whether the node has rules and
is not leaving; reflection is imported when somebody asks for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from time import perf_counter
from typing import Any, Final, NamedTuple, Protocol

from regional_limiter.model.decision import Answer, Check
from regional_limiter.store.base import Allowed
from services.rls.messages import METHOD, SERVICE, BadRequest, Response
from services.rls.rpc import INTERNAL, INVALID_ARGUMENT, NOT_FOUND, Failed
from services.rls.service import RateLimitService, failure
from services.rls.wire import fields_of, read_request, write_response

HEALTH: Final = "grpc.health.v1.Health"
REFLECTION: Final = ("grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection")
WATCH_EVERY_S: Final = 0.25
KEPT_MOST: Final = 4096
KEPT_BYTES_MOST: Final = 512
"""Of requests that are kept with what was read of them: 4 MiB or so in all."""
SERVING, NOT_SERVING, SERVICE_UNKNOWN = b"\x08\x01", b"\x08\x02", b"\x08\x03"

Ended = Callable[[bytes | Exception], None]
"""Called once with a message, or with Failed; any other exception is one that nobody foresaw."""


class CallTracing(Protocol):
    """Who keeps traces of calls."""

    def called(
        self, path: str, traceparent: bytes, call: Callable[[bytes, Ended], None], data: bytes, ended: Ended
    ) -> None:
        """``call`` with ``data`` and ``ended``, as a span if it is to be one."""
        ...


class Unary(NamedTuple):
    """``call`` may end before it returns, and never raises.  ``tracing``: None where nothing is traced."""

    call: Callable[[bytes, Ended], None]
    path: str = ""
    tracing: CallTracing | None = None

    def ask(self, data: bytes, ended: Ended, traceparent: bytes) -> None:
        """:attr:`call`; ``traceparent``: as the caller sent it, empty if it did not."""
        if self.tracing is None:
            self.call(data, ended)
        else:
            self.tracing.called(self.path, traceparent, self.call, data, ended)


class Stream(NamedTuple):
    """Messages in and out, of any number."""

    call: Callable[[AsyncIterator[bytes]], AsyncIterator[bytes]]


Methods = Mapping[str, Unary | Stream]


class Observer:
    """What a node wants to know of its calls."""

    def served(self, code: int, duration_s: float) -> None:
        """A ShouldRateLimit has ended with ``code`` of gRPC."""

    def unexpected(self, error: Exception) -> None:
        """An exception that nobody foresaw."""


def methods_of(
    service: RateLimitService,
    serving: Callable[[], bool],
    observer: Observer,
    tracing: CallTracing | None = None,
) -> Methods:
    """Every method by its path.  ``serving``: whether the node wants traffic."""
    health = _Health(serving)
    reflect = _Reflection()
    return {
        METHOD: Unary(_ShouldRateLimit(service, observer).call, METHOD, tracing),
        f"/{HEALTH}/Check": Unary(health.check),
        f"/{HEALTH}/Watch": Stream(health.watch),
        **{f"/{name}/ServerReflectionInfo": Stream(reflect.info) for name in REFLECTION},
    }


def failed(error: Exception, observer: Observer) -> Failed:
    """How a call ends that met ``error``: never as if it were allowed."""
    if isinstance(error, Failed):
        return error
    if isinstance(error, BadRequest):
        return Failed(INVALID_ARGUMENT, str(error))
    observer.unexpected(error)
    return Failed(INTERNAL, "an unexpected error; it has been counted and logged")


class _ShouldRateLimit:
    """Most requests are one check, and come again and again: what was read of one is kept by its bytes."""

    def __init__(self, service: RateLimitService, observer: Observer) -> None:
        self._service = service
        self._observer = observer
        self._known: dict[bytes, Check] = {}

    def call(self, data: bytes, ended: Ended) -> None:
        started_s = perf_counter()
        try:
            check = self._known.get(data)
            if check is None:
                request = read_request(data)
                check = self._service.plain(request)
                if check is None:
                    self._service.should_rate_limit(request, partial(self._told, started_s, ended))
                    return
                self._keep(data, check)
            self._service.submit(check, partial(self._decided, check.domain, started_s, ended))
        except Exception as error:
            self._fail(error, started_s, ended)

    def _keep(self, data: bytes, check: Check) -> None:
        if len(data) <= KEPT_BYTES_MOST:
            if len(self._known) >= KEPT_MOST:
                self._known.clear()
            self._known[data] = check

    def _decided(self, domain: str, started_s: float, ended: Ended, outcome: Answer | Allowed | Exception) -> None:
        """Of one check."""
        try:
            if isinstance(outcome, Exception):
                raise failure(outcome)
            message = self._service.encoded(domain, outcome)
        except Exception as error:
            self._fail(error, started_s, ended)
            return
        self._observer.served(0, perf_counter() - started_s)
        ended(message)

    def _told(self, started_s: float, ended: Ended, outcome: Response | Exception) -> None:
        """Of several."""
        try:
            if isinstance(outcome, Exception):
                raise outcome
            message = write_response(outcome)
        except Exception as error:
            self._fail(error, started_s, ended)
            return
        self._observer.served(0, perf_counter() - started_s)
        ended(message)

    def _fail(self, error: Exception, started_s: float, ended: Ended) -> None:
        end = failed(error, self._observer)
        self._observer.served(end.code, perf_counter() - started_s)
        ended(end)


class _Health:
    """Of the whole server (no name) and of the rate limit service."""

    def __init__(self, serving: Callable[[], bool]) -> None:
        self._serving = serving

    def _status(self, data: bytes) -> bytes:
        name = ""
        for number, value in fields_of(data):
            if number == 1 and isinstance(value, tuple):
                name = data[value[0] : value[1]].decode(errors="replace")
        if name not in ("", SERVICE, HEALTH):
            return SERVICE_UNKNOWN
        return SERVING if self._serving() else NOT_SERVING

    def check(self, data: bytes, ended: Ended) -> None:
        try:
            status = self._status(data)
        except BadRequest as error:
            ended(Failed(INVALID_ARGUMENT, str(error)))
            return
        ended(Failed(NOT_FOUND, "no such service here") if status == SERVICE_UNKNOWN else status)

    async def watch(self, messages: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for data in messages:
            said = b""
            while True:
                status = self._status(data)
                if status != said:
                    yield status
                said = status
                await asyncio.sleep(WATCH_EVERY_S)


class _Reflection:
    def __init__(self) -> None:
        self._servicer: Any = None

    def _load(self) -> Any:
        from envoy.service.ratelimit.v3 import rls_pb2
        from grpc_health.v1 import health_pb2
        from grpc_reflection.v1alpha import reflection, reflection_pb2

        names = (SERVICE, HEALTH, *REFLECTION)
        for known_by_its_import in (rls_pb2, health_pb2):
            assert known_by_its_import.DESCRIPTOR
        return reflection.ReflectionServicer(names), reflection_pb2.ServerReflectionRequest

    async def info(self, messages: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """The messages of both versions are the same."""
        if self._servicer is None:
            self._servicer = await asyncio.to_thread(self._load)
        servicer, request_type = self._servicer
        async for data in messages:
            try:
                request = request_type.FromString(data)
            except Exception:
                raise Failed(INVALID_ARGUMENT, "the message is not protobuf") from None
            for response in servicer.ServerReflectionInfo(iter((request,)), None):
                yield response.SerializeToString()
