"""Work of some milliseconds in a thread, while the event loop goes on answering.  [IO]"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

GIVES_WAY_AFTER_S = 0.0005
"""Python's own 5 ms is a third of what a check may wait."""

_T = TypeVar("_T")
_lock = threading.Lock()
_working = 0
_usual_s = sys.getswitchinterval()


@contextmanager
def giving_way() -> Iterator[None]:
    """What computes in here, in a thread, hands the interpreter to the event loop soon after it asks for it."""
    global _working, _usual_s
    with _lock:
        if not _working:
            _usual_s = sys.getswitchinterval()
            sys.setswitchinterval(GIVES_WAY_AFTER_S)
        _working += 1
    try:
        yield
    finally:
        with _lock:
            _working -= 1
            if not _working:
                sys.setswitchinterval(_usual_s)


async def beside(work: Callable[[], _T]) -> _T:
    """What ``work`` gives, computed in a thread."""

    def run() -> _T:
        with giving_way():
            return work()

    return await asyncio.to_thread(run)
