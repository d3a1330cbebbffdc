"""Loops that outlive their failures, and waits that can be cancelled.  [IO]"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

import structlog

log = structlog.get_logger(__name__)

RESTART_PAUSE_S = 0.1

Loop = Callable[[], Awaitable[None]]


def keep_running(loop: Loop, expected: tuple[type[Exception], ...], name: str = "") -> asyncio.Task[None]:
    """Run ``loop`` again whenever it ends, until the task is cancelled.

    ``expected`` failures (of the store, of the link) are waited out; any other is logged with its trace.
    """
    name = name or getattr(loop, "__name__", "loop").strip("_")
    return asyncio.create_task(_forever(loop, expected, name), name=name)


async def _forever(loop: Loop, expected: tuple[type[Exception], ...], name: str) -> None:
    while True:
        try:
            await loop()
        except expected as error:
            log.info("waiting", loop=name, error=str(error))
        except Exception:
            log.exception("loop failed, starting it again", loop=name)
        await asyncio.sleep(RESTART_PAUSE_S)


async def end(tasks: Iterable[asyncio.Task[None]]) -> None:
    """Cancel and wait."""
    tasks = list(tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def wait(event: asyncio.Event, seconds: float) -> None:
    """Until the event, or until the time has passed.

    Not ``asyncio.wait_for``: before Python 3.12 it may swallow a cancellation that comes with the event.
    """
    try:
        async with asyncio.timeout(max(0.0, seconds)):
            await event.wait()
    except TimeoutError:
        pass
