"""Checks that are asked for at the same time go out in one request.

While few ask, each check goes out at once and alone.  What comes in while as many requests as may be are under way
waits for the first of them to end, and then goes out together: the busier, the larger the batches, and nobody waits
for a timer.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from apportion._types import Answer, Check, InvalidRequest, NoAnswer

IN_FLIGHT_MOST: Final = 2
CHECKS_MOST: Final = 500
"""Of one request; a node takes 1,000."""
WAITING_MOST: Final = 10_000

Said = Answer | InvalidRequest


class AsyncBatcher:
    """``send``: what asks for many; it may raise NoAnswer and InvalidRequest for all of them."""

    def __init__(self, send: Callable[[Sequence[Check]], Awaitable[list[Said]]]) -> None:
        self._send = send
        self._waiting: deque[tuple[Check, asyncio.Future[Said]]] = deque()
        self._in_flight: set[asyncio.Task[None]] = set()
        self._is_called = False

    async def ask(self, check: Check) -> Said:
        """Raises NoAnswer, and InvalidRequest if the whole batch was refused."""
        if len(self._waiting) >= WAITING_MOST:
            raise NoAnswer("too many checks are waiting here")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Said] = loop.create_future()
        self._waiting.append((check, future))
        if not self._is_called:
            # At the end of this turn of the loop: everybody who asks in it goes out together.
            self._is_called = True
            loop.call_soon(self._go)
        return await future

    def _go(self) -> None:
        self._is_called = False
        while self._waiting and len(self._in_flight) < IN_FLIGHT_MOST:
            count = min(CHECKS_MOST, len(self._waiting))
            batch = [self._waiting.popleft() for _ in range(count)]
            task = asyncio.get_running_loop().create_task(self._ask(batch))
            self._in_flight.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._in_flight.discard(task)
        self._go()

    async def _ask(self, batch: list[tuple[Check, asyncio.Future[Said]]]) -> None:
        futures = [future for _, future in batch]
        try:
            said = await self._send([check for check, _ in batch])
        except asyncio.CancelledError:
            for future in futures:
                future.cancel()
            raise
        except Exception as error:
            for future in futures:
                if not future.done():
                    future.set_exception(error)
            return
        for future, one in zip(futures, said, strict=True):
            if not future.done():
                future.set_result(one)


class _Entry:
    """A thread's check.  ``leads``: the thread that waits for it has to send the next batch."""

    __slots__ = ("check", "error", "leads", "said", "told")

    def __init__(self, check: Check) -> None:
        self.check = check
        self.told = threading.Event()
        self.leads = False
        self.said: Said | None = None
        self.error: Exception | None = None


class Batcher:
    """:class:`AsyncBatcher` for threads: one of those that wait sends for all of them."""

    def __init__(self, send: Callable[[Sequence[Check]], list[Said]]) -> None:
        self._send = send
        self._lock = threading.Lock()
        self._waiting: deque[_Entry] = deque()
        self._in_flight = 0

    def ask(self, check: Check, timeout_s: float) -> Said:
        """``timeout_s``: how long to wait until it is sent, and again until it is answered.  Raises as above."""
        entry = _Entry(check)
        with self._lock:
            if len(self._waiting) >= WAITING_MOST:
                raise NoAnswer("too many checks are waiting here")
            self._waiting.append(entry)
            if self._in_flight < IN_FLIGHT_MOST:
                self._in_flight += 1
                entry.leads = True
        if not entry.leads and not entry.told.wait(2 * timeout_s):
            with self._lock:
                if entry in self._waiting:
                    self._waiting.remove(entry)
                leads = entry.leads
            if not leads:
                raise NoAnswer("no batch came back in time")
        if entry.leads:
            self._lead()
        if entry.error is not None:
            raise entry.error
        if entry.said is None:
            raise NoAnswer("no batch came back in time")
        return entry.said

    def _lead(self) -> None:
        """Send what waits, and make another one that waits by then the next to do so."""
        with self._lock:
            count = min(CHECKS_MOST, len(self._waiting))
            batch = [self._waiting.popleft() for _ in range(count)]
        try:
            if batch:
                for entry, one in zip(batch, self._send([entry.check for entry in batch]), strict=True):
                    entry.said = one
        except Exception as error:
            for entry in batch:
                entry.error = error
        finally:
            with self._lock:
                if self._waiting:
                    following = self._waiting[0]
                    following.leads = True
                    following.told.set()
                else:
                    self._in_flight -= 1
            for entry in batch:
                entry.told.set()
