"""Virtual time: one heap of events for the whole world, and one event loop for each process in it.

Nothing here waits and nothing reads a real clock.  The real agent and the real leader are written with asyncio;
a :class:`ProcessLoop` runs their coroutines on the world's time, and shows each process a clock of its own.  A
process can be frozen (nothing of it runs, its clock goes on) and killed (nothing of it ever runs again).
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from math import ceil
from typing import Any

from global_sync.simulation.clock import Clock

_CALLBACKS_AT_ONCE = 100_000


class Scheduler:
    """Events in the order of their time, and of equal times in the order in which they were planned."""

    def __init__(self) -> None:
        self.now_us = 0
        self.events = 0
        self._queue: list[tuple[int, int, Callable[..., object], tuple[Any, ...]]] = []
        self._serial = 0

    def later(self, delay_us: int, act: Callable[..., object], *arguments: Any) -> None:
        """Call ``act`` after ``delay_us`` of true time (0: after what is already planned for now)."""
        self._serial += 1
        heapq.heappush(self._queue, (self.now_us + max(0, delay_us), self._serial, act, arguments))

    def next_at_us(self) -> int | None:
        return self._queue[0][0] if self._queue else None

    def step(self) -> bool:
        """Make the next event; False when there is none."""
        if not self._queue:
            return False
        self.now_us, _, act, arguments = heapq.heappop(self._queue)
        self.events += 1
        act(*arguments)
        return True


class ProcessLoop(asyncio.AbstractEventLoop):
    """The event loop of one simulated process: just what tasks, futures and time-outs need.

    ``failed`` is told what a callback raised that nobody awaited.
    """

    def __init__(self, scheduler: Scheduler, clock: Clock, failed: Callable[[str], None]) -> None:
        self._scheduler = scheduler
        self._clock = clock
        self._failed = failed
        self._ready: deque[asyncio.Handle] = deque()
        self._draining = False
        self._woken = False
        self._tasks: set[asyncio.Task[Any]] = set()
        self._frozen_until_us = 0
        self.dead = False

    # ---- what the world does to it

    def freeze(self, until_us: int) -> None:
        """Stop the process until then (true time), as SIGSTOP does."""
        self._frozen_until_us = max(self._frozen_until_us, until_us)

    @property
    def frozen(self) -> bool:
        return self._scheduler.now_us < self._frozen_until_us

    def kill(self) -> None:
        """End the process at once.  Its transport and store must refuse it from now on, so nothing leaves."""
        self._frozen_until_us = 0
        for task in list(self._tasks):
            task.cancel()
        self._drain()
        self.dead = True

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run a coroutine in the process, now."""
        task = self.create_task(work)
        self._drain()
        return task

    # ---- running

    def _drain(self) -> None:
        self._woken = False
        if self._draining or self.dead:
            return
        if self.frozen:
            self._wake(self._frozen_until_us - self._scheduler.now_us)
            return
        self._draining = True
        asyncio._set_running_loop(self)
        try:
            for _ in range(_CALLBACKS_AT_ONCE):
                if not self._ready:
                    return
                handle = self._ready.popleft()
                if not handle.cancelled():
                    handle._run()
            raise RuntimeError("a process runs on and on without any time passing")
        finally:
            asyncio._set_running_loop(None)
            self._draining = False

    def _wake(self, delay_us: int = 0) -> None:
        if not self._woken and not self._draining:
            self._woken = True
            self._scheduler.later(delay_us, self._drain)

    def _due(self, handle: asyncio.TimerHandle) -> None:
        if not handle.cancelled() and not self.dead:
            self._ready.append(handle)
            self._drain()

    # ---- what asyncio asks of a loop

    def time(self) -> float:
        return self._clock.read(self._scheduler.now_us) / 1e6

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        self._wake()
        return handle

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        shown_us = ceil((when - self.time()) * 1e6 - 1e-3)
        self._scheduler.later(self._clock.true_duration(shown_us), self._due, handle)
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """It stays in the queue, and does nothing when its time comes."""

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, Any], *, name: str | None = None, context: Context | None = None
    ) -> asyncio.Task[Any]:
        task = asyncio.Task(coro, loop=self, name=name, context=context)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """At once: what a thread would do while the loop goes on takes no virtual time."""
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self._failed(f"{context.get('message')}: {context.get('exception')!r}")

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return self._draining

    def is_closed(self) -> bool:
        return self.dead
