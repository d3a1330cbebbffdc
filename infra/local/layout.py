"""Where everything of a local system is: one directory, and the ports from a base port on.

base + 10 k + 1, 2, 3                     nodes 1 and 2, and the sync service, of region k (from 0)
base + 60     Kafka for the hub           base + 61  Kafka's controller
base + 62     control of the links        base + 70 + k  Kafka behind link k     base + 80 + k  link k
base + 90     control API                 base + 91  dashboard
base + 100 + 20 k and on                  Redis of region k: 6 servers and their 6 cluster buses
"""

from __future__ import annotations

import json
import os
import secrets
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

DEFAULT_DIRECTORY = Path(".local") / "default"
HOST = "127.0.0.1"
NODES_A_REGION = 2
REGIONS_MOST = 5
PRIMARIES = 3
REPLICAS_EACH = 1
PORTS = 200
"""A local system uses ports base .. base + PORTS - 1."""
TIME_SCALE_MOST = 10.0

DEADLINES = {"store_deadline_ms": 15, "deadline_ms": 25}
"""Some 35 processes on two cores wait for each other longer than a real region's 8 and 15 ms."""

DEFAULT_REGIONS = ("us-east", "eu-west", "ap-south")


@dataclass(frozen=True, slots=True)
class Layout:
    """One local system.  ``kafka``: which kind runs; links can be steered only where it is Apache Kafka's."""

    directory: Path
    base_port: int = 8100
    regions: tuple[str, ...] = DEFAULT_REGIONS
    time_scale: float = 1.0
    kafka: Literal["apache", "noida", "given"] = "apache"
    kafka_bootstrap: str = ""
    hub_host: str = HOST
    """Where the Kafka that we start listens, and is found."""

    def __post_init__(self) -> None:
        if not 1024 <= self.base_port <= 65536 - PORTS:
            raise ValueError(f"--base-port {self.base_port}: from 1024 to {65536 - PORTS}, for {PORTS} ports")
        if not 0 < self.time_scale <= TIME_SCALE_MOST:
            raise ValueError(f"--scale {self.time_scale:g}: above 0, at most {TIME_SCALE_MOST:g}")
        if not 1 <= len(self.regions) <= REGIONS_MOST:
            raise ValueError(f"{len(self.regions)} regions: a local system has 1 to {REGIONS_MOST}")

    # ---- ports

    @property
    def control_api_port(self) -> int:
        return self.base_port + 90

    @property
    def dashboard_port(self) -> int:
        return self.base_port + 91

    @property
    def kafka_port(self) -> int:
        return self.base_port + 60

    @property
    def kafka_controller_port(self) -> int:
        return self.base_port + 61

    @property
    def links_port(self) -> int:
        return self.base_port + 62

    def kafka_link_port(self, region: str) -> int:
        """Kafka's own listener for this region, which only its link knows."""
        return self.base_port + 70 + self.regions.index(region)

    def link_port(self, region: str) -> int:
        """Where the region finds Kafka."""
        return self.base_port + 80 + self.regions.index(region)

    def node_ports(self, region: str) -> list[int]:
        first = self.base_port + 10 * self.regions.index(region) + 1
        return list(range(first, first + NODES_A_REGION))

    def sync_port(self, region: str) -> int:
        return self.node_ports(region)[-1] + 1

    def grpc_ports(self, region: str) -> list[int]:
        first = self.sync_port(region) + 1
        return list(range(first, first + NODES_A_REGION))

    def redis_port(self, region: str) -> int:
        return self.base_port + 100 + 20 * self.regions.index(region)

    def ports(self) -> dict[str, list[int]]:
        """The ports that each process listens on, by its name: ``kafka``, ``us-east/node-1``, …"""
        listens = {"control_api": [self.control_api_port], "dashboard": [self.dashboard_port]}
        if self.kafka != "given":
            listens["kafka"] = [self.kafka_port]
        if self.has_links:
            listens["kafka"] += [self.kafka_controller_port, *map(self.kafka_link_port, self.regions)]
            listens["link_proxy"] = [self.links_port, *map(self.link_port, self.regions)]
        servers = PRIMARIES * (1 + REPLICAS_EACH)
        for region in self.regions:
            for number, ports in enumerate(zip(self.node_ports(region), self.grpc_ports(region), strict=True), 1):
                listens[f"{region}/node-{number}"] = list(ports)
            listens[f"{region}/sync"] = [self.sync_port(region)]
            first = self.redis_port(region)
            for port in range(first, first + servers):
                listens[f"{region}/redis-{port}"] = [port, port + servers]  # its cluster's bus
        return listens

    # ---- addresses

    @property
    def control_api(self) -> str:
        return f"http://{HOST}:{self.control_api_port}"

    @property
    def dashboard(self) -> str:
        return f"http://{HOST}:{self.dashboard_port}"

    @property
    def hub_bootstrap(self) -> str:
        return self.kafka_bootstrap or f"{self.hub_host}:{self.kafka_port}"

    @property
    def has_links(self) -> bool:
        """Another Kafka tells its clients addresses that do not lead through our links."""
        return self.kafka == "apache"

    def region_bootstrap(self, region: str) -> str:
        return f"{HOST}:{self.link_port(region)}" if self.has_links else self.hub_bootstrap

    def node_urls(self, region: str) -> list[str]:
        return [f"http://{HOST}:{port}" for port in self.node_ports(region)]

    def sync_url(self, region: str) -> str:
        return f"http://{HOST}:{self.sync_port(region)}"

    # ---- files

    @property
    def hub_config(self) -> Path:
        return self.directory / "hub.toml"

    @property
    def links_config(self) -> Path:
        return self.directory / "links.json"

    @property
    def secret(self) -> Path:
        return self.directory / "secret"

    def region_config(self, region: str) -> Path:
        return self.directory / region / "region.toml"

    def save(self) -> None:
        """Write the layout and every configuration file."""
        self.directory.mkdir(parents=True, exist_ok=True)
        told: dict[str, Any] = asdict(self)
        del told["directory"]
        _write(_file(self.directory), json.dumps(told, indent=2) + "\n")
        if not self.secret.exists():
            self.secret.touch(mode=0o600)
            _write(self.secret, secrets.token_hex(32) + "\n")
        for region in self.regions:
            self.region_config(region).parent.mkdir(exist_ok=True)
            _write(self.region_config(region), self._region_toml(region))
        _write(self.hub_config, self._hub_toml())
        links = {
            region: {"port": self.link_port(region), "target_port": self.kafka_link_port(region)}
            for region in self.regions
        }
        _write(self.links_config, json.dumps({"host": HOST, "control_port": self.links_port, "links": links}))

    def _region_toml(self, region: str) -> str:
        return _toml(
            {
                "": {
                    "name": region,
                    "time_scale": self.time_scale,
                    "state_dir": str(self.directory / region),
                    "key_secret_file": str(self.secret),
                },
                "redis.own": {
                    "base_port": self.redis_port(region),
                    "primaries": PRIMARIES,
                    "replicas_each": REPLICAS_EACH,
                },
                "kafka": {"bootstrap": self.region_bootstrap(region)},
                "check_api": {
                    "host": HOST,
                    "ports": self.node_ports(region),
                    **DEADLINES,
                },
                "grpc": {"host": HOST, "ports": self.grpc_ports(region)},
                "sync": {"host": HOST, "port": self.sync_port(region), "rank": self.regions.index(region)},
            }
        )

    def _hub_toml(self) -> str:
        state = str(self.directory / "control")
        return _toml(
            {
                "": {"time_scale": self.time_scale},
                "kafka": {"bootstrap": self.hub_bootstrap},
                "control_api": {
                    "host": HOST,
                    "port": self.control_api_port,
                    "state_dir": state,
                    "trusted_proxies": [HOST],  # the dashboard
                },
                "dashboard": {
                    "host": HOST,
                    "port": self.dashboard_port,
                    "control_without_token": True,
                    "history": f"{state}/dashboard.db",
                },
                **{
                    f'regions."{region}"': {"nodes": self.node_urls(region), "sync": self.sync_url(region)}
                    for region in self.regions
                },
            }
        )


def load_layout(directory: Path) -> Layout | None:
    """The layout that was saved in ``directory``; None when there is none."""
    directory = directory.resolve()
    try:
        told = json.loads(_file(directory).read_text())
        return Layout(directory=directory, **{**told, "regions": tuple(told["regions"])})
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _file(directory: Path) -> Path:
    return directory / "local.json"


def _write(path: Path, content: str) -> None:
    """Whole or not at all, so that a second look never sees half a file."""
    temporary = path.with_name(f".{path.name}.new")
    temporary.write_text(content)
    if path.exists():
        os.chmod(temporary, path.stat().st_mode)
    temporary.replace(path)


def _toml(tables: dict[str, dict[str, Any]]) -> str:
    """TOML of plain values: JSON's strings, numbers and lists of them are TOML's too."""
    parts = []
    for name, values in tables.items():
        lines = [f"[{name}]"] if name else []
        lines += [f"{key} = {json.dumps(value)}" for key, value in values.items()]
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"
