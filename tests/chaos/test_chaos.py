"""A short run of ``make chaos``, and that it leaves nothing behind however it ends."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.chaos.schedule import rounds, written

ROOT = Path(__file__).resolve().parents[2]
SEED, ROUNDS, SCALE = 11642, 9, 1 / 3
KINDS = {
    "kill a primary",
    "cut a region in two",
    "cut a link",
    "let a link only speak",
    "slow link",
    "fill a server's memory",
    "kill the broker",
    "pause the broker",
    "kill the leader",
    "pause the leader",
    "kill a node",
    "keep a node from a shard",
    "step a clock",
}
"""What the first rounds of the seed do, some three minutes long.  At night it is twenty minutes, of another seed
each time."""


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
    schedule = list(itertools.islice(rounds(SEED, SCALE), ROUNDS))
    assert {fault.kind for one in schedule for fault in one} == KINDS
    file = tmp_path / "schedule.json"
    file.write_text(written(schedule))
    done = subprocess.run(
        command(tmp_path / "chaos", "--schedule", str(file), "--seed", str(SEED), "--scale", str(SCALE)),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=1150,
        check=False,
    )
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    figures = dict(figure.split("=") for figure in done.stdout.splitlines()[-1].split()[1:])
    assert figures["violations"] == "0"
    struck = {fault["kind"] for _, _, fault in json.loads((tmp_path / "chaos" / "faults.json").read_text())}
    assert len(KINDS - struck) <= int(figures["not_now"]), KINDS - struck
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
