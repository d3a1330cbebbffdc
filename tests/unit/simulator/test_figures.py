"""The table of figures: what is missed is marked, counted and told by the exit code."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import structlog

from services.simulator import figures
from services.simulator.figures import Checked, Figure


@pytest.fixture(autouse=True)
def _logs_as_before() -> Iterator[None]:
    before = structlog.get_config()
    yield
    structlog.configure(**before)


def test_a_key_that_keeps_half_of_its_base_costs_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert figures.table("quiet", jobs=1) == 0
    told = capsys.readouterr().out
    assert "0 units, 0 tokens" in told
    assert told.rstrip().endswith("sim-table: all 2 figures reached")


def missed() -> Checked:
    return Checked([Figure(1, "a figure", ">= 0.9", "0.8", False, "<= 0.85")], 0, 0.0, [])


def over() -> Checked:
    return Checked([Figure(1, "a figure", ">= 0.9", "0.9", True)], 0, 2.0, ["V1 k: 10,001"])


@pytest.mark.parametrize(("case", "words"), [(missed, "1 of 2 figures missed"), (over, "1 of 2 figures missed")])
def test_what_is_missed_is_told(
    case: object, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(figures, "CASES", (case,))
    assert figures.table("", jobs=1) == 1
    told = capsys.readouterr()
    assert told.out.rstrip().endswith(f"sim-table: {words}")
    assert "missed" in told.out.splitlines()[1 if case is over else 2]
    assert ("V1 k" in told.err) is (case is over)


def test_no_such_case_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert figures.table("mars", jobs=1) == 2
    assert "flash_crowd" in capsys.readouterr().err
