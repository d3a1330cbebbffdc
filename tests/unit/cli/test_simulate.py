"""``apportion simulate``: figures, drawings, and a word for every option that is wrong."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from typer.testing import CliRunner, Result

from services.cli.main import app

SMALL = ["--regions", "eu:2,us:1,ap", "--latency", "2,40,90", "--limit", "100/s", "--burst", "20", "--seconds", "3"]


@pytest.fixture(autouse=True)
def _logs_as_before() -> Iterator[None]:
    before = structlog.get_config()
    yield
    structlog.configure(**before)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["simulate", *arguments], prog_name="apportion")


def test_a_table_a_drawing_for_each_region_and_a_page(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    result = run(*SMALL, "--trace", "overload", "--cut", "us:1-2", "--html", str(path))
    assert result.exit_code == 0, result.output
    for words in ("apportion", "static split", "shared counters", "never", "eu  share", "ap  share"):
        assert words in result.stdout
    assert path.read_text().startswith("<!doctype html>")


def test_json_for_programs() -> None:
    result = run(*SMALL, "--json", "--evenly", "--hot", "ap")
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert told["shares_in_force_most"] <= 10_000
    assert told["splits"]["apportion"]["excess_tokens"] == 0
    assert set(told["splits"]) >= {"static split", "refreshed leases", "drop ratio", "shared counters"}


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (["--regions", "eu"], "from 2 to"),
        (["--regions", "eu,eu"], "twice"),
        (["--regions", "EU,us"], "a name is made of"),
        (["--regions", "eu:0,us"], "weight"),
        (["--latency", "1,2"], "2 numbers for 5 regions"),
        (["--latency", "1,2,3,4,-5"], "milliseconds"),
        (["--limit", "fast"], "like 1000/s"),
        (["--limit", "0/s"], "like 1000/s"),
        (["--burst", "3"], "at least the number of regions"),
        (["--trace", "storm"], "one of steady"),
        (["--hot", "mars"], "one of us-east"),
        (["--cut", "us-east:9-3"], "like eu-west:20-60"),
        (["--cut", "mars:1-2"], "or hub"),
    ],
)
def test_a_wrong_option_is_named_with_what_would_be_right(options: list[str], word: str) -> None:
    result = run(*options)
    assert result.exit_code == 2
    assert options[0] in result.output
    assert word in result.output
