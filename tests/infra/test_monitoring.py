"""Alerts, dashboard and runbook: they name what exists, and each other."""

from __future__ import annotations

import functools
import re
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from infra.deploy_tools import promtool
from infra.install import ROOT
from infra.monitoring.__main__ import RULES, texts
from infra.monitoring.alerts import ALERTS, EXTERNAL, RECORDS
from infra.monitoring.panels import ROWS
from tests.infra.instruments import SERVICES, every_instrument, shown, told

RUNBOOK = ROOT / "docs" / "runbook.md"
METRIC = re.compile(
    r"\b[a-z][a-z0-9_]*(?::[a-z0-9_]+)+|\b(?:ratelimit|http|rpc|db|messaging_client|redis|node)_[a-z0-9_]+"
)
LABEL_MATCHERS = re.compile(r"\{[^}]*\}")
SUFFIXES = ("_bucket", "_count", "_sum")


def test_the_files_are_as_their_tables_say() -> None:
    for path, text in texts().items():
        assert path.read_text() == text, f"{path.name}: write it again with python -m infra.monitoring"


def queries() -> Iterator[tuple[str, str]]:
    yield from ((record.name, record.expr) for record in RECORDS)
    yield from ((alert.name, alert.expr) for alert in ALERTS)
    for _, row in ROWS:
        for panel in row:
            yield from ((panel.title, query) for query, _ in panel.queries)


@pytest.mark.parametrize(("where", "query"), list(queries()))
def test_every_query_names_metrics_that_exist(where: str, query: str) -> None:
    known = {record.name for record in RECORDS} | EXTERNAL | every_instrument()
    named = set(METRIC.findall(LABEL_MATCHERS.sub("", query)))
    assert named, where
    for name in named:
        assert name in known or plain(name) in known, f"{where}: no metric is called {name}"


@functools.cache
def labels() -> dict[str, set[str]]:
    """Metric -> the labels of its series in Prometheus."""
    always = {"region", "instance", "job"}  # of whoever is asked, and ours
    found = {one: set(always) for one in EXTERNAL}
    for metrics in told().values():
        for one in metrics:
            own = {label.replace(".", "_") for label in one.labels} | always
            found.setdefault(one.prometheus, set()).update(own)
    for record in RECORDS:
        found[record.name] = set().union(*(names(inside) for inside in GROUPING.findall(record.expr))) - {"le"}
    return found


GROUPING = re.compile(r"\b(?:by|ignoring|on|without) \(([^)]*)\)")
MATCHED = re.compile(r"([a-z][a-z0-9_:]*)\{([^}]*)\}")
LEGEND = re.compile(r"\{\{\s*\$?(?:labels\.)?(\w+)\s*\}\}")


def names(listed: str) -> set[str]:
    return {name.strip() for name in listed.split(",") if name.strip()}


def plain(metric: str) -> str:
    return next((metric.removesuffix(suffix) for suffix in SUFFIXES if metric.endswith(suffix)), metric)


@pytest.mark.parametrize(("where", "query"), list(queries()))
def test_every_query_uses_labels_that_its_metrics_have(where: str, query: str) -> None:
    """Two alerts asked for an outcome that no series had, and never fired."""
    known = labels()
    for metric, matchers in MATCHED.findall(query):
        used = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers))
        assert used <= known[plain(metric)], f"{where}: {metric} has no {used - known[plain(metric)]}"
    of_all = set().union(*(known[plain(metric)] for metric in METRIC.findall(LABEL_MATCHERS.sub("", query))))
    for inside in GROUPING.findall(query):
        assert names(inside) <= of_all | {"le"}, f"{where}: {inside}"


def shown_words() -> Iterator[tuple[str, str, str]]:
    yield from ((alert.name, alert.expr, f"{alert.summary} {alert.means}") for alert in ALERTS)
    for _, row in ROWS:
        for panel in row:
            yield from ((panel.title, query, legend) for query, legend in panel.queries)


@pytest.mark.parametrize(("where", "query", "words"), list(shown_words()))
def test_every_label_that_words_name_is_left_by_the_query(where: str, query: str, words: str) -> None:
    grouped = [names(inside) for inside in GROUPING.findall(query)]
    metrics = METRIC.findall(LABEL_MATCHERS.sub("", query))
    left = grouped[0] if grouped else set().union(*(labels()[plain(metric)] for metric in metrics))
    if "group_left" in query:
        left = labels()[metrics[0]]
    assert set(LEGEND.findall(words.replace("$value", ""))) <= left, f"{where}: {words}"


def test_prometheus_reads_the_rules_and_every_alert_fires_when_it_should() -> None:
    for command in (["check", "rules", RULES.name], ["test", "rules", "apportion.rules.test.yaml"]):
        done = subprocess.run(
            [str(promtool()), *command], cwd=RULES.parent, capture_output=True, text=True, timeout=50, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_is_tested_firing_and_not_firing() -> None:
    text = (RULES.parent / "apportion.rules.test.yaml").read_text()
    for alert in ALERTS:
        assert f"alertname: {alert.name}}}" in text, f"{alert.name} is not shown to be silent"
        assert f"alertname: {alert.name}\n        exp_alerts:" in text, f"{alert.name} is not shown to fire"


def sections() -> dict[str, str]:
    parts = re.split(r"^## (\w+)\n", RUNBOOK.read_text(), flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def test_the_runbook_has_a_section_for_every_alert_and_no_other() -> None:
    assert list(sections()) == [alert.name for alert in ALERTS]


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_a_section_says_what_it_is_for_callers_and_what_to_do(alert: Any) -> None:
    section = sections()[alert.name]
    assert section.strip().startswith(f"*{alert.severity.capitalize()}.*")
    for part in ("- **Callers**: ", "- **Look at**: ", "- **Do**: "):
        assert section.count(part) == 1, part


@pytest.mark.parametrize("service", SERVICES)
def test_the_names_that_exist_are_those_that_a_process_shows(service: str) -> None:
    """The way from an instrument's name to Prometheus' is the exporter's own."""
    assert {one.prometheus for one in told()[service]} == shown(service)


def test_alerts_are_tried_with_series_that_exist() -> None:
    """NearQuota fired in its test, by a name that no metric has."""
    known = EXTERNAL | every_instrument()
    series = re.findall(
        r"series: '?\"?([a-z][a-z0-9_:]*)", (RULES.parent / "apportion.rules.test.yaml").read_text()
    )
    assert len(series) > 50
    assert {name for name in series if plain(name) not in known and name not in known} == set()
