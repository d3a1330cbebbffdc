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
from services.telemetry import Exposition

HISTOGRAMS = {"http_server_request_duration_seconds", "rpc_server_duration_seconds"}
"""Handed to the registry as they are."""


class _Notes:
    """A meter that only notes."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def create_observable_gauge(self, name: str, _callbacks: Any, unit: str = "", _words: str = "") -> None:
        self.names.add(name.replace(".", "_") + {"s": "_seconds"}.get(unit, ""))

    def create_observable_counter(self, name: str, _callbacks: Any, _unit: str = "", _words: str = "") -> None:
        self.names.add(name.replace(".", "_") + "_total")


@functools.cache
def every_instrument() -> frozenset[str]:
    notes = _Notes()

    def noting(self: Exposition, *_: Any, **__: Any) -> None:
        self.registry = mock.Mock()
        self.meter = notes  # type: ignore[assignment]

    with mock.patch.object(Exposition, "__init__", noting):
        Metrics("eu", Counts(), mock.Mock())
        SyncMetrics("eu", mock.Mock(), mock.Mock())
        hub_metrics(mock.MagicMock())
        board_metrics(mock.MagicMock(), mock.MagicMock())
    return frozenset(notes.names | HISTOGRAMS)
