"""Between callbacks and ``await``: a future that a callback completes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

_T = TypeVar("_T")


async def settled(submit: Callable[[Callable[[_T | Exception], None]], None]) -> _T:
    """Await what ``submit`` tells its callback: the result, or an exception, which is raised.

    Whoever waits may go away; the outcome is then thrown away.
    """
    future: asyncio.Future[_T] = asyncio.get_running_loop().create_future()

    def done(outcome: _T | Exception) -> None:
        if future.done():
            return
        if isinstance(outcome, Exception):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)

    submit(done)
    return await future
