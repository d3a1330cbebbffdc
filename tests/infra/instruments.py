"""The metrics that our services make, by the names that Prometheus sees.

Instruments are noted where they are created, so that one which shows nothing yet (no lease, no fault) is known too.
"""

from __future__ import annotations

import functools
from typing import Any
from unittest import mock

from services.check_api.counts import Counts
from services.check_api.metrics import Metrics
from services.control_api.metrics import hub_metrics
from services.dashboard.metrics import board_metrics
from services.sync_service.metrics import SyncMetrics
from services.telemetry import Exposition, _add_process

_UNITS = {"s": "_seconds", "By": "_bytes", "1": "_ratio"}


class _Notes:
    """A meter that only notes."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def create_observable_gauge(self, name: str, _callbacks: Any, unit: str = "", _words: str = "") -> None:
        self.names.add(name.replace(".", "_") + _UNITS.get(unit, ""))

    def create_observable_counter(self, name: str, _callbacks: Any, unit: str = "", _words: str = "") -> None:
        self.names.add(name.replace(".", "_") + _UNITS.get(unit, "") + "_total")


@functools.cache
def every_instrument() -> frozenset[str]:
    notes = _Notes()

    def noting(self: Exposition, *_: Any, **__: Any) -> None:
        self.meter = notes  # type: ignore[assignment]
        _add_process(self)

    def histogram(_: Exposition, name: str, *__: Any) -> None:
        notes.names.add(name.replace(".", "_") + "_seconds")

    with mock.patch.object(Exposition, "__init__", noting), mock.patch.object(Exposition, "histogram", histogram):
        Metrics("eu", Counts(), mock.Mock())
        SyncMetrics(mock.Mock(), mock.Mock())
        hub_metrics(mock.MagicMock(), {})
        board_metrics(mock.MagicMock(), mock.MagicMock())
    return frozenset(notes.names)
