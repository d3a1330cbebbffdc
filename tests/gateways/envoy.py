"""Envoy as a process, run with the example configuration that is given out."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import httpx

from infra import install
from tests.gateways.gateway import EXAMPLES, WITHIN_MS, Application
from tests.unit.check_api.test_process import free_port

_NODE_PORTS = {"envoy": ("8104", "8105"), "envoy-quota": ("8106",)}


class Envoy:
    """``nodes``: the addresses of the nodes' gRPC.  ``changes``: other words in the ``example``."""

    def __init__(
        self,
        directory: Path,
        nodes: list[str],
        behind: Application,
        changes: Mapping[str, str] | None = None,
        example: str = "envoy",
    ) -> None:
        self.port, self._admin = free_port(), free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        ports = {
            "8080": str(self.port),
            "3000": behind.address.rpartition(":")[2],
            **dict(zip(_NODE_PORTS[example], [node.rpartition(":")[2] for node in nodes], strict=True)),
        }
        text = (EXAMPLES / example / "envoy.yaml").read_text()
        for given, used in ports.items():
            text = text.replace(f"port_value: {given}", f"port_value: {used}")
        patience = {"timeout: 0.05s": f"timeout: {WITHIN_MS / 1000}s"} if example == "envoy" else {}
        for given, used in {**patience, **(changes or {})}.items():
            assert given in text
            text = text.replace(given, used)
        directory.mkdir(parents=True, exist_ok=True)
        self._config, self._log = directory / "envoy.yaml", directory / "log"
        self._config.write_text(text)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        admin = f"admin: {{address: {{socket_address: {{address: 127.0.0.1, port_value: {self._admin}}}}}}}"
        options = [
            "--use-dynamic-base-id",
            "--file-flush-interval-msec",
            "50",
            "--concurrency",
            "1",
            "--log-level",
            "warning",
        ]
        command = [str(install.envoy()), "-c", str(self._config), "--config-yaml", admin, *options]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        until = time.monotonic() + 20
        while not self._listens():
            assert self._process.poll() is None, self.log()
            assert time.monotonic() < until, self.log()
            time.sleep(0.02)

    def _listens(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), 1).close()
        except OSError:
            return False
        return True

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def log(self) -> str:
        return self._log.read_text()

    def counts(self, prefix: str) -> dict[str, int]:
        """Envoy's own counters that begin so."""
        told = httpx.get(
            f"http://127.0.0.1:{self._admin}/stats", params={"filter": f"^{prefix}"}, trust_env=False, timeout=10
        )
        lines = [line.rpartition(": ") for line in told.text.splitlines()]
        return {name.removeprefix(prefix): int(value) for name, _, value in lines if value.isdigit()}

    def wait_for_nodes(self, healthy: int) -> None:
        until = time.monotonic() + 20
        while self.counts("cluster.apportion.membership_").get("healthy") != healthy:
            assert time.monotonic() < until, self.counts("cluster.apportion.")
            time.sleep(0.05)


@contextmanager
def envoy(
    directory: Path,
    nodes: list[str],
    behind: Application,
    changes: Mapping[str, str] | None = None,
    example: str = "envoy",
) -> Iterator[Envoy]:
    one = Envoy(directory, nodes, behind, changes, example)
    try:
        one.start()
        yield one
    finally:
        one.stop()
