"""Checks that wait for other regions."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from regional_limiter import home_calls
from regional_limiter.home_calls import HomeCalls, NoHomes
from regional_limiter.model.decision import Reason, Verdict
from regional_limiter.model.errors import StoreUnavailable
from regional_limiter.model.home import Elsewhere
from regional_limiter.model.rule import Algorithm
from regional_limiter.model.share import ProtocolTimes
from regional_limiter.store.base import BucketCall
from regional_limiter.store.memory import MemoryStore
from regional_limiter.submitting import settled

ALLOWED = Verdict(True, Reason.OK, 4, 0, 60_000)


class SilentAtUs(NoHomes):
    async def check(self, calls: Sequence[BucketCall], request_id: str | None = None) -> list[Verdict]:
        elsewhere = calls[0].elsewhere
        assert elsewhere is not None
        if elsewhere.region == "us":
            await asyncio.Event().wait()
        return [ALLOWED]


def calls_to(region: str) -> list[BucketCall]:
    there = Elsewhere(region, f"https://{region}.example")
    key = "rl:{abcdefgh}:default/a:c"
    return [BucketCall(key, Algorithm.FIXED_WINDOW, 5, None, 60_000, 1, elsewhere=there)]


async def ask(homes: HomeCalls, region: str) -> list[Verdict]:
    return await settled(homes.prepare(calls_to(region), None).submit)


async def test_checks_that_wait_for_a_silent_home_take_no_place_of_anothers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(home_calls, "TASKS_MOST", 2)
    homes = HomeCalls(MemoryStore(lambda: 0, ProtocolTimes()), SilentAtUs(), 1000.0)
    async with asyncio.TaskGroup() as group:
        waiting = [group.create_task(ask(homes, "us")) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(StoreUnavailable, match="queue_full"):
            await ask(homes, "us")
        assert homes.prepare(calls_to("us"), None).is_crowded()
        assert not homes.prepare(calls_to("eu"), None).is_crowded()
        assert await ask(homes, "eu") == [ALLOWED]
        for task in waiting:
            task.cancel()


async def test_whoever_waits_too_long_hears_that_the_home_was_not_reached() -> None:
    homes = HomeCalls(MemoryStore(lambda: 0, ProtocolTimes()), SilentAtUs(), 0.001)
    with pytest.raises(StoreUnavailable, match="home_unreachable"):
        await ask(homes, "us")
