"""Sends what a process has counted and traced to a collector, by OTLP over HTTP.  [IO]

Every interval the counts are noted on the event loop; a thread makes the messages of them and sends them.  It has
one sending under way: what falls due meanwhile is left out, since the next one says the same totals and more.  A
collector that does not answer costs the thread its waiting, and the log one line; another one says when it is back.
"""

from __future__ import annotations

import asyncio
import gzip
import ssl
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from enum import Enum
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import structlog

from services.beside import giving_way
from services.tasks import watched
from services.tracing import Span, Tracer

if TYPE_CHECKING:
    from services.settings import TelemetrySettings
    from services.telemetry import Exposition

SEND_S = 5.0
"""The most that each step of a sending may take: to connect, to write, to read the answer."""
COMPRESSION = 1
"""Of gzip: the fastest; names that repeat need no more."""
AGAIN = (429, 502, 503, 504)
"""Answers after which the same may be sent again, as OTLP has it."""
LAST_S = 1.0
"""What the last sending has when the process stops."""

_log = structlog.get_logger("telemetry")


@asynccontextmanager
async def sending(
    settings: TelemetrySettings, make: Callable[[], Awaitable[Exposition]], tracer: Tracer | None = None
) -> AsyncIterator[None]:
    """While in here, what :class:`OtlpPush` does, if ``settings`` name a collector."""
    if settings.endpoint is None:
        yield
        return
    task = watched(asyncio.create_task(OtlpPush(settings, make, tracer).run(), name="send telemetry"))
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError, Exception):
            await task


def tracer_of(settings: TelemetrySettings) -> Tracer | None:
    """None where there is nobody to send traces to."""
    return Tracer(settings.trace_ratio, settings.traces_per_second) if settings.endpoint is not None else None


class Traces(Enum):
    """What became of the spans of one sending.  Of those to be sent LATER nothing is known: an answer that was lost
    makes them arrive twice, by the same ids.  What a collector does not understand it never will, and what
    could not be written down never can be: REFUSED."""

    TAKEN = 1
    LATER = 2
    REFUSED = 3


