"""A region's two nodes as processes, with rules on their disks and a Redis Cluster that somebody else runs."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx

from tests.unit.check_api.test_process import free_port


class Region:
    """A region's file, and its two node processes.

    ``servers``: of its Redis Cluster.  ``rules``: a set, as the nodes find it on disk, and ``base``: their share of
    its global limits.  ``settings``: more lines of the region's file.
    """

    def __init__(
        self,
        directory: Path,
        servers: list[str],
        rules: dict[str, Any],
        *,
        name: str = "us-east",
        base: int | None = None,
        settings: str = "",
    ) -> None:
        self.name, self.servers = name, servers
        self._directory = directory
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        ports, grpc_ports = [free_port(), free_port()], [free_port(), free_port()]
        self.grpc = {number: f"127.0.0.1:{port}" for number, port in enumerate(grpc_ports, 1)}
        self.urls = {number: f"http://127.0.0.1:{port}" for number, port in enumerate(ports, 1)}
        blob = {"version": 1, "sets": {rules["domain"]: {"version": 1, "document": rules}}}
        for number in self.urls:
            own = directory / "state" / f"node-{name}-{number}"
            own.mkdir(parents=True)
            (own / "rules.json").write_text(json.dumps(blob))
            if base is not None:
                bases = {"base_version": 1, "bases": {rules["domain"]: base}}
                (own / "bases.json").write_text(json.dumps(bases))
        (directory / "secret").write_text("a secret of thirty-two bytes, or so")
        self._config = directory / "region.toml"
        self._config.write_text(
            f"""
            name = "{name}"
            state_dir = "{directory}/state"
            key_secret_file = "{directory}/secret"
            redis.servers = {json.dumps(servers)}
            kafka.bootstrap = "127.0.0.1:{free_port()}"
            check_api.ports = {json.dumps(ports)}
            check_api.store_deadline_ms = 500
            check_api.deadline_ms = 1000
            grpc.ports = {json.dumps(grpc_ports)}
            sync.port = {free_port()}
            {settings}
            """
        )

    async def start(self, number: int) -> None:
        """Until it says that it is ready: whoever is refused meanwhile has another node."""
        command = [sys.executable, "-m", "services.check_api", "--config", str(self._config), "--node", str(number)]
        environment = {key: value for key, value in os.environ.items() if not key.startswith("APPORTION_")}
        with (self._directory / f"log-{number}").open("ab") as log:
            process = subprocess.Popen(command, env=environment, stderr=log)  # noqa: ASYNC220 - begins at once
        self._processes[number] = process
        async with asyncio.timeout(40), httpx.AsyncClient(trust_env=False, timeout=10) as client:
            while True:
                assert process.poll() is None, self.log(number)
                try:
                    ready = await client.get(f"{self.urls[number]}/readyz")
                except httpx.ConnectError:
                    await asyncio.sleep(0.02)
                    continue
                assert ready.status_code == 200, (ready.text, self.log(number))
                return

    async def stop(self, number: int) -> None:
        process = self._processes.pop(number)
        process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, 30) == 0, self.log(number)

    def log(self, number: int) -> str:
        return (self._directory / f"log-{number}").read_text()

    def said(self, number: int, event: str) -> list[dict[str, Any]]:
        """What a node's processes have logged as ``event``."""
        lines = [json.loads(line) for line in self.log(number).splitlines()]
        return [line for line in lines if line["event"] == event]

    def kill(self) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait()
        self._processes.clear()
