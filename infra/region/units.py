"""A region's systemd units, and the files beside them, from its settings.  [P]

Each part is a unit of its own, so that systemd starts it again when it dies, and stops what stands on it last::

    apportion.target
      apportion-redis@PORT.service       a server of the region's own cluster
      apportion-redis-cluster.service    once: makes one cluster of them
      apportion-sync.service             agent and candidate leader
      apportion-node@N.service           a node

They run as the user ``apportion``, who may write to the state directory alone.  Logs go to the journal, which
bounds and rotates them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from services.settings import RegionSettings

UNITS = PurePosixPath("/etc/systemd/system")
SYSUSERS = PurePosixPath("/etc/sysusers.d/apportion.conf")
USER = "apportion"

DRAIN_BEYOND_S = 20
"""What a node may take after its drain: answers that were begun, leases that go back, the last totals."""


@dataclass(frozen=True, slots=True)
class Programs:
    """Absolute paths.  ``python``: of the environment in which Apportion is installed."""

    python: Path
    redis_server: Path


def unit_names(settings: RegionSettings) -> list[str]:
    """Every unit of the region, in the order in which they are started."""
    return [*redis_units(settings), "apportion-sync.service", *node_units(settings)]


def redis_units(settings: RegionSettings) -> list[str]:
    own = settings.redis.own
    if own is None:
        return []
    return [*(f"apportion-redis@{port}.service" for port in own.ports()), "apportion-redis-cluster.service"]


def node_units(settings: RegionSettings) -> list[str]:
    return [f"apportion-node@{number}.service" for number in range(1, len(settings.check_api.ports) + 1)]


def unit_files(settings: RegionSettings, config: Path, programs: Programs) -> dict[PurePosixPath, str]:
    """The text of every file by its path.  ``config``: the region's file, which the services are given."""
    files = {
        SYSUSERS: f'u {USER} - "Apportion" {settings.state_dir}\n',
        UNITS / "apportion.target": _target(settings),
        UNITS / "apportion-node@.service": _node(settings, config, programs),
        UNITS / "apportion-sync.service": _sync(settings, config, programs),
    }
    if settings.redis.own is not None:
        files[UNITS / "apportion-redis@.service"] = _redis_server(settings, config, programs)
        files[UNITS / "apportion-redis-cluster.service"] = _redis_cluster(settings, config, programs)
    return files


def _target(settings: RegionSettings) -> str:
    return _unit(
        {
            "Unit": {
                "Description": f"Region {settings.name} of Apportion",
                "Wants": unit_names(settings),
                "After": ["network-online.target"],
            },
            "Install": {"WantedBy": "multi-user.target"},
        }
    )


def _node(settings: RegionSettings, config: Path, programs: Programs) -> str:
    drain_s = settings.check_api.drain_ms // 1000 + DRAIN_BEYOND_S
    command = f"{programs.python} -m services.check_api --config {config} --node %i"
    # Redis may be down and come later: a node answers without it.  So: after it, but not only with it.
    return _service("a node", f"{settings.name}, node %i", command, settings, redis_units(settings)[-1:], drain_s)


def _sync(settings: RegionSettings, config: Path, programs: Programs) -> str:
    command = f"{programs.python} -m services.sync_service --config {config}"
    return _service("sync service", settings.name, command, settings, redis_units(settings)[-1:], 20)


def _service(
    what: str, whose: str, command: str, settings: RegionSettings, after: Sequence[str], stop_s: int
) -> str:
    return _unit(
        {
            "Unit": {
                "Description": f"Apportion: {what} ({whose})",
                "PartOf": "apportion.target",
                "Wants": "network-online.target",
                "After": ["network-online.target", *after],
                # For ever: a node that systemd gives up on after a bad minute is missed when the minute is over.
                "StartLimitIntervalSec": "0",
            },
            "Service": {
                "ExecStart": command,
                "Restart": "always",
                "RestartSec": "1",
                "TimeoutStopSec": str(stop_s),
                "KillMode": "mixed",
                "LimitNOFILE": "65536",
                "MemoryMax": "1G",
                **_hardened(settings),
            },
            "Install": {"WantedBy": "apportion.target"},
        }
    )


def _redis_server(settings: RegionSettings, config: Path, programs: Programs) -> str:
    return _unit(
        {
            "Unit": {
                "Description": f"Apportion: Redis on port %i ({settings.name})",
                "PartOf": "apportion.target",
                "After": "network-online.target",
                "StartLimitIntervalSec": "0",
            },
            "Service": {
                "ExecStartPre": f"{programs.python} -m infra.region configure-redis --config {config} %i",
                "ExecStart": f"{programs.redis_server} {settings.state_dir}/redis/%i/redis.conf",
                "Restart": "always",
                "RestartSec": "1",
                "TimeoutStopSec": "20",
                "LimitNOFILE": "65536",
                "OOMScoreAdjust": "-500",
                **_hardened(settings),
            },
            "Install": {"WantedBy": "apportion.target"},
        }
    )


def _redis_cluster(settings: RegionSettings, config: Path, programs: Programs) -> str:
    servers = redis_units(settings)[:-1]
    return _unit(
        {
            "Unit": {
                "Description": f"Apportion: makes one cluster of the Redis servers ({settings.name})",
                "PartOf": "apportion.target",
                "Wants": servers,
                "After": servers,
            },
            "Service": {
                "Type": "oneshot",
                "RemainAfterExit": "yes",
                "ExecStart": f"{programs.python} -m infra.region form-redis --config {config}",
                "TimeoutStartSec": "120",
                **_hardened(settings),
            },
            "Install": {"WantedBy": "apportion.target"},
        }
    )


def _hardened(settings: RegionSettings) -> dict[str, str | list[str]]:
    """Nobody's user, a file system that is read-only but for the state, the network, and nothing else."""
    return {
        "User": USER,
        "Group": USER,
        "UMask": "0077",
        "ReadWritePaths": str(settings.state_dir),
        "ProtectSystem": "strict",
        "ProtectHome": "read-only",
        "PrivateTmp": "yes",
        "PrivateDevices": "yes",
        "PrivateUsers": "yes",
        "ProtectClock": "yes",
        "ProtectControlGroups": "yes",
        "ProtectHostname": "yes",
        "ProtectKernelLogs": "yes",
        "ProtectKernelModules": "yes",
        "ProtectKernelTunables": "yes",
        "ProtectProc": "invisible",
        "ProcSubset": "pid",
        "NoNewPrivileges": "yes",
        "CapabilityBoundingSet": "",
        "AmbientCapabilities": "",
        "LockPersonality": "yes",
        "RemoveIPC": "yes",
        "RestrictAddressFamilies": "AF_INET AF_INET6 AF_UNIX",
        "RestrictNamespaces": "yes",
        "RestrictRealtime": "yes",
        "RestrictSUIDSGID": "yes",
        "SystemCallArchitectures": "native",
        "SystemCallFilter": ["@system-service", "~@privileged @resources"],
        # A call that is refused is an error that a program may go on after; else the process would be killed.
        "SystemCallErrorNumber": "EPERM",
        "TasksMax": "256",
    }


def _unit(sections: Mapping[str, Mapping[str, str | Sequence[str]]]) -> str:
    lines = ["# Written by `apportion region install`: change the region's file and install again."]
    for section, fields in sections.items():
        lines += ["", f"[{section}]"]
        for field, value in fields.items():
            lines += [f"{field}={each}" for each in ([value] if isinstance(value, str) else value)]
    return "\n".join(lines) + "\n"
