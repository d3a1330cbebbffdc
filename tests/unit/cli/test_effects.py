"""What a change would do, as people read it."""

from __future__ import annotations

from typing import Any

import pytest

from regional_limiter.rules import parse_document
from regional_limiter.rules.effects import effects
from services.cli.effects import show_effect

BEFORE: dict[str, Any] = {"id": "orders", "match": {"tier": "free"}, "capacity": 20, "refill": "10/s"}


def shown(capsys: pytest.CaptureFixture[str], **changed: Any) -> list[str]:
    before, after = (parse_document({"rules": [rule]}) for rule in (BEFORE, {**BEFORE, **changed}))
    show_effect(effects(before, after))
    return capsys.readouterr().out.splitlines()


def test_numbers_of_the_machine_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(capsys, capacity=30) == [
        "~ orders: 30 at once, then 10/s",
        "    capacity: 20 -> 30",
        "    what was used stays used",
    ]


def test_values_are_told_as_they_would_be_written(capsys: pytest.CaptureFixture[str]) -> None:
    changed = shown(capsys, refill="30/min", match={"tier": ["free", "trial"]}, description="for free", stop=True)
    assert changed == [
        "~ orders: 20 at once, then 30/min",
        "    description: none -> for free",
        "    match: {tier: [free]} -> {tier: [free, trial]}",
        "    refill: 10/s -> 0.5/s",
        "    stop: false -> true",
        "    what was used stays used",
    ]
