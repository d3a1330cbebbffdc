"""The command as a user has it: a table, JSON, a page that fetches nothing, and errors that say what to do."""

from __future__ import annotations

import gzip
import json
import os
import re
import shlex
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from services.cli.main import app

RULES = """
rules:
  - {id: orders, match: {resource: "POST /orders"}, algorithm: fixed_window, limit: 5, window: 60s}
  - {id: site, key: [], algorithm: fixed_window, limit: 25, window: 60s, scope: region}
"""
CURRENT = RULES.replace("limit: 5", "limit: 8")


def line(second: int, who: str, request: str = "POST /orders") -> str:
    return f'{who} - - [10/Oct/2000:13:55:{second:02d} +0000] "{request} HTTP/1.1" 200 5 "-" "-"\n'


LOG = "".join([*(line(n, "192.0.2.1") for n in range(20)), *(line(n, "192.0.2.2") for n in range(6)), "<b>&\n"])


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rules.yaml").write_text(RULES)
    (tmp_path / "current.yaml").write_text(CURRENT)
    (tmp_path / "access.log").write_text(LOG)
    return tmp_path


def run(*arguments: str, stdin: bytes | None = None) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["rehearse", *arguments], input=stdin, prog_name="apportion")
    return result.exit_code, result.stdout, result.stderr


def found(*arguments: str, stdin: bytes | None = None) -> dict[str, Any]:
    code, stdout, stderr = run(*arguments, "--json", stdin=stdin)
    assert code == 0, stderr
    shown: dict[str, Any] = json.loads(stdout)
    return shown


def test_json_has_what_was_denied_in_total_by_rule_and_by_key(here: Path) -> None:
    shown = found("access.log", "--rules", "rules.yaml")
    assert (shown["lines"]["read"], shown["lines"]["unreadable"]) == (26, 1)
    # 15 of the one and 1 of the other by orders; the site sees only what orders lets through, and denies none.
    assert (shown["checks"], shown["denied"]) == (26, 16)
    assert {row["rule"]: row["denied"] for row in shown["by_rule"]} == {"orders": 16, "site": 0}
    assert [(row["key"], row["denied"]) for row in shown["by_key"]] == [
        ({"client_key": "192.0.2.1"}, 15),
        ({"client_key": "192.0.2.2"}, 1),
    ]
    steps = shown["over_time"]["steps"]
    assert sum(step["denied"] for step in steps) == 16
    assert steps[0]["at"] == "2000-10-10T13:55:00.000Z"


def test_stdin_packed_or_not_is_a_log(here: Path) -> None:
    for text in (LOG.encode(), gzip.compress(LOG.encode())):
        assert found("-", "--rules", "rules.yaml", stdin=text)["denied"] == 16


def test_a_proposed_set_beside_the_current_one(here: Path) -> None:
    difference = found("access.log", "--rules", "rules.yaml", "--current", "current.yaml")["difference"]
    assert (difference["newly_denied"], difference["newly_allowed"], difference["denied_by_both"]) == (4, 0, 12)
    orders = next(row for row in difference["by_rule"] if row["rule"] == "orders")
    assert (orders["denied_current"], orders["denied_proposed"]) == (12, 16)
    assert difference["keys_newly_denied"][0]["key"] == {"client_key": "192.0.2.1"}
    code, stdout, _ = run("access.log", "--rules", "rules.yaml", "--current", "current.yaml")
    assert code == 0
    assert "4 newly denied" in stdout
    assert "5 in 60 s" in stdout


def test_the_table_shows_an_unreadable_line_and_the_denied(here: Path) -> None:
    code, stdout, _ = run("access.log", "--rules", "rules.yaml")
    assert code == 0
    assert "26 lines read as combined, 1 unreadable" in stdout
    assert "access.log:27: not of this format: '<b>&'" in stdout
    assert "16 of 26 checks denied" in stdout


