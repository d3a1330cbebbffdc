"""The TypeScript client is built and tested by Node, with a real node of ours behind it."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra import install
from regional_limiter.in_process import in_memory
from services.check_api.app import NodeOptions, create_app
from services.check_api.server import serve_node
from services.listening import bind

SOURCE = Path(__file__).resolve().parents[2] / "clients" / "typescript"
RULES = """
rules:
  - {id: few, match: {resource: few}, algorithm: token_bucket, capacity: 5, refill: 1/h}
  - {id: slots, match: {resource: slots}, algorithm: concurrency, limit: 1, lease: 30s}
"""

pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def node() -> Iterator[str]:
    """The address of a node in this process, on a loop of its own."""
    listener = bind("127.0.0.1", 0)
    began = threading.Event()
    ends: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def serve() -> None:
        stop = asyncio.Event()
        ends.append((asyncio.get_running_loop(), stop))
        async with in_memory(RULES) as limiter:
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


def test_the_typescript_client_passes_its_tests_against_a_node(node: str, tmp_path: Path) -> None:
    programs = install.node()
    work = tmp_path / "typescript"
    shutil.copytree(SOURCE, work, ignore=shutil.ignore_patterns("node_modules", "dist"))
    environment = {
        **os.environ,
        "APPORTION_NODE": node,
        "PATH": f"{programs.parent}{os.pathsep}{os.environ.get('PATH', '')}",
    }
    for command in (["npm", "ci", "--no-fund", "--no-audit"], ["npm", "test"], ["npm", "run", "test:node"]):
        done = subprocess.run(
            command, cwd=work, env=environment, capture_output=True, text=True, timeout=150, check=False
        )
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert (work / "dist" / "index.d.ts").exists()
