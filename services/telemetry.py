"""OpenTelemetry's instruments of one process: as Prometheus text for ``/metrics``, and as data for OTLP.

Instruments look at what a process counts when somebody asks; nothing here is on the way of a check.  Whoever asks
does it in two steps: on the event loop the process's counts are noted, as they are at one moment; in a thread they
are made into series.  Importing this takes a while, so a process imports it when it is first asked for its metrics.
"""

from __future__ import annotations

import asyncio
import resource as process_resources
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from importlib.metadata import version
from typing import Any, NamedTuple

from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk.metrics import Exemplar as OtelExemplar
from opentelemetry.sdk.metrics import MeterProvider, ObservableCounter, ObservableGauge
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricReader,
    MetricsData,
)
from opentelemetry.sdk.resources import Resource
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST as OPEN_METRICS_TEXT
from prometheus_client.openmetrics.exposition import generate_latest as generate_open_metrics
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar as PrometheusExemplar

from regional_limiter.durations import Exemplar, Seen
from services.beside import beside

PROMETHEUS_TEXT = CONTENT_TYPE_PLAIN_0_0_4

SERIES_MOST = 4096
"""Of one metric of one process; what comes after is counted under ``_other``."""
OTHER = "_other"

Observe = Callable[[CallbackOptions], Iterable[Observation]]
Labels = Mapping[str, str | int]
"""By the names of OpenTelemetry: ``http.route``."""


class Told(NamedTuple):
    """A process's metrics as ``/metrics`` answers."""

    media_type: str
    text: bytes


class _Histograms(NamedTuple):
    name: str
    words: str
    read: Callable[[], Iterable[tuple[Labels, Seen]]]


class Exposition:
    """One process's metrics.  ``region``, where there is one, is a label of every series.

    ``instance`` tells processes of a service apart where a collector does not: a node's name.  ``look`` notes on
    the event loop what the instruments are about to read.
    """

    def __init__(
        self,
        service: str,
        region: str | None = None,
        *,
        instance: str | None = None,
        look: Callable[[], None] = lambda: None,
    ) -> None:
        self.registry = CollectorRegistry()
        most: Any = {ObservableCounter: SERIES_MOST + 16, ObservableGauge: SERIES_MOST + 16}
        reader = PrometheusMetricReader(
            disable_target_info=True,
            scope_info_enabled=False,
            resource_attribute_filter=lambda name: name == "region",
            registry=self.registry,
            cardinality_limits=most,
        )
        self.resource = Resource(
            {
                "service.namespace": "apportion",
                "service.name": f"apportion-{service}",
                "service.version": version("apportion"),
                **({"service.instance.id": instance} if instance else {}),
                **({"region": region} if region else {}),
            }
        )
        self._kept = _Kept(most)
        self._provider = MeterProvider([reader, self._kept], resource=self.resource, shutdown_on_exit=False)
        self.meter = self._provider.get_meter(f"apportion.{service.replace('-', '_')}")
        self._look = look
        self._region = region
        self._began_ns = time.time_ns()
        self._histograms: list[_Histograms] = []
        self._asked = asyncio.Lock()
        _add_process(self)

    def histogram(self, name: str, words: str, read: Callable[[], Iterable[tuple[Labels, Seen]]]) -> None:
        """Durations in seconds, by what ``read`` says.

        OpenTelemetry has no histogram that looks at what was counted, so these stand beside its instruments.
        """
        one = _Histograms(name, words, read)
        self._histograms.append(one)
        self.registry.register(_HistogramCollector(one, self._region))

    async def told(self, accept: str = "") -> Told:
        """In the format that ``accept`` asks for: OpenMetrics, which has exemplars, or Prometheus' older one."""
        async with self._asked:
            self._look()
            is_open = "application/openmetrics-text" in accept
            text = await beside(lambda: (generate_open_metrics if is_open else generate_latest)(self.registry))
        return Told(OPEN_METRICS_TEXT if is_open else PROMETHEUS_TEXT, text)

    def text(self) -> bytes:
        """The same in Prometheus' older format, at once and on the event loop: for few series."""
        self._look()
        return generate_latest(self.registry)

    def look(self) -> None:
        """Note what :meth:`collected` is to tell.  On the event loop."""
        self._look()

    def collected(self) -> MetricsData:
        """All series, for OTLP.  May be called in a thread, by one caller at a time."""
        self._kept.collect()
        data = self._kept.data
        now_ns = time.time_ns()
        made = [self._metric_of(one, now_ns) for one in self._histograms]
        first = data.resource_metrics[0]
        scope = first.scope_metrics[0]
        scope = replace(scope, metrics=[*scope.metrics, *(metric for metric in made if metric is not None)])
        return MetricsData([replace(first, scope_metrics=[scope, *first.scope_metrics[1:]])])

    def _metric_of(self, one: _Histograms, now_ns: int) -> Metric | None:
        points = [
            HistogramDataPoint(
                attributes=dict(labels),
                start_time_unix_nano=self._began_ns,
                time_unix_nano=now_ns,
                count=sum(seen.counts),
                sum=seen.sum_s,
                bucket_counts=seen.counts,
                explicit_bounds=seen.bounds_s,
                min=None,  # type: ignore[arg-type]  # not known, which OTLP lets one say and the type does not
                max=None,  # type: ignore[arg-type]
                exemplars=[_otel_exemplar(exemplar) for exemplar in seen.exemplars.values()],
            )
            for labels, seen in one.read()
        ]
        if not points:
            return None
        return Metric(one.name, one.words, "s", Histogram(points, AggregationTemporality.CUMULATIVE))

    def close(self) -> None:
        self._provider.shutdown()


