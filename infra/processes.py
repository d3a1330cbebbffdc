"""Child processes that outlive us: started in their own session, found again by pid files, never mistaken.

A pid file names the process by pid *and* start time, so a pid that the system gave to somebody else since is
never taken for ours, nor killed.  Logs are files; the last of a process's earlier runs are kept beside it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from services.listening import bind

LOG_FILE = "APPORTION_LOG_FILE"
"""Our services bound the log that this names (see services.logs); others ignore it."""

KEEP_LOGS = 2
"""How many earlier logs of a process are kept."""

LOG_BYTES_MOST = 8 * 1024 * 1024
"""An earlier log is cut to its last part of this size."""

_ending = threading.Event()

_children: dict[int, subprocess.Popen[bytes]] = {}
"""Our own children, so that the dead are buried: a zombie would look alive to others."""


class StartFailed(Exception):
    """A process ended, or did not become ready, while it was being started.  Says which and shows its log."""


def refuse_starts(refused: bool = True) -> None:
    """From now on every start in this program fails, in every thread: what was begun is about to be ended."""
    if refused:
        _ending.set()
    else:
        _ending.clear()


def check_wanted() -> None:
    """Raises StartFailed when starts are refused."""
    if _ending.is_set():
        raise StartFailed("ended while it was being started")


class Busy(StartFailed):
    """Not to be touched now: somebody else starts or stops it, or it runs as something else."""


@dataclass(frozen=True, slots=True)
class Process:
    """A process of ours.  ``started`` is the system's word on when it started: it tells re-used pids apart."""

    name: str
    pid: int
    started: str

    def alive(self) -> bool:
        child = _children.get(self.pid)
        if child is not None and child.poll() is not None:
            del _children[self.pid]
        return start_time(self.pid) == self.started

    def signal(self, number: int) -> None:
        """Send a signal to the process and to what it started, unless it is gone."""
        if self.alive():
            self.signal_group(number)

    def signal_group(self, number: int) -> None:
        """Send a signal to what is left of the process's group, which we made for it."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)


def start_time(pid: int) -> str | None:
    """When the process with this pid started, as a name; None when there is none (a zombie is none)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None if Path("/proc/self/stat").exists() else _start_time_by_ps(pid)
    # The command's name stands in parentheses and may itself hold spaces and parentheses.
    fields = stat[stat.rindex(")") + 2 :].split()
    if fields[0] in "ZX":
        return None
    return f"{_boot_id()}:{fields[19]}"


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _start_time_by_ps(pid: int) -> str | None:
    """The same where there is no /proc."""
    command = ["ps", "-o", "stat=,lstart=", "-p", str(pid)]
    answer = subprocess.run(command, capture_output=True, text=True, check=False, timeout=10)
    words = answer.stdout.split(maxsplit=1)
    return None if len(words) < 2 or words[0].startswith("Z") else words[1].strip()


class ProcessDirectory:
    """The pid files (``DIR/run``) and logs (``DIR/logs``) of one set of processes."""

    def __init__(self, directory: Path) -> None:
        self.run = directory / "run"
        self.logs = directory / "logs"

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Only one of us starts and stops here at a time.  Raises Busy when somebody else does."""
        self.run.mkdir(parents=True, exist_ok=True)
        with (self.run / ".lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise Busy(f"{self.run.parent} is being started or stopped by another process") from None
            yield

    def start(
        self,
        name: str,
        command: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> Process:
        """Start ``command`` detached from us as ``name``.  If ``name`` runs already, that is the answer."""
        check_wanted()
        running = self.find(name)
        if running is not None:
            return running
        self.run.mkdir(parents=True, exist_ok=True)
        self.logs.mkdir(parents=True, exist_ok=True)
        _rotate(self.log(name))
        with self.log(name).open("ab") as log:
            child = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**_inherited(), LOG_FILE: str(self.log(name).resolve()), **(environment or {})},
                cwd=cwd,
            )
        _children[child.pid] = child
        process = Process(name, child.pid, start_time(child.pid) or "ended at once")
        content = json.dumps({"pid": process.pid, "started": process.started, "command": list(command)})
        temporary = self.run / f".{name}.json"
        temporary.write_text(content)
        temporary.replace(self._file(name))
        return process

    def find(self, name: str) -> Process | None:
        """The running process ``name``; None when it does not run."""
        try:
            content = json.loads(self._file(name).read_text())
            process = Process(name, int(content["pid"]), str(content["started"]))
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None
        return process if process.alive() else None

    def running(self) -> dict[str, Process]:
        """Every process that runs, by name."""
        found = {name: self.find(name) for name in self.known()}
        return {name: process for name, process in found.items() if process is not None}

    def known(self) -> list[str]:
        """The names of all processes that were started and not forgotten, running or not."""
        return sorted(file.stem for file in self.run.glob("[!.]*.json"))

    def forget(self, names: Iterable[str]) -> None:
        """Drop the pid files of processes that have ended."""
        for name in names:
            if self.find(name) is None:
                self._file(name).unlink(missing_ok=True)

    def log(self, name: str) -> Path:
        return self.logs / f"{name}.log"

    def log_tail(self, name: str, lines: int = 15) -> str:
        """The last lines of a process's log, for an error message."""
        try:
            with self.log(name).open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - 64 * 1024))
                return "\n".join(file.read().decode(errors="replace").splitlines()[-lines:])
        except OSError:
            return "(no log)"

    def _file(self, name: str) -> Path:
        return self.run / f"{name}.json"


