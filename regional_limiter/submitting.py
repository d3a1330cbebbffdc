"""Between callbacks and ``await``: a future that a callback completes, and a callback that a task calls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar

from regional_limiter.model.decision import Verdict
from regional_limiter.model.errors import StoreUnavailable
from regional_limiter.store.base import CROWDED_FROM, BucketCall, Decided

_T = TypeVar("_T")


async def settled(submit: Callable[[Callable[[_T | Exception], None]], None]) -> _T:
    """Await what ``submit`` tells its callback: the result, or an exception, which is raised.

    Whoever waits may go away; the outcome is then thrown away.
    """
    future: asyncio.Future[_T] = asyncio.get_running_loop().create_future()
    submit(partial(settle, future))
    return await future


def settle(future: asyncio.Future[_T], outcome: _T | Exception) -> None:
    """Tell whoever awaits ``future``, if anybody still does."""
    if future.done():
        return
    if isinstance(outcome, Exception):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)


async def all_of(calls: Iterable[Coroutine[Any, Any, _T]]) -> list[_T]:
    """What all of them gave, once all have ended; raises the first of their errors."""
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
    return [outcome for outcome in outcomes if not isinstance(outcome, BaseException)]


class Checks(Protocol):
    """Whoever decides checks, by ``await``."""

    async def check(self, calls: Sequence[BucketCall], request_id: str | None = None) -> list[Verdict]:
        """See CheckStore.check."""
        ...


class InTasks:
    """A SubmittingStore over one that only answers by ``await``, within ``deadline_s``.

    ``tasks_most``: checks that wait at a time; what comes beyond is ``queue_full``.  ``late``: the cause when it
    is over.
    """

    def __init__(self, store: Checks, deadline_s: float, tasks_most: int = 4096, late: str = "deadline") -> None:
        self._store = store
        self._deadline_s = deadline_s
        self._tasks_most = tasks_most
        self._late = late
        self._tasks: set[asyncio.Task[None]] = set()

    def prepare(
        self, calls: Sequence[BucketCall], request_id: str | None
    ) -> tuple[Sequence[BucketCall], str | None]:
        return calls, request_id

    def is_crowded(self, prepared: tuple[Sequence[BucketCall], str | None]) -> bool:
        return len(self._tasks) > CROWDED_FROM * self._tasks_most

    def submit(self, prepared: tuple[Sequence[BucketCall], str | None], done: Decided) -> None:
        if len(self._tasks) >= self._tasks_most:
            done(StoreUnavailable("queue_full", may_have_run=False))
            return

        async def ask() -> None:
            outcome: list[Verdict] | Exception
            try:
                async with asyncio.timeout(self._deadline_s):
                    outcome = await self._store.check(*prepared)
            except TimeoutError:
                outcome = StoreUnavailable(self._late)
            except Exception as error:
                outcome = error
            done(outcome)

        task = asyncio.get_running_loop().create_task(ask())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
