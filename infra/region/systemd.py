"""A region as systemd units of this machine: installed, looked at, drained, restarted, removed.  [IO]"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Literal

from infra import install
from infra.install import Say, silent
from infra.processes import StartFailed
from infra.region.region import READY_AGAIN_S, Region, answers_within
from infra.region.units import SYSUSERS, UNITS, Programs, node_units, unit_files, unit_names

SYSTEMCTL_TIMEOUT_S = 180

Change = Literal["new", "changed", "same"]


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


@dataclass(slots=True)
class SystemdRegion:
    """``region`` under systemd.  ``root``: where the files are written, "/" but for images and tests.

    With another root nothing is called: whoever boots the image enables ``apportion.target`` there.
    """

    region: Region
    root: Path = Path("/")
    run: Callable[[Sequence[str]], None] = field(default=run_command)

    @property
    def is_here(self) -> bool:
        """Whether the units are installed."""
        return self._at(UNITS / "apportion.target").exists()

    def plan(self) -> dict[PurePosixPath, Change]:
        """What ``install`` would do with each file."""
        found: dict[PurePosixPath, Change] = {}
        for path, text in self._files().items():
            file = self._at(path)
            found[path] = "new" if not file.exists() else "same" if file.read_text() == text else "changed"
        return found

    def install(self, say: Say = silent) -> dict[PurePosixPath, Change]:
        """Write what is not there or is different, and start what does not run; a second time changes nothing.

        What runs already is not started anew: ``restart`` does that, one part after another.
        """
        self.region.settings.key_secret()
        changes = self.plan()
        for path, text in self._files().items():
            if changes[path] != "same":
                self._at(path).parent.mkdir(parents=True, exist_ok=True)
                self._at(path).write_text(text)
        if self.root != Path("/"):
            return changes
        if any(change != "same" for change in changes.values()):
            say("systemd reads the units")
            self.run(["systemd-sysusers", str(SYSUSERS)])
            self.run(["systemctl", "daemon-reload"])
        state = str(self.region.settings.state_dir)
        self.run(["install", "-d", "-o", "apportion", "-g", "apportion", "-m", "0750", state])
        say("starting what does not run")
        self.run(["systemctl", "enable", "--now", "apportion.target", *unit_names(self.region.settings)])
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
            self.run(["systemctl", "disable", "apportion.target", *unit_names(self.region.settings)])
        gone = [path for path in self._files() if self._at(path).exists()]
        for path in gone:
            self._at(path).unlink()
        if self.root == Path("/") and gone:
            self.run(["systemctl", "daemon-reload"])
        return gone

    def _files(self) -> dict[PurePosixPath, str]:
        settings = self.region.settings
        redis_server = install.redis_server() if settings.redis.own is not None else Path()
        return unit_files(settings, self.region.config, Programs(Path(sys.executable), redis_server))

    def _at(self, path: PurePosixPath) -> Path:
        return self.root / path.relative_to("/")
