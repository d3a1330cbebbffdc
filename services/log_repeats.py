"""A log that says the same thing again and again says it once, and once a second how often.

Of each kind of line (the same words of the same logger) so many a second are written, and of lines that are alike
to the last field one; of libraries that try again for ever one in ten seconds.  The rest is counted, and the count
is said when the time is over, whether or not another such line comes.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

WINDOW_S = 1.0
LINES_MOST = 20
"""Of one kind, in one window."""
SELDOM_S = 10.0
SELDOM_LOGGERS = ("aiokafka", "kafka", "asyncio")
KINDS_MOST = 1000
_WORDS = 40
"""The first words of a library's line tell its kind; what follows are addresses and numbers."""
_MOMENTS = ("timestamp", "exc_info", "stack_info", "_record", "_from_structlog")

Kind = tuple[str, int, str]


@dataclass(slots=True)
class _Window:
    """``lines``: those that were written, to the last field."""

    began_s: float
    lasts_s: float
    written: int = 0
    lines: set[str] = field(default_factory=set)
    left_out: int = 0
    last: logging.LogRecord | None = None


class Repeats(logging.Filter):
    """``write``: hands a record on that this filter lets pass."""

    def __init__(self, write: Callable[[logging.LogRecord], Any], now_s: Callable[[], float] = monotonic) -> None:
        super().__init__()
        self._write = write
        self._now_s = now_s
        self._windows: dict[Kind, _Window] = {}
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None

    def filter(self, record: logging.LogRecord) -> bool:
        if getattr(record, "is_count", False):
            return True
        kind, line = _kind_of(record), _line_of(record)
        seldom = record.name.partition(".")[0] in SELDOM_LOGGERS
        over: list[logging.LogRecord] = []
        with self._lock:
            now_s = self._now_s()
            window = self._windows.get(kind)
            if window is None or now_s - window.began_s >= window.lasts_s:
                if window is not None and (count := _count_of(window)) is not None:
                    over.append(count)
                if window is None and len(self._windows) >= KINDS_MOST:
                    over += self._take_counts(everything=True)
                    self._windows.clear()
                window = self._windows[kind] = _Window(now_s, SELDOM_S if seldom else WINDOW_S)
            passes = not window.written if seldom else window.written < LINES_MOST and line not in window.lines
            if passes:
                window.written += 1
                window.lines.add(line)
            else:
                window.left_out += 1
                window.last = record
                self._count_later(window, now_s)
        self._say(over)
        return passes

    def flush(self) -> None:
        """Say every count, at the end of a process."""
        with self._lock:
            counts = self._take_counts(everything=True)
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
        self._say(counts)

    def _count_later(self, window: _Window, now_s: float) -> None:
        if self._timer is None:
            self._timer = threading.Timer(max(0.01, window.began_s + window.lasts_s - now_s), self._when_due)
            self._timer.daemon = True
            self._timer.start()

    def _when_due(self) -> None:
        with self._lock:
            self._timer = None
            counts = self._take_counts(everything=False)
            waiting = [window for window in self._windows.values() if window.left_out]
            if waiting:
                self._count_later(min(waiting, key=lambda one: one.began_s + one.lasts_s), self._now_s())
        self._say(counts)

    def _take_counts(self, *, everything: bool) -> list[logging.LogRecord]:
        now_s = self._now_s()
        due = [
            kind for kind, window in self._windows.items() if everything or now_s - window.began_s >= window.lasts_s
        ]
        counts = []
        for kind in due:
            window = self._windows.pop(kind)
            last, lasts_s = window.last, window.lasts_s
            if (count := _count_of(window)) is None or last is None:
                continue
            counts.append(count)
            if not everything:  # it goes on, perhaps: the count was this window's line
                self._windows[kind] = _Window(now_s, lasts_s, written=1, lines={_line_of(last)})
        return counts

    def _say(self, counts: list[logging.LogRecord]) -> None:
        for count in counts:
            self._write(count)


def _count_of(window: _Window) -> logging.LogRecord | None:
    """The line that says how many were left out."""
    if window.last is None or not window.left_out:
        return None
    record = logging.makeLogRecord(window.last.__dict__)
    words = f" ({window.left_out} more like this)"
    if isinstance(record.msg, dict):
        record.msg = {**record.msg, "event": f"{record.msg.get('event', '')}{words}", "left_out": window.left_out}
    else:
        record.msg = f"{record.msg}{words}"
    record.is_count = True
    window.left_out, window.last = 0, None
    return record


def _kind_of(record: logging.LogRecord) -> Kind:
    said = record.msg
    words = str(said.get("event", "")) if isinstance(said, dict) else str(said)[:_WORDS]
    return (record.name, record.levelno, words)


def _line_of(record: logging.LogRecord) -> str:
    said = record.msg
    if isinstance(said, dict):
        return repr([(name, value) for name, value in said.items() if name not in _MOMENTS])[:1000]
    return record.getMessage()[:1000]
