"""A short run of ``make chaos``, and that it leaves nothing behind however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SECONDS, SEED = 180, 11642
"""A seed that does much: its first nine rounds have thirteen kinds of faults, of brokers, leaders, links,
primaries, nodes, clocks and disks.  At night it is twenty minutes, of another seed each time."""


def command(directory: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "tests.chaos", "--directory", str(directory), *more]


def processes_of(directory: Path) -> list[int]:
    """Those that name the directory in their command."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if str(directory).encode() in (place / "cmdline").read_bytes():
                found.append(int(place.name))
        except OSError:
            continue
    return found


@pytest.mark.timeout(1200)
def test_the_bound_holds_and_everything_is_answered_while_it_is_broken(tmp_path: Path) -> None:
    done = subprocess.run(
        command(tmp_path / "chaos", "--seconds", str(SECONDS), "--seed", str(SEED)),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=1150,
        check=False,
    )
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "violations=0" in done.stdout.splitlines()[-1]
    assert processes_of(tmp_path) == []


@pytest.mark.timeout(120)
def test_a_killed_run_leaves_no_process_and_no_mount(tmp_path: Path) -> None:
    directory = tmp_path / "chaos"
    run = subprocess.Popen(command(directory), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        _until(lambda: len(processes_of(directory)) > 10 or run.poll() is not None)
        assert run.poll() is None, run.communicate()
    finally:
        os.kill(run.pid, signal.SIGKILL)
        run.communicate()
    _until(lambda: processes_of(directory) == [])
    assert str(directory) not in Path("/proc/mounts").read_text()


def _until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not true():
        assert time.monotonic() < end
        time.sleep(0.05)
