"""No test of a public report is lost when tests are renamed or moved."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

from tests.regressions.reports import REPORTS

ROOT = Path(__file__).parents[2]


@cache
def names_in(file: str) -> frozenset[str]:
    tree = ast.parse((ROOT / file).read_text("utf-8"))
    return frozenset(
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    )


@pytest.mark.parametrize("report", REPORTS)
def test_each_report_has_its_tests(report: str) -> None:
    assert REPORTS[report]
    for file, test in REPORTS[report]:
        assert test in names_in(file), f"{report}: {file} has no {test}"


def test_every_test_here_belongs_to_a_report() -> None:
    listed = {test for tests in REPORTS.values() for _, test in tests}
    files = [path for path in Path(__file__).parent.glob("test_*.py") if path.name != Path(__file__).name]
    for path in files:
        assert names_in(str(path.relative_to(ROOT))) <= listed, path.name
