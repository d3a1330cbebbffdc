"""Regions that go one version back and forward, part by part, while callers ask all of their nodes."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import redis

from tests.e2e.bound import worst_excess
from tests.e2e.system import REGIONS, LocalSystem, wait_for

BURST, RATE = 20, 100
OFFERED = 40.0
"""Checks a second in each region: more than the limit lets pass in all of them together."""


class Callers:
    """Each region's callers go round its nodes; one that refuses the connection is passed over for the next."""

    def __init__(self, system: LocalSystem) -> None:
        self._nodes = {region: system.nodes(region) for region in REGIONS}
        self._over = asyncio.Event()
        self.admitted: list[tuple[float, float]] = []
        self.failed: list[str] = []
        self.checks = self.degraded = self.by_nodes = self.passed_over = 0

    @asynccontextmanager
    async def calling(self) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as tasks:
            for region in REGIONS:
                tasks.create_task(self._call(region))
            try:
                yield
            finally:
                self._over.set()

    async def _call(self, region: str) -> None:
        began = time.monotonic()
        async with httpx.AsyncClient(trust_env=False, timeout=20) as client:
            for number in itertools.count(1):
                await asyncio.sleep(max(0.0, began + number / OFFERED - time.monotonic()))
                if self._over.is_set():
                    return
                await self._ask(client, region, number)

    async def _ask(self, client: httpx.AsyncClient, region: str, number: int) -> None:
        nodes = self._nodes[region]
        body = {"client_key": "upgraded", "resource": "GET /shared"}
        sent = time.monotonic()
        for further in range(len(nodes)):
            try:
                answer = await client.post(f"{nodes[(number + further) % len(nodes)]}/v1/check", json=body)
            except httpx.ConnectError:
                self.passed_over += 1
                continue
            except httpx.HTTPError as error:
                self.failed.append(f"{region}: {error!r}")
                return
            self._take(answer, sent)
            return
        self.failed.append(f"{region}: every node refused the connection")

    def _take(self, answer: httpx.Response, sent: float) -> None:
        self.checks += 1
        if answer.status_code != 200:
            self.failed.append(f"{answer.status_code} {answer.text[:200]}")
            return
        told = answer.json()
        self.degraded += told["degraded"]
        if told["allowed"]:
            self.admitted.append((sent, time.monotonic()))
            self.by_nodes += told["degraded"]

    def assert_nobody_noticed(self) -> None:
        print(f"{self.checks} checks, {self.degraded} degraded, {self.passed_over} times another node was asked")
        assert self.failed == [], (len(self.failed), self.failed[:5])
        assert self.passed_over > 0, "no node was ended"
        # What a node decides alone while its store does not answer in time is part of no bucket.
        excess = worst_excess(self.admitted, BURST + self.by_nodes, RATE, slack=0.01)
        assert excess <= 0, f"{excess:.1f} requests above burst + rate x time + 1 %"


def restart(system: LocalSystem, region: str, tree: Path) -> None:
    """The region's nodes and sync service end and start one after another, with the code of ``tree``."""
    config = system.addresses["regions"][region]["config"]
    command = [sys.executable, "-m", "infra.region", "restart", "--config", config]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    wait_for(lambda: in_session(system, region), 60, f"{region} in session again")


def in_session(system: LocalSystem, region: str) -> bool:
    """At every primary with the library of every version that is there."""
    try:
        points = system.sync_view(region)["agent"]["points"]
    except httpx.HTTPError:
        return False
    servers = {point["point"].partition("/")[0] for point in points}
    return len(servers) == 3 and all(point["session_left_ms"] > 0 for point in points)


def code_of(system: LocalSystem, regions: Iterable[str] = REGIONS) -> set[Path]:
    """The trees that the regions' nodes and sync services run."""
    status = system.status()["regions"]
    pids = [pid for region in regions for pid in (*status[region]["node_pids"], status[region]["sync_pid"])]
    return {Path(f"/proc/{pid}/cwd").resolve() for pid in pids}


def libraries(system: LocalSystem, region: str) -> set[str]:
    """The function libraries in the region's servers."""
    found: set[str] = set()
    for server in system.status()["regions"][region]["redis"]:
        with redis.Redis(port=server["port"], decode_responses=True) as client:
            found |= {library[1] for library in client.function_list()}
    return found


def understood(system: LocalSystem) -> None:
    """Nobody met a record that it could not read."""
    for region in REGIONS:
        view = system.sync_view(region)
        assert (view["agent"]["malformed"], view["leader"]["malformed"]) == (0, 0), region
        assert view["leader"]["violations"] == 0, region
