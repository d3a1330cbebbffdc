"""The directed schedules, and for each rule one schedule at least that notices when it is broken."""

from __future__ import annotations

import pytest

from .cast import Cast
from .kills import KILLED_BY, kill
from .mutants import MUTANTS
from .schedules import SCHEDULES


@pytest.mark.parametrize("number", sorted(SCHEDULES), ids=lambda n: f"{n:02d}-{SCHEDULES[n].__name__}")
def test_schedule(number: int) -> None:
    assert SCHEDULES[number](Cast()) == []


@pytest.mark.parametrize("mutant", sorted(KILLED_BY))
def test_a_broken_rule_is_noticed(mutant: str) -> None:
    assert kill(mutant).killed


def test_every_broken_rule_has_a_schedule() -> None:
    assert KILLED_BY.keys() == MUTANTS.keys()
