"""docs/gateways/envoy.md: its commands do what it shows, and it names every setting."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import yaml
from typer.testing import CliRunner

from regional_limiter.in_process import in_memory
from services.check_api.app import NodeOptions, create_app
from services.cli.main import app as cli
from services.rls import envoy_config
from services.settings import GrpcSettings, QuotaSettings
from tests.unit.check_api.fakes import call

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "gateways" / "envoy.md").read_text()
COMMANDS = "\n".join(re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL))


def printed_rules() -> str:
    line = next(line for line in COMMANDS.splitlines() if line.startswith("apportion rules import"))
    words = shlex.split(line.partition(" > ")[0])[1:]
    words[-1] = str(ROOT / words[-1])
    done = CliRunner().invoke(cli, words)
    assert done.exit_code == 0, done.stderr
    return done.stdout


async def test_the_question_is_answered_as_the_page_shows() -> None:
    (body,) = re.findall(r"/json -d '(.*?)'", COMMANDS, re.DOTALL)
    (shown,) = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    async with in_memory(printed_rules()) as limiter:
        node = create_app(limiter, NodeOptions("us-east", "n1"))
        told = (await call(node, "POST", "/json", body.encode())).json()
        codes = [(await call(node, "POST", "/json", body.encode())).status for _ in range(5)]
    expected = json.loads(shown)
    for status in (*told["statuses"], *expected["statuses"]):
        assert re.fullmatch(r"\d+(\.\d+)?s", status.pop("durationUntilReset"))
    assert told["statuses"] == expected["statuses"]
    assert told["overallCode"] == expected["overallCode"]
    assert [header["key"] for header in told["responseHeadersToAdd"]] == ["ratelimit-policy", "ratelimit"]
    assert codes == [200] * 4 + [429]


def test_the_page_names_every_setting_and_its_default() -> None:
    (table,) = re.findall(r"\| setting \| default \| \|\n(.*?)\n\n", PAGE, re.DOTALL)
    rows = [row.split(" | ") for row in table.splitlines()[1:]]
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row[0])}
    assert named == set(GrpcSettings.model_fields)
    defaults = GrpcSettings()
    for row in rows:
        for name in re.findall(r"`(\w+)`", row[0]):
            value = getattr(defaults, name)
            shown = row[1].strip("`")
            assert shown == ("none" if value in (None, []) else str(value).lower()), name


def test_the_page_names_every_setting_of_quotas() -> None:
    (table,) = re.findall(r"\| setting of `\[quota\]` \| default \| \|\n(.*?)\n\n", PAGE, re.DOTALL)
    rows = [row.split(" | ") for row in table.splitlines()[1:]]
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row[0])}
    assert named == set(QuotaSettings.model_fields)
    assert [row[1].strip("`") for row in rows if "ttl_s" in row[0]] == [str(QuotaSettings().ttl_s)]


def test_the_page_names_every_word_of_a_configuration() -> None:
    known = {*envoy_config._DESCRIPTOR, *envoy_config._LIMIT}
    explained = {"key", "value", "descriptors", "requests_per_unit", "rate_limit"}
    (table,) = re.findall(r"\| there \| here \|\n(.*?)\n\n", PAGE, re.DOTALL)
    assert known - explained - set(re.findall(r"`(\w+)`", table)) == set()


def test_the_example_is_a_configuration_that_both_ways_take() -> None:
    text = (ROOT / "infra" / "gateways" / "envoy" / "ratelimit.yaml").read_text()
    assert yaml.safe_load(printed_rules()) == envoy_config.import_config(text).document
