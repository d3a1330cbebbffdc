"""``python -m services.sync_service --config region.toml``: a region's agent and a candidate leader."""

from __future__ import annotations

import argparse
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import structlog
from fastapi import FastAPI

from global_sync.agent import Agent
from global_sync.leader import Leader
from global_sync.transport.kafka import KafkaOptions, KafkaTransport
from services.check_api.wiring import build_store
from services.logs import configure_logging
from services.serve import serve
from services.settings import InvalidSettings, RegionSettings, load_region
from services.sync_service.app import create_app

log = structlog.get_logger(__name__)


def build(settings: RegionSettings) -> FastAPI:
    """The application of one region.  Its end is in order: agent, leader, then what they stand on."""
    times = settings.times()
    store = build_store(settings)
    transport = KafkaTransport(KafkaOptions(settings.kafka.bootstrap, client_id=f"apportion-{settings.name}"))
    agent = Agent(settings.name, store, transport, times, settings.state_dir)
    leader = Leader(transport, times, settings.sync.rank)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await transport.start()
        await agent.start()
        await leader.start()
        try:
            yield
        finally:
            await agent.stop()
            await leader.stop()
            await transport.close()
            await store.close()

    return create_app(agent, leader, lifespan)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m services.sync_service", description="A region's sync service.")
    parser.add_argument("--config", required=True, help="the region's file (region.toml)")
    try:
        settings = load_region(parser.parse_args(arguments).config)
    except InvalidSettings as error:
        print(error, file=sys.stderr)
        return 2
    configure_logging("sync_service", level=settings.log_level, region=settings.name)
    return serve(build(settings), settings.sync.host, settings.sync.port)


if __name__ == "__main__":
    sys.exit(main())
