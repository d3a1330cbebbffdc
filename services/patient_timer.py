"""How long a caller may take, by the time in which this process could have heard it.

A process that was kept from running has its timers due before it reads what had come meanwhile (libuv runs timers
before it looks at sockets): by a plain timer it would blame its callers for its own stall.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

_STEPS = 5


class PatientTimer:
    """Calls ``due`` after ``most_s`` seconds; a stall, however long, counts as a fifth of these at most."""

    __slots__ = ("_due", "_left", "_loop", "_step_s", "_timer")

    def __init__(self, loop: asyncio.AbstractEventLoop, most_s: float, due: Callable[[], object]) -> None:
        self._loop, self._due = loop, due
        self._step_s, self._left = most_s / _STEPS, _STEPS
        self._timer = loop.call_later(self._step_s, self._step)

    def cancel(self) -> None:
        """Also forgets whom it would have called, as a timer of the loop does."""
        self._timer.cancel()
        self._due = _nobody

    def _step(self) -> None:
        self._left -= 1
        if self._left:
            self._timer = self._loop.call_later(self._step_s, self._step)
        else:
            self._due()


def _nobody() -> None:
    pass


@asynccontextmanager
async def patient_timeout(most_s: float) -> AsyncIterator[None]:
    """As ``asyncio.timeout``, by a patient timer.  Raises TimeoutError."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(None) as bound:
        timer = PatientTimer(loop, most_s, lambda: bound.reschedule(loop.time()))
        try:
            yield
        finally:
            timer.cancel()
