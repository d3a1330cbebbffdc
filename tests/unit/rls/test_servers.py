"""Both servers against grpcio's own client, with one limiter in memory behind them: they do the same."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from envoy.service.ratelimit.v3 import rls_pb2, rls_pb2_grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from regional_limiter.in_process import in_memory
from services.check_api.counts import Counts
from services.check_api.traced import NodeTracing
from services.rls.messages import METHOD, SERVICE
from services.rls.methods import Observer, methods_of
from services.rls.service import RateLimitService
from services.rls.serving import FrontOptions, GrpcServer, Tls, build_server
from services.tracing import Tracer
from tests.certificates import make_certificates

RULES = {
    "domain": "edge",
    "rules": [
        {"id": "few", "match": {"kind": "few"}, "key": ["user"], "capacity": 3, "refill": "1/h"},
        {"id": "many", "match": {"kind": "many"}, "key": ["user"], "capacity": 90, "refill": "1/h"},
    ],
}
SERVERS = ["own", "grpcio"]


class Noted(Observer):
    def __init__(self) -> None:
        self.codes: list[int] = []
        self.errors: list[Exception] = []

    def served(self, code: int, duration_s: float) -> None:
        self.codes.append(code)

    def unexpected(self, error: Exception) -> None:
        self.errors.append(error)


class Front:
    def __init__(self, server: GrpcServer, noted: Noted) -> None:
        self.server = server
        self.noted = noted
        self.serving = True
        self.broken: Exception | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.port}"


@asynccontextmanager
async def front(kind: str, tracing: NodeTracing | None = None, **options: Any) -> AsyncIterator[Front]:
    async with in_memory(RULES) as limiter:
        traced = None if tracing is None else tracing.decided
        service = RateLimitService(limiter, lambda domain, answer: None, traced=traced)
        noted = Noted()
        decide = service.submit

        def submit(check: Any, done: Any) -> None:
            if running.broken is not None:
                raise running.broken
            decide(check, done)

        service.submit = submit  # type: ignore[method-assign]
        methods = methods_of(service, lambda: running.serving, noted, tracing)
        server = build_server(methods, FrontOptions("127.0.0.1", 0, kind, **options), noted)
        running = Front(server, noted)
        await server.start()
        try:
            yield running
        finally:
            await server.stop(1)


def asked(user: str = "ann", kind: str = "few", hits: int = 0) -> Any:
    request = rls_pb2.RateLimitRequest(domain="edge", hits_addend=hits)
    descriptor = request.descriptors.add()
    descriptor.entries.add(key="kind", value=kind)
    descriptor.entries.add(key="user", value=user)
    return request


@asynccontextmanager
async def calling(running: Front, **metadata: str) -> AsyncIterator[Any]:
    async with grpc.aio.insecure_channel(running.address) as channel:
        yield rls_pb2_grpc.RateLimitServiceStub(channel)


pytestmark = pytest.mark.parametrize("kind", SERVERS)


async def test_a_limit_runs_out(kind: str) -> None:
    async with front(kind) as running, calling(running) as stub:
        told = [await stub.ShouldRateLimit(asked()) for _ in range(4)]
        assert [response.overall_code for response in told] == [1, 1, 1, 2]
        assert [response.statuses[0].limit_remaining for response in told] == [2, 1, 0, 0]
        assert told[0].statuses[0].current_limit.name == "few"
        assert {header.key for header in told[3].response_headers_to_add} >= {"retry-after", "ratelimit"}
        assert running.noted.codes == [0, 0, 0, 0]


async def test_many_calls_at_once_charge_exactly_what_passes(kind: str) -> None:
    async with front(kind) as running, calling(running) as stub:
        calls = [stub.ShouldRateLimit(asked(kind="many")) for _ in range(150)]
        told = await asyncio.gather(*calls)
    assert sum(response.overall_code == 1 for response in told) == 90


async def test_a_call_of_a_traced_caller_is_a_span_under_its_own(kind: str) -> None:
    tracing = NodeTracing(Tracer(0.0, 1000), Counts())
    trace, parent = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
    async with front(kind, tracing) as running, calling(running) as stub:
        for flags in ("01", "00"):
            await stub.ShouldRateLimit(asked(), metadata=[("traceparent", f"00-{trace}-{parent}-{flags}")])
        await stub.ShouldRateLimit(asked())
    (span,) = tracing.tracer.take()
    assert span.name == "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
    assert (f"{span.context.trace_id:032x}", f"{span.parent_id:016x}") == (trace, parent)
    assert (span.attributes["rpc.system"], span.attributes["rpc.grpc.status_code"]) == ("grpc", 0)
    assert span.failed is None


@pytest.mark.parametrize("descriptors", [1, 2])
async def test_a_span_says_what_was_decided_and_of_a_key_only_its_hash(kind: str, descriptors: int) -> None:
    tracing = NodeTracing(Tracer(0.0, 1000), Counts(), tells_keys=True)
    trace = [("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")]
    request = asked(hits=3)
    for _ in range(descriptors - 1):
        request.descriptors.add().entries.add(key="kind", value="without a rule")
    async with front(kind, tracing) as running, calling(running) as stub:
        for _ in range(2):
            await stub.ShouldRateLimit(request, metadata=trace)
    allowed, denied = (span.attributes for span in tracing.tracer.take())
    told = {"ratelimit.domain": "edge", "ratelimit.rule": "few", "ratelimit.degraded": False}
    assert allowed.items() >= {**told, "ratelimit.outcome": "allowed", "ratelimit.reason": "ok"}.items()
    assert denied.items() >= {**told, "ratelimit.outcome": "denied", "ratelimit.reason": "limited"}.items()
    assert str(denied["ratelimit.key"]).startswith("#")
    assert "ann" not in str(denied)


async def test_what_is_wrong_is_named(kind: str) -> None:
    async with front(kind) as running, calling(running) as stub:
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await stub.ShouldRateLimit(rls_pb2.RateLimitRequest(domain="edge"))
        assert failed.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert failed.value.details() == "descriptors: must name at least one"
        async with grpc.aio.insecure_channel(running.address) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as mangled:
                await channel.unary_unary(METHOD)(b"\xff\xff")
        assert mangled.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert running.noted.codes == [3, 3]


async def test_an_error_that_nobody_foresaw_is_counted_and_no_allow(kind: str) -> None:
    async with front(kind) as running, calling(running) as stub:
        running.broken = ZeroDivisionError("broken")
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await stub.ShouldRateLimit(asked())
        assert failed.value.code() == grpc.StatusCode.INTERNAL
        assert running.noted.errors == [running.broken]


async def test_a_method_that_is_not_there_is_unimplemented(kind: str) -> None:
    async with front(kind) as running, grpc.aio.insecure_channel(running.address) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await channel.unary_unary("/no.such/Method")(b"")
    assert failed.value.code() == grpc.StatusCode.UNIMPLEMENTED


async def test_a_message_beyond_the_bound_is_refused_and_the_connection_goes_on(kind: str) -> None:
    async with front(kind) as running, grpc.aio.insecure_channel(running.address) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await channel.unary_unary(METHOD)(b"\x0a" + b"x" * 100_000)
        assert failed.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        stub = rls_pb2_grpc.RateLimitServiceStub(channel)
        assert (await stub.ShouldRateLimit(asked())).overall_code == 1


async def test_health_follows_the_node(kind: str) -> None:
    async with front(kind) as running, grpc.aio.insecure_channel(running.address) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        for name in ("", SERVICE):
            told = await health.Check(health_pb2.HealthCheckRequest(service=name))
            assert told.status == health_pb2.HealthCheckResponse.SERVING
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await health.Check(health_pb2.HealthCheckRequest(service="other"))
        assert failed.value.code() == grpc.StatusCode.NOT_FOUND
        watch = health.Watch(health_pb2.HealthCheckRequest(service=SERVICE))
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
        running.serving = False
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
        watch.cancel()
        told = await health.Check(health_pb2.HealthCheckRequest())
        assert told.status == health_pb2.HealthCheckResponse.NOT_SERVING


async def test_reflection_tells_the_services_and_their_files(kind: str) -> None:
    async with front(kind) as running, grpc.aio.insecure_channel(running.address) as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        stream = stub.ServerReflectionInfo()
        await stream.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        listed = await stream.read()
        assert SERVICE in {service.name for service in listed.list_services_response.service}
        await stream.write(reflection_pb2.ServerReflectionRequest(file_containing_symbol=SERVICE))
        found = await stream.read()
        assert b"rls.proto" in found.file_descriptor_response.file_descriptor_proto[0]
        await stream.done_writing()
        assert await stream.read() is grpc.aio.EOF


async def test_a_token_is_asked_for(kind: str) -> None:
    async with front(kind, token="0123456789abcdef") as running, calling(running) as stub:
        for metadata in (None, (("authorization", "Bearer wrong"),)):
            with pytest.raises(grpc.aio.AioRpcError) as failed:
                await stub.ShouldRateLimit(asked(), metadata=metadata)
            assert failed.value.code() == grpc.StatusCode.UNAUTHENTICATED
        told = await stub.ShouldRateLimit(asked(), metadata=(("authorization", "Bearer 0123456789abcdef"),))
        assert told.overall_code == 1


async def test_with_an_authority_only_who_shows_its_certificate_is_let_in(kind: str, tmp_path: Path) -> None:
    make_certificates(tmp_path)
    tls = Tls(tmp_path / "server.pem", tmp_path / "server.key", tmp_path / "ca.pem")
    root = (tmp_path / "ca.pem").read_bytes()
    own = ((tmp_path / "client.key").read_bytes(), (tmp_path / "client.pem").read_bytes())
    async with front(kind, tls=tls) as running:
        async with grpc.aio.secure_channel(running.address, grpc.ssl_channel_credentials(root, *own)) as channel:
            stub = rls_pb2_grpc.RateLimitServiceStub(channel)
            assert (await stub.ShouldRateLimit(asked())).overall_code == 1
        async with grpc.aio.secure_channel(running.address, grpc.ssl_channel_credentials(root)) as channel:
            stub = rls_pb2_grpc.RateLimitServiceStub(channel)
            with pytest.raises(grpc.aio.AioRpcError) as failed:
                await stub.ShouldRateLimit(asked(), timeout=5)
            assert failed.value.code() == grpc.StatusCode.UNAVAILABLE


async def test_a_second_server_on_the_port_is_refused(kind: str) -> None:
    async with front(kind) as running:
        second = build_server({}, FrontOptions("127.0.0.1", running.server.port, kind), Noted())
        with pytest.raises(OSError, match=r"127\.0\.0\.1"):
            await second.start()


async def test_a_server_that_leaves_finishes_what_is_under_way(kind: str) -> None:
    """A client that keeps calling sees no error but on calls that came after the end."""
    async with front(kind) as running, calling(running) as stub:
        stopped = asyncio.Event()
        answered = 0

        async def call() -> None:
            nonlocal answered
            while not stopped.is_set():
                try:
                    await stub.ShouldRateLimit(asked(kind="many"), timeout=5)
                    answered += 1
                except grpc.aio.AioRpcError as error:
                    assert stopped.is_set(), error  # noqa: PT017 - only what comes after the end may fail

        callers = [asyncio.create_task(call()) for _ in range(8)]
        await asyncio.sleep(0.1)
        running.server.drain()
        await asyncio.sleep(0.1)
        stopped.set()
        await running.server.stop(2)
        await asyncio.gather(*callers)
        assert answered > 0
