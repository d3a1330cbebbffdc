"""Envoy with the example configuration, before real nodes that serve a configuration of envoyproxy/ratelimit."""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import grpc
import httpx
import pytest
from envoy.service.ratelimit.v3 import rls_pb2

from regional_limiter.denials import REMEMBERED_US
from regional_limiter.rules import parse_document
from services.rls.messages import METHOD
from tests.contract.redis_cluster import RedisCluster, wait_until
from tests.contract.region_processes import Region
from tests.gateways.envoy import Envoy, envoy
from tests.gateways.gateway import EXAMPLES, Application

REGIONS = ("us-east", "eu-west", "ap-south")
EVERYWHERE = {
    "domain": "everywhere",
    "regions": dict.fromkeys(REGIONS, 1),
    "rules": [
        {
            "id": "path",
            "match": {"descriptor.keys": "path"},
            "key": ["path"],
            "algorithm": "fixed_window",
            "limit": 6,
            "window": "1d",
            "scope": "global",
            "distribution": "static",
        }
    ],
}

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module", params=["own", "grpcio"])
def served(
    request: pytest.FixtureRequest, region: Region, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Region]:
    """Two more nodes on the region's Redis, which serve the example's limits by either server."""
    directory = tmp_path_factory.mktemp(f"envoy-{request.param}")
    settings = f"""
            grpc.server = "{request.param}"
            grpc.dynamic_metadata = true
            grpc.envoy_config = "{EXAMPLES / "envoy" / "ratelimit.yaml"}"
            check_api.drain_ms = 1000
    """
    rules = {"domain": "other", "regions": {request.param: 1}, "rules": []}
    one = Region(directory, region.servers, rules, name=request.param, settings=settings)

    async def start() -> None:
        await asyncio.gather(*map(one.start, one.urls))

    try:
        asyncio.run(start())
        yield one
    finally:
        one.kill()


@pytest.fixture(scope="module")
def gateway(
    served: Region, behind: Application, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Envoy, Region]]:
    with envoy(tmp_path_factory.mktemp("envoy"), list(served.grpc.values()), behind) as running:
        running.wait_for_nodes(2)
        yield running, served


def client() -> httpx.Client:
    return httpx.Client(trust_env=False, timeout=20)


def fresh(served: Region, path: str) -> str:
    """Both servers count in one Redis: each has its own paths."""
    return f"{path}{served.name}"


def test_what_is_allowed_reaches_the_application_and_tells_what_is_left(
    gateway: tuple[Envoy, Region], behind: Application
) -> None:
    running, served = gateway
    path = fresh(served, "/plain/")
    with client() as caller:
        for left in (999, 998):
            response = caller.post(running.url + path, content=b"a body")
            assert (response.status_code, response.text) == (200, "from the application")
            assert behind.asked[-1] == f"POST {path} a body"
            assert response.headers["ratelimit"].startswith(f'"path";r={left};t=')
            # Envoy's own headers, from the statuses.
            assert response.headers["x-ratelimit-limit"] == '1000, 1000;w=60;name="path"'
            assert response.headers["x-ratelimit-remaining"] == str(left)


def test_exactly_the_limit_reaches_the_application_and_the_rest_is_429(
    gateway: tuple[Envoy, Region], behind: Application
) -> None:
    running, served = gateway
    path = fresh(served, "/dear/")
    with client() as caller:
        responses = [caller.get(running.url + path) for _ in range(8)]
    assert [response.status_code for response in responses] == [200] * 5 + [429] * 3
    assert sum(path in asked for asked in behind.asked) == 5
    denied = responses[-1]
    assert 0 < int(denied.headers["retry-after"]) <= 3600
    assert denied.headers["x-envoy-ratelimited"] == "true"
    wait_until(
        "the denial is logged",
        lambda: bool(re.search(f"429 RL {path} rule=path_-dear.* reason=limited", running.log())),
        10,
    )


def test_two_descriptors_are_one_request(gateway: tuple[Envoy, Region]) -> None:
    """A user's write is not counted where the path is over its limit."""
    running, served = gateway
    path, user = fresh(served, "/dear/together-"), {"x-user": served.name}
    with client() as caller:
        statuses = [caller.post(running.url + path, headers=user).status_code for _ in range(7)]
        elsewhere = caller.post(running.url + fresh(served, "/plain/elsewhere-"), headers=user)
    assert statuses == [200] * 5 + [429] * 2
    assert elsewhere.headers["x-ratelimit-remaining"] == "14"


def test_shadow_mode_lets_through_and_counts(gateway: tuple[Envoy, Region]) -> None:
    running, served = gateway
    path = fresh(served, "/watched/")
    with client() as caller:
        statuses = [caller.get(running.url + path).status_code for _ in range(5)]
        assert statuses == [200] * 5
        told = "".join(caller.get(f"{url}/metrics").text for url in served.urls.values())
    assert "shadow" in told


