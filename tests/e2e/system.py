"""A local system for tests: real Redis Clusters, a real Kafka, every service, started and ended by the CLI."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import httpx

from tests.quiet_collector import quiet_collector

CLI = [sys.executable, "-m", "services.cli.main"]
ROOT = Path(__file__).resolve().parents[2]
REGIONS = ("us-east", "eu-west", "ap-south")


class LocalSystem:
    """One running local system.  Everything goes through what a user has: the CLI, the APIs, process ids."""

    def __init__(self, directory: Path, scale: float) -> None:
        self.directory = directory
        self.scale = scale
        self.http = httpx.Client(timeout=5)

    def cli(self, *args: str, timeout_s: float = 120) -> str:
        done = subprocess.run(
            [*CLI, "local", *args, "--dir", str(self.directory)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        assert done.returncode == 0, f"local {' '.join(args)}:\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def status(self) -> dict[str, Any]:
        status: dict[str, Any] = json.loads(self.cli("status", "--json"))
        return status

    @cached_property
    def addresses(self) -> dict[str, Any]:
        """The status as it was at first: addresses do not change."""
        return self.status()

    def nodes(self, *regions: str) -> list[str]:
        return [url for region in regions for url in self.addresses["regions"][region]["nodes"]]

    def sync_view(self, region: str) -> dict[str, Any]:
        """What the region's sync service says of itself."""
        url = self.addresses["regions"][region]["sync"]
        view: dict[str, Any] = self.http.get(f"{url}/v1/region").raise_for_status().json()
        return view

    def leader_region(self) -> str | None:
        for region in REGIONS:
            try:
                if self.sync_view(region)["leader"]["leading"]:
                    return region
            except httpx.HTTPError:
                continue
        return None

    def kill(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)

    def settle(self) -> None:
        """Wait until every region has a session at every point and somebody leads."""
        wait_for(lambda: self.leader_region() is not None, 30, "a leader")
        wait_for(lambda: all(self._in_session(region) for region in REGIONS), 30, "every region in session")

    def _in_session(self, region: str) -> bool:
        try:
            points = self.sync_view(region)["agent"]["points"]
        except httpx.HTTPError:
            return False
        return len(points) == 3 and all(point["session_left_ms"] > 0 for point in points)


def wait_for(true: Callable[[], bool], seconds: float, what: str) -> float:
    """Seconds until ``true()``; fails when it takes longer than ``seconds``."""
    began = time.monotonic()
    while not true():
        if time.monotonic() - began > seconds:
            raise AssertionError(f"not within {seconds} s: {what}")
        time.sleep(0.1)
    return time.monotonic() - began


@contextmanager
def local_system(directory: Path, base_port: int, scale: float) -> Iterator[LocalSystem]:
    system = LocalSystem(directory, scale)
    rules = Path(__file__).with_name("rules.yaml")
    try:
        system.cli(
            *("up", "--detach", "--no-traffic", "--no-stand-in", "--base-port", str(base_port)),
            *("--scale", str(scale), "--rules", str(rules)),
            timeout_s=240,
        )
        system.settle()
        with quiet_collector():
            yield system
    finally:
        try:
            system.cli("down")
        finally:
            system.http.close()
