"""The servers that ``grpc_checks`` compares, a process each: ``python -m tests.bench._grpc_node KIND``.

The same limiter and the same service behind each; its store says the same to every call, at once.  ``sync`` is
grpcio's synchronous server with ten threads and the published messages, as its documentation begins.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import uvloop
from envoy.service.ratelimit.v3 import rls_pb2, rls_pb2_grpc

from regional_limiter.limiter import Limiter
from regional_limiter.model.decision import Reason, Verdict
from regional_limiter.model.share import ProtocolTimes
from regional_limiter.rules import parse_document
from regional_limiter.store.base import Allowed, BucketCall, Decided, DecidedPlainly
from services.check_api.app import NodeOptions, create_app
from services.check_api.rls_observer import RlsObserver
from services.check_api.server import settle_collector
from services.rls.messages import Descriptor, Request, Response
from services.rls.methods import methods_of
from services.rls.service import RateLimitService
from services.rls.serving import FrontOptions, build_server
from tests.unit.limiter_store import FakeStore

RULES = {
    "domain": "edge",
    "rules": [
        {
            "id": "per-user",
            "match": {"descriptor.keys": "user/method"},
            "key": ["user"],
            "algorithm": "fixed_window",
            "limit": 90,
            "window": "1min",
        }
    ],
}
VERDICT = Verdict(True, Reason.OK, 42, 0, 31_415)


class _Store(FakeStore):
    def prepare(self, calls: Sequence[BucketCall], request_id: str | None) -> int:
        return len(calls)

    def submit(self, prepared: int, done: Decided) -> None:
        done([VERDICT] * prepared)

    def submit_plainly(self, prepared: int, done: DecidedPlainly) -> None:
        """As the store that asks Redis does."""
        done(Allowed([VERDICT.remaining] * prepared, [VERDICT.reset_after_ms] * prepared))

    def is_crowded(self, prepared: int) -> bool:
        return False


def _limiter(directory: str) -> Limiter:
    limiter = Limiter("us", _Store(), b"0123456789abcdef", Path(directory), ProtocolTimes(), node="n1")
    limiter.give_rules([parse_document(json.loads(json.dumps(RULES)))])
    return limiter


class _Sync(rls_pb2_grpc.RateLimitServiceServicer):  # type: ignore[misc]
    def __init__(self, service: RateLimitService) -> None:
        self._service = service
        self._lock = threading.Lock()

    def ShouldRateLimit(self, request: Any, context: Any) -> Any:
        descriptors = tuple(
            Descriptor(tuple((entry.key, entry.value) for entry in descriptor.entries))
            for descriptor in request.descriptors
        )
        told: list[Response | Exception] = []
        with self._lock:
            self._service.should_rate_limit(Request(request.domain, descriptors, request.hits_addend), told.append)
        (response,) = told
        if isinstance(response, Exception):
            raise response
        made = rls_pb2.RateLimitResponse(overall_code=response.code)
        for status in response.statuses:
            said = made.statuses.add(code=status.code, limit_remaining=status.remaining)
            if status.limit is not None:
                said.current_limit.requests_per_unit, said.current_limit.unit = status.limit[:2]
                said.current_limit.name = status.limit.name
                said.duration_until_reset.FromMilliseconds(status.reset_ms)
        for name, value in response.headers:
            made.response_headers_to_add.add(key=name, value=value)
        return made


def _serve_sync(directory: str) -> None:
    service = RateLimitService(_limiter(directory), lambda domain, answer: None)
    server = grpc.server(ThreadPoolExecutor(max_workers=10))
    rls_pb2_grpc.add_RateLimitServiceServicer_to_server(_Sync(service), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    print(port, flush=True)
    server.wait_for_termination()


async def _serve(kind: Any, directory: str) -> None:
    app = create_app(_limiter(directory), NodeOptions("us", "n1"))
    observer = RlsObserver(app)
    methods = methods_of(app.rls, lambda: app.serving, observer)
    server = build_server(methods, FrontOptions("127.0.0.1", 0, kind), observer)
    await server.start()
    settle_collector()
    print(server.port, flush=True)
    await asyncio.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=["own", "grpcio", "sync"])
    kind = parser.parse_args().kind
    with tempfile.TemporaryDirectory() as directory:
        if kind == "sync":
            _serve_sync(directory)
        else:
            uvloop.run(_serve(kind, directory))


if __name__ == "__main__":
    main()
