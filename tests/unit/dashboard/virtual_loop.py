"""An event loop whose time is given: when nothing else is to be done, it is what is waited for next."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any


class VirtualLoop(asyncio.SelectorEventLoop):
    """``time`` begins at 0; ``passes`` is told of it.  Nothing in it may wait for what comes from outside."""

    _ready: Any
    _scheduled: Any

    def __init__(self, passes: Callable[[float], None]) -> None:
        self._time_s = 0.0
        self._passes = passes
        super().__init__()

    def time(self) -> float:
        return self._time_s

    def _run_once(self) -> None:
        if not self._ready:
            due = [timer.when() for timer in self._scheduled if not timer.cancelled()]
            self._time_s = max(self._time_s, min(due, default=self._time_s))
            self._passes(self._time_s)
        super()._run_once()  # type: ignore[misc]
