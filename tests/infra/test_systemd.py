"""The systemd units: systemd's own tools judge them, and what they would start is started by hand."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

import pytest

from infra.deploy_tools import systemd_analyze
from infra.install import redis_server
from infra.processes import StartFailed
from infra.region.region import Region, answers_within
from infra.region.systemd import SystemdRegion
from infra.region.units import UNITS, unit_names

BASE_PORT = 12880
EXPOSURE_MOST = 15
"""Of systemd's own measure: 0 can do nothing, 100 is a service that nobody has hardened."""


@pytest.fixture
def region(tmp_path: Path) -> Region:
    (tmp_path / "secret").write_text("0123456789abcdef")
    file = tmp_path / "region.toml"
    file.write_text(f"""
name = "us-east"
state_dir = "{tmp_path}/state"
key_secret_file = "{tmp_path}/secret"
[redis]
username = "apportion"
password = "of the nodes"
[redis.own]
base_port = {BASE_PORT}
admin_password = "of the cluster"
[kafka]
bootstrap = "127.0.0.1:{BASE_PORT + 39}"
[check_api]
ports = [{BASE_PORT + 30}, {BASE_PORT + 31}]
[sync]
port = {BASE_PORT + 32}
""")
    return Region(file)


@pytest.fixture
def root(region: Region, tmp_path: Path) -> Path:
    """A root in which the units are installed."""
    SystemdRegion(region, tmp_path / "root").install()
    return tmp_path / "root"


def test_a_second_installation_changes_nothing(region: Region, root: Path) -> None:
    units = SystemdRegion(region, root)
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*") if path.is_file()}
    assert set(units.plan().values()) == {"same"}
    units.install()
    assert {path: path.stat().st_mtime_ns for path in root.rglob("*") if path.is_file()} == before


def test_a_change_of_the_file_is_told_before_it_is_made(region: Region, root: Path) -> None:
    text = region.config.read_text()
    region.config.write_text(text.replace("[check_api]", "[check_api]\ndrain_ms = 9000"))
    changed = SystemdRegion(Region(region.config), root)
    assert [str(path) for path, change in changed.plan().items() if change != "same"] == [
        "/etc/systemd/system/apportion-node@.service"
    ]
    changed.install()
    assert "TimeoutStopSec=29\n" in (root / "etc/systemd/system/apportion-node@.service").read_text()


def test_what_is_removed_leaves_nothing_behind(region: Region, root: Path) -> None:
    units = SystemdRegion(region, root)
    assert units.is_here
    assert len(units.remove()) == 6
    assert [path for path in root.rglob("*") if path.is_file()] == []
    assert not units.is_here


def test_a_region_without_a_key_secret_is_not_installed(region: Region, tmp_path: Path) -> None:
    (tmp_path / "secret").unlink()
    with pytest.raises(Exception, match="key_secret_file: cannot read"):
        SystemdRegion(region, tmp_path / "root").install()
    assert not (tmp_path / "root").exists()


def test_systemd_finds_no_fault_with_the_units(root: Path) -> None:
    directory = root / str(UNITS).lstrip("/")
    units = [str(directory / name) for name in ("apportion.target", *_instances(directory))]
    done = subprocess.run(
        [str(systemd_analyze()), "verify", "--man=no", *units],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
        env=os.environ | {"SYSTEMD_UNIT_PATH": f"{directory}:/lib/systemd/system"},
    )
    ours = [line for line in done.stderr.splitlines() if "apportion" in line]
    assert (done.returncode, ours) == (0, [])


def _instances(directory: Path) -> list[str]:
    """The units by names as systemd starts them: a template with an instance."""
    return sorted(path.name.replace("@.", f"@{BASE_PORT}.") for path in directory.glob("*.service"))


