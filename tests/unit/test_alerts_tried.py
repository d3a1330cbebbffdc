"""No alert is forgotten where they are tried, nor where the runbook says what came of it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from infra.monitoring.alerts import ALERTS

ROOT = Path(__file__).parents[2]
NAMES = sorted(alert.name for alert in ALERTS)
TRIALS = ast.parse((ROOT / "tests" / "e2e" / "long_alerts.py").read_text())


def said_in(tree: ast.AST) -> set[str]:
    """The texts in it that are whole."""
    return {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}


def not_tried() -> set[str]:
    (given,) = [
        node.value
        for node in TRIALS.body
        if isinstance(node, ast.Assign) and [getattr(one, "id", "") for one in node.targets] == ["NOT_TRIED"]
    ]
    return set(ast.literal_eval(given))


def test_every_alert_is_tried_or_it_is_said_why_it_is_not() -> None:
    tests = [node for node in TRIALS.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]
    tried = set.union(*map(said_in, tests)) & set(NAMES)
    assert sorted([*tried, *not_tried()]) == NAMES


def test_the_runbook_says_once_of_each_alert_whether_it_was_seen() -> None:
    page = (ROOT / "docs" / "runbook.md").read_text()
    told = page.partition("**Tried.**")[2].partition("\n\n")[0]
    assert sorted(word for word in re.findall(r"\w+", told) if word in NAMES) == NAMES
    of_those_not_tried = told.partition("Cannot be tried:")[2]
    assert {word for word in re.findall(r"\w+", of_those_not_tried) if word in NAMES} == not_tried()
