"""Leader and agent compiled do what they do as Python: the same tests, and the same worlds from the same seeds."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from infra.compiled import build
from infra.install import ROOT

SEEDS = ("-m", "tests.simulation", "seeds", "--shares", "0-3", "--system", "none")
STORY = ("-m", "tests.simulation", "replay", "shares", "7")
TESTS = ("protocol", "test_demand.py", "test_fair_share.py", "test_window_demand.py", "test_share_bound.py")


@pytest.mark.timeout(900)
def test_what_is_compiled_does_the_same(tmp_path: Path) -> None:
    python = str(build(tmp_path / "compiled"))
    alone = tmp_path / "without the source tree"
    shutil.copytree(ROOT / "tests", alone / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "docs", alone / "docs")
    shutil.copy(ROOT / "pyproject.toml", alone)
    where = "import global_sync.protocol.leader as it; print(it.__file__)"
    assert _run([python, "-c", where], alone).strip().endswith(".so")
    assert "compiled" in _run([python, "-m", "services.cli.main", "--version"], alone)
    units = [f"tests/unit/{name}" for name in TESTS]
    assert " passed" in _run([python, "-m", "pytest", "-p", "no:cacheprovider", "--timeout", "600", *units], alone)
    assert " 0 bad; 1" in _run([python, *SEEDS], alone)  # of the seeds, and every directed schedule
    told = _run([python, *STORY], alone)
    assert told == _run([sys.executable, *STORY], ROOT)
    assert len(told.splitlines()) > 100


def test_the_compiler_is_the_one_whose_types_are_checked() -> None:
    lock = tomllib.loads((ROOT / "uv.lock").read_text())
    (version,) = [package["version"] for package in lock["package"] if package["name"] == "mypy"]
    assert f'"mypy=={version}"' in (ROOT / "hatch_build.py").read_text()


def _run(command: list[str], directory: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=600, check=False, cwd=directory, env=environment
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    return done.stdout
