from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from regional_limiter.in_process import in_memory
from services.check_api.app import NodeOptions, create_app
from services.check_api.server import serve_node
from services.listening import bind

RULES = """
rules:
  - {id: few, match: {resource: few}, algorithm: token_bucket, capacity: 5, refill: 1/h}
  - {id: slots, match: {resource: slots}, algorithm: concurrency, limit: 1, lease: 30s}
  - {id: orders, match: {resource: "POST /orders"}, capacity: 20, refill: 1/h}
  - {id: items, match: {resource: "GET /items"}, capacity: 2, refill: 1/h}
  - {id: hot, match: {resource: "GET /hot"}, capacity: 1000, refill: 1/h}
"""


@pytest.fixture
def node() -> Iterator[str]:
    """The address of a node in this process, on a loop of its own."""
    with node_with(RULES) as address:
        yield address


@contextmanager
def node_with(rules: str) -> Iterator[str]:
    listener = bind("127.0.0.1", 0)
    began = threading.Event()
    ends: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def serve() -> None:
        stop = asyncio.Event()
        ends.append((asyncio.get_running_loop(), stop))
        async with in_memory(rules) as limiter:
            began.set()
            await serve_node(create_app(limiter, NodeOptions("local", "local-1")), listener, stop)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert began.wait(20)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        loop, stop = ends[0]
        loop.call_soon_threadsafe(stop.set)
        thread.join(20)
        listener.close()
