"""``apportion rules import envoy-ratelimit``."""

from __future__ import annotations

from pathlib import Path

import yaml
from typer.testing import CliRunner

from regional_limiter.rules import parse
from services.cli.rules import app

CONFIG = (
    "domain: d\ndescriptors: [{key: a, detailed_metric: true, rate_limit: {unit: day, requests_per_unit: 5}}]\n"
)


def test_the_rules_are_printed_ready_to_be_applied(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(CONFIG)
    arguments = ["import", "envoy-ratelimit", str(tmp_path / "config.yaml"), "--like-envoy", "--domain", "edge"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0
    (rule,) = parse(done.stdout).rules
    assert (rule.domain, rule.id, rule.capacity, rule.window_ms, rule.charge_denied) == (
        "edge",
        "a",
        5,
        86_400_000,
        True,
    )
    assert "descriptors[0].detailed_metric: has no effect" in done.stderr
    assert "charge_denied" not in CliRunner().invoke(app, arguments[:3]).stdout


def test_what_cannot_be_taken_over_is_named_and_nothing_is_printed() -> None:
    wrong = yaml.safe_dump({"domain": "d", "descriptors": [{"key": "a", "algorithm": "x", "value": "a*b"}]})
    done = CliRunner().invoke(app, ["import", "envoy-ratelimit", "-"], input=wrong)
    assert (done.exit_code, done.stdout) == (1, "")
    assert "descriptors[0].algorithm: is not known here" in done.stderr
    assert "descriptors[0].value: a * that is not at the end" in done.stderr


def test_nginx_and_kong_are_printed_ready_to_be_applied() -> None:
    for name, text, limit in (
        ("nginx", "limit_req_zone $remote_addr zone=a:1m rate=5r/s; limit_req zone=a burst=2 nodelay;", 3),
        ("kong", "plugins: [{name: rate-limiting, config: {minute: 5, policy: local}}]", 5),
    ):
        done = CliRunner().invoke(app, ["import", name, "-", "--domain", "edge"], input=text)
        assert done.exit_code == 0
        (rule,) = parse(done.stdout).rules
        assert (rule.domain, rule.capacity) == ("edge", limit)
        assert done.stderr
        refused = CliRunner().invoke(app, ["import", name, "-"], input="limit_req zone=b;")
        assert (refused.exit_code, refused.stdout) == (1, "")


def test_every_value_is_written_where_it_is() -> None:
    """Two periods of a plugin share their match and their key, and were printed with ``&id001`` and ``*id001``."""
    text = "plugins: [{name: rate-limiting, config: {minute: 5, hour: 90, policy: local}}]"
    done = CliRunner().invoke(app, ["import", "kong", "-"], input=text)
    assert len(parse(done.stdout).rules) == 2
    assert not set("&*") & set(done.stdout)