class OtlpPush:
    """``make``: gives the process's metrics; it is asked once, when there is time.

    ``sent`` and ``failed`` count sendings of either kind.
    """

    def __init__(
        self, settings: TelemetrySettings, make: Callable[[], Awaitable[Exposition]], tracer: Tracer | None = None
    ) -> None:
        assert settings.endpoint is not None
        self._settings = settings
        self._make = make
        self._tracer = tracer
        self.sent = 0
        self.failed = 0
        self._said = False
        self._exposition: Exposition | None = None
        self._collector: _Collector | None = None
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._wake = asyncio.Event()

    async def run(self) -> None:
        """Until cancelled; then once more, for what has come since."""
        loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._in_thread, name="telemetry", daemon=True)
        self._thread.start()
        if self._tracer is not None:
            self._tracer.on_full = self._wake.set
        try:
            await self._prepared(loop)
            while True:
                await self._until_due()
                await self._send(loop)
        finally:
            await self._stop(loop)

    async def _until_due(self) -> None:
        try:
            async with asyncio.timeout(self._settings.interval_s):
                await self._wake.wait()
        except TimeoutError:
            pass
        self._wake.clear()

    async def _prepared(self, loop: asyncio.AbstractEventLoop) -> None:
        def prepare() -> None:
            with giving_way():
                self._collector = _Collector(self._settings)

        exposition = await self._make()
        await self._in_turn(loop, prepare)
        self._count_in(exposition)
        self._exposition = exposition

    def _count_in(self, exposition: Exposition) -> None:
        from services.telemetry import add_sending

        tracer = self._tracer
        add_sending(
            exposition,
            lambda: {"sent": self.sent, "failed": self.failed},
            lambda: {} if tracer is None else {"recorded": tracer.recorded, "dropped": tracer.dropped},
        )

    async def _send(self, loop: asyncio.AbstractEventLoop) -> None:
        exposition, collector = self._exposition, self._collector
        assert exposition is not None
        assert collector is not None
        spans = self._tracer.take() if self._tracer is not None else []
        try:
            exposition.look()
            problem, traces = await self._in_turn(loop, lambda: collector.send(exposition, spans))
        except asyncio.CancelledError:
            if self._tracer is not None:
                self._tracer.dropped += len(spans)
            raise
        except Exception as error:  # of our own: the next turn tries again, without what may have been its cause
            problem, traces = repr(error), Traces.REFUSED
        if self._tracer is not None and traces is Traces.LATER:
            self._tracer.put_back(spans)
        elif self._tracer is not None and traces is Traces.REFUSED:
            self._tracer.dropped += len(spans)
        if problem:
            self.failed += 1
        else:
            self.sent += 1
        if bool(problem) != self._said:
            self._said = bool(problem)
            if problem:
                _log.warning("the collector takes no telemetry", endpoint=self._settings.endpoint, problem=problem)
            else:
                _log.info("the collector takes telemetry again", endpoint=self._settings.endpoint)

    async def _stop(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._collector is not None and not self._said:
            try:
                async with asyncio.timeout(LAST_S):
                    await self._send(loop)
            except TimeoutError:
                pass
        self._work.put(None)
        if self._tracer is not None:
            self._tracer.on_full = lambda: None

    async def _in_turn(self, loop: asyncio.AbstractEventLoop, work: Callable[[], Any]) -> Any:
        """What ``work`` gives in the thread.  Not ``to_thread``: a process would wait for its end."""
        done: asyncio.Future[Any] = loop.create_future()

        def told(result: Any, error: Exception | None) -> None:
            if done.done():
                return
            if error is None:
                done.set_result(result)
            else:
                done.set_exception(error)

        def run() -> None:
            result, error = None, None
            try:
                result = work()
            except Exception as raised:
                error = raised
            try:
                loop.call_soon_threadsafe(told, result, error)
            except RuntimeError:
                pass  # the loop is closed: nobody waits any more

        self._work.put(run)
        return await done

    def _in_thread(self) -> None:
        while (work := self._work.get()) is not None:
            work()
        if self._collector is not None:
            self._collector.close()


class _Collector:
    """The collector as the thread asks it; what this needs is imported there."""

    def __init__(self, settings: TelemetrySettings) -> None:
        import httpx

        self._base = (settings.endpoint or "").rstrip("/")
        verify: Any = ssl.create_default_context(cafile=settings.ca) if settings.ca else True
        headers = {**settings.header_pairs(), "content-type": "application/x-protobuf", "content-encoding": "gzip"}
        self._client = httpx.Client(headers=headers, timeout=SEND_S, verify=verify)
        self._errors = httpx.HTTPError

    def send(self, exposition: Exposition, spans: Sequence[Span]) -> tuple[str, Traces]:
        """What went wrong, in words (empty: nothing), and what became of the spans."""
        from services.otlp_wire import metrics_request, traces_request

        problem, _ = self._post("/v1/metrics", lambda: metrics_request(exposition.collected()))
        if not spans:
            return problem, Traces.TAKEN
        said, became = self._post("/v1/traces", lambda: traces_request(spans, exposition.resource.attributes))
        return said or problem, became

    def _post(self, path: str, write: Callable[[], bytes]) -> tuple[str, Traces]:
        """What cannot be written keeps nothing else back."""
        try:
            with giving_way():
                body = gzip.compress(write(), COMPRESSION)
        except Exception as error:
            return f"{path}: not written: {error!r}", Traces.REFUSED
        try:
            answered = self._client.post(self._base + path, content=body)
        except self._errors as error:
            return f"{path}: {type(error).__name__}", Traces.LATER
        if answered.is_success:
            return "", Traces.TAKEN
        became = Traces.LATER if answered.status_code in AGAIN else Traces.REFUSED
        return f"{path}: answered {answered.status_code}", became

    def close(self) -> None:
        self._client.close()
