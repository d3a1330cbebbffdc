"""Time goes from event to event, and nothing else moves it."""

from __future__ import annotations

import asyncio
import time

import pytest

from services.simulator.virtual_loop import NothingDue, VirtualLoop, run


def test_an_hour_passes_at_once_and_in_order() -> None:
    seen: list[tuple[str, float]] = []

    async def sleeper(name: str, seconds: float, loop: VirtualLoop) -> None:
        await asyncio.sleep(seconds)
        seen.append((name, round(loop.time(), 6)))

    async def main(loop: VirtualLoop) -> None:
        await asyncio.gather(sleeper("b", 3600, loop), sleeper("a", 0.25, loop), sleeper("c", 3600.5, loop))

    began_s = time.monotonic()
    run(main)
    assert seen == [("a", 0.25), ("b", 3600.0), ("c", 3600.5)]
    assert time.monotonic() - began_s < 5


def test_what_runs_in_threads_elsewhere_takes_no_time_here_and_keeps_its_errors() -> None:
    async def main(loop: VirtualLoop) -> tuple[int, float]:
        with pytest.raises(ZeroDivisionError):
            await asyncio.to_thread(lambda: 1 // 0)
        return await asyncio.to_thread(lambda: 7), loop.time()

    assert run(main) == (7, 0.0)


def test_a_wait_that_nothing_can_end_is_an_error_and_no_endless_run() -> None:
    async def main(_: VirtualLoop) -> None:
        await asyncio.Event().wait()

    with pytest.raises(NothingDue):
        run(main)
