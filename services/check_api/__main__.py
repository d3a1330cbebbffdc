"""``python -m services.check_api --config region.toml --node 1``: one node, one process.

Exit codes: 0 told to stop and left in order, 1 it could not go on, 2 it was started wrongly.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import signal
import socket
import sys
from collections.abc import Sequence

import structlog
import uvloop

from regional_limiter.limiter import Limiter
from regional_limiter.model.errors import InvalidRules
from regional_limiter.store.redis_cluster import RedisClusterStore
from services.check_api.app import NodeApp, create_app
from services.check_api.counts import StoreCalls
from services.check_api.homes import HomeClient
from services.check_api.quotas import Quotas
from services.check_api.rls_observer import RlsObserver
from services.check_api.server import serve_node, settle_collector
from services.check_api.wiring import (
    build_homes,
    build_limiter,
    build_store,
    envoy_config,
    front_options,
    node_name,
    node_options,
    quota_options,
)
from services.hiding import Hiding
from services.listening import bind
from services.logs import configure_logging
from services.otlp import sending, tracer_of
from services.rls.methods import methods_of
from services.rls.served_config import ServedConfig
from services.rls.serving import FrontOptions, build_server, serve_grpc
from services.settings import CheckApiSettings, InvalidSettings, TelemetrySettings, load_region

STOP_S = 5
"""What the limiter has to return leases and send its last totals; then the process ends without."""

FIND_REDIS_S = 0.3
"""So long a node that starts waits for Redis; then it listens without."""

_log = structlog.get_logger("check_api")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one node until it is told to stop; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m services.check_api", description="One node of a region.")
    parser.add_argument("--config", required=True, help="the region's file (region.toml)")
    parser.add_argument("--node", type=int, default=1, help="which node of the region, counted from 1")
    given = parser.parse_args(arguments)
    try:
        settings = load_region(given.config)
        port = settings.check_api.port(given.node)
        configure_logging(
            "check_api",
            level=settings.log_level,
            form=settings.telemetry.log_format,
            hiding=Hiding(settings.key_secret(), settings.telemetry.log_keys),
            region=settings.name,
            node=node_name(settings, given.node),
        )
        store = build_store(settings)
        homes = build_homes(settings)
        limiter = build_limiter(settings, given.node, store, homes)
    except InvalidSettings as error:
        print(error, file=sys.stderr)
        return 2
    try:
        listener = bind(settings.check_api.host, port)
    except OSError as error:
        print(f"{settings.check_api.host}:{port}: {error.strerror}", file=sys.stderr)
        return 2
    front = front_options(settings, given.node)
    quota = Quotas(limiter, pushed, settings.quota) if (pushed := quota_options(settings, given.node)) else None
    config = envoy_config(settings, limiter)
    if config is not None:
        try:
            config.load()
        except InvalidRules as error:
            for fault in error.faults:
                print(f"grpc.envoy_config: {fault.place}: {fault.problem}", file=sys.stderr)
            return 2
    # uvicorn warns of every malformed request: a line each is more than a stranger should be able to cause.
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    calls = StoreCalls(store.cluster.took, store.cluster.unanswered, store.cluster.slots_of)
    tracer = tracer_of(settings.telemetry)
    app = create_app(limiter, node_options(settings, given.node), calls, tracer, store.cluster)
    if app.tracing is not None:
        limiter.traces = app.tracing.shared
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(
            _run(app, limiter, store, homes, listener, settings.check_api, front, config, quota, settings.telemetry)
        )


async def _run(
    app: NodeApp,
    limiter: Limiter,
    store: RedisClusterStore,
    homes: HomeClient,
    listener: socket.socket,
    served: CheckApiSettings,
    front: FrontOptions | None = None,
    config: ServedConfig | None = None,
    quota: Quotas | None = None,
    telemetry: TelemetrySettings | None = None,
) -> int:
    stop, hurry = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, lambda: hurry.set() if stop.is_set() else stop.set())
    failed = not await _start(limiter, store, stop)
    grpc: asyncio.Task[None] | None = None
    if not stop.is_set():
        served_at = front
        try:
            if front is not None:
                grpc = await _start_grpc(app, front, stop, hurry, served.drain_ms)
            if quota is not None:
                served_at = quota.options
                await quota.start(app)
        except (OSError, ValueError) as error:
            address = f"{served_at.host}:{served_at.port}" if served_at else ""
            _log.error("gRPC cannot be served", address=address, problem=str(error))
            failed = True
            stop.set()

    async def warm_up() -> None:
        await app.warm_up()
        settle_collector()

    if not stop.is_set():
        host, port = listener.getsockname()[:2]
        _log.info("listening", address=f"{host}:{port}")
        beside = [asyncio.create_task(warm_up(), name="warm up")]
        if config is not None:
            beside.append(asyncio.create_task(config.watch(), name="watch configuration"))
        tls = served.tls.context("http/1.1") if served.tls else None
        async with sending(
            telemetry or TelemetrySettings(), app.metrics, app.tracing.tracer if app.tracing else None
        ):
            await serve_node(app, listener, stop, drain_ms=served.drain_ms, hurry=hurry, tls=tls)
            for task in beside:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
    listener.close()
    if quota is not None:
        await quota.stop()
    if grpc is not None:
        await grpc
    _log.info("served", lease_tokens_lost=limiter.status().leases.lost)
    try:
        async with asyncio.timeout(STOP_S):
            await limiter.stop()
            await store.close()
            await homes.close()
    except TimeoutError:
        _log.error("the limiter did not stop in time", seconds=STOP_S)
    leases = limiter.status().leases
    _log.info("stopped", lease_tokens_lost=leases.lost, lease_tokens_out=leases.out)
    return 1 if failed else 0


async def _start(limiter: Limiter, store: RedisClusterStore, stop: asyncio.Event) -> bool:
    """Take up what is on disk and find Redis, before anybody is listened to; False: it failed, and ``stop`` is set.

    A node that listened at once would answer the callers that come back to it with "no rules", and the first of its
    checks without Redis.  Told to stop, it starts no further.
    """

    async def start() -> None:
        await limiter.start()
        await store.cluster.ready(FIND_REDIS_S)

    starting = asyncio.create_task(start(), name="start")
    stopping = asyncio.create_task(stop.wait(), name="stop")
    await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
    for task in (starting, stopping):
        task.cancel()
    try:
        await starting
    except asyncio.CancelledError:
        return True
    except Exception:
        _log.exception("the limiter could not start")
        stop.set()
        return False
    _log.info("started", ready=limiter.ready)
    return True


async def _start_grpc(
    app: NodeApp, front: FrontOptions, stop: asyncio.Event, hurry: asyncio.Event, drain_ms: int
) -> asyncio.Task[None]:
    """Envoy's rate limit service beside HTTP.  Raises OSError or ValueError when it cannot be served."""
    observer = RlsObserver(app)
    server = build_server(methods_of(app.rls, lambda: app.serving, observer, app.tracing), front, observer)
    await server.start()
    _log.info("listening", grpc=f"{front.host}:{server.port}", server=front.server)
    return asyncio.create_task(serve_grpc(server, stop, drain_ms=drain_ms, hurry=hurry), name="serve gRPC")


if __name__ == "__main__":
    sys.exit(main())
