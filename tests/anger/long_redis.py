"""What else a region's Redis may do while its share moves, for ``make test-anger``.

Every server is asked all the time; none may ever enforce more than the leader counts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from tests.anger.redis_world import REAL, RedisWorld, living_on
from tests.anger.world import CONSENT_S, RATE, TIMES, lends
from tests.contract.redis_cluster import RedisCluster

pytestmark = pytest.mark.timeout(600)

GAP_S = TIMES.gap_us / 1e6


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RedisCluster]:
    cluster = RedisCluster(tmp_path / "cluster")
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


async def replaced(world: RedisWorld) -> None:
    first, _ = await world.pair()
    text = world.store._library.text
    await asyncio.to_thread(world.cluster.client(first).function_load, text, replace=True)


async def restarted(world: RedisWorld) -> None:
    first, _ = await world.pair()
    await asyncio.to_thread(world.cluster.kill, first)
    await asyncio.to_thread(world.cluster.start_server, first)


async def moved(world: RedisWorld) -> None:
    first, _ = await world.pair()
    target = next(port for port in world.cluster.ports if world.cluster.role(port) == "master" and port != first)
    await asyncio.to_thread(world.cluster.move_slot, world.slot, first, target)
    await world.answered_by(target)


async def forced(world: RedisWorld) -> None:
    _, second = await world.pair()
    await world.fail_over(second, "FORCE")


async def frozen_beyond_the_gap(world: RedisWorld) -> None:
    first, _ = await world.pair()
    world.cluster.freeze(first)
    await asyncio.sleep(1.3 * GAP_S)
    world.cluster.thaw(first)


async def frozen_beyond_the_consent(world: RedisWorld) -> None:
    first, _ = await world.pair()
    world.cluster.freeze(first)
    try:
        await lends(world, "eu-west")
        await asyncio.sleep(CONSENT_S + 1)
    finally:
        world.cluster.thaw(first)


@pytest.mark.parametrize(
    "happens", [replaced, restarted, moved, forced, frozen_beyond_the_gap, frozen_beyond_the_consent]
)
async def test_whatever_becomes_of_a_server_no_copy_enforces_more_than_is_counted(
    cluster: RedisCluster, tmp_path: Path, happens: Callable[[RedisWorld], Awaitable[None]]
) -> None:
    async with living_on(cluster, tmp_path) as world:
        await lends(world, REAL)
        # While the share moves away, and while it comes back.
        for region in ("eu-west", REAL):
            moving = asyncio.create_task(world.offer(region, 1.5 * RATE, 2))
            await happens(world)
            await moving
            await lends(world, region)


async def test_a_clock_that_steps_never_lengthens_what_a_server_enforces(
    cluster: RedisCluster, tmp_path: Path
) -> None:
    async with living_on(cluster, tmp_path) as world:
        for ahead_s in (GAP_S / 2, 0, -10 * GAP_S, 10 * GAP_S, 0):
            await lends(world, REAL)
            first, _ = await world.pair()
            moving = asyncio.create_task(world.offer("eu-west", 1.5 * RATE, 2))
            await world.set_clock(first, ahead_s)
            await moving
            await lends(world, "eu-west")
