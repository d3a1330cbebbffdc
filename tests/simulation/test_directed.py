"""The directed schedules, and for each rule one schedule at least that notices when it is broken."""

from __future__ import annotations

import pytest

from .cast import Cast
from .mutants import MUTANTS
from .schedules import SCHEDULES

KILLED_BY = {
    "echo_unsettled": (4,),
    "con_from_rx": (9,),
    "con_no_drift": (10,),
}


@pytest.mark.parametrize("number", sorted(SCHEDULES), ids=lambda n: f"{n:02d}-{SCHEDULES[n].__name__}")
def test_schedule(number: int) -> None:
    assert SCHEDULES[number](Cast()) == []


@pytest.mark.parametrize("mutant", sorted(KILLED_BY))
def test_a_broken_rule_is_noticed(mutant: str) -> None:
    assert [number for number in KILLED_BY[mutant] if not SCHEDULES[number](MUTANTS[mutant])] == []