class _Kept(MetricReader):
    """Keeps what was collected last."""

    def __init__(self, most: Any) -> None:
        super().__init__(cardinality_limits=most)
        self.data = MetricsData([])

    def _receive_metrics(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **_: Any) -> None:
        self.data = metrics_data

    def shutdown(self, timeout_millis: float = 30_000, **_: Any) -> None:
        self.data = MetricsData([])


class _HistogramCollector(Collector):
    def __init__(self, histograms: _Histograms, region: str | None) -> None:
        self._histograms = histograms
        self._region = {"region": region} if region else {}

    def collect(self) -> Iterator[HistogramMetricFamily]:
        name = self._histograms.name.replace(".", "_") + "_seconds"
        family: HistogramMetricFamily | None = None
        for labels, seen in self._histograms.read():
            named = {label.replace(".", "_"): str(value) for label, value in labels.items()} | self._region
            if family is None:
                family = HistogramMetricFamily(name, self._histograms.words, labels=list(named))
            family.add_metric(list(named.values()), _buckets(seen), seen.sum_s)
        if family is not None:
            yield family


def _buckets(seen: Seen) -> list[Any]:
    total, buckets = 0, []
    for place, (bound, count) in enumerate(zip((*seen.bounds_s, "+Inf"), seen.counts, strict=True)):
        total += count
        exemplar = seen.exemplars.get(place)
        told = (str(bound), total)
        buckets.append(told if exemplar is None else (*told, _prometheus_exemplar(exemplar)))
    return buckets


def _prometheus_exemplar(exemplar: Exemplar) -> PrometheusExemplar:
    labels = {"trace_id": f"{exemplar.trace_id:032x}", "span_id": f"{exemplar.span_id:016x}"}
    return PrometheusExemplar(labels, exemplar.duration_s, exemplar.at_ns / 1e9)


def _otel_exemplar(exemplar: Exemplar) -> OtelExemplar:
    return OtelExemplar({}, exemplar.duration_s, exemplar.at_ns, exemplar.span_id, exemplar.trace_id)


def observed(value: Callable[[], float | None]) -> Observe:
    """A series of one number; none while the number is not known."""

    def observe(_: CallbackOptions) -> Iterable[Observation]:
        number = value()
        return [] if number is None else [Observation(number)]

    return observe


def bounded_series(rows: Iterable[tuple[Labels, float]], most: int = SERIES_MOST) -> Iterator[Observation]:
    """A series of each row; beyond ``most`` the rest is one series, with ``_other`` for every label."""
    rest, names = 0.0, None
    for place, (labels, value) in enumerate(rows):
        if place < most:
            yield Observation(value, dict(labels))
        else:
            rest, names = rest + value, labels
    if names is not None:
        yield Observation(rest, dict.fromkeys(names, OTHER))


def add_sending(
    exposition: Exposition, sendings: Callable[[], Mapping[str, int]], spans: Callable[[], Mapping[str, int]]
) -> None:
    """What became of sendings to a collector, and of spans."""

    def by_outcome(read: Callable[[], Mapping[str, int]]) -> Observe:
        return lambda _: [Observation(count, {"outcome": outcome}) for outcome, count in read().items()]

    counter = exposition.meter.create_observable_counter
    words = "Sendings to the collector, by what became of them; only where there is one"
    counter("ratelimit.telemetry.sendings", [by_outcome(sendings)], "{sending}", words)
    words = "Spans of traces, recorded or dropped; only where there is a collector"
    counter("ratelimit.telemetry.spans", [by_outcome(spans)], "{span}", words)


def _add_process(exposition: Exposition) -> None:
    meter = exposition.meter

    def cpu(_: CallbackOptions) -> Iterator[Observation]:
        used = process_resources.getrusage(process_resources.RUSAGE_SELF)
        yield Observation(used.ru_utime, {"cpu.mode": "user"})
        yield Observation(used.ru_stime, {"cpu.mode": "system"})

    meter.create_observable_counter("process.cpu.time", [cpu], "s", "Processor time of this process")
    meter.create_observable_gauge("process.memory.usage", [observed(_memory_bytes)], "By", "Resident memory")


def _memory_bytes() -> float | None:
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * process_resources.getpagesize()
    except OSError:
        peak = process_resources.getrusage(process_resources.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
