from __future__ import annotations

import asyncio
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import uvicorn
from playwright.sync_api import Browser, expect, sync_playwright

from global_sync.transport.memory import MemoryHub
from services.dashboard.app import create_app
from services.dashboard.stream import Broadcaster
from services.settings import ControlApiSettings, DashboardSettings, HubRegion, HubSettings, KafkaSettings
from tests.browser.world import REGIONS, World

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
"""The distribution's; without one, playwright's own where it has been installed."""

expect.set_options(timeout=30_000)
"""How long a page may take to show what is expected: other tests run beside it, and nothing here is a speed."""


@dataclass
class Served:
    """A dashboard in a thread, fed by a world; ``do`` runs something in the thread's loop."""

    url: str
    world: World
    loop: asyncio.AbstractEventLoop
    streams: Broadcaster

    def do(self, act: Callable[[], None]) -> None:
        self.loop.call_soon_threadsafe(act)


@pytest.fixture
def served() -> Iterator[Served]:
    yield from serve("kafka")


@pytest.fixture
def served_embedded() -> Iterator[Served]:
    yield from serve("embedded")


def serve(mode: str) -> Iterator[Served]:
    """``mode``: kafka or embedded, as the page is told."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    hub = MemoryHub()
    world = World(hub)
    settings = HubSettings(
        kafka=KafkaSettings(bootstrap="127.0.0.1:1"),
        control_api=ControlApiSettings(port=25090, state_dir=Path("/nowhere")),
        dashboard=DashboardSettings(port=port, control_without_token=True),
        regions={region: HubRegion() for region in REGIONS},
    )
    app = create_app(hub.transport("dashboard"), settings, mode=mode)
    server = uvicorn.Server(
        uvicorn.Config(app, port=port, log_level="warning", loop="asyncio", timeout_graceful_shutdown=2)
    )
    started: list[asyncio.AbstractEventLoop] = []

    async def run() -> None:
        started.append(asyncio.get_running_loop())
        telling = asyncio.create_task(world.run())
        await server.serve()
        telling.cancel()
        await asyncio.gather(telling, return_exceptions=True)

    thread = threading.Thread(target=lambda: asyncio.run(run()), daemon=True)
    thread.start()
    deadline = time.monotonic() + 10
    while not server.started:
        assert time.monotonic() < deadline, "the dashboard did not start"
        time.sleep(0.05)
    yield Served(f"http://127.0.0.1:{port}", world, started[0], app.state.broadcaster)
    started[0].call_soon_threadsafe(app.state.broadcaster.close)
    server.should_exit = True
    thread.join(10)
    assert not thread.is_alive(), "open streams must not hold the end up"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    # Of a module, not of the session: while it lives a loop runs in this thread, and no asyncio test could.
    with sync_playwright() as playwright:
        one = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield one
        one.close()
