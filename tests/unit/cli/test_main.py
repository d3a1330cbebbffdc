"""The command line: quick, faults by place, exit codes that scripts can trust."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from services.cli.main import COMMANDS, app

GOOD = """
domain: shop
regions: {us-east: 1, eu-west: 1}
rules:
  - {id: orders, match: {resource: "POST /orders"}, capacity: 20, refill: 10/s, scope: global}
"""
BAD = """
domain: shop
rules:
  - {id: orders, match: {}, capacity: -1, refil: 10/s}
  - {id: orders, match: {}, capacity: 5, refill: 1/s}
"""


def run(*arguments: str, stdin: str | None = None) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, list(arguments), input=stdin, prog_name="apportion")
    return result.exit_code, result.stdout, result.stderr


def test_help_imports_no_command_and_nothing_heavy() -> None:
    script = (
        "import sys\n"
        "from services.cli.main import main\n"
        "sys.argv = ['apportion', '--help']\n"
        "try: main()\n"
        "except SystemExit as end: assert end.code == 0\n"
        "heavy = {'httpx', 'fastapi', 'uvicorn', 'aiokafka', 'redis', 'yaml', 'pydantic', 'services.cli.rules'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr
    assert all(name in done.stdout for name in COMMANDS)


def test_an_unknown_command_is_wrong_usage_and_names_the_nearest() -> None:
    code, _, stderr = run("rulse")
    assert code == 2
    assert "rules" in stderr


def test_validate_needs_no_service(tmp_path: Path) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text(GOOD)
    code, stdout, _ = run("rules", "validate", str(file))
    assert code == 0
    assert "valid, domain shop, 1 rules" in stdout


def test_validate_names_every_fault_by_its_place(tmp_path: Path) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text(BAD)
    code, stdout, stderr = run("rules", "validate", str(file))
    assert code == 1
    assert stdout == ""
    for place in ("rules[0].capacity", "rules[0].refil", "rules[1].id"):
        assert place in stderr


def test_validate_reads_stdin_and_speaks_json() -> None:
    code, stdout, _ = run("rules", "validate", "-", "--json", stdin=GOOD)
    assert code == 0
    assert json.loads(stdout)["rules"][0]["refill"]["per_second"] == 10.0
    code, stdout, _ = run("rules", "validate", "-", "--json", stdin=BAD)
    assert code == 1
    assert json.loads(stdout)["valid"] is False


def test_a_missing_file_is_wrong_usage_without_a_traceback() -> None:
    code, _, stderr = run("rules", "validate", "/nowhere/rules.yaml")
    assert code == 2
    assert "No such file" in stderr


def test_apply_of_a_bad_file_asks_nobody(tmp_path: Path) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text(BAD)
    code, _, stderr = run("rules", "apply", str(file), "--control", "http://127.0.0.1:1")
    assert code == 1
    assert "rules[0].capacity" in stderr


def test_no_answer_is_told_from_a_refusal(tmp_path: Path) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text(GOOD)
    code, _, stderr = run("rules", "apply", str(file), "--control", "http://127.0.0.1:1")
    assert code == 2
    assert "does not answer" in stderr


def test_without_any_address_the_ways_to_give_one_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("APPORTION_CONTROL_URL", raising=False)
    monkeypatch.chdir(tmp_path)
    code, _, stderr = run("rules", "list")
    assert code == 2
    assert "APPORTION_CONTROL_URL" in stderr


HUB = """
[kafka]
bootstrap = "127.0.0.1:9201"
[control_api]
port = 25090
state_dir = "/var/lib/apportion"
token = "a-token-of-enough-length"
[dashboard]
port = 25091
[regions.us-east]
nodes = ["http://127.0.0.1:8101"]
"""


def test_config_show_never_shows_a_secret(tmp_path: Path) -> None:
    file = tmp_path / "hub.toml"
    file.write_text(HUB)
    code, stdout, _ = run("config", "show", str(file))
    assert code == 0
    assert json.loads(stdout)["control_api"]["port"] == 25090
    assert "enough-length" not in stdout


def test_config_check_names_every_fault_by_its_field(tmp_path: Path) -> None:
    file = tmp_path / "hub.toml"
    file.write_text(HUB.replace("port = 25090", 'prot = 25090\nhost = "0.0.0.0"').replace("token =", "tokn ="))
    code, _, stderr = run("config", "check", str(file))
    assert code == 1
    for field in ("control_api.port", "control_api.prot", "control_api.tokn"):
        assert field in stderr