@pytest.mark.parametrize("unit", ["apportion-node@.service", "apportion-sync.service", "apportion-redis@.service"])
def test_a_service_may_hardly_anything(root: Path, unit: str) -> None:
    file = root / str(UNITS).lstrip("/") / unit
    command = [str(systemd_analyze()), "security", "--offline=true", f"--threshold={EXPOSURE_MOST}", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 0, done.stdout[-500:] + done.stderr


def test_a_refused_system_call_is_an_error_and_not_the_end(root: Path) -> None:
    for unit in (root / str(UNITS).lstrip("/")).glob("*.service"):
        text = unit.read_text()
        assert "\nSystemCallFilter=" in text, unit.name
        assert "\nSystemCallErrorNumber=EPERM\n" in text, unit.name


def test_every_unit_that_the_target_wants_is_there(region: Region, root: Path) -> None:
    directory = root / str(UNITS).lstrip("/")
    wanted = re.findall(r"^Wants=(.+)$", (directory / "apportion.target").read_text(), re.MULTILINE)
    assert wanted == unit_names(region.settings)
    for name in wanted:
        assert (directory / re.sub(r"@\d+\.", "@.", name)).exists()


def test_the_units_start_a_region_that_answers(region: Region, root: Path, tmp_path: Path) -> None:
    """What the units would start is started by hand, in their order and with their commands."""
    directory = root / str(UNITS).lstrip("/")
    started: list[subprocess.Popen[bytes]] = []
    log = (tmp_path / "log").open("wb")
    try:
        for name in unit_names(region.settings):
            instance = re.search(r"@(\d+)\.", name)
            text = (directory / re.sub(r"@\d+\.", "@.", name)).read_text()
            for field, command in re.findall(r"^(ExecStartPre|ExecStart)=(.+)$", text, re.MULTILINE):
                words = command.replace("%i", instance.group(1) if instance else "").split()
                if field == "ExecStartPre" or "Type=oneshot" in text:
                    subprocess.run(words, check=True, timeout=60, stdout=log, stderr=log)
                else:
                    started.append(subprocess.Popen(words, stdout=log, stderr=log))
        for name in ("node-1", "node-2", "sync"):
            assert answers_within(f"{region.url_of(name)}/livez", 20), (tmp_path / "log").read_text()[-3000:]
        told = region.status()
        assert told["sync"]["pid"] is None
    finally:
        for process in reversed(started):
            process.send_signal(signal.SIGTERM)
        left = [process.wait(20) for process in reversed(started)]
        log.close()
    assert set(left) == {0}


class Systemctl:
    """Notes what it is called with; the ``fails`` refuse."""

    def __init__(self, *fails: str) -> None:
        self.calls: list[str] = []
        self._fails = fails

    def __call__(self, command: Sequence[str]) -> None:
        self.calls.append(" ".join(command))
        if any(word in command for word in self._fails):
            raise StartFailed(f"{command[-1]} refuses")


def test_nodes_are_drained_one_after_another(region: Region, tmp_path: Path) -> None:
    systemctl = Systemctl()
    SystemdRegion(region, tmp_path / "root", systemctl).drain()
    assert systemctl.calls == [f"systemctl stop apportion-node@{number}.service" for number in (1, 2)]


def test_a_restart_goes_no_further_than_the_first_that_does_not_come_back(region: Region, tmp_path: Path) -> None:
    systemctl = Systemctl("apportion-node@1.service")
    with pytest.raises(StartFailed, match=r"apportion-node@1\.service refuses"):
        SystemdRegion(region, tmp_path / "root", systemctl).restart()
    assert systemctl.calls == ["systemctl restart apportion-node@1.service"]


def test_redis_is_stopped_after_everything_that_stands_on_it(region: Region, tmp_path: Path) -> None:
    systemctl = Systemctl()
    SystemdRegion(region, tmp_path / "root", systemctl).down()
    stopped = [call.removeprefix("systemctl stop ") for call in systemctl.calls]
    assert stopped[:3] == ["apportion-node@2.service", "apportion-node@1.service", "apportion-sync.service"]
    assert all("redis" in name for name in stopped[3:])
    assert len(stopped) == 10


def test_the_programs_that_units_name_are_those_of_this_installation(root: Path) -> None:
    text = (root / "etc/systemd/system/apportion-redis@.service").read_text()
    assert f"ExecStart={redis_server()} " in text
    assert f"ExecStartPre={sys.executable} " in text
    assert PurePosixPath(sys.executable).is_absolute()
