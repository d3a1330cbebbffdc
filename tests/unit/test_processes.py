"""Child processes are found again, ended, and never mistaken for somebody else's."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.processes import (
    LOG_BYTES_MOST,
    Busy,
    Process,
    ProcessDirectory,
    StartFailed,
    refuse_starts,
    refuse_taken,
    start_time,
    stop,
    wait_gone,
    wait_ready,
)

SLEEPS = [sys.executable, "-S", "-c", "import time; print('started', flush=True); time.sleep(60)"]
IGNORES = [
    sys.executable,
    "-S",
    "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(60)",
]


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[ProcessDirectory]:
    directory = ProcessDirectory(tmp_path)
    yield directory
    stop(directory.running().values(), patience_s=0)
    refuse_starts(False)


def wait_for_log(directory: ProcessDirectory, name: str, word: str) -> None:
    process = directory.find(name)
    assert process is not None
    wait_ready(directory, process, lambda: word in directory.log_tail(name), patience_s=10)


def test_a_process_is_found_by_another_program_and_ended(directory: ProcessDirectory) -> None:
    started = directory.start("one", SLEEPS)
    again = ProcessDirectory(directory.run.parent)
    assert again.find("one") == started
    assert again.start("one", SLEEPS) == started
    assert os.getsid(started.pid) == started.pid  # Ctrl-C at our terminal is not its end
    assert stop([started], patience_s=10) == []
    assert again.find("one") is None
    again.forget(["one"])
    assert again.known() == []


def test_a_pid_that_was_given_to_somebody_else_is_not_killed(directory: ProcessDirectory) -> None:
    other = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"])
    try:
        directory.run.mkdir()
        stale = {"pid": other.pid, "started": "an earlier boot:17"}
        (directory.run / "one.json").write_text(json.dumps(stale))
        assert directory.find("one") is None
        stop(directory.running().values())
        assert other.poll() is None
        mine = directory.start("one", SLEEPS)
        assert mine.pid != other.pid
    finally:
        other.kill()
        other.wait()


@pytest.mark.parametrize("content", ["", "{", "[]", '{"pid": "x", "started": 1}', "{}"])
def test_a_broken_pid_file_names_nobody(directory: ProcessDirectory, content: str) -> None:
    directory.run.mkdir()
    (directory.run / "one.json").write_text(content)
    assert directory.find("one") is None
    assert directory.running() == {}


def test_a_dead_child_that_nobody_has_buried_is_dead(directory: ProcessDirectory) -> None:
    child = subprocess.Popen(SLEEPS, stdout=subprocess.DEVNULL)
    started = start_time(child.pid)
    assert started is not None
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert start_time(child.pid) is None
    child.wait()


def test_a_process_that_ignores_sigterm_is_killed_and_told(directory: ProcessDirectory) -> None:
    deaf = directory.start("deaf", IGNORES)
    wait_for_log(directory, "deaf", "deaf")
    assert stop([deaf], patience_s=0.2, kill=False) == [deaf]
    assert deaf.alive()
    assert stop([deaf], patience_s=0.2) == [deaf]
    assert not deaf.alive()


def test_what_a_wrapper_started_ends_with_it(directory: ProcessDirectory) -> None:
    wraps = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-S', '-c', 'import time; time.sleep(60)'])\n"
        "print('child', child.pid, flush=True)\n"
        "time.sleep(60)"
    )
    wrapper = directory.start("wrapper", [sys.executable, "-S", "-c", wraps])
    wait_for_log(directory, "wrapper", "child")
    child = int(directory.log_tail("wrapper").split()[1])
    assert start_time(child) is not None
    assert stop([wrapper]) == []
    orphan = Process("child", child, start_time(child) or "gone")
    assert wait_gone([orphan], 5) == []


def test_a_stopped_process_can_be_ended(directory: ProcessDirectory) -> None:
    process = directory.start("one", SLEEPS)
    process.signal(signal.SIGSTOP)
    assert stop([process], patience_s=10) == []


def test_a_failed_start_shows_the_log(directory: ProcessDirectory) -> None:
    process = directory.start("one", [sys.executable, "-S", "-c", "raise SystemExit('no such thing as x')"])
    with pytest.raises(StartFailed, match="ended while it was being started") as error:
        wait_ready(directory, process, lambda: False, patience_s=30)
    assert "no such thing as x" in str(error.value)


def test_a_start_that_takes_too_long_fails(directory: ProcessDirectory) -> None:
    process = directory.start("one", SLEEPS)
    with pytest.raises(StartFailed, match="not ready within 0 s"):
        wait_ready(directory, process, lambda: False, patience_s=0)


def test_starts_are_refused_once_everything_is_about_to_end(directory: ProcessDirectory) -> None:
    process = directory.start("one", SLEEPS)
    refuse_starts()
    with pytest.raises(StartFailed, match="ended while"):
        directory.start("two", SLEEPS)
    with pytest.raises(StartFailed, match="ended while"):
        wait_ready(directory, process, lambda: False, patience_s=30)


def test_the_logs_of_earlier_runs_are_kept_and_bounded(directory: ProcessDirectory) -> None:
    directory.logs.mkdir()
    directory.log("one").write_bytes(b"x" * (LOG_BYTES_MOST + 100) + b"the end")
    for _ in range(4):
        process = directory.start("one", SLEEPS)
        wait_for_log(directory, "one", "started")
        stop([process])
    logs = sorted(path.name for path in directory.logs.iterdir())
    assert logs == ["one.log", "one.log.1", "one.log.2"]
    directory.log("one").write_bytes(b"x" * (LOG_BYTES_MOST + 100) + b"the end")
    directory.start("one", SLEEPS)
    kept = directory.log("one").with_name("one.log.1").read_bytes()
    assert len(kept) == LOG_BYTES_MOST
    assert kept.endswith(b"the end")


def test_a_port_that_somebody_else_has_is_named(directory: ProcessDirectory) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(StartFailed, match=f"port {port} on 127.0.0.1"):
            refuse_taken("127.0.0.1", port, patience_s=0)
    refuse_taken("127.0.0.1", port, patience_s=0)


def test_two_starts_in_one_directory_do_not_mix(directory: ProcessDirectory) -> None:
    with directory.locked(), pytest.raises(Busy), ProcessDirectory(directory.run.parent).locked():
        pass
    with directory.locked():
        pass
