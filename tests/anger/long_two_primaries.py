"""Two primaries of one shard at once, measured, for ``make test-anger``.

A primary that is cut off from the other servers, but not from its callers, decides on until it has been without
them for the cluster's node timeout, or half as long again.  Its replica may be made primary meanwhile: for so long
a region's share is in force twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.anger.bus import ANNOUNCED_ABOVE, Bus
from tests.anger.redis_world import REAL, living_on
from tests.anger.world import lends
from tests.contract.redis_cluster import NODE_TIMEOUT_MS, RedisCluster

pytestmark = pytest.mark.timeout(600)

NODE_TIMEOUT_S = NODE_TIMEOUT_MS / 1000
BUSY_MACHINE_S = 3.0
QUIET_S = 3.0
"""It has been asked some hundred times meanwhile."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[RedisCluster, Bus]]:
    cluster = RedisCluster(
        tmp_path / "cluster", settings=lambda port: {"cluster-announce-bus-port": port + ANNOUNCED_ABOVE}
    )
    bus = Bus(cluster.ports)
    try:
        cluster.start()
        bus.names.update({cluster.id_of(port): port for port in cluster.ports})
        yield cluster, bus
    finally:
        cluster.stop()
        bus.close()


async def test_a_primary_that_is_cut_off_decides_for_no_longer_than_the_node_timeout(
    cluster: tuple[RedisCluster, Bus], tmp_path: Path
) -> None:
    servers, bus = cluster
    async with living_on(servers, tmp_path) as world:
        await lends(world, REAL)
        first, second = await world.pair()
        before = world.enforced[first]
        bus.cut.add(first)
        await asyncio.to_thread(servers.client(second).execute_command, "CLUSTER", "FAILOVER", "TAKEOVER")
        await world.answered_by(second, 1)
        began = world.seen[second].answered
        loop = asyncio.get_running_loop()
        await world.until("the old one has stopped", lambda: loop.time() - world.seen[first].answered > QUIET_S, 60)
        ended = world.seen[first].answered
        print(
            f"two primaries for {ended - began:.2f} s; the old one decided {world.enforced[first] - before} times"
        )
        assert ended - began < NODE_TIMEOUT_S + BUSY_MACHINE_S
        await lends(world, "eu-west")
        bus.cut.clear()
        await world.has_role(first, "slave")
        await lends(world, REAL)
