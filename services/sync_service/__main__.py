"""``python -m services.sync_service --config region.toml``: a region's agent and a candidate leader."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from global_sync.agent import Agent
from global_sync.leader import Leader
from global_sync.tracing import UNTRACED
from services.check_api.wiring import build_store
from services.logs import bound_neighbours
from services.otlp import sending, tracer_of
from services.serve import serve
from services.settings import RegionSettings, load_region
from services.start import begin, kafka_transport
from services.sync_service.app import SyncApp
from services.sync_service.traces import SyncTraces


def build(settings: RegionSettings) -> SyncApp:
    """The application of one region.  Its end is in order: agent, leader, then what they stand on."""
    times = settings.times()
    store = build_store(settings)
    transport = kafka_transport(settings.kafka, f"apportion-{settings.name}")
    tracer = tracer_of(settings.telemetry)
    traces = UNTRACED if tracer is None else SyncTraces(tracer)
    agent = Agent(settings.name, store, transport, times, settings.state_dir, traces=traces)
    leader = Leader(transport, times, settings.sync.rank, traces=traces)

    @asynccontextmanager
    async def whole_life() -> AsyncIterator[None]:
        await transport.start()
        await agent.start()
        await leader.start()
        try:
            async with sending(settings.telemetry, app.metrics, tracer):
                yield
        finally:
            await agent.stop()
            await leader.stop()
            await transport.close()
            await store.close()

    token = settings.sync.token.get_secret_value() if settings.sync.token else None
    app = SyncApp(agent, leader, whole_life(), token)
    return app


def main(arguments: list[str] | None = None) -> int:
    settings = begin("sync_service", "A region's sync service.", load_region, arguments)
    bound_neighbours("redis-*.log")
    return serve(build(settings), settings.sync, settings.sync.port)


if __name__ == "__main__":
    sys.exit(main())
