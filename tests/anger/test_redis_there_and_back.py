"""A primary that lost its place and gets it back, while its region's share was cut meanwhile.

What it remembers is older, and larger: it must never be enforced.  ``long_redis.py`` has more of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.anger.redis_world import REAL, living_on
from tests.anger.world import RATE, lends
from tests.contract.redis_cluster import RedisCluster

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RedisCluster]:
    cluster = RedisCluster(tmp_path / "cluster")
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


async def test_a_primary_that_comes_back_never_enforces_the_larger_share_that_it_remembers(
    cluster: RedisCluster, tmp_path: Path
) -> None:
    async with living_on(cluster, tmp_path) as world:
        await lends(world, REAL)
        first, second = await world.pair()
        # Away for long: its region's share is cut, and lent to another, before it is back.
        await world.fail_over(second)
        await lends(world, "eu-west")
        await world.fail_over(first)
        await world.answered_by(first)
        await lends(world, REAL)
        # There and back at once: what was written meanwhile is not to be counted on.
        moved = asyncio.create_task(world.offer("eu-west", 1.5 * RATE, 3))
        await world.fail_over(second, "TAKEOVER")
        await world.fail_over(first, "TAKEOVER")
        await moved
        await world.answered_by(first)
        await lends(world, "eu-west")
        await lends(world, REAL)
