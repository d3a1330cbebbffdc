"""OpenTelemetry's instruments as Prometheus text: the set-up that every service's ``/metrics`` shares.

Instruments look at what a process counts when somebody asks; nothing here is on the way of a check.  Importing it
takes a while, so a process imports it when it is first asked for its metrics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.resources import Resource
from prometheus_client import CollectorRegistry, generate_latest

PROMETHEUS_TEXT = "text/plain; version=0.0.4; charset=utf-8"

Observe = Callable[[CallbackOptions], Iterable[Observation]]


class Exposition:
    """One process's metrics.  ``region``, where there is one, is a label of every series."""

    def __init__(
        self, service: str, region: str | None = None, series_most: Mapping[type[Any], int] | None = None
    ) -> None:
        self.registry = CollectorRegistry()
        reader = PrometheusMetricReader(
            disable_target_info=True,
            scope_info_enabled=False,
            resource_attribute_filter=lambda name: name == "region",
            registry=self.registry,
            cardinality_limits=dict(series_most) if series_most else None,
        )
        resource = Resource({"service.name": f"apportion-{service}", **({"region": region} if region else {})})
        self._provider = MeterProvider([reader], resource=resource, shutdown_on_exit=False)
        self.meter = self._provider.get_meter(f"apportion.{service.replace('-', '_')}")

    def text(self) -> bytes:
        """The exposition format of Prometheus."""
        return generate_latest(self.registry)

    def close(self) -> None:
        self._provider.shutdown()


def observed(value: Callable[[], float | None]) -> Observe:
    """A series of one number; none while the number is not known."""

    def observe(_: CallbackOptions) -> Iterable[Observation]:
        number = value()
        return [] if number is None else [Observation(number)]

    return observe
