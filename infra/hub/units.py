"""The systemd units of the hub's own services, from its settings; Kafka has units of its own.  [P]

They are as those of a region (infra/region/units.py)::

    apportion-hub.target
      apportion-control.service          the control API
      apportion-dashboard.service        the dashboard
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from infra.region.units import UNITS, service, sysusers, target
from services.settings import HubSettings

SYSUSERS = PurePosixPath("/etc/sysusers.d/apportion-hub.conf")
TARGET = "apportion-hub.target"
SERVICES = {"apportion-control.service": "control_api", "apportion-dashboard.service": "dashboard"}
"""The module of ``services`` that each unit runs, in the order in which they are started."""

STOP_S = 30


def writable(settings: HubSettings) -> list[Path]:
    """The folders that the services write to."""
    history = settings.dashboard.history
    folders = [settings.control_api.state_dir, *([history.parent] if history is not None else [])]
    return list(dict.fromkeys(folders))


def unit_files(settings: HubSettings, config: Path, python: Path) -> dict[PurePosixPath, str]:
    """The text of every file by its path.  ``config``: the hub's file; ``python``: with Apportion installed."""
    files = {
        SYSUSERS: sysusers(settings.control_api.state_dir),
        UNITS / TARGET: target("The hub of Apportion", list(SERVICES)),
    }
    for name, module in SERVICES.items():
        what = f"{module.replace('_', ' ')} (hub)"
        command = f"{python} -m services.{module} --config {config}"
        files[UNITS / name] = service(what, command, writable(settings), STOP_S, part_of=TARGET)
    return files
