"""The servers that benches compare, a process each: ``python -m tests.bench._node KIND …``.

``bare`` is the least that uvicorn can be asked to do for a check: a raw ASGI application that reads the body, makes
one FCALL on the same kind of connection, and answers with the same headers and the same body.  No rules, no bounds,
no counts, no fallback.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import socket
from pathlib import Path
from typing import Any

import msgspec
import uvicorn
import uvloop

from regional_limiter.limiter import Limiter
from regional_limiter.model.rule import Algorithm, Rate
from regional_limiter.model.share import ProtocolTimes
from regional_limiter.store.base import BucketCall
from regional_limiter.store.connection import ConnectionOptions, Server, pack
from regional_limiter.store.library import build_library, encode_check
from regional_limiter.store.redis_cluster import RedisClusterStore, StoreOptions
from services.check_api.app import NodeApp, NodeOptions, create_app
from services.check_api.counts import StoreCalls
from services.check_api.server import serve_node, settle_collector
from services.otlp import sending, tracer_of
from services.settings import TelemetrySettings
from services.tracing import Tracer

CAPACITY = 400_000_000
PATIENT = StoreOptions(deadline_ms=2000, whole_deadline_ms=2000, calm_deadline_ms=2000)


def rules() -> dict[str, Any]:
    """Checks of the resource ``one`` meet one rule, of ``three`` three rules of the same client."""
    common = {"key": ["client_key"], "capacity": CAPACITY, "refill": "1/s"}
    return {
        "domain": "default",
        "rules": [
            {"id": "all", "match": {"resource": ["one", "three"]}, **common},
            {"id": "second", "match": {"resource": "three"}, **common},
            {"id": "third", "match": {"resource": "three"}, **common},
        ],
    }


class _Body(msgspec.Struct):
    client_key: str
    resource: str
    cost: int = 1


class _Answer(msgspec.Struct):
    allowed: bool
    limit: int
    remaining: int
    retry_after_ms: int
    reset_after_ms: int
    rule: str
    reason: str
    degraded: bool


def bare_app(server: Server) -> Any:
    function = build_library(ProtocolTimes()).functions["check"]
    decode = msgspec.json.Decoder(_Body).decode
    encode = msgspec.json.Encoder().encode
    template = BucketCall("", Algorithm.TOKEN_BUCKET, CAPACITY, Rate(1, 1000), None, 1)
    limit = encode_check([template])[1][2]

    async def app(scope: Any, receive: Any, send: Any) -> None:
        given = decode((await receive())["body"])
        key = f"rl:{{{given.client_key}}}:default/all:{given.client_key}"
        reply: Any = await server.call(pack("FCALL", function, 1, key, 1, given.cost, limit), 2.0)
        left, reset_ms = ~reply[0], reply[1]
        reset_s = -(-reset_ms // 1000)
        body = encode(_Answer(left >= 0, CAPACITY, left, 0, reset_ms, "all", "ok", False))
        headers = [
            (b"ratelimit-policy", b'"all";q=%d;pk=:AAAAAAAAAAA=:' % CAPACITY),
            (b"ratelimit", b'"all";r=%d;t=%d' % (left, reset_s)),
            (b"x-ratelimit-limit", b"%d" % CAPACITY),
            (b"x-ratelimit-remaining", b"%d" % left),
            (b"x-ratelimit-reset", b"%d" % reset_s),
            (b"content-type", b"application/json"),
            (b"cache-control", b"no-store"),
            (b"content-length", b"%d" % len(body)),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    return app


async def serve_bare(redis: str, listener: socket.socket) -> None:
    server = Server(redis, ConnectionOptions())
    assert await server.ready(5.0)
    config = uvicorn.Config(
        bare_app(server), http="httptools", ws="none", loop="none", lifespan="off", log_config=None,
        access_log=False, server_header=False, proxy_headers=False, timeout_keep_alive=75,
    )  # fmt: skip
    settle_collector()
    await uvicorn.Server(config).serve(sockets=[listener])


TELL, BE_SILENT = signal.SIGUSR1, signal.SIGUSR2
"""A node with ``--collector`` traces from the first on, and from the second on no more; it sends all the while.

Two processes with the same code differ by some per cent, by where their memory lies: so both sides of a ratio are
one process, which is told so between two loads.
"""


def trace_when_told(app: NodeApp, tracer: Tracer, ratio: float, store: RedisClusterStore) -> None:
    """The load says of no check that its trace is kept."""
    tracing = app.tracing
    loop = asyncio.get_running_loop()
    is_told = False

    def tell() -> None:
        nonlocal is_told
        is_told, app.tracing = True, tracing
        tracer.set_ratio(ratio)

    def be_silent() -> None:
        nonlocal is_told
        is_told = False
        tracer.set_ratio(0.0)
        leave_out()

    def leave_out() -> None:
        if is_told:
            return
        if store.cluster.watch is None:  # no check is under way that wants it at its end
            app.tracing = None
        else:
            loop.call_later(0.001, leave_out)

    be_silent()
    loop.add_signal_handler(TELL, tell)
    loop.add_signal_handler(BE_SILENT, be_silent)


async def serve_ours(redis: str, listener: socket.socket, directory: Path, telemetry: TelemetrySettings) -> None:
    own = directory / "node-n1"
    own.mkdir(parents=True)
    blob = {"version": 1, "sets": {"default": {"version": 1, "document": rules()}}}
    (own / "rules.json").write_text(json.dumps(blob))
    store = RedisClusterStore([redis], ProtocolTimes(), PATIENT)
    limiter = Limiter("us", store, b"0123456789abcdef", directory, ProtocolTimes(), node="n1")
    await limiter.start()
    await store.points()
    calls = StoreCalls(store.cluster.took, store.cluster.unanswered)
    tracer = tracer_of(telemetry)
    app = create_app(limiter, NodeOptions("us", "n1"), calls, tracer, store.cluster)
    if tracer is not None:
        trace_when_told(app, tracer, telemetry.trace_ratio, store)
    await app.warm_up()
    settle_collector()
    async with sending(telemetry, app.metrics, tracer):
        await serve_node(app, listener, asyncio.Event())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=["bare", "ours"])
    parser.add_argument("--redis", required=True)
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--collector", help="where telemetry is sent, with 1 %% of traces")
    parser.add_argument("--every", type=float, default=10.0, help="seconds between two sendings")
    given = parser.parse_args()
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    if given.kind == "bare":
        work = serve_bare(given.redis, listener)
    else:
        telemetry = TelemetrySettings(
            endpoint=given.collector, interval_s=given.every, trace_ratio=0.01, traces_per_second=10_000
        )
        work = serve_ours(given.redis, listener, given.directory, telemetry)
    uvloop.run(work)


if __name__ == "__main__":
    main()
