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
BYTES_MOST: Final = 1_000_000
"""Of a batch; a node takes 1 MiB.  A check that is larger by itself goes alone, and is refused alone."""
_BYTES_BESIDE: Final = 300
"""Of a check: names of fields, the domain and the ids."""
WAITING_MOST: Final = 10_000

Said = Answer | InvalidRequest | NoAnswer
"""What became of one check of a batch, whatever became of the others."""


class AsyncBatcher:
    """``send``: what asks for many; it may raise NoAnswer and InvalidRequest for all of them."""

    def __init__(self, send: Callable[[Sequence[Check]], Awaitable[list[Said]]]) -> None:
        self._send = send
        self._waiting: deque[tuple[Check, int, asyncio.Future[Said]]] = deque()
        self._in_flight: set[asyncio.Task[None]] = set()
        self._is_called = False

    async def ask(self, check: Check) -> Said:
        """Raises NoAnswer, and InvalidRequest if the whole batch was refused."""
        if len(self._waiting) >= WAITING_MOST:
            raise NoAnswer("too many checks are waiting here")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Said] = loop.create_future()
        self._waiting.append((check, _bytes_at_most(check), future))
        if not self._is_called:
            # At the end of this turn of the loop: everybody who asks in it goes out together.
            self._is_called = True
            loop.call_soon(self._go)
        return await future

    def _go(self) -> None:
        self._is_called = False
        while len(self._in_flight) < IN_FLIGHT_MOST and (batch := self._taken()):
            task = asyncio.get_running_loop().create_task(self._ask(batch))
            self._in_flight.add(task)
            task.add_done_callback(self._ended)

    def _taken(self) -> list[tuple[Check, asyncio.Future[Said]]]:
        """The next batch, without those whose caller went away meanwhile: nobody is charged for them."""
        batch: list[tuple[Check, asyncio.Future[Said]]] = []
        room = BYTES_MOST
        while self._waiting and len(batch) < CHECKS_MOST:
            check, size, future = self._waiting[0]
            if not future.done():
                room -= size
                if batch and room < 0:
                    break
                batch.append((check, future))
            self._waiting.popleft()
        return batch

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


def _bytes_at_most(check: Check) -> int:
    """What it takes of a body: no character of JSON has more than six bytes."""
    characters = len(str(check.client_key)) + len(str(check.resource)) + len(str(check.cost))
    for name, value in (check.attributes or {}).items():
        characters += len(str(name)) + len(str(value)) + 1
    return _BYTES_BESIDE + 6 * characters


class _Entry:
    """A thread's check.  ``told``: there is something to send, or what became of it is known.

    ``is_waiting``: it is in no batch yet.  ``is_gone``: its thread waits no more.
    ``to_send``: the batch, itself first, that its thread has to send.
    """

    __slots__ = ("bytes_at_most", "check", "error", "is_gone", "is_waiting", "said", "to_send", "told")

    def __init__(self, check: Check) -> None:
        self.check = check
        self.bytes_at_most = _bytes_at_most(check)
        self.told = threading.Event()
        self.is_waiting = False
        self.is_gone = False
        self.to_send: list[_Entry] = []
        self.said: Said | None = None
        self.error: Exception | None = None


class Batcher:
    """:class:`AsyncBatcher` for threads: one of those that wait sends for all of them.

    Whoever is given the place of a request is given its batch under the same lock, so a place has one owner, and
    nobody waits while a place is free.
    """

    def __init__(self, send: Callable[[Sequence[Check]], list[Said]]) -> None:
        self._send = send
        self._lock = threading.Lock()
        self._waiting: deque[_Entry] = deque()
        self._in_flight = 0

    def ask(self, check: Check, timeout_s: float) -> Said:
        """``timeout_s``: how long to wait until it is sent, and again until it is answered.  Raises as above."""
        entry = _Entry(check)
        self._join(entry)
        try:
            self._await(entry, timeout_s)
        except BaseException:
            self._give_back(self._leave(entry))
            raise
        if batch := self._leave(entry):
            self._lead(batch)
        if entry.error is not None:
            raise entry.error
        if entry.said is None:
            raise NoAnswer("no batch came back in time")
        return entry.said

    def _join(self, entry: _Entry) -> None:
        with self._lock:
            if len(self._waiting) >= WAITING_MOST:
                raise NoAnswer("too many checks are waiting here")
            entry.is_waiting = True
            self._waiting.append(entry)
            if self._in_flight < IN_FLIGHT_MOST:
                self._in_flight += 1
                self._hand_on()

    def _hand_on(self) -> None:
        """With the lock held: a place goes to the first that waits, or is free."""
        batch: list[_Entry] = []
        room = BYTES_MOST
        while self._waiting and len(batch) < CHECKS_MOST:
            room -= self._waiting[0].bytes_at_most
            if batch and room < 0:
                break
            batch.append(self._waiting.popleft())
        if not batch:
            self._in_flight -= 1
            return
        for entry in batch:
            entry.is_waiting = False
        batch[0].to_send = batch
        batch[0].told.set()

    def _await(self, entry: _Entry, timeout_s: float) -> None:
        if entry.told.wait(timeout_s):
            return
        with self._lock:
            if entry.is_waiting:
                self._remove(entry)
                return
        entry.told.wait(timeout_s)

    def _remove(self, entry: _Entry) -> None:
        """With the lock held."""
        self._waiting.remove(entry)
        entry.is_waiting = False

    def _leave(self, entry: _Entry) -> list[_Entry]:
        """End its wait.  What its thread has to send; from now on it is given no more."""
        with self._lock:
            if entry.is_waiting:
                self._remove(entry)
            entry.is_gone = True
            batch, entry.to_send = entry.to_send, []
            return batch

    def _lead(self, batch: list[_Entry]) -> None:
        """Send it, and hand the place on."""
        error: Exception = NoAnswer("the thread that asked was interrupted")
        try:
            for entry, one in zip(batch, self._send([entry.check for entry in batch]), strict=True):
                entry.said = one
        except Exception as failure:
            error = failure
        finally:
            with self._lock:
                self._hand_on()
            for entry in batch:
                if entry.said is None:
                    entry.error = error
                entry.told.set()

    def _give_back(self, batch: list[_Entry]) -> None:
        """What an interrupted thread had to send goes to the next one."""
        if not batch:
            return
        with self._lock:
            others = [entry for entry in batch if not entry.is_gone]
            for entry in others:
                entry.is_waiting = True
            self._waiting.extendleft(reversed(others))
            self._hand_on()
