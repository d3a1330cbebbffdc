"""The hub's own services as systemd units of this machine: installed, restarted, removed.  [IO]"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from infra.hub.units import SERVICES, SYSUSERS, TARGET, unit_files, writable
from infra.install import Say, silent
from infra.region.systemd import Run, run_command, take_up
from infra.region.unit_files import Change, UnitFiles
from services.settings import load_hub


@dataclass(slots=True)
class SystemdHub:
    """What ``config`` says, under systemd.  ``root``: where the files are written, "/" but for images and tests;
    with another root nothing is called."""

    config: Path
    root: Path = Path("/")
    run: Run = field(default=run_command)

    def plan(self) -> dict[PurePosixPath, Change]:
        """What ``install`` would do with each file.  Raises InvalidSettings."""
        return self._files().plan()

    def install(self, say: Say = silent) -> dict[PurePosixPath, Change]:
        """Write what is not there or is different, and start what does not run; a second time changes nothing.

        Raises InvalidSettings, StartFailed.
        """
        changes = self._files().write()
        if self.root == Path("/"):
            folders = writable(load_hub(self.config))
            take_up(self.run, say, changes, SYSUSERS, folders, [TARGET, *SERVICES])
        return changes

    def remove(self, say: Say = silent) -> list[PurePosixPath]:
        """End both services and delete the units; what they keep, and the user, stay."""
        files = self._files()
        if self.root == Path("/") and any(map(files.has, files.texts)):
            for unit in reversed(SERVICES):
                say(f"stopping {unit}")
                self.run(["systemctl", "stop", unit])
            self.run(["systemctl", "disable", TARGET, *SERVICES])
        gone = files.delete()
        if self.root == Path("/") and gone:
            self.run(["systemctl", "daemon-reload"])
        return gone

    def _files(self) -> UnitFiles:
        config = self.config.resolve()
        return UnitFiles(self.root, unit_files(load_hub(config), config, Path(sys.executable)))
