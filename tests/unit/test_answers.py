"""The soak's log finds what was counted too often, or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.cli.drive import CheckRecord
from tests.e2e.answers import Answers, Kill


def record(at: float, *, allowed: bool = True, degraded: bool = False, error: str | None = None) -> CheckRecord:
    return CheckRecord(at, at, at + 0.01, 0, 0 if error else 200, allowed, degraded, "ok", error, 2)


def log(path: Path) -> Answers:
    answers = Answers(path / "answers.jsonl")
    checks = [record(n) for n in range(10)] + [
        record(10, allowed=False),
        record(11, allowed=False, error="timeout"),
    ]
    answers.take("us", "r", "k", ["http://node"], checks)
    return answers


def usage(allowed: int, denied: int) -> dict[str, object]:
    counted = {"allowed": allowed, "denied": denied, "allowed_cost": 2 * allowed, "denied_cost": 2 * denied}
    return {"default/r": {"regions": {"us": counted}}}


@pytest.mark.parametrize(
    ("allowed", "denied", "wrong"), [(10, 1, 0), (11, 1, 0), (12, 1, 2), (9, 1, 2), (10, 0, 2)]
)
def test_counts_must_be_those_of_the_log_but_for_answers_that_nobody_got(
    tmp_path: Path, allowed: int, denied: int, wrong: int
) -> None:
    assert len(log(tmp_path).usage_problems(usage(allowed, denied))) == wrong


def test_what_a_killed_node_had_not_told_is_allowed_for(tmp_path: Path) -> None:
    answers = log(tmp_path)
    answers.kills.append(Kill("us", 9.5, "http://node"))  # after the tenth answer
    assert answers.usage_problems(usage(9, 1)) == []
    assert len(answers.usage_problems(usage(8, 1))) == 2
    answers.kills[:] = [Kill("us", 9.5, "http://another")]
    assert len(answers.usage_problems(usage(9, 1))) == 2


def test_a_bucket_must_have_been_charged_what_was_allowed(tmp_path: Path) -> None:
    answers = log(tmp_path)
    used = [used for used in range(15, 30) if not answers.charge_problems("us", "r", "k", used)]
    assert used == [20, 21, 22]
    answers.kills.append(Kill("us", 9.1))
    assert not answers.charge_problems("us", "r", "k", 18)
    answers.take("us", "r", "k", ["http://node"], [record(20, degraded=True)])
    assert not answers.charge_problems("us", "r", "k", 18)
    assert len(answers.path.read_text().splitlines()) == 13
