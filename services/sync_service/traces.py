"""The way of a share as spans: report, grant, write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from global_sync.tracing import Doing, Traces
from services.tracing import LINKS_MOST, Kind, Span, Tracer, read_traceparent

_KINDS = {"report": Kind.PRODUCER, "grant": Kind.PRODUCER, "write": Kind.CLIENT}


class _Doing(Doing):
    def __init__(self, tracer: Tracer, span: Span) -> None:
        self._tracer = tracer
        self._span = span
        self.context = span.context.header()

    def end(self, failed: str | None = None) -> None:
        self._tracer.end(self._span, failed)


class SyncTraces(Traces):
    """What follows from something that is traced is traced, within the tracer's bounds; else as by its ratio."""

    is_on = True

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    def begin(
        self, what: str, causes: Sequence[str] = (), parent: str = "", told: Mapping[str, str | int] | None = None
    ) -> Doing:
        above = read_traceparent(parent)
        links = [context for cause in causes if (context := read_traceparent(cause)) is not None][:LINKS_MOST]
        if not self._tracer.wants(above or (links[0] if links else None)):
            return Doing()
        span = self._tracer.begin(what, _KINDS.get(what, Kind.INTERNAL), above)
        span.attributes.update(told or {})
        span.links = links
        return _Doing(self._tracer, span)
