"""Questions to a SQLite file that another connection writes: they hold nobody up and end in time.  [IO]"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

ANSWER_MOST_S = 5.0
IN_MEMORY_MOST_S = 0.5
"""Without a file there is one connection: whoever asks holds up who writes."""
STEPS_BETWEEN_LOOKS = 10_000
"""Steps of SQLite's machine from one look at the clock to the next: well under a millisecond."""


class TookTooLong(Exception):
    """A question that was given up; nothing of its answer is known."""

    def __init__(self, most_s: float) -> None:
        super().__init__(
            f"given up after {most_s:g} s: ask for less, such as one domain or a shorter time (since_ms, until_ms)"
        )


class Questions:
    """``path``: of the file, which must be in WAL mode; None: ``base`` is in memory, asked under ``lock``."""

    def __init__(self, path: Path | None, base: sqlite3.Connection, lock: threading.Lock) -> None:
        self._path = path
        self._base = base
        self._lock = lock

    def ask(self, query: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        """All rows of the answer.  Raises TookTooLong.  From any thread, but not on the event loop."""
        if self._path is None:
            with self._lock:
                return _within(IN_MEMORY_MOST_S, self._base, query, values)
        address = f"file:{quote(str(self._path.absolute()))}?mode=ro"
        with closing(sqlite3.connect(address, uri=True, isolation_level=None)) as base:
            return _within(ANSWER_MOST_S, base, query, values)


def _within(most_s: float, base: sqlite3.Connection, query: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
    until = time.monotonic() + most_s
    base.set_progress_handler(lambda: time.monotonic() >= until, STEPS_BETWEEN_LOOKS)
    try:
        return base.execute(query, values).fetchall()
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode == sqlite3.SQLITE_INTERRUPT:
            raise TookTooLong(most_s) from None
        raise
    finally:
        base.set_progress_handler(None, 0)
