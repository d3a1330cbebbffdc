"""OTLP's messages, written by hand.  Pure.

The published messages and those of Envoy, which we need as well, come in two packages that write the same files:
whichever is installed last wins, and the other's users fail.  Numbers of fields are those of OTLP 1
(``metrics.proto``, ``trace.proto``, ``common.proto``, ``resource.proto``); what is 0 or empty is left out, as
protobuf does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from struct import pack
from typing import Any

from opentelemetry.sdk.metrics import Exemplar
from opentelemetry.sdk.metrics.export import (
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricsData,
    NumberDataPoint,
    Sum,
)

from services.tracing import Context, Span

PAIRS_KEPT = 8192
"""Of attributes as they are written: some 2 MB."""
_SCOPE = "apportion"
_CUMULATIVE = 2
_ERROR = 2
_KINDS_BEGIN = 1
"""OTLP counts a span's kinds from 1, the API from 0."""


def metrics_request(data: MetricsData) -> bytes:
    """ExportMetricsServiceRequest.  Metrics that OTLP has and we do not make are not written."""
    parts = []
    for told in data.resource_metrics:
        scopes = [
            _message(2, _scope(scope.scope.name), *(_message(2, *_metric(metric)) for metric in scope.metrics))
            for scope in told.scope_metrics
        ]
        parts.append(_message(1, _resource(told.resource.attributes), *scopes))
    return b"".join(parts)


def traces_request(spans: Iterable[Span], resource: Mapping[str, Any]) -> bytes:
    """ExportTraceServiceRequest."""
    written = [_message(2, *_span(span)) for span in spans]
    return _message(1, _resource(resource), _message(2, _scope(_SCOPE), *written))


# ---- metrics


def _metric(metric: Metric) -> list[bytes]:
    parts = [_text(1, metric.name), _text(2, metric.description or ""), _text(3, metric.unit or "")]
    data = metric.data
    if isinstance(data, Gauge):
        parts.append(_message(5, *(_message(1, *_number(point)) for point in data.data_points)))
    elif isinstance(data, Sum):
        points = [_message(1, *_number(point)) for point in data.data_points]
        parts.append(_message(7, *points, _integer(2, _CUMULATIVE), _integer(3, int(data.is_monotonic))))
    elif isinstance(data, Histogram):
        points = [_message(1, *_histogram(point)) for point in data.data_points]
        parts.append(_message(9, *points, _integer(2, _CUMULATIVE)))
    return parts


def _number(point: NumberDataPoint) -> list[bytes]:
    value = point.value
    written = pack("<Bq", 6 << 3 | 1, value) if isinstance(value, int) else pack("<Bd", 4 << 3 | 1, value)
    times = (_fixed(2, point.start_time_unix_nano or 0), _fixed(3, point.time_unix_nano))
    return [*times, written, *_attributes(7, point.attributes)]


def _histogram(point: HistogramDataPoint) -> list[bytes]:
    counts, bounds = point.bucket_counts, point.explicit_bounds
    return [
        _fixed(2, point.start_time_unix_nano),
        _fixed(3, point.time_unix_nano),
        _fixed(4, point.count),
        pack("<Bd", 5 << 3 | 1, point.sum),
        _message(6, pack(f"<{len(counts)}Q", *counts)),
        _message(7, pack(f"<{len(bounds)}d", *bounds)),
        *_attributes(9, point.attributes),
        *(_message(8, *_exemplar(exemplar)) for exemplar in point.exemplars),
    ]


def _exemplar(exemplar: Exemplar) -> Sequence[bytes]:
    return (
        _fixed(2, exemplar.time_unix_nano),
        pack("<Bd", 3 << 3 | 1, exemplar.value),
        _message(4, (exemplar.span_id or 0).to_bytes(8, "big")),
        _message(5, (exemplar.trace_id or 0).to_bytes(16, "big")),
    )


# ---- traces


def _span(span: Span) -> list[bytes]:
    context = span.context
    parts = [
        _message(1, context.trace_id.to_bytes(16, "big")),
        _message(2, context.span_id.to_bytes(8, "big")),
        _text(5, span.name),
        _integer(6, span.kind + _KINDS_BEGIN),
        _fixed(7, span.started_ns),
        _fixed(8, span.ended_ns),
        *_attributes(9, span.attributes),
        *(_message(13, *_link(link)) for link in span.links),
    ]
    if span.parent_id:
        parts.append(_message(4, span.parent_id.to_bytes(8, "big")))
    if span.failed is not None:
        parts.append(_message(15, _text(2, span.failed), _integer(3, _ERROR)))
    return parts


def _link(link: Context) -> Sequence[bytes]:
    return _message(1, link.trace_id.to_bytes(16, "big")), _message(2, link.span_id.to_bytes(8, "big"))


# ---- what both have


def _resource(attributes: Mapping[str, Any]) -> bytes:
    return _message(1, *_attributes(1, attributes))


def _scope(name: str) -> bytes:
    return _message(1, _text(1, name))


def _attributes(field: int, attributes: Mapping[str, Any] | None) -> list[bytes]:
    return [_pair(field, name, value) for name, value in attributes.items()] if attributes else []


@lru_cache(maxsize=PAIRS_KEPT, typed=True)
def _pair(field: int, name: str, value: Any) -> bytes:
    """Nearly all are written again and again: names of rules, routes, outcomes."""
    return _message(field, _text(1, name), _message(2, _value(value)))


def _value(value: Any) -> bytes:
    """An AnyValue; one that is empty or 0 is still a value, so nothing is left out."""
    if isinstance(value, bool):
        return b"\x10\x01" if value else b"\x10\x00"
    if isinstance(value, int):
        return b"\x18" + _varint(value & 0xFFFF_FFFF_FFFF_FFFF)
    if isinstance(value, float):
        return pack("<Bd", 4 << 3 | 1, value)
    data = str(value).encode(errors="replace")
    return b"\x0a" + _varint(len(data)) + data


# ---- protobuf


def _varint(number: int) -> bytes:
    if number < 0x80:
        return bytes((number,))
    written = bytearray()
    while number >= 0x80:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    written.append(number)
    return bytes(written)


def _message(field: int, *parts: bytes) -> bytes:
    data = parts[0] if len(parts) == 1 else b"".join(parts)
    return bytes((field << 3 | 2,)) + _varint(len(data)) + data


def _text(field: int, text: str) -> bytes:
    return _message(field, text.encode(errors="replace")) if text else b""


def _integer(field: int, number: int) -> bytes:
    return bytes((field << 3,)) + _varint(number) if number else b""


def _fixed(field: int, number: int) -> bytes:
    return pack("<BQ", field << 3 | 1, number)
