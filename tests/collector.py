"""A collector of OTLP over HTTP: reads the messages that arrive, and keeps what they say.

It reads with published messages, of an older version of OTLP: fields have kept their numbers, but some had other
names ("instrumentation library" for "scope").
"""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

WAIT_S = 60.0


class Collector:
    """``answers``: the status of every answer from now on."""

    def __init__(self) -> None:
        self.answers = 200
        self.headers: list[dict[str, str]] = []
        self.resource: dict[str, Any] = {}
        self.metrics: dict[str, Any] = {}
        """By name, as it was said last."""
        self.spans: list[Span] = []
        self.asked = 0
        self._changed = threading.Condition()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def wait(self, until: Any, what: str) -> None:
        """Until ``until(self)`` holds after something has arrived."""
        with self._changed:
            assert self._changed.wait_for(lambda: until(self), WAIT_S), what

    def take(self, path: str, headers: dict[str, str], body: bytes) -> None:
        with self._changed:
            self.asked += 1
            self.headers.append(headers)
            if self.answers == 200:
                self._keep(path, body)
            self._changed.notify_all()

    def _keep(self, path: str, body: bytes) -> None:
        if path == "/v1/metrics":
            for told in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                self.resource = values_of(told.resource.attributes)
                for scope in told.instrumentation_library_metrics:
                    self.metrics.update((metric.name, metric) for metric in scope.metrics)
        elif path == "/v1/traces":
            for spans in ExportTraceServiceRequest.FromString(body).resource_spans:
                for scoped in spans.instrumentation_library_spans:
                    self.spans += scoped.spans

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                named = {name.lower(): value for name, value in self.headers.items()}
                collector.take(self.path, named, body)
                self.send_response(collector.answers)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        return Handler

    def run(self) -> None:
        self._server.serve_forever(poll_interval=0.05)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def values_of(attributes: Any) -> dict[str, Any]:
    """Attributes as they were given."""
    return {pair.key: _value(pair) for pair in attributes}


def _value(pair: KeyValue) -> Any:
    return getattr(pair.value, pair.value.WhichOneof("value") or "string_value")


@contextmanager
def collecting() -> Iterator[Collector]:
    collector = Collector()
    thread = threading.Thread(target=collector.run, daemon=True)
    thread.start()
    try:
        yield collector
    finally:
        collector.close()
        thread.join()
