from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator

import pytest

from tests.contract.redis_cluster import RedisCluster
from tests.contract.region_processes import Region
from tests.gateways.gateway import Application, Gateway, application, running

KINDS = tuple(os.environ.get("GATEWAYS", "nginx haproxy envoy-ext-authz").split())
"""Of forward-auth; `make test-gateways` has all that there are examples of."""

RULES = {
    "domain": "default",
    "regions": {"us-east": 1},
    "rules": [
        {"id": "few", "match": {"resource": "* /few/*"}, "key": ["path"], "capacity": 5, "refill": "1/h"},
        {"id": "logins", "match": {"resource": "* /login*"}, "key": ["ip", "path"], "capacity": 3, "refill": "1/h"},
        {
            "id": "exact",
            "match": {"resource": "exact"},
            "key": ["client_key"],
            "algorithm": "fixed_window",
            "limit": 3000,
            "window": "1d",
        },
        {"id": "leased", "match": {"resource": "leased"}, "capacity": 100_000, "refill": "1/h"},
        {"id": "many", "match": {"resource": "GET /many"}, "key": ["ip"], "capacity": 100_000, "refill": "1/h"},
    ],
}


@pytest.fixture(scope="session")
def region(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Region]:
    """Two nodes on a real Redis Cluster; a test that ends one starts it again."""
    cluster = RedisCluster(tmp_path_factory.mktemp("gateways-cluster"))
    cluster.start()
    region = Region(tmp_path_factory.mktemp("gateways-region"), cluster.addresses[:3], RULES)

    async def start() -> None:
        await asyncio.gather(*map(region.start, region.urls))

    try:
        asyncio.run(start())
        yield region
    finally:
        region.kill()
        cluster.stop()


@pytest.fixture(scope="session")
def behind() -> Iterator[Application]:
    with application() as running_application:
        yield running_application


@pytest.fixture(scope="session", params=KINDS)
def gateway(
    request: pytest.FixtureRequest,
    region: Region,
    behind: Application,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Gateway]:
    """Each kind, with its example configuration, before both nodes."""
    directory = tmp_path_factory.mktemp(request.param) / "run"
    nodes = [url.removeprefix("http://") for url in region.urls.values()]
    with running(request.param, directory, nodes, behind) as one:
        yield one
