"""Every command's help looks the same, and the shell's completion is offered once."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from services.cli.main import COMMANDS, app


@pytest.mark.parametrize("name", [*COMMANDS, "local up", "region up", "rules apply"])
def test_help_is_plain(name: str) -> None:
    result = CliRunner().invoke(app, [*name.split(), "--help"], prog_name="apportion")
    assert result.exit_code == 0
    assert result.stdout.startswith(f"Usage: apportion {name} ")
    assert "\u2500" not in result.stdout
    assert "completion" not in result.stdout
