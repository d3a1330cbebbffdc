"""Every command, found by walking over all: its help, its example, what it prints, and the shell's completion."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from services.cli.main import COMMANDS, app

WITHOUT_JSON = {
    "local up": "shows the system until Ctrl-C",
    "local down": "ends what runs, and says so",
    "local cut": "does one thing, and says so",
    "local heal": "does one thing, and says so",
    "local slow": "does one thing, and says so",
    "local logs": "prints logs as they are",
    "region up": "starts what does not run; region status has --json",
    "hub install": "prints the units, or what it changed",
    "hub remove": "prints what it changed",
    "region drain": "does one thing, and says so",
    "region restart": "does one thing, and says so",
    "region down": "does one thing, and says so",
    "region install": "prints the units, or what it changed",
    "region remove": "prints what it changed",
    "dev": "serves until Ctrl-C",
    "config show": "prints JSON always",
}


def commands(name: str = "", group: Any = None) -> Iterator[tuple[str, Any]]:
    """Every command that a user may see, as ``rules apply``."""
    found = group.commands if group is not None else {word: lazy.load(word) for word, lazy in COMMANDS.items()}
    for word, command in found.items():
        path = f"{name} {word}".strip()
        if hasattr(command, "commands"):
            yield from commands(path, command)
        elif not command.hidden:
            yield path, command


ALL = dict(commands())


@pytest.mark.parametrize("name", [*COMMANDS, *(name for name in ALL if " " in name)])
def test_help_is_plain(name: str) -> None:
    result = CliRunner().invoke(app, [*name.split(), "--help"], prog_name="apportion")
    assert result.exit_code == 0
    assert result.stdout.startswith(f"Usage: apportion {name} ")
    assert "\u2500" not in result.stdout
    assert "completion" not in result.stdout


@pytest.mark.parametrize("name", ALL)
def test_every_option_and_argument_is_explained(name: str) -> None:
    command = ALL[name]
    assert command.help
    assert [one.name for one in command.params if one.name != "help" and not getattr(one, "help", None)] == []


@pytest.mark.parametrize("name", ALL)
def test_the_example_is_right(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command takes it: no option of it is unknown, missing or of the wrong kind."""
    command = ALL[name]
    said = f"{command.help}\n\n{command.epilog or ''}"
    found = re.search(rf"(?:Example:|\|)\s+apportion ({name}\b.*?)(?:\n\n|\Z)", said, re.DOTALL)
    assert found is not None, f"{name}: epilog='Example: apportion {name} ...'"
    words = shlex.split(re.split(r" >| {2,}\(| \|", found[1])[0])[len(name.split()) :]
    monkeypatch.chdir(tmp_path)
    for word in words:
        if re.fullmatch(r"[\w.-]+\.(toml|yaml|log|gz|csv|jsonl)", word):
            (tmp_path / word).write_text("")
    command.make_context(name, words)


@pytest.mark.parametrize("name", ALL)
def test_what_prints_data_can_print_json(name: str) -> None:
    options = {option for one in ALL[name].params for option in getattr(one, "opts", ())}
    assert ("--json" in options) != (name in WITHOUT_JSON)


@pytest.mark.parametrize("name", ALL)
def test_an_unknown_option_is_wrong_usage_without_a_traceback(name: str) -> None:
    result = CliRunner().invoke(app, [*name.split(), "--no-such-option"], prog_name="apportion")
    assert result.exit_code == 2
    assert "No such option" in result.stderr
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    ("typed", "offered"),
    [("apportion re", "rehearse"), ("apportion rules ", "validate"), ("apportion check --cl", "--client-key")],
)
def test_the_shell_completes_commands_and_options(typed: str, offered: str) -> None:
    words = typed.split(" ")
    environment = {
        **os.environ,
        "_APPORTION_COMPLETE": "complete_bash",
        "COMP_WORDS": typed,
        "COMP_CWORD": str(len(words) - 1),
    }
    script = "import sys; from services.cli.main import app; sys.argv = ['apportion']; app(prog_name='apportion')"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=30, check=False, env=environment
    )
    assert offered in done.stdout.split()
