"""A region as systemd units of this machine: installed, looked at, drained, restarted, removed.  [IO]"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from infra import install
from infra.install import Say, silent
from infra.processes import StartFailed
from infra.region.region import READY_AGAIN_S, Region, answers_within
from infra.region.unit_files import Change, UnitFiles
from infra.region.units import SYSUSERS, TARGET, UNITS, USER, Programs, node_units, unit_files, unit_names

SYSTEMCTL_TIMEOUT_S = 180

Run = Callable[[Sequence[str]], None]


def run_command(command: Sequence[str]) -> None:
    """Raises StartFailed with what the command said."""
    try:
        done = subprocess.run(
            list(command), capture_output=True, text=True, timeout=SYSTEMCTL_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise StartFailed(f"{command[0]}: {error}") from None
    if done.returncode != 0:
        raise StartFailed(f"{' '.join(command)}: {(done.stderr or done.stdout).strip()[-2000:]}")


def take_up(
    run: Run,
    say: Say,
    changes: Mapping[PurePosixPath, Change],
    sysusers: PurePosixPath,
    folders: Sequence[Path],
    units: list[str],
) -> None:
    """What was written comes into force on this machine, and what does not run is started."""
    if any(change != "same" for change in changes.values()):
        say("systemd reads the units")
        run(["systemd-sysusers", str(sysusers)])
        run(["systemctl", "daemon-reload"])
    run(["install", "-d", "-o", USER, "-g", USER, "-m", "0750", *map(str, folders)])
    say("starting what does not run")
    run(["systemctl", "enable", "--now", *units])


@dataclass(slots=True)
class SystemdRegion:
    """``region`` under systemd.  ``root``: where the files are written, "/" but for images and tests.

    With another root nothing is called: whoever boots the image enables ``apportion.target`` there.
    """

    region: Region
    root: Path = Path("/")
    run: Run = field(default=run_command)

    @property
    def is_here(self) -> bool:
        """Whether the units are installed."""
        return self._files().has(UNITS / TARGET)

    def plan(self) -> dict[PurePosixPath, Change]:
        """What ``install`` would do with each file."""
        return self._files().plan()

    def install(self, say: Say = silent) -> dict[PurePosixPath, Change]:
        """Write what is not there or is different, and start what does not run; a second time changes nothing.

        What runs already is not started anew: ``restart`` does that, one part after another.
        """
        self.region.settings.key_secret()
        files, settings = self._files(), self.region.settings
        changes = files.write()
        if self.root == Path("/"):
            take_up(self.run, say, changes, SYSUSERS, [settings.state_dir], [TARGET, *unit_names(settings)])
        return changes

    def drain(self, say: Say = silent) -> None:
        """End the nodes one after another, each when it has answered what it began; they stay ended."""
        for unit in node_units(self.region.settings):
            say(f"draining {unit}")
            self.run(["systemctl", "stop", unit])

    def restart(self, say: Say = silent) -> None:
        """As ``Region.restart``: one after another, each when the one before is ready.  Raises StartFailed."""
        named = [(unit, f"node-{number}") for number, unit in enumerate(node_units(self.region.settings), 1)]
        for unit, name in [*named, ("apportion-sync.service", "sync")]:
            say(f"restarting {unit}")
            self.run(["systemctl", "restart", unit])
            url = self.region.url_of(name)
            if not answers_within(f"{url}/readyz", READY_AGAIN_S):
                raise StartFailed(f"{unit} runs but is not ready; see {url}/readyz and journalctl -u {unit}")

    def end_redis(self, port: int) -> None:
        """A server of Redis leaves for good."""
        self.run(["systemctl", "disable", "--now", f"apportion-redis@{port}.service"])

    def down(self, say: Say = silent) -> None:
        """End every part: nodes first, so that the agent still reports what they counted, Redis last."""
        for unit in reversed(unit_names(self.region.settings)):
            say(f"stopping {unit}")
            self.run(["systemctl", "stop", unit])

    def remove(self, say: Say = silent) -> list[PurePosixPath]:
        """End every part and delete the units; the state, the region's file and the user stay."""
        if self.root == Path("/") and self.is_here:
            self.down(say)
            self.run(["systemctl", "disable", TARGET, *unit_names(self.region.settings)])
        gone = self._files().delete()
        if self.root == Path("/") and gone:
            self.run(["systemctl", "daemon-reload"])
        return gone

    def _files(self) -> UnitFiles:
        settings = self.region.settings
        redis_server = install.redis_server() if settings.redis.own is not None else Path()
        return UnitFiles(
            self.root, unit_files(settings, self.region.config, Programs(Path(sys.executable), redis_server))
        )
