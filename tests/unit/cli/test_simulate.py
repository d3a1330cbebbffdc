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
        (["--html", "none/page.html", *SMALL], "--html none/page.html: No such file"),
    ],
)
def test_a_wrong_option_is_named_with_what_would_be_right(options: list[str], word: str) -> None:
    result = run(*options)
    assert result.exit_code == 2
    assert options[0] in result.output
    assert word in result.output


RULES = """
domain: shop
regions: {us-east: 1, eu-west: 1}
rules:
  - {id: shared, key: [client_key], capacity: 10, refill: 20/s, scope: global}
  - {id: own, key: [client_key], capacity: 10, refill: 20/s}
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rules.yaml").write_text(RULES)
    (tmp_path / "alone.yaml").write_text(RULES.replace("regions: {us-east: 1, eu-west: 1}\n", ""))
    (tmp_path / "own.yaml").write_text(RULES.replace(", scope: global", ""))
    (tmp_path / "empty.log").write_text("{}\n")
    line = '192.0.2.1 - - [10/Oct/2000:13:55:36 +0000] "GET / HTTP/1.1" 200 5 "-" "-"\n'
    (tmp_path / "combined.log").write_text(line)
    request = {"method": "GET", "path": "/"}
    lines = [
        {"time": 1767225600 + n / 50, "client_key": f"c{n % 2}", "dc": ["fra", "iad"][n % 2], **request}
        for n in range(150)
    ]
    (tmp_path / "access.log").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return tmp_path


OVER_LOG = ["--rules", "rules.yaml", "--log", "access.log"]
COMBINED = ["--rules", "rules.yaml", "--log", "combined.log", "--latency", "5,60"]


def test_a_rule_set_over_an_access_log_as_tables_and_as_a_page(here: Path) -> None:
    places = ["--region-field", "dc", "--region-is", "fra=eu-west", "--region-is", "iad=us-east"]
    result = run(*OVER_LOG, "--latency", "5,60", *places, "--cut", "hub:1-2", "--html", "page.html")
    assert result.exit_code == 0, result.output
    assert "150 requests in 3 s over 2 regions" in result.stdout
    for words in ("10 at once, then 20/s", "never", "static split", "rule own is left out", "shares in force"):
        assert words in result.stdout
    assert (here / "page.html").read_text().startswith("<!doctype html>")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--rules", "rules.yaml"], "--rules and --log belong together"),
        (["--log", "access.log"], "--rules and --log belong together"),
        (["--each"], "--each: of a log only"),
        (["--map", "ip=host"], "--map: of a log only"),
        (["--region-field", "dc"], "--region-field: of a log only"),
        ([*OVER_LOG, "--burst", "9"], "--burst: the limits are those of --rules"),
        (OVER_LOG, "--latency: how far each region is from the hub, in ms one way: of us-east, eu-west"),
        ([*OVER_LOG, "--latency", "5"], "1 numbers for 2 regions"),
        ([*OVER_LOG, "--latency", "5,60", "--format", "morse"], "--format morse: one of"),
        ([*OVER_LOG, "--latency", "5,60", "--region-is", "fra=mars"], "--region-is fra=mars"),
        ([*OVER_LOG, "--latency", "5,60", "--region-is", "fra=us-east"], "of the field that --region-field names"),
        ([*OVER_LOG, "--latency", "5,60", "--traffic", "mars"], "--traffic mars: one of us-east, eu-west"),
        ([*OVER_LOG, "--latency", "5,60", "--html", "none/page.html"], "--html none/page.html: No such file"),
        ([*COMBINED, "--map", "tier=plan"], "--map: plan: a line of combined has bytes"),
        ([*COMBINED, "--region-field", "dc"], "--region-field dc: a line of combined has bytes"),
        ([*OVER_LOG, "--latency", "5,60", "--skip", "60"], "there is no request in the log after 60 s"),
        (["--rules", "own.yaml", "--log", "access.log"], "own.yaml: no rule of scope: global"),
        (["--rules", "alone.yaml", "--log", "access.log"], "alone.yaml"),
        ([*OVER_LOG, "--regions", "a,b,c,d,e,f,g,h,i,j,k"], "at least 11"),
        (["--rules", "rules.yaml", "--log", "empty.log", "--latency", "5,60"], "none of the known formats"),
    ],
)
def test_what_is_wrong_of_a_log_or_its_rules_is_named(here: Path, options: list[str], words: str) -> None:
    result = run(*options)
    assert result.exit_code in (1, 2)
    assert words in result.output
