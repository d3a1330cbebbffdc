"""What is counted and traced arrives at a collector; one that does not answer costs a line in the log."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import hypothesis
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from structlog.testing import capture_logs

from regional_limiter.durations import Durations, Exemplar
from services.otlp import sending, tracer_of
from services.otlp_wire import traces_request
from services.settings import TelemetrySettings
from services.telemetry import OTHER, SERIES_MOST, Exposition, bounded_series, observed
from services.tracing import SPANS_MOST, Context, Kind, Span, Tracer, Value
from tests.collector import Collector, collecting, values_of

ONE = Exemplar(0xABC, 0xDEF, 0.003, 1_700_000_000_000_000_000)


def exposition_of(count: Callable[[], float] = lambda: 7) -> Exposition:
    exposition = Exposition("test", "eu", instance="eu-1")
    exposition.meter.create_observable_counter("ratelimit.checks", [observed(count)], "{check}", "")
    durations = Durations()
    durations.record(0.1)
    durations.record(ONE.duration_s)
    durations.exemplify(ONE)
    labels = {"http.route": "/v1/check", "http.response.status_code": 200}
    exposition.histogram("http.server.request.duration", "How long", lambda: [(labels, durations.seen())])
    return exposition


def number(data: bytes) -> int:
    return int.from_bytes(data, "big")


async def given(exposition: Exposition) -> Exposition:
    return exposition


async def arrived(collector: Collector, until: Callable[[Collector], Any], what: str) -> None:
    await asyncio.to_thread(collector.wait, until, what)


async def test_counts_durations_and_exemplars_arrive_with_what_tells_processes_apart() -> None:
    with collecting() as collector:
        settings = TelemetrySettings(
            endpoint=f"{collector.endpoint}/", headers="authorization=Bearer abc=, x-scope=eu", interval_s=0.1
        )
        async with sending(settings, lambda: given(exposition_of())):
            await arrived(collector, lambda seen: "ratelimit.checks" in seen.metrics, "metrics")
        sent = collector.headers[0]
        resource, metrics = collector.resource, collector.metrics
    assert (sent["authorization"], sent["x-scope"], sent["content-type"]) == (
        "Bearer abc=",
        "eu",
        "application/x-protobuf",
    )
    assert resource["service.name"] == "apportion-test"
    assert (resource["region"], resource["service.instance.id"]) == ("eu", "eu-1")
    (counted,) = metrics["ratelimit.checks"].sum.data_points
    assert (counted.as_int, metrics["ratelimit.checks"].sum.is_monotonic) == (7, True)
    (point,) = metrics["http.server.request.duration"].histogram.data_points
    assert values_of(point.attributes) == {"http.route": "/v1/check", "http.response.status_code": 200}
    assert (point.count, round(point.sum, 6), sum(point.bucket_counts)) == (2, 0.103, 2)
    (exemplar,) = point.exemplars
    assert (number(exemplar.trace_id), number(exemplar.span_id)) == (ONE.trace_id, ONE.span_id)


async def test_openmetrics_has_the_exemplars_that_the_older_format_cannot_have() -> None:
    exposition = exposition_of()
    older, newer = (
        await exposition.told("*/*"),
        await exposition.told("application/openmetrics-text; version=1.0.0"),
    )
    assert older.media_type.startswith("text/plain")
    assert newer.media_type.startswith("application/openmetrics-text")
    assert b"trace_id" not in older.text
    assert f'trace_id="{ONE.trace_id:032x}"'.encode() in newer.text
    assert newer.text.endswith(b"# EOF\n")


async def test_spans_arrive_with_their_parents_and_links_and_what_failed() -> None:
    tracer = Tracer(1.0)
    with tracer.span("outer", Kind.SERVER, Context(5, 6), {"ratelimit.rule": "a", "n": 3, "ok": True}) as outer:
        inner = tracer.begin("inner", Kind.CLIENT, outer.context)
        inner.links = (Context(1, 2),)
        tracer.end(inner, "timeout")
    with collecting() as collector:
        settings = TelemetrySettings(endpoint=collector.endpoint, interval_s=0.1)
        async with sending(settings, lambda: given(exposition_of()), tracer):
            await arrived(collector, lambda seen: len(seen.spans) >= 2, "spans")
        spans = {span.name: span for span in collector.spans}
    assert set(spans) == {"outer", "inner"}
    assert number(spans["outer"].trace_id) == number(spans["inner"].trace_id) == 5
    assert number(spans["outer"].parent_span_id) == 6
    assert spans["inner"].parent_span_id == spans["outer"].span_id
    assert spans["inner"].status.message == "timeout"
    assert values_of(spans["outer"].attributes) == {"ratelimit.rule": "a", "n": 3, "ok": True}
    (link,) = spans["inner"].links
    assert (number(link.trace_id), number(link.span_id)) == (1, 2)
    assert spans["outer"].kind == 2
    assert spans["outer"].start_time_unix_nano <= spans["inner"].end_time_unix_nano


async def test_a_process_that_stops_sends_what_has_come_since() -> None:
    tracer = Tracer(1.0)
    with collecting() as collector:
        settings = TelemetrySettings(endpoint=collector.endpoint, interval_s=0.1)
        async with sending(settings, lambda: given(exposition_of()), tracer):
            await arrived(collector, lambda seen: seen.asked, "it has begun")
            tracer.end(tracer.begin("last words", Kind.INTERNAL))
        assert [span.name for span in collector.spans] == ["last words"]


async def test_spans_that_a_collector_did_not_take_come_with_the_next_sending() -> None:
    tracer = Tracer(1.0)
    tracer.end(tracer.begin("while it was away", Kind.INTERNAL))
    with collecting() as collector, capture_logs():
        collector.answers = 503
        settings = TelemetrySettings(endpoint=collector.endpoint, interval_s=0.1)
        async with sending(settings, lambda: given(exposition_of()), tracer):
            await arrived(collector, lambda seen: seen.asked >= 5, "some tries of both")
            collector.answers = 200
            await arrived(collector, lambda seen: seen.spans, "the span")
            at = collector.asked
            await arrived(collector, lambda seen: seen.asked >= at + 3, "more, without it")
    assert [span.name for span in collector.spans] == ["while it was away"]
    assert tracer.dropped == 0


async def test_spans_that_a_collector_refuses_are_not_sent_again() -> None:
    tracer = Tracer(1.0)
    tracer.end(tracer.begin("not understood", Kind.INTERNAL))
    with collecting() as collector, capture_logs():
        collector.answers = 400
        settings = TelemetrySettings(endpoint=collector.endpoint, interval_s=0.1)
        async with sending(settings, lambda: given(exposition_of()), tracer):
            await arrived(collector, lambda seen: seen.asked >= 4, "some tries")
            collector.answers = 200
            await arrived(collector, lambda seen: seen.metrics, "metrics")
    assert (collector.spans, tracer.dropped) == ([], 1)


async def test_a_span_that_cannot_be_written_is_dropped_and_keeps_nothing_else_back() -> None:
    tracer = Tracer(1.0)
    tracer.end(tracer.begin("of no trace that can be", Kind.INTERNAL, Context(2**128, 6)))
    with collecting() as collector, capture_logs() as said:
        settings = TelemetrySettings(endpoint=collector.endpoint, interval_s=0.1)
        async with sending(settings, lambda: given(exposition_of()), tracer):
            await arrived(collector, lambda seen: seen.metrics, "metrics, in the same turn")
            tracer.end(tracer.begin("after it", Kind.INTERNAL))
            await arrived(collector, lambda seen: seen.spans, "the next span")
            at = collector.asked
            await arrived(collector, lambda seen: seen.asked > at, "one more, so that the last is told")
    assert ([span.name for span in collector.spans], tracer.dropped) == (["after it"], 1)
    (problem,) = [line["problem"] for line in said if "problem" in line]
    assert problem.startswith("/v1/traces: not written: OverflowError")


async def test_a_turn_that_fails_puts_no_span_back() -> None:
    """It may be the span that makes it fail: put back, it would do so in each turn."""
    exposition, tracer = exposition_of(), Tracer(1.0)
    tracer.end(tracer.begin("of the turn that fails", Kind.INTERNAL))
    look, faults = exposition.look, [ValueError("not readable")]

    def look_or_fail() -> None:
        if faults:
            raise faults.pop()
        look()

    exposition.look = look_or_fail  # type: ignore[method-assign]
    with collecting() as collector, capture_logs():
        settings = TelemetrySettings(endpoint=collector.endpoint, interval_s=0.1)
        async with sending(settings, lambda: given(exposition), tracer):
            await arrived(collector, lambda seen: seen.asked >= 3, "metrics of three turns, or spans too")
    assert (collector.spans, tracer.dropped) == ([], 1)


def test_of_spans_that_wait_again_the_newest_are_kept() -> None:
    tracer = Tracer(1.0)
    for number in range(SPANS_MOST):
        tracer.end(tracer.begin(f"{number}", Kind.INTERNAL))
    taken = tracer.take()
    for number in range(10):
        tracer.end(tracer.begin(f"new {number}", Kind.INTERNAL))
    tracer.put_back(taken)
    names = [span.name for span in tracer.take()]
    assert (len(names), names[0], names[-1], tracer.dropped) == (SPANS_MOST, "10", "new 9", 10)


async def test_a_collector_that_refuses_is_said_once_and_so_is_that_it_is_back() -> None:
    with collecting() as collector, capture_logs() as lines:
        collector.answers = 400
        settings = TelemetrySettings(endpoint=collector.endpoint, interval_s=0.1)
        async with sending(settings, lambda: given(exposition_of())):
            await arrived(collector, lambda seen: seen.asked >= 3, "three tries")
            collector.answers = 200
            await arrived(collector, lambda seen: seen.metrics, "metrics")
            at = collector.asked
            await arrived(collector, lambda seen: seen.asked > at, "one more, so that the last is told")
    said = [line["event"] for line in lines if line["log_level"] in ("info", "warning", "error")]
    assert said == ["the collector takes no telemetry", "the collector takes telemetry again"]


async def test_whatever_fails_in_a_turn_the_next_one_sends() -> None:
    exposition, turns = exposition_of(), []

    def look() -> None:
        turns.append(1)
        if len(turns) == 1:
            raise ValueError("not readable")

    exposition.look = look  # type: ignore[method-assign]
    with collecting() as collector, capture_logs() as said:
        async with sending(
            TelemetrySettings(endpoint=collector.endpoint, interval_s=0.1), lambda: given(exposition)
        ):
            await arrived(collector, lambda seen: "ratelimit.checks" in seen.metrics, "metrics")
    assert [line["problem"] for line in said if "problem" in line] == ["ValueError('not readable')"]


async def test_nobody_waits_for_a_collector_that_is_not_there() -> None:
    """The port is bound and nobody takes the connection: a try lasts as long as it may."""
    import socket

    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        settings = TelemetrySettings(endpoint=f"http://127.0.0.1:{deaf.getsockname()[1]}", interval_s=0.1)
        began = time.monotonic()
        async with sending(settings, lambda: given(exposition_of())):
            turns = 0
            while time.monotonic() - began < 1.0:
                await asyncio.sleep(0.01)
                turns += 1
        assert turns > 10, "the loop went on"


def test_spans_that_find_no_room_are_dropped_and_counted() -> None:
    tracer = Tracer(1.0)
    woken: list[int] = []
    tracer.on_full = lambda: woken.append(1)
    for _ in range(SPANS_MOST + 5):
        tracer.end(tracer.begin("one", Kind.INTERNAL))
    assert (tracer.recorded, tracer.dropped, len(woken)) == (SPANS_MOST, 5, 1)
    assert len(tracer.take()) == SPANS_MOST
    assert tracer.take() == []


def test_series_beyond_the_bound_are_one() -> None:
    rows = [({"rule": f"r{number}", "outcome": "allowed"}, 1.0) for number in range(SERIES_MOST + 3)]
    told = list(bounded_series(rows))
    assert len(told) == SERIES_MOST + 1
    assert (told[-1].value, told[-1].attributes) == (3.0, {"rule": OTHER, "outcome": OTHER})


def test_without_a_collector_nothing_is_traced() -> None:
    assert tracer_of(TelemetrySettings(trace_ratio=1.0)) is None


TEXTS = st.text(max_size=20)
VALUES = st.one_of(TEXTS, st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False))


@hypothesis.given(
    st.dictionaries(TEXTS, VALUES, max_size=4),
    TEXTS,
    st.integers(1, 2**128 - 1),
    st.none() | TEXTS,
    st.sampled_from(Kind),
)
def test_whatever_a_span_says_is_read_as_it_was_written(
    attributes: dict[str, Value], name: str, trace_id: int, failed: str | None, kind: Kind
) -> None:
    span = Span(name, kind, Context(trace_id, 7), 0, 5)
    span.attributes, span.failed, span.links, span.ended_ns = attributes, failed, (Context(3, 4),), 2**60
    told = ExportTraceServiceRequest.FromString(traces_request([span], {"service.name": name}))
    (spans,) = told.resource_spans
    (scope,) = spans.instrumentation_library_spans
    (read,) = scope.spans
    assert (read.name, number(read.trace_id), number(read.span_id), read.parent_span_id) == (name, trace_id, 7, b"")
    assert (read.start_time_unix_nano, read.end_time_unix_nano, read.kind) == (5, 2**60, kind + 1)
    assert values_of(read.attributes) == attributes
    assert values_of(spans.resource.attributes) == {"service.name": name}
    assert (read.HasField("status"), read.status.message) == (failed is not None, failed or "")
    assert [(number(link.trace_id), number(link.span_id)) for link in read.links] == [(3, 4)]