class _Fetches(HTMLParser):
    """What a page would load from elsewhere, and the elements that a log could have put there."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        if tag == "b" or any(name in ("src", "href") for name, _ in attributes):
            self.found.append(tag)


def test_the_page_fetches_nothing_and_holds_the_report(here: Path) -> None:
    (here / "access.log").write_text(LOG + line(30, "</script><b>evil</b>"))
    shown = found("access.log", "--rules", "rules.yaml", "--current", "current.yaml", "--html", "page.html")
    page = (here / "page.html").read_text()
    parser = _Fetches()
    parser.feed(page)
    assert parser.found == []
    assert "<svg" in page
    held = re.search(r'<script type="application/json" id="report">(.*?)</script>', page, re.DOTALL)
    assert held is not None
    assert json.loads(held[1]) == shown


def test_a_limit_is_suggested(here: Path) -> None:
    shown = found("access.log", "--rules", "rules.yaml", "--suggest", "10")
    orders = shown["suggested"]["rules"][0]
    # 2 of 26 may be denied: 20 and 6 are asked for, so 18.
    assert (orders["suggested"], orders["denied"], orders["checks"]) == ({"limit": 18}, 2, 26)
    code, stdout, _ = run("access.log", "--rules", "rules.yaml", "--suggest", "10", "--html", "page.html")
    assert code == 0
    assert "18 in 60 s" in stdout
    assert "18 in 60 s" in (here / "page.html").read_text()


def test_an_attribute_that_the_log_lacks_is_named(here: Path) -> None:
    (here / "rules.yaml").write_text(RULES.replace("resource:", "tier: free, resource:"))
    notes = found("access.log", "--rules", "rules.yaml")["notes"]
    assert "tier is not in the log: give --map tier=FIELD, or rules see it unset" in notes
    (here / "rules.yaml").write_text("defaults: {tier: paid}\n" + (here / "rules.yaml").read_text())
    assert found("access.log", "--rules", "rules.yaml")["notes"] == [
        "tier is not in the log: give --map tier=FIELD, or rules see it as the set's default, paid"
    ]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["missing.log", "--rules", "rules.yaml"], "missing.log: No such file"),
        (["access.log", "--rules", "missing.yaml"], "missing.yaml: No such file"),
        (["access.log", "--rules", "rules.yaml", "--format", "csv"], "--format csv: one of vhost, combined"),
        (["access.log", "--rules", "rules.yaml", "--map", "tier"], "a field is mapped as tier=plan"),
        (["access.log", "--rules", "rules.yaml", "--map", "tier=plan"], "a line of combined has bytes"),
        (["-", "--rules", "-"], "stdin can be read only once"),
        (["rules.yaml", "--rules", "rules.yaml"], "none of the known formats reads its first lines"),
    ],
)
def test_wrong_usage_says_what_would_be_right(here: Path, arguments: list[str], words: str) -> None:
    code, stdout, stderr = run(*arguments)
    assert code == 2
    assert stdout == ""
    assert words in stderr


def test_a_refused_rule_set_is_not_rehearsed(here: Path) -> None:
    (here / "rules.yaml").write_text("rules: [{id: a, capacity: -1, refill: 1/s}]")
    code, _, stderr = run("access.log", "--rules", "rules.yaml")
    assert code == 1
    assert "rules[0].capacity" in stderr


DOCS = Path(__file__).resolve().parents[3] / "docs" / "rehearsal.md"
COMMANDS = re.search(r"```sh\n(.*?)```", DOCS.read_text(), re.DOTALL)


@pytest.mark.parametrize("command", COMMANDS[1].splitlines() if COMMANDS else [])
def test_the_page_of_the_docs_is_true(here: Path, command: str) -> None:
    (here / "new.yaml").write_text(RULES)
    (here / "old.yaml").write_text(CURRENT)
    (here / "access.log.1.gz").write_bytes(gzip.compress(LOG.encode()))
    own = f"{shlex.quote(sys.executable)} -m services.cli.main"
    script = command.replace("apportion", own).replace("/var/log/nginx/", "")
    environment = {**os.environ, "PYTHONPATH": str(DOCS.parents[1])}
    done = subprocess.run(
        ["sh", "-ec", script], capture_output=True, text=True, timeout=50, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert "orders" in done.stdout
