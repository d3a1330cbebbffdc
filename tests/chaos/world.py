"""The whole system in the namespaces of ``network.py``: a hub with Kafka and control API, three regions.  [IO]

A region is started from its file by the region script, in its own network and on a small disk of its own.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx

from infra import install
from infra.local.first_rules import load_rules
from infra.local.kafka_server import start_kafka
from infra.local.layout import Layout
from infra.processes import Process, ProcessDirectory, StartFailed, wait_ready
from infra.region.region import answers
from infra.region.resp import Server, ServerError
from tests.chaos.network import HUB, Network
from tests.chaos.schedule import REGIONS
from tests.chaos.shards import RULES, SECRET, shard_with

PRELOADED = [Path(__file__).with_name(name) for name in ("clock.c", "sides.c")]
SERVERS = range(7001, 7007)
NODE_PORTS = (8101, 8102)
SYNC_PORT = 8103
REGION_DISK, HUB_DISK = "64m", "192m"
UP_S = 90.0
KAFKA_UP_S = 240.0
"""It is started while everybody knocks at its ports, and reads logs that it did not close."""
POLL_S = 0.2


class World:
    """``directory``: logs and files.  ``time_scale``: of the share protocol's times."""

    def __init__(self, directory: Path, time_scale: float) -> None:
        self.directory, self.time_scale = directory, time_scale
        self.network = Network(REGIONS)
        self.layout = Layout(directory, base_port=8100, regions=REGIONS, time_scale=time_scale, hub_host=HUB)
        self.hub = ProcessDirectory(directory)
        self.http = httpx.Client(timeout=2, trust_env=False)

    # ---- starting

    def start(self) -> None:
        """Raises NoNamespaces, StartFailed, InstallFailed."""
        install.kafka(last_resort=False)
        install.redis_server()
        self.network.make()
        self._make_files()
        with ThreadPoolExecutor(len(REGIONS) + 1) as pool:
            kafka = pool.submit(self._start_kafka)
            ups = [pool.submit(self.region_up, region) for region in REGIONS]
            kafka.result()
            self._start_control()
            for up in ups:
                up.result()
        load_rules(self.layout, RULES, replace=True)
        wait_for(self.has_rules, UP_S, "every node to have the rules")
        wait_for(self.is_whole, UP_S, "every region to be in session")

    def mend(self) -> None:
        """Start whatever does not run.  Raises StartFailed."""
        ended = self.ended()
        regions = [region for region in REGIONS if any(name.startswith(f"{region}/") for name in ended)]
        with ThreadPoolExecutor(len(REGIONS) + 1) as pool:
            works = [pool.submit(self.region_up, region) for region in regions]
            if "kafka" in ended:
                works.append(pool.submit(self._start_kafka))
            for work in works:
                work.result()

    def _start_kafka(self) -> None:
        choice = install.kafka(last_resort=False)
        start_kafka(self.layout, choice, self.hub, patience_s=KAFKA_UP_S)

    def region_up(self, region: str) -> None:
        """Start what does not run of the region.  Raises StartFailed."""
        command = [*self.network.inside(region), sys.executable, "-m", "infra.region", "up", "--wait", "0"]
        environment = {
            **os.environ,
            "LD_PRELOAD": ":".join(str(self._built(source)) for source in PRELOADED),
            "CHAOS_CLOCKS": str(self.clocks(region)),
        }
        done = subprocess.run(
            [*command, "--config", str(self.place(region) / "region.toml")],
            capture_output=True,
            text=True,
            env=environment,
            timeout=UP_S * 2,
            check=False,
        )
        if done.returncode != 0:
            raise StartFailed(f"{region}: {done.stdout}{done.stderr}")

    def save_logs(self) -> None:
        """What is on the small disks goes with us; leave a copy."""
        for region in filter(lambda region: (self.place(region) / "logs").exists(), REGIONS):
            kept = self.directory / "logs" / region
            shutil.rmtree(kept, ignore_errors=True)
            shutil.copytree(self.place(region) / "logs", kept, ignore_dangling_symlinks=True)

    # ---- telling

    def place(self, region: str) -> Path:
        return self.directory / region

    def clocks(self, region: str) -> Path:
        return self.directory / "clocks" / region

    def nodes(self, region: str) -> list[str]:
        return [f"http://{self.network.address(region)}:{port}" for port in NODE_PORTS]

    def sync(self, region: str) -> str:
        return f"http://{self.network.address(region)}:{SYNC_PORT}"

    def process(self, region: str, name: str) -> Process | None:
        return ProcessDirectory(self.place(region)).find(name)

    def ended(self) -> list[str]:
        """What has been started and does not run."""
        places = {"": self.hub, **{f"{region}/": ProcessDirectory(self.place(region)) for region in REGIONS}}
        return [f"{at}{name}" for at, one in places.items() for name in one.known() if one.find(name) is None]

    def sync_view(self, region: str) -> dict[str, Any] | None:
        """What the region's sync service says of itself; None when it does not."""
        try:
            view: dict[str, Any] = self.http.get(f"{self.sync(region)}/v1/region").raise_for_status().json()
        except (httpx.HTTPError, ValueError):
            return None
        return view

    def leader(self) -> str | None:
        """The region of the candidate that leads."""
        for region in REGIONS:
            view = self.sync_view(region)
            if view is not None and view["leader"]["leading"]:
                return region
        return None

    def has_rules(self) -> bool:
        try:
            told = [self.http.get(f"{url}/v1/node").json() for region in REGIONS for url in self.nodes(region)]
        except (httpx.HTTPError, ValueError):
            return False
        return all(int(node.get("rules_version") or 0) >= 1 for node in told)

    def is_whole(self) -> bool:
        """Somebody leads, and every region is in session at every primary."""
        views = [self.sync_view(region) for region in REGIONS]
        if not any(view is not None and view["leader"]["leading"] for view in views):
            return False
        for view in views:
            points = [] if view is None else view["agent"]["points"]
            if len(points) != 3 or any(point["session_left_ms"] <= 0 for point in points):
                return False
        return True

    # ---- Redis

    def redis(self, region: str, port: int, *words: str | int) -> Any:
        """Call one server.  Raises ServerError."""

        def call() -> Any:
            server = Server("127.0.0.1", port, None, None, None)
            try:
                return server.call(*words)
            finally:
                server.close()

        return self.network.call_inside(region, call)

    def servers(self, region: str) -> dict[int, str]:
        """Role by port (``master`` or ``slave``) of those that answer."""
        roles = {}
        for port in SERVERS:
            try:
                roles[port] = str(self.redis(region, port, "ROLE")[0])
            except ServerError:
                continue
        return roles

    def primary(self, region: str, place: int) -> int:
        """The port of one of the primaries.  Raises LookupError when none answers."""
        found = sorted(port for port, role in self.servers(region).items() if role == "master")
        if not found:
            raise LookupError(f"no primary of {region} answers")
        return found[place % len(found)]

    def replica_of(self, region: str, primary: int) -> int:
        """Raises LookupError, ServerError."""
        replicas = self.replicas_of(region, primary)
        if not replicas:
            raise LookupError(f"{primary} of {region} has no replica")
        return replicas[0]

    def replicas_of(self, region: str, primary: int) -> list[int]:
        """Their ports.  Raises ServerError."""
        return [int(replica[1]) for replica in self.redis(region, primary, "ROLE")[2]]

    def shard(self, region: str, primary: int) -> int:
        """Which shard a primary serves.  Raises LookupError, ServerError."""
        for line in str(self.redis(region, primary, "CLUSTER", "NODES")).splitlines():
            words = line.split()
            if "myself" in words[2] and len(words) > 8:
                return shard_with(int(words[8].partition("-")[0]))
        raise LookupError(f"{primary} of {region} has no slots")

    def step(self, region: str, port: int, seconds: float) -> None:
        """Set how far a server's clock is off."""
        with (self.clocks(region) / str(port)).open("r+b") as file:
            file.write(struct.pack("q", round(seconds * 1_000_000)))

    # ---- files

    def _built(self, source: Path) -> Path:
        return self.directory / f"{source.stem}.so"

    def _make_files(self) -> None:
        for source in PRELOADED:
            install.run(["cc", "-O2", "-shared", "-fPIC", "-o", str(self._built(source)), str(source), "-ldl"])
        secret = self.directory / "secret"
        secret.write_text(SECRET)
        for region in REGIONS:
            _mount(self.place(region), REGION_DISK)
            (self.place(region) / "region.toml").write_text(self._region_toml(region))
            self.clocks(region).mkdir(parents=True)
            for port in SERVERS:
                (self.clocks(region) / str(port)).write_bytes(struct.pack("q", 0))
        _mount(self.directory / "kafka", HUB_DISK)
        self.layout.hub_config.write_text(self._hub_toml())

    def _region_toml(self, region: str) -> str:
        host, grpc_ports = self.network.address(region), [port + 10 for port in NODE_PORTS]
        return f"""
            name = "{region}"
            time_scale = {self.time_scale}
            state_dir = "{self.place(region)}"
            key_secret_file = "{self.directory / "secret"}"
            redis.own = {{base_port = {SERVERS[0]}}}
            kafka.bootstrap = "{self.layout.hub_bootstrap}"
            sync = {{host = "{host}", port = {SYNC_PORT}, rank = {REGIONS.index(region)}, insecure = true}}
            grpc = {{host = "{host}", ports = {grpc_ports}, insecure = true}}
            [check_api]
            host = "{host}"
            ports = {list(NODE_PORTS)}
            insecure = true
            store_deadline_ms = 15
            deadline_ms = 25
            """

    def _hub_toml(self) -> str:
        regions = "".join(
            f"[regions.{region}]\nnodes = {json.dumps(self.nodes(region))}\nsync = '{self.sync(region)}'\n"
            for region in REGIONS
        )
        return (
            f"""
            time_scale = {self.time_scale}
            kafka.bootstrap = "{self.layout.hub_bootstrap}"
            control_api = {{port = {self.layout.control_api_port}, state_dir = "{self.directory / "control"}"}}
            dashboard = {{port = {self.layout.dashboard_port}}}
            """.replace("            ", "")
            + regions
        )

    def _start_control(self) -> None:
        command = [sys.executable, "-m", "services.control_api", "--config", str(self.layout.hub_config)]
        process = self.hub.start("control_api", command)
        lives = functools.partial(answers, f"{self.layout.control_api}/livez")
        wait_ready(self.hub, process, lives, patience_s=UP_S)


def _mount(place: Path, size: str) -> None:
    """A disk of its own, of ``size``, that nobody outside sees."""
    place.mkdir(parents=True, exist_ok=True)
    install.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(place)])


def wait_for(true: Callable[[], bool], seconds: float, what: str) -> float:
    """Seconds until ``true()``.  Raises TimeoutError when it takes longer than ``seconds``."""
    began = time.monotonic()
    while not true():
        if time.monotonic() - began > seconds:
            raise TimeoutError(f"not within {seconds:.0f} s: {what}")
        time.sleep(POLL_S)
    return time.monotonic() - began