def stop(processes: Iterable[Process], *, patience_s: float = 10.0, kill: bool = True) -> list[Process]:
    """SIGTERM all and wait up to ``patience_s``; those that did not end by themselves (``kill``: SIGKILL)."""
    running = [process for process in processes if process.alive()]
    for process in running:
        process.signal(signal.SIGTERM)
        process.signal(signal.SIGCONT)  # a stopped process handles SIGTERM only once it goes on
    waiting = wait_gone(running, patience_s)
    for process in running:
        if process not in waiting:
            process.signal_group(signal.SIGKILL)  # what a wrapper left behind
    if kill:
        for process in waiting:
            process.signal(signal.SIGKILL)
        wait_gone(waiting, 5.0)
    return waiting


def wait_gone(processes: list[Process], patience_s: float) -> list[Process]:
    """Wait for them to be gone; those that are still there after ``patience_s``."""
    end = time.monotonic() + patience_s
    left = [process for process in processes if process.alive()]
    while left and time.monotonic() < end:
        time.sleep(0.05)
        left = [process for process in left if process.alive()]
    return left


def wait_ready(
    directory: ProcessDirectory, process: Process, ready: Callable[[], bool], *, patience_s: float
) -> None:
    """Wait until ``ready()``.  Raises StartFailed when the process ends first, or takes too long."""
    end = time.monotonic() + patience_s
    while not ready():
        check_wanted()
        late = time.monotonic() >= end
        if late or not process.alive():
            what = f"was not ready within {patience_s:.0f} s" if late else "ended while it was being started"
            log = directory.log(process.name)
            raise StartFailed(f"{process.name} {what}; the end of {log}:\n{directory.log_tail(process.name)}")
        time.sleep(0.1)


def refuse_taken(host: str, port: int, *, patience_s: float = 2.0) -> None:
    """Raise StartFailed if somebody else listens on this port: our child would fail, or share it silently."""
    for reason in unusable_ports(host, [port], patience_s=patience_s).values():
        raise StartFailed(f"port {port} on {host} cannot be used: {reason}")


def unusable_ports(host: str, ports: Iterable[int], *, patience_s: float = 2.0) -> dict[int, str]:
    """Those of ``ports`` that cannot be listened on, and why.

    A process that has just been killed may hold its port for a moment longer than its pid: hence the patience.
    """
    end = time.monotonic() + patience_s
    unusable = _unusable(host, ports)
    while unusable and time.monotonic() < end:
        time.sleep(0.05)
        unusable = _unusable(host, unusable)
    return unusable


def _unusable(host: str, ports: Iterable[int]) -> dict[int, str]:
    reasons = {}
    for port in ports:
        try:
            bind(host, port).close()
        except OSError as error:
            reasons[port] = error.strerror or str(error)
    return reasons


def _inherited() -> dict[str, str]:
    """Our environment; but a dozen processes should not compile the same files anew at every start."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def _rotate(log: Path) -> None:
    """Keep the logs of the last runs as LOG.1 (the newest), LOG.2, each of bounded size."""
    if not log.exists() or log.stat().st_size == 0:
        return
    for number in range(KEEP_LOGS, 1, -1):
        earlier = log.with_name(f"{log.name}.{number - 1}")
        if earlier.exists():
            earlier.replace(log.with_name(f"{log.name}.{number}"))
    newest = log.with_name(f"{log.name}.1")
    log.replace(newest)
    if newest.stat().st_size > LOG_BYTES_MOST:
        with newest.open("rb") as file:
            file.seek(-LOG_BYTES_MOST, os.SEEK_END)
            tail = file.read()
        newest.write_bytes(tail)
