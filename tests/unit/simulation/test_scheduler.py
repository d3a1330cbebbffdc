"""Processes on virtual time: nothing waits, each has its own clock, and one can be frozen or killed by itself."""

from __future__ import annotations

import asyncio

import pytest

from global_sync.simulation.clock import Clock
from global_sync.simulation.scheduler import ProcessLoop, Scheduler

SECOND = 1_000_000


class Process:
    def __init__(self, scheduler: Scheduler, ppm: int = 0) -> None:
        self.failures: list[str] = []
        self.clock = Clock(5 * SECOND, ppm)
        self.loop = ProcessLoop(scheduler, self.clock, self.failures.append)
        self.woke_us: list[int] = []
        self.scheduler = scheduler

    async def tick(self, every_s: float) -> None:
        while True:
            await asyncio.sleep(every_s)
            self.woke_us.append(self.scheduler.now_us)


def run_until(scheduler: Scheduler, at_us: int) -> None:
    while (due := scheduler.next_at_us()) is not None and due <= at_us:
        scheduler.step()


def test_each_process_sleeps_by_its_own_clock() -> None:
    scheduler = Scheduler()
    slow, fast = Process(scheduler, -100_000), Process(scheduler, 100_000)
    for process in (slow, fast):
        process.loop.spawn(process.tick(1))
    run_until(scheduler, 10 * SECOND)
    assert (len(slow.woke_us), len(fast.woke_us)) == (9, 10) or (len(slow.woke_us), len(fast.woke_us)) == (8, 10)


def test_a_frozen_process_does_nothing_and_then_goes_on() -> None:
    scheduler = Scheduler()
    frozen, other = Process(scheduler), Process(scheduler)
    for process in (frozen, other):
        process.loop.spawn(process.tick(1))
    frozen.loop.freeze(3_500_000)
    run_until(scheduler, 6 * SECOND)
    assert frozen.woke_us[:2] == [3_500_000, 4_500_000]
    assert other.woke_us == [n * SECOND for n in range(1, 7)]


def test_a_killed_process_never_runs_again_and_its_tasks_end() -> None:
    scheduler, ended = Scheduler(), []
    process = Process(scheduler)

    async def work() -> None:
        try:
            await process.tick(1)
        finally:
            ended.append(scheduler.now_us)

    task = process.loop.spawn(work())
    run_until(scheduler, 2_500_000)
    process.loop.kill()
    run_until(scheduler, 10 * SECOND)
    assert process.woke_us == [SECOND, 2 * SECOND]
    assert ended == [2_500_000] or ended == [2_000_000]
    assert task.cancelled()


def test_what_asyncio_offers_works() -> None:
    scheduler = Scheduler()
    process = Process(scheduler)
    seen: list[object] = []

    async def work() -> None:
        event = asyncio.Event()
        asyncio.get_running_loop().call_later(0.2, event.set)
        await event.wait()
        seen.append(scheduler.now_us)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await asyncio.Event().wait()
        seen.append(scheduler.now_us)
        seen.append(await asyncio.to_thread(lambda: "thread"))
        seen.append(await asyncio.gather(asyncio.sleep(1, "a"), asyncio.sleep(2, "b")))

    process.loop.spawn(work())
    run_until(scheduler, 10 * SECOND)
    assert seen == [200_000, 500_000, "thread", ["a", "b"]]
    assert not process.failures


def test_a_task_that_never_lets_time_pass_is_an_error() -> None:
    process = Process(Scheduler())

    async def busy() -> None:
        while True:  # noqa: ASYNC110 - that is the mistake
            await asyncio.sleep(0)

    with pytest.raises(RuntimeError, match="on and on"):
        process.loop.spawn(busy())
    process.loop.dead = True
