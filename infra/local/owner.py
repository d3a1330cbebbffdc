"""Who started a local system: it ends with them, unless they have left it running (``up --detach``)."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass, replace
from pathlib import Path

from infra.processes import Process, start_time


@dataclass(frozen=True, slots=True)
class Owner:
    """The ``up`` that started a system at ``since_s`` (seconds since 1970)."""

    process: Process
    since_s: int
    detached: bool = False

    @classmethod
    def this_process(cls) -> Owner:
        pid = os.getpid()
        return cls(Process("up", pid, start_time(pid) or ""), int(time.time()))

    def in_charge(self) -> bool:
        """Whether the system is as somebody wants it; one whose ``up`` was killed is anybody's to mend and end."""
        return self.detached or self.process.alive()

    def is_this_process(self) -> bool:
        return not self.detached and self.process.pid == os.getpid() and self.process.alive()

    def left_running(self) -> Owner:
        """The same, but the system goes on when the process ends."""
        return replace(self, detached=True)

    def save(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        told = {
            "pid": self.process.pid,
            "started": self.process.started,
            "since_s": self.since_s,
            "detached": self.detached,
        }
        temporary = directory / ".owner.json.new"
        temporary.write_text(json.dumps(told))
        temporary.replace(_file(directory))


def read_owner(directory: Path) -> Owner | None:
    """The owner of the system in ``directory``; None when nobody has claimed it."""
    try:
        told = json.loads(_file(directory).read_text())
        process = Process("up", int(told["pid"]), str(told["started"]))
        return Owner(process, int(told["since_s"]), bool(told["detached"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def forget_owner(directory: Path) -> None:
    _file(directory).unlink(missing_ok=True)


def _file(directory: Path) -> Path:
    return directory / "owner.json"
