"""docs/telemetry.md tells what there is, and queries ask for labels that there are."""

from __future__ import annotations

import re

import pytest

from infra.install import ROOT
from infra.monitoring.alerts import ALERTS, RECORDS
from infra.monitoring.panels import ROWS
from services.settings import TelemetrySettings
from tests.infra.instruments import every_instrument, tables, told

PAGE = (ROOT / "docs" / "telemetry.md").read_text()
OF_ALL = {"region", "le", "instance", "job"}
MATCHERS = re.compile(r"\b((?:ratelimit|http|rpc|db|process)_[a-z0-9_]+)\{([^}]*)\}")


def test_every_metric_is_on_the_page_with_its_unit_and_its_labels() -> None:
    assert tables() in PAGE, "write the tables again: python -m tests.infra.instruments"


def test_what_is_shown_is_what_is_made() -> None:
    """A metric that shows nothing here would be missing on the page."""
    shown = {metric.prometheus for metrics in told().values() for metric in metrics}
    assert shown == every_instrument()


@pytest.mark.parametrize("name", TelemetrySettings.model_fields)
def test_every_setting_is_on_the_page(name: str) -> None:
    assert re.search(rf"^{name}(_file)? = ", PAGE, re.MULTILINE)


def labels_of(name: str) -> set[str]:
    plain = re.sub(r"_(bucket|count|sum)$", "", name)
    found = [metric for metrics in told().values() for metric in metrics if metric.prometheus in (name, plain)]
    return {label.replace(".", "_") for metric in found for label in metric.labels} | OF_ALL


def queries() -> list[tuple[str, str]]:
    asked = [(record.name, record.expr) for record in RECORDS] + [(alert.name, alert.expr) for alert in ALERTS]
    return asked + [(panel.title, query) for _, row in ROWS for panel in row for query, _ in panel.queries]


@pytest.mark.parametrize(("where", "query"), queries())
def test_every_query_asks_for_labels_that_its_metric_has(where: str, query: str) -> None:
    """Two alerts asked for an outcome that no series had, and never fired."""
    for name, matchers in MATCHERS.findall(query):
        asked = set(re.findall(r"([a-z_]+)\s*(?:=~|!~|!=|=)", matchers))
        assert asked <= labels_of(name), f"{where}: {name} has no label {asked - labels_of(name)}"


def test_outcomes_that_queries_ask_for_are_those_that_nodes_tell() -> None:
    asked = {value for _, query in queries() for value in re.findall(r'outcome="([^"]*)"', query)}
    assert asked == {"allowed", "denied"}
