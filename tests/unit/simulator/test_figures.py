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
    assert told.rstrip().endswith("sim-table: 2 of 2 figures reached")


def missed() -> Checked:
    return Checked([Figure(1, "a figure", ">= 0.9", "0.8", False, "<= 0.85")], 0, 0.0, [])


def over() -> Checked:
    return Checked([Figure(1, "a figure", ">= 0.9", "0.9", True)], 0, 2.0, ["V1 k: 10,001"])


@pytest.mark.parametrize("case", [missed, over])
def test_what_is_missed_is_told(
    case: object, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(figures, "CASES", (case,))
    assert figures.table("", jobs=1) == 1
    told = capsys.readouterr()
    assert told.out.rstrip().endswith("sim-table: 1 of 2 figures reached, 1 missed")
    assert "missed" in told.out.splitlines()[1 if case is over else 2]
    assert ("V1 k" in told.err) is (case is over)


@pytest.mark.parametrize(
    ("reached", "bound", "verdict"),
    [
        (0.985, None, ""),
        (0.985, 0.99, ""),
        (0.975, None, "missed"),
        (0.975, 0.99, "missed"),
        (0.955, 0.96, "out of reach"),
        (0.949, 0.96, "missed"),
    ],
)
def test_a_target_beyond_what_is_left_at_best_is_out_of_reach_but_what_is_left_is_not(
    reached: float, bound: float | None, verdict: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    figure = figures._at_least(1, "a figure", 0.98, reached, bound)
    assert figure.verdict == verdict
    monkeypatch.setattr(figures, "CASES", (lambda: Checked([figure], 0, 0.0, []),))
    monkeypatch.setattr(figures.CASES[0], "__name__", "a_case")
    assert figures.table("", jobs=1) == (verdict == "missed")


def test_no_such_case_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert figures.table("mars", jobs=1) == 2
    assert "flash_crowd" in capsys.readouterr().err
