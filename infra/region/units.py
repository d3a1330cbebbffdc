"""A region's systemd units, and the files beside them, from its settings (infra/hub/units.py: the hub's).  [P]

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
TARGET = "apportion.target"

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
        SYSUSERS: sysusers(settings.state_dir),
        UNITS / TARGET: target(f"Region {settings.name} of Apportion", unit_names(settings)),
        UNITS / "apportion-node@.service": _node(settings, config, programs),
        UNITS / "apportion-sync.service": _sync(settings, config, programs),
    }
    if settings.redis.own is not None:
        files[UNITS / "apportion-redis@.service"] = _redis_server(settings, config, programs)
        files[UNITS / "apportion-redis-cluster.service"] = _redis_cluster(settings, config, programs)
    return files


def sysusers(home: Path) -> str:
    return f'u {USER} - "Apportion" {home}\n'


def target(what: str, wants: Sequence[str]) -> str:
    return unit(
        {
            "Unit": {"Description": what, "Wants": wants, "After": ["network-online.target"]},
            "Install": {"WantedBy": "multi-user.target"},
        }
    )


def _node(settings: RegionSettings, config: Path, programs: Programs) -> str:
    drain_s = settings.check_api.drain_ms // 1000 + DRAIN_BEYOND_S
    command = f"{programs.python} -m services.check_api --config {config} --node %i"
    # Redis may be down and come later: a node answers without it.  So: after it, but not only with it.
    after = redis_units(settings)[-1:]
    return service(f"a node ({settings.name}, node %i)", command, [settings.state_dir], drain_s, after)


def _sync(settings: RegionSettings, config: Path, programs: Programs) -> str:
    command = f"{programs.python} -m services.sync_service --config {config}"
    after = redis_units(settings)[-1:]
    return service(f"sync service ({settings.name})", command, [settings.state_dir], 20, after)


def service(
    what: str,
    command: str,
    writable: Sequence[Path],
    stop_s: int,
    after: Sequence[str] = (),
    part_of: str = TARGET,
) -> str:
    """A service that lives for as long as ``part_of``.  ``writable``: all that it may write to."""
    return unit(
        {
            "Unit": {
                "Description": f"Apportion: {what}",
                "PartOf": part_of,
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
                **_hardened(writable),
            },
            "Install": {"WantedBy": part_of},
        }
    )


def _redis_server(settings: RegionSettings, config: Path, programs: Programs) -> str:
    return unit(
        {
            "Unit": {
                "Description": f"Apportion: Redis on port %i ({settings.name})",
                "PartOf": TARGET,
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
                **_hardened([settings.state_dir]),
            },
            "Install": {"WantedBy": TARGET},
        }
    )


def _redis_cluster(settings: RegionSettings, config: Path, programs: Programs) -> str:
    servers = redis_units(settings)[:-1]
    return unit(
        {
            "Unit": {
                "Description": f"Apportion: makes one cluster of the Redis servers ({settings.name})",
                "PartOf": TARGET,
                "Wants": servers,
                "After": servers,
            },
            "Service": {
                "Type": "oneshot",
                "RemainAfterExit": "yes",
                "ExecStart": f"{programs.python} -m infra.region form-redis --config {config}",
                "TimeoutStartSec": "120",
                **_hardened([settings.state_dir]),
            },
            "Install": {"WantedBy": TARGET},
        }
    )


def _hardened(writable: Sequence[Path]) -> dict[str, str | list[str]]:
    """Nobody's user, a file system that is read-only but for the state, the network, and nothing else."""
    return {
        "User": USER,
        "Group": USER,
        "UMask": "0077",
        "ReadWritePaths": " ".join(map(str, writable)),
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


def unit(sections: Mapping[str, Mapping[str, str | Sequence[str]]]) -> str:
    lines = [
        "# Written by `apportion region install` or `apportion hub install`: change their file and install again."
    ]
    for section, fields in sections.items():
        lines += ["", f"[{section}]"]
        for field, value in fields.items():
            lines += [f"{field}={each}" for each in ([value] if isinstance(value, str) else value)]
    return "\n".join(lines) + "\n"
