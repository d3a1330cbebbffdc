"""The Redis Cluster that tests share, and the loops that they run on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping

import pytest
import uvloop

from tests.contract.redis_cluster import RedisCluster
from tests.contract.redis_server import RedisServer


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Faults on uvloop, as nodes run: its timers and sockets take turns in another order than asyncio's."""
    if "redis_cluster_faults" in item.nodeid:
        return {"uvloop": uvloop.new_event_loop}
    return {"asyncio": asyncio.new_event_loop}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """One server, for tests that load the library themselves and empty it."""
    with RedisServer(tmp_path_factory.mktemp("redis")) as running:
        yield running


@pytest.fixture(scope="package")
def cluster_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisCluster]:
    """One cluster for all tests that leave its servers alive."""
    cluster = RedisCluster(tmp_path_factory.mktemp("cluster"))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture
def calm_cluster(cluster_process: RedisCluster) -> RedisCluster:
    """The shared cluster, empty: no keys, no functions (and so none of their variables)."""
    for port in cluster_process.ports:
        if cluster_process.role(port) == "master":
            cluster_process.client(port).flushall()
            cluster_process.client(port).execute_command("FUNCTION", "FLUSH")
    return cluster_process
