"""Ten thousand requests over fifty connections to an application behind uvicorn: exactly the limit passes."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator

import httpx
import pytest

from tests.contract.redis_cluster import wait_until
from tests.contract.region_processes import Region
from tests.unit.check_api.test_process import free_port

REQUESTS = 10_000
CONNECTIONS = 50
LIMIT = 3000

pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def shop(region: Region) -> Iterator[int]:
    """The port of the application."""
    port = free_port()
    command = [sys.executable, "-m", "uvicorn", "tests.gateways.shop:app", "--port", str(port)]
    environment = {**os.environ, "SHOP_NODE": region.urls[1]}
    process = subprocess.Popen([*command, "--no-access-log", "--log-level", "warning"], env=environment)

    def answers() -> bool:
        assert process.poll() is None
        try:
            return httpx.get(f"http://127.0.0.1:{port}/health", trust_env=False).status_code == 200
        except httpx.HTTPError:
            return False

    try:
        wait_until("the application answers", answers, 30)
        yield port
    finally:
        process.terminate()
        process.wait(20)


async def call(port: int, count: int, seen: Counter[int]) -> None:
    """``count`` requests over one connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for _ in range(count):
        writer.write(b"GET /exact HTTP/1.1\r\nhost: shop\r\n\r\n")
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower().split("\r\n")
        seen[int(head[0].split()[1])] += 1
        length = next(line for line in head if line.startswith("content-length:"))
        await reader.readexactly(int(length.partition(":")[2]))
    writer.close()
    await writer.wait_closed()


def degraded_by(url: str) -> int:
    """Checks that a node decided without its store so far: a machine that stalls for longer than its deadline."""
    told = httpx.get(f"{url}/metrics", trust_env=False, timeout=20).text
    counts = re.findall(r'^ratelimit_degraded_checks\w*\{.*cause="store".*\} ([0-9.e+]+)$', told, re.MULTILINE)
    assert counts, told
    return int(sum(map(float, counts)))


async def test_of_ten_thousand_requests_exactly_the_limit_passes(shop: int, region: Region) -> None:
    seen: Counter[int] = Counter()
    before = degraded_by(region.urls[1])
    await asyncio.gather(*(call(shop, REQUESTS // CONNECTIONS, seen) for _ in range(CONNECTIONS)))
    degraded = degraded_by(region.urls[1]) - before
    assert seen.keys() == {200, 429}
    assert seen.total() == REQUESTS
    assert abs(seen[200] - LIMIT) <= degraded, f"{degraded} were decided without the store"
