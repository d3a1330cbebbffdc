"""docs/telemetry.md tells what there is."""

from __future__ import annotations

import re

import pytest

from infra.install import ROOT
from services.settings import TelemetrySettings
from tests.infra.instruments import every_instrument, tables, told
from tests.infra.test_monitoring import queries

PAGE = (ROOT / "docs" / "telemetry.md").read_text()


def test_every_metric_is_on_the_page_with_its_unit_and_its_labels() -> None:
    assert tables() in PAGE, "write the tables again: python -m tests.infra.instruments"


def test_what_is_shown_is_what_is_made() -> None:
    """A metric that shows nothing here would be missing on the page."""
    shown = {metric.prometheus for metrics in told().values() for metric in metrics}
    assert shown == every_instrument()


@pytest.mark.parametrize("name", TelemetrySettings.model_fields)
def test_every_setting_is_on_the_page(name: str) -> None:
    assert re.search(rf"^{name}(_file)? = ", PAGE, re.MULTILINE)


def test_outcomes_that_queries_ask_for_are_those_that_nodes_tell() -> None:
    asked = {value for _, query in queries() for value in re.findall(r'outcome="([^"]*)"', query)}
    assert asked == {"allowed", "denied"}
