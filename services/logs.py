"""Structured logs on stderr: one JSON object a line, or readable lines on a terminal."""

from __future__ import annotations

import atexit
import logging
import os
import secrets
import shutil
import sys
import threading
import time
from pathlib import Path
from typing import Any, Literal, TextIO

import structlog

from services.hiding import Hiding
from services.log_repeats import Repeats
from services.tracing import CURRENT

LOG_FILE = "APPORTION_LOG_FILE"
"""The file that our stderr is, opened to append: told by whoever started us, so that we can bound it."""

LOG_BYTES_MOST = 16 * 1024 * 1024
LOOK_EVERY = 200
"""Lines between two looks at the size."""
LOOK_EVERY_S = 30.0
"""Of logs that others write."""


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
            _bound(self._path)
        except OSError:
            self.handleError(record)


def _bound(log: Path) -> None:
    """Move what is in a log that has grown aside: copied and emptied, for whoever has it open to append."""
    if log.stat().st_size > LOG_BYTES_MOST:
        try:
            shutil.copyfile(log, log.with_name(f"{log.name}.1"))
        finally:
            os.truncate(log, 0)  # above all where the disk is full


def bound_neighbours(*patterns: str) -> None:
    """From now on, bound logs beside ours too (``redis-*.log``): of programs that do not bound them themselves.

    Nothing where our own log is not a file that we were told of: the journal, or a container's engine, bounds all.
    """
    log_file = os.environ.get(LOG_FILE)
    if log_file:
        directory = Path(log_file).parent
        threading.Thread(target=_bound_again_and_again, args=(directory, patterns), daemon=True).start()


def _bound_again_and_again(directory: Path, patterns: tuple[str, ...]) -> None:
    while True:
        for log in [log for pattern in patterns for log in directory.glob(pattern)]:
            try:
                _bound(log)
            except OSError as error:
                logging.getLogger(__name__).warning("%s cannot be bounded: %s", log, error)
        time.sleep(LOOK_EVERY_S)


def configure_logging(
    service: str,
    *,
    level: str = "info",
    form: Literal["auto", "json", "text"] = "auto",
    hiding: Hiding | None = None,
    **bound: Any,
) -> structlog.stdlib.BoundLogger:
    """Send this process's logs, and those of its libraries, to stderr; the service's logger.

    ``bound`` (region, node) is on every line.  ``form``: auto is text on a terminal, and JSON elsewhere.
    ``hiding``: what may be told of keys; by default nothing that outlives the process.  Call once, at the start of
    a process.
    """
    hiding = hiding or Hiding(secrets.token_bytes(32))
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
        _with_trace,
    ]
    as_text = sys.stderr.isatty() if form == "auto" else form == "text"
    renderer: Any = structlog.dev.ConsoleRenderer() if as_text else structlog.processors.JSONRenderer()
    log_file = os.environ.get(LOG_FILE)
    handler = _BoundedHandler(Path(log_file)) if log_file else logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.format_exc_info,
                lambda _logger, _method, said: hiding.line(said),
                renderer,
            ],
        )
    )
    repeats = Repeats(handler.handle)
    handler.addFilter(repeats)
    atexit.register(repeats.flush)
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


def _with_trace(_logger: Any, _method: str, said: Any) -> Any:
    """Of which trace a line is: the span that is being worked at."""
    span = CURRENT.get()
    if span is not None:
        said["trace_id"] = f"{span.context.trace_id:032x}"
        said["span_id"] = f"{span.context.span_id:016x}"
    return said
