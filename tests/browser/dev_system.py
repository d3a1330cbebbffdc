"""A whole embedded system in a process of its own: real limits, shares, rules and pages, in memory."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from tests.e2e.system import CLI

READY_S = 90.0
REGIONS = ("us-east", "eu-west", "ap-south")
RULES = Path(__file__).with_name("rules.yaml")


@dataclass(frozen=True)
class DevSystem:
    base_port: int

    def node(self, region: str) -> str:
        return f"http://127.0.0.1:{self.base_port + 10 * REGIONS.index(region) + 1}"

    @property
    def control(self) -> str:
        return f"http://127.0.0.1:{self.base_port + 90}"

    @property
    def dashboard(self) -> str:
        return f"http://127.0.0.1:{self.base_port + 91}"


@contextmanager
def dev_system(log: Path) -> Iterator[DevSystem]:
    system = DevSystem(free_base_port())
    command = [*CLI, "dev", "--base-port", str(system.base_port), "--rules", str(RULES)]
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
        try:
            _wait_ready(system, process, log)
            yield system
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
    assert process.returncode in (0, -signal.SIGTERM), sys.exc_info()[0] or log.read_text()[-2000:]


def _wait_ready(system: DevSystem, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + READY_S
    urls = [f"{system.control}/readyz", f"{system.dashboard}/readyz", f"{system.node('us-east')}/readyz"]
    while True:
        assert process.poll() is None, log.read_text()[-2000:]
        try:
            if all(httpx.get(url, timeout=2).status_code == 200 for url in urls):
                return
        except httpx.HTTPError:
            pass
        assert time.monotonic() < end, f"not ready: {log.read_text()[-2000:]}"
        time.sleep(0.2)


def free_base_port() -> int:
    """From where on the ports of an embedded system are free just now."""
    for base in range(33_000, 38_000, 100):
        try:
            with ExitStack() as held:
                for port in (base + 1, base + 11, base + 21, base + 90, base + 91):
                    held.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return base
        except OSError:
            continue
    raise AssertionError("no hundred ports are free")
