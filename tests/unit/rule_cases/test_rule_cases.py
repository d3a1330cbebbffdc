"""Cases beside rules: what they can expect, and what is said when it is not so."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from regional_limiter.model.errors import InvalidRules
from regional_limiter.rules import parse
from services.cli.main import app
from services.rule_cases.cases import read_cases
from services.rule_cases.trial import try_case

RULES = """
regions: [a, b]
rules:
  - {id: orders, match: {resource: "POST /orders"}, algorithm: fixed_window, limit: 10, window: 60s, scope: global,
     distribution: static}
  - {id: burst, capacity: 20, refill: 10/s}
  - {id: watched, mode: shadow, capacity: 3, refill: 1/s}
  - {id: marked, mode: soft, match: {resource: soft}, capacity: 1, refill: 1/s}
  - {id: a-month, match: {resource: monthly}, algorithm: fixed_window, limit: 1, window: {calendar: month}}
  - {id: slots, match: {resource: job}, algorithm: concurrency, limit: 2, lease: 30s}
overrides:
  - {rule: burst, key: {client_key: evil}, block: true}
"""
ORDER = '{client_key: acme, resource: "POST /orders"}'


def problems(case: str) -> list[str]:
    [read] = read_cases(f"cases:\n  - {case}").cases
    return [problem for _, problem in try_case(read, parse(RULES)).problems]


@pytest.mark.parametrize(
    "case",
    [
        f"{{with: {ORDER}, checks: [{{times: 10, every: 5s, allowed: true}}, {{at: 59s, denied_by: orders}}]}}",
        f"{{with: {ORDER}, checks: [{{times: 12, allowed: 10}}, {{at: 60s, allowed: true, remaining: 9}}]}}",
        f"{{with: {ORDER}, checks: [{{times: 11, denied_by: orders, retry_after_ms: 60000, reason: limited}}]}}",
        "{with: {client_key: evil}, checks: [{reason: blocked, denied_by: burst}]}",
        "{with: {client_key: a}, checks: [{cost: 21, reason: exceeds_capacity, rule: burst}]}",
        "{with: {client_key: a}, checks: [{times: 4, allowed: true, shadow_denied_by: watched}]}",
        "{with: {client_key: a, resource: soft}, checks: [{times: 2, allowed: 2, reason: soft_limited}]}",
        "{start: 2026-01-31T23:59:59Z, with: {client_key: a, resource: monthly},"
        " checks: [{times: 2, allowed: 1}, {at: 1s, allowed: true}]}",
        "{with: {client_key: a, resource: job}, checks: [{times: 3, allowed: 2}, {at: 31s, allowed: true}]}",
        "{checks: [{with: {client_key: a}, times: 20, allowed: 20}, {with: {client_key: b}, remaining: 19}]}",
        "{with: {client_key: a}, cost: 5, checks: [{times: 5, allowed: 4}, {at: 100ms, cost: 1, allowed: true}]}",
    ],
)  # fmt: skip
def test_a_case_that_holds(case: str) -> None:
    assert problems(case) == []


@pytest.mark.parametrize(
    ("case", "problem"),
    [
        (f"{{with: {ORDER}, checks: [{{times: 11, allowed: true}}]}}",
         "11 of 11 should be allowed, but 10 are, the first denied is number 11, by orders"),
        (f"{{with: {ORDER}, checks: [{{denied_by: orders}}]}}", "should be denied by orders, but is allowed"),
        (f"{{with: {ORDER}, checks: [{{times: 11, denied_by: burst}}]}}",
         "should be denied by burst, but is denied by orders"),
        ("{with: {client_key: a}, checks: [{shadow_denied_by: watched}]}",
         "watched should deny in its shadow, but none does"),
        ("{with: {client_key: a}, checks: [{remaining: 5}]}", "remaining should be 5, but is 19"),
    ],
)  # fmt: skip
def test_a_case_that_fails_says_what_was_told(case: str, problem: str) -> None:
    assert problems(case) == [problem]


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("cases: {}", "cases"),
        ("rules: a.yaml", "cases"),
        ("cases: [{checks: [{}]}]", "cases[0].checks[0]"),
        ("cases: [{checks: [{times: 2}]}]", "cases[0].checks[0]"),
        ("cases: [{checks: [{times: 0, allowed: true}]}]", "cases[0].checks[0].times"),
        ("cases: [{checks: [{times: 2, allowed: 3}]}]", "cases[0].checks[0].allowed"),
        ("cases: [{checks: [{alowed: true, allowed: true}]}]", "cases[0].checks[0].alowed"),
        ("cases: [{checks: [{reason: tired}]}]", "cases[0].checks[0].reason"),
        ("cases: [{checks: [{at: soon, allowed: true}]}]", "cases[0].checks[0].at"),
        ("cases: [{start: 2026-01-01, checks: []}]", "cases[0].start"),
        ("cases: [{with: {client_key: 5}, checks: []}]", "cases[0].with.client_key"),
    ],
)
def test_a_faulty_case_is_named_by_its_place(text: str, place: str) -> None:
    with pytest.raises(InvalidRules) as raised:
        read_cases(text)
    assert [fault.place for fault in raised.value.faults if fault.place == place]


def run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["rules", "test", *arguments], prog_name="apportion")
    return result.exit_code, result.stdout, result.stderr


def test_the_example_of_the_docs_holds(tmp_path: Path) -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "rule-cases.md").read_text()
    found = re.search(r"```yaml\n(.*?)```", page, re.DOTALL)
    assert found is not None
    (tmp_path / "rules.yaml").write_text(RULES)
    (tmp_path / "rules.test.yaml").write_text(found[1])
    for name in ("rules.yaml", "rules.test.yaml"):
        code, stdout, stderr = run(str(tmp_path / name))
        assert (code, stderr) == (0, "2 of 2 cases hold\n")
        assert "holds: the eleventh order in a minute" in stdout


def test_a_failing_case_is_exit_code_1_and_json_says_which(tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(RULES)
    (tmp_path / "rules.test.yaml").write_text("cases: [{name: x, checks: [{allowed: false}]}]")
    code, stdout, _ = run(str(tmp_path / "rules.yaml"), "--json")
    assert code == 1
    assert json.loads(stdout)["cases"][0] == {
        "name": "x",
        "holds": False,
        "problems": [["cases[0].checks[0]", "0 of 1 should be allowed, but 1 are"]],
    }


def test_where_cases_are_looked_for_is_said(tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(RULES)
    code, _, stderr = run(str(tmp_path / "rules.yaml"))
    assert code == 2
    assert "rules.test.yaml" in stderr
