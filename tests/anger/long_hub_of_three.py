"""More of ``long_hub_paused.py``, for ``make test-anger``: these wait for sessions and consents to end."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.anger.brokers import Brokers
from tests.anger.three_brokers import BY_THEMSELVES, leader_of, regions
from tests.anger.world import BASE, CONSENT_S, RATE, REGIONS, SESSION_S, lends

pytestmark = [pytest.mark.timeout(600), BY_THEMSELVES]


async def test_a_killed_broker_costs_no_session_and_the_one_that_comes_back_is_taken_in(
    brokers: Brokers, tmp_path: Path
) -> None:
    async with regions(brokers, tmp_path) as (world, _):
        for _ in range(2):
            victim = await leader_of(brokers)
            await asyncio.to_thread(brokers.kill, victim)
            world.least.clear()
            await world.offer("us-east", 1.5 * RATE, SESSION_S + 2)
            kept = world.least["us-east"]
            await lends(world, "eu-west")
            await asyncio.to_thread(brokers.start, [victim])
            await lends(world, "us-east")
            assert kept > BASE, world.resets()


async def test_all_brokers_killed_and_started_again_keep_what_was_acknowledged_and_lending_comes_back(
    brokers: Brokers, tmp_path: Path
) -> None:
    async with regions(brokers, tmp_path) as (world, writer):
        known = dict(writer.acknowledged)
        await asyncio.to_thread(brokers.kill, 0, 1, 2)
        starting = asyncio.create_task(asyncio.to_thread(brokers.start))
        while not starting.done():
            await world.offer("us-east", 1.5 * RATE, 1)
        await starting
        await world.until("all regions are in session again", lambda: world.settled, 120)
        await lends(world, "us-east")
        await lends(world, "ap-south")
        assert known.items() <= writer.acknowledged.items()


async def test_a_hub_that_is_out_for_longer_than_consents_last_leaves_the_static_split(
    brokers: Brokers, tmp_path: Path
) -> None:
    async with regions(brokers, tmp_path) as (world, _):
        brokers.freeze(0, 1, 2)
        try:
            await asyncio.gather(*(world.offer(name, RATE, CONSENT_S + 1) for name in REGIONS))
            alone = world.shares()
        finally:
            brokers.thaw(0, 1, 2)
        await lends(world, "ap-south")
        assert sorted(alone.values()) == [BASE, BASE, BASE + 1]
