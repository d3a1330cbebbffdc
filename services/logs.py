"""Structured logs on stderr: one JSON object a line, or readable lines on a terminal."""

from __future__ import annotations

import logging
import os
import shutil
import sys
from pathlib import Path
from typing import Any, TextIO

import structlog

LOG_FILE = "APPORTION_LOG_FILE"
"""The file that our stderr is, opened to append: told by whoever started us, so that we can bound it."""

LOG_BYTES_MOST = 16 * 1024 * 1024
LOOK_EVERY = 200
"""Lines between two looks at the size."""

SELDOM_S = 10.0
SELDOM_LOGGERS = ("aiokafka", "kafka", "asyncio")
SELDOM_LINES_KNOWN = 1000


class _Seldom(logging.Filter):
    """The same line of a library that tries again for ever is let through once in ``SELDOM_S``, with a count.

    An outage of Kafka would otherwise write a gigabyte a day.
    """

    def __init__(self) -> None:
        super().__init__()
        self._seen: dict[tuple[str, int, str], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.name.partition(".")[0] not in SELDOM_LOGGERS:
            return True
        # The first words tell lines apart; what follows are addresses and numbers.
        line = (record.name, record.levelno, str(record.msg)[:40])
        last, left_out = self._seen.get(line, (-SELDOM_S, 0))
        if record.created - last < SELDOM_S:
            self._seen[line] = (last, left_out + 1)
            return False
        if len(self._seen) >= SELDOM_LINES_KNOWN:
            self._seen.clear()
        self._seen[line] = (record.created, 0)
        if left_out:
            record.msg = f"{record.msg} ({left_out} more like this)"
        return True


class _BoundedHandler(logging.StreamHandler[TextIO]):
    """Writes to stderr, and moves the file behind it aside (``FILE.1``) when it has grown.

    The file is copied and emptied, not renamed: a crash, and whatever libraries write there, still ends up in it.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(sys.stderr)
        self._path = path
        self._lines = 0

    def emit(self, record: logging.LogRecord) -> None:
        super().emit(record)
        self._lines += 1
        if self._lines % LOOK_EVERY:
            return
        try:
            if self._path.stat().st_size > LOG_BYTES_MOST:
                shutil.copyfile(self._path, self._path.with_name(f"{self._path.name}.1"))
                os.truncate(self._path, 0)
        except OSError:
            self.handleError(record)


def configure_logging(service: str, *, level: str = "info", **bound: Any) -> structlog.stdlib.BoundLogger:
    """Send this process's logs, and those of its libraries, to stderr; the service's logger.

    ``bound`` (region, node) is on every line.  Call once, at the start of a process.
    """
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    on_terminal = sys.stderr.isatty()
    renderer: Any = structlog.dev.ConsoleRenderer() if on_terminal else structlog.processors.JSONRenderer()
    last = [renderer] if on_terminal else [structlog.processors.format_exc_info, renderer]
    log_file = os.environ.get(LOG_FILE)
    handler = _BoundedHandler(Path(log_file)) if log_file else logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last],
        )
    )
    handler.addFilter(_Seldom())
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it says every request
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level.upper())
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    structlog.contextvars.clear_contextvars()
    structlog.contextvars.bind_contextvars(service=service, **bound)
    logger: structlog.stdlib.BoundLogger = structlog.get_logger(service)
    return logger
