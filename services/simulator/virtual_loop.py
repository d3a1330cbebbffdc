"""An event loop on a virtual clock: it never waits, it goes on to the next moment at which something is due.

What runs in threads elsewhere (``asyncio.to_thread``) runs at once, so a run depends on nothing but its input.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from typing import Any, TypeVar

_T = TypeVar("_T")


class NothingDue(RuntimeError):
    """Every task waits for something that no other task will bring about."""


class _LeapingSelector(selectors.SelectSelector):
    """Instead of waiting for a file, moves the clock by as long as the loop would have waited."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise NothingDue
        self.now_s += max(0.0, timeout)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """``time`` starts at 0 s and leaps from event to event."""

    def __init__(self) -> None:
        self._leaping = _LeapingSelector()
        super().__init__(self._leaping)
        self._clock_resolution = 1e-9

    def time(self) -> float:
        return self._leaping.now_s

    def now_us(self) -> int:
        return round(self._leaping.now_s * 1_000_000)

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, func: Callable[..., _T], *args: Any
    ) -> asyncio.Future[_T]:
        future: asyncio.Future[_T] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future


def run(main: Callable[[VirtualLoop], Coroutine[Any, Any, _T]]) -> _T:
    """Run ``main(loop)`` to its end on a clock of its own."""
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(main(loop))
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