def test_hits_that_are_given_back_can_be_spent_again(gateway: tuple[Envoy, Region]) -> None:
    running, served = gateway
    path = fresh(served, "/dear/given-back-")
    with client() as caller:
        assert [caller.get(running.url + path).status_code for _ in range(6)] == [200] * 5 + [429]
        entry = rls_pb2.RateLimitRequest(domain="edge").descriptors.add()
        entry.entries.add(key="path", value=path)
        entry.hits_addend.value = 2
        descriptor = entry.SerializeToString() + b"\x20\x01"  # is_negative_hits
        request = b"\x0a\x04edge\x12" + bytes([len(descriptor)]) + descriptor
        with grpc.insecure_channel(served.grpc[1]) as channel:
            told = rls_pb2.RateLimitResponse.FromString(channel.unary_unary(METHOD)(request, timeout=10))
        assert told.statuses[0].limit_remaining == 2
        time.sleep(1.5 * REMEMBERED_US / 1e6)  # another node may have denied, and remembers it for a moment
        assert [caller.get(running.url + path).status_code for _ in range(3)] == [200] * 2 + [429]


def test_nodes_that_leave_and_come_back_under_load_cost_nobody_an_answer(gateway: tuple[Envoy, Region]) -> None:
    running, served = gateway
    before = running.counts("cluster.application.ratelimit.")
    path = fresh(served, "/plain/under-load-")
    statuses: Counter[int] = Counter()
    over = False

    async def call() -> None:
        async with httpx.AsyncClient(trust_env=False, timeout=20) as caller:
            while not over:
                statuses[(await caller.get(running.url + path)).status_code] += 1

    async def restart() -> None:
        nonlocal over
        callers = [asyncio.create_task(call()) for _ in range(6)]
        try:
            for number in served.urls:
                await asyncio.sleep(0.3)
                await served.stop(number)
                await served.start(number)
                await asyncio.to_thread(running.wait_for_nodes, 2)
        finally:
            over = True
            await asyncio.gather(*callers)

    asyncio.run(restart())
    after = running.counts("cluster.application.ratelimit.")
    assert set(statuses) <= {200, 429}
    assert sum(statuses.values()) > 100
    assert after.get("error", 0) == before.get("error", 0), after
    asked = sum(after.get(name, 0) - before.get(name, 0) for name in ("ok", "over_limit"))
    assert asked == sum(statuses.values())


@pytest.mark.parametrize(("deny", "status"), [("false", 200), ("true", 500)])
def test_without_any_node_the_operators_word_decides(
    behind: Application, tmp_path: Path, deny: str, status: int
) -> None:
    changes = {"failure_mode_deny: false": f"failure_mode_deny: {deny}"}
    with envoy(tmp_path, ["127.0.0.1:9", "127.0.0.1:9"], behind, changes) as running, client() as caller:
        response = caller.get(running.url + "/dear/none")
        assert response.status_code == status
        counted = running.counts("cluster.application.ratelimit.")
        assert counted["error"] == 1


def test_three_regions_together_let_through_a_global_limit(
    region: Region, behind: Application, tmp_path: Path
) -> None:
    """An Envoy and a node in each region, each region with a Redis of its own."""

    async def ask(places: list[tuple[Region, Envoy]]) -> list[list[int]]:
        async with httpx.AsyncClient(trust_env=False, timeout=20) as caller:
            told = []
            for _, running in places:
                responses = [await caller.get(running.url + "/global") for _ in range(4)]
                told.append([response.status_code for response in responses])
            return told

    bases = parse_document(EVERYWHERE).bases
    clusters: list[RedisCluster] = []
    regions: list[Region] = []
    gateways: list[Envoy] = []
    try:
        for name in REGIONS:
            cluster = RedisCluster(tmp_path / f"redis-{name}", primaries=3)
            cluster.directory.mkdir()
            clusters.append(cluster)
            cluster.start()
            directory = tmp_path / name
            directory.mkdir()
            regions.append(Region(directory, cluster.addresses[:3], EVERYWHERE, name=name, base=bases[name]))
        for one in regions:
            asyncio.run(one.start(1))
            nodes = [one.grpc[1], one.grpc[1]]
            gateways.append(
                Envoy(tmp_path / f"envoy-{one.name}", nodes, behind, {"domain: edge": "domain: everywhere"})
            )
            gateways[-1].start()
            gateways[-1].wait_for_nodes(2)
        told = asyncio.run(ask(list(zip(regions, gateways, strict=True))))
    finally:
        for running in gateways:
            running.stop()
        for one in regions:
            one.kill()
        for cluster in clusters:
            cluster.stop()
    assert told == [[200, 200, 429, 429]] * 3
