"""Spans of a process, recorded so cheaply that a check can afford it, and kept until they are sent.

A span is begun and ended on the event loop in a few microseconds and is nothing but its values; what a collector
understands is made of it in a thread (``otlp.py``).  Which requests are traced is decided at their beginning: those
whose caller says so (``traceparent`` of W3C), a part of those whose caller says nothing, and never more in a second
than was set.

The span that is being worked at stands in :data:`CURRENT`, where logs and calls to Redis find it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar, Token
from enum import IntEnum
from math import log
from random import getrandbits, random
from time import monotonic, time_ns
from typing import Final, NamedTuple

SPANS_MOST: Final = 4096
"""That wait to be sent, those too that were not taken; what comes after is dropped, and counted."""
LINKS_MOST: Final = 32
"""Of one span."""
_NEVER: Final = 1 << 62

Value = str | int | float | bool


class Kind(IntEnum):
    """As OpenTelemetry's SpanKind."""

    INTERNAL = 0
    SERVER = 1
    CLIENT = 2
    PRODUCER = 3
    CONSUMER = 4


class Context(NamedTuple):
    """Where a trace stands.  ``sampled``: whether whoever is there keeps its spans."""

    trace_id: int
    span_id: int
    sampled: bool = True

    def header(self) -> str:
        """As a ``traceparent``."""
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{'01' if self.sampled else '00'}"


_TRACEPARENT: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")


def read_traceparent(text: str) -> Context | None:
    """What a ``traceparent`` says; None: it is none, and a trace begins here."""
    match = _TRACEPARENT.fullmatch(text.strip())
    if match is None or match[1] == "ff" or (match[1] == "00" and match[5]):
        return None
    trace_id, span_id = int(match[2], 16), int(match[3], 16)
    if not trace_id or not span_id:
        return None
    return Context(trace_id, span_id, bool(int(match[4], 16) & 1))


class Span:
    """Something that was done.  Times in ns of the wall clock; ``failed``: why, None if it went well."""

    __slots__ = ("attributes", "context", "ended_ns", "failed", "kind", "links", "name", "parent_id", "started_ns")

    def __init__(self, name: str, kind: Kind, context: Context, parent_id: int, started_ns: int) -> None:
        self.name = name
        self.kind = kind
        self.context = context
        self.parent_id = parent_id
        self.started_ns = started_ns
        self.ended_ns = 0
        self.attributes: dict[str, Value] = {}
        self.links: Sequence[Context] = ()
        self.failed: str | None = None


CURRENT: Final[ContextVar[Span | None]] = ContextVar("span", default=None)


class _WorkingAt:
    """(A generator would do, at three times the price.)"""

    __slots__ = ("_span", "_token")

    def __init__(self, span: Span) -> None:
        self._span = span
        self._token: Token[Span | None]

    def __enter__(self) -> None:
        self._token = CURRENT.set(self._span)

    def __exit__(self, *_: object) -> None:
        CURRENT.reset(self._token)


def working_at(span: Span) -> AbstractContextManager[None]:
    """In here ``span`` is the current one."""
    return _WorkingAt(span)


class Tracer:
    """``ratio``: the part of requests that are traced though their caller says nothing.  ``per_second``: at most.

    ``now_s`` is a steady clock, ``uniform`` gives numbers from 0 to 1.
    """

    def __init__(
        self,
        ratio: float,
        per_second: int = 100,
        *,
        now_s: Callable[[], float] = monotonic,
        uniform: Callable[[], float] = random,
    ) -> None:
        self._ratio = ratio
        self._per_second = per_second
        self._now_s = now_s
        self._uniform = uniform
        self._to_pass = self._gap()
        """So many requests whose callers say nothing are not traced before the next one is."""
        self._second = 0
        self._begun = 0
        self._waiting: list[Span] = []
        self.dropped = 0
        self.recorded = 0
        self.on_full: Callable[[], None] = lambda: None
        """Called when half of :data:`SPANS_MOST` wait."""

    # ---- which

    def set_ratio(self, ratio: float) -> None:
        """From now on."""
        self._ratio = ratio
        self._to_pass = self._gap()

    def passes_by(self) -> bool:
        """Whether a request whose caller says nothing is one of those that are not traced, as nearly all are: then
        it is counted; else :meth:`wants` is to be asked."""
        if self._to_pass > 0:
            self._to_pass -= 1
            return True
        return False

    def wants(self, parent: Context | None) -> bool:
        """Whether a request shall be traced."""
        if parent is None:
            if self.passes_by():
                return False
            self._to_pass = self._gap()
        elif not parent.sampled:
            return False
        return self._within_bounds()

    def asks_again(self, *, says_nothing: bool, was_wanted: bool) -> None:
        """The request that was asked about last will be asked about once more: it counts once, and nothing is drawn
        anew.  ``says_nothing``: its caller, about its trace.
        """
        if was_wanted:
            self._begun -= 1
        if says_nothing:
            self._to_pass = 0 if was_wanted else self._to_pass + 1

    def _gap(self) -> int:
        """How many requests before the next one that is traced: as if each were drawn by itself, but drawn once."""
        if self._ratio <= 0:
            return _NEVER
        if self._ratio >= 1:
            return 0
        return int(log(1.0 - self._uniform()) / log(1.0 - self._ratio))

    def _within_bounds(self) -> bool:
        second = int(self._now_s())
        if second != self._second:
            self._second, self._begun = second, 0
        self._begun += 1
        return self._begun <= self._per_second

    # ---- recording

    def begin(
        self,
        name: str,
        kind: Kind,
        parent: Context | None = None,
        attributes: Mapping[str, Value] | None = None,
        started_ns: int | None = None,
    ) -> Span:
        trace_id = parent.trace_id if parent is not None else getrandbits(128) or 1
        context = Context(trace_id, getrandbits(64) or 1)
        span = Span(name, kind, context, parent.span_id if parent is not None else 0, started_ns or time_ns())
        if attributes:
            span.attributes.update(attributes)
        return span

    def end(self, span: Span, failed: str | None = None) -> None:
        span.ended_ns = time_ns()
        span.failed = failed or span.failed
        if len(self._waiting) >= SPANS_MOST:
            self.dropped += 1
            return
        self.recorded += 1
        self._waiting.append(span)
        if len(self._waiting) == SPANS_MOST // 2:
            self.on_full()

    @contextmanager
    def span(
        self,
        name: str,
        kind: Kind = Kind.INTERNAL,
        parent: Context | None = None,
        attributes: Mapping[str, Value] | None = None,
    ) -> Iterator[Span]:
        """A span of what is done in here, as the current one; it has failed if that raises."""
        span = self.begin(name, kind, parent, attributes)
        with working_at(span):
            try:
                yield span
            except BaseException as error:
                self.end(span, type(error).__name__)
                raise
        self.end(span)

    def take(self) -> list[Span]:
        """What waits to be sent; it waits no longer."""
        taken, self._waiting = self._waiting, []
        return taken

    def put_back(self, spans: Sequence[Span]) -> None:
        """What was taken and not sent waits again, as far as there is room; of it the newest."""
        room = SPANS_MOST - len(self._waiting)
        kept = spans[-room:] if room > 0 else ()
        self.dropped += len(spans) - len(kept)
        self._waiting[:0] = kept
