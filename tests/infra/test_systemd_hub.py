"""The units of the hub's own services: systemd's tools judge them, and what they would start is started by hand."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from infra.deploy_tools import systemd_analyze
from infra.hub.systemd import SystemdHub
from infra.hub.units import SERVICES, TARGET
from infra.region.region import answers_within
from infra.region.units import UNITS
from tests.infra.test_systemd import EXPOSURE_MOST

CONTROL, DASHBOARD, NO_KAFKA = 12920, 12921, 12922


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "hub.toml"
    file.write_text(f"""
[kafka]
bootstrap = "127.0.0.1:{NO_KAFKA}"
[control_api]
port = {CONTROL}
state_dir = "{tmp_path}/control"
[dashboard]
port = {DASHBOARD}
history = "{tmp_path}/dashboard/history.db"
[regions.us-east]
""")
    (tmp_path / "dashboard").mkdir()
    return file


@pytest.fixture
def root(config: Path, tmp_path: Path) -> Path:
    """A root in which the units are installed."""
    SystemdHub(config, tmp_path / "root").install()
    return tmp_path / "root"


def units(root: Path) -> Path:
    return root / str(UNITS).lstrip("/")


def test_a_second_installation_changes_nothing_and_removing_leaves_nothing(config: Path, root: Path) -> None:
    hub = SystemdHub(config, root)
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*") if path.is_file()}
    assert set(hub.plan().values()) == {"same"}
    hub.install()
    assert {path: path.stat().st_mtime_ns for path in root.rglob("*") if path.is_file()} == before
    assert len(hub.remove()) == len(before) == 4
    assert [path for path in root.rglob("*") if path.is_file()] == []


def test_systemd_finds_no_fault_and_lets_them_hardly_anything(root: Path) -> None:
    files = [str(units(root) / name) for name in (TARGET, *SERVICES)]
    search = {"SYSTEMD_UNIT_PATH": f"{units(root)}:/lib/systemd/system"}
    verified = judged("verify", "--man=no", *files, more=search)
    ours = [line for line in verified.stderr.splitlines() if "apportion" in line]
    assert (verified.returncode, ours) == (0, [])
    for name in SERVICES:
        exposure = judged("security", "--offline=true", f"--threshold={EXPOSURE_MOST}", str(units(root) / name))
        assert exposure.returncode == 0, exposure.stdout[-500:] + exposure.stderr


def judged(*words: str, more: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    command = [str(systemd_analyze()), *words]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=50, check=False, env=os.environ | (more or {})
    )


def test_they_may_write_where_they_keep_something_and_nowhere_else(root: Path, tmp_path: Path) -> None:
    for name in SERVICES:
        written = re.findall(r"^ReadWritePaths=(.+)$", (units(root) / name).read_text(), re.MULTILINE)
        assert written == [f"{tmp_path}/control {tmp_path}/dashboard"]


def test_the_units_start_services_that_answer_without_kafka(root: Path, tmp_path: Path) -> None:
    started: list[subprocess.Popen[bytes]] = []
    try:
        for name in SERVICES:
            command = re.search(r"^ExecStart=(.+)$", (units(root) / name).read_text(), re.MULTILINE)
            assert command is not None
            with (tmp_path / f"{name}.log").open("wb") as log:
                started.append(subprocess.Popen(command[1].split(), stdout=log, stderr=log))
        for name, port in zip(SERVICES, (CONTROL, DASHBOARD), strict=True):
            said = tmp_path / f"{name}.log"
            assert answers_within(f"http://127.0.0.1:{port}/livez", 30), said.read_text()[-3000:]
    finally:
        for process in reversed(started):
            process.send_signal(signal.SIGTERM)
        left = [process.wait(20) for process in reversed(started)]
    assert left == [0, 0]


class Systemctl:
    def __init__(self) -> None:
        self.calls: list[str] = []

    def __call__(self, command: Sequence[str]) -> None:
        self.calls.append(" ".join(command))


def test_what_is_not_installed_is_not_stopped(config: Path, tmp_path: Path) -> None:
    systemctl = Systemctl()
    assert SystemdHub(config, tmp_path / "nothing", systemctl).remove() == []
    assert systemctl.calls == []
