"""What takes longer than a grant lives: a cut stream, and a node that starts.  `make test-gateways` runs it."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import grpc
import httpx
import pytest
from envoy.service.rate_limit_quota.v3 import rlqs_pb2

from services.quota.messages import METHOD
from tests.contract.redis_cluster import wait_until
from tests.contract.region_processes import Region
from tests.gateways.envoy import envoy
from tests.gateways.gateway import Application
from tests.gateways.quota_node import quota_node, rules
from tests.unit.check_api.test_process import free_port

pytestmark = pytest.mark.timeout(120)
TTL_S = 15


def test_a_cut_stream_holds_until_its_quota_ends_and_then_does_as_the_example_says(
    behind: Application, tmp_path: Path
) -> None:
    with (
        quota_node(rules(4000, "2/s")) as node,
        envoy(tmp_path, [f"127.0.0.1:{node.port}"], behind, example="envoy-quota") as running,
        httpx.Client(trust_env=False, timeout=20) as caller,
    ):

        def ask() -> int:
            return caller.get(running.url + "/cut", headers={"x-user": "ann"}).status_code

        assert ask() == 200
        wait_until("a quota is granted", lambda: node.counts["granted"] == 1, 10)
        time.sleep(0.3)
        granted_s = time.monotonic()
        node.stop()
        while time.monotonic() - granted_s < TTL_S - 2:
            assert ask() == 200
            time.sleep(0.2)
        time.sleep(4)
        assert ask() == 429  # expired_assignment_behavior: DENY_ALL
        node.start()
        wait_until("Envoy is back and has a quota", lambda: ask() == 200, 15)


def test_a_quota_that_is_sent_again_does_not_fill_the_bucket(behind: Application, tmp_path: Path) -> None:
    with (
        quota_node(rules(20, "1/h")) as node,
        envoy(tmp_path, [f"127.0.0.1:{node.port}"], behind, example="envoy-quota") as running,
        httpx.Client(trust_env=False, timeout=20) as caller,
    ):

        def ask() -> int:
            return caller.get(running.url + "/again", headers={"x-user": "ann"}).status_code

        assert ask() == 200
        wait_until("a quota is granted", lambda: node.counts["granted"] == 1, 10)
        time.sleep(0.3)
        assert [ask() for _ in range(16)] == [200] * 15 + [429]
        until_s = time.monotonic() + 30
        while node.counts["granted"] < 4:
            assert ask() == 429
            assert time.monotonic() < until_s
            time.sleep(0.1)


def test_a_node_grants_nothing_until_what_it_may_have_granted_before_has_ended(
    region: Region, tmp_path: Path
) -> None:
    ports = [free_port(), free_port()]
    one = Region(
        tmp_path, region.servers, {**rules(100, "10/s"), "regions": {"quota": 1}}, name="quota",
        settings=f"            quota.ports = {ports}\n",
    )  # fmt: skip

    async def asked() -> float:
        await one.start(1)
        started_s = time.monotonic()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{ports[0]}") as channel:
            call = channel.stream_stream(METHOD, response_deserializer=rlqs_pb2.RateLimitQuotaResponse.FromString)()
            report = rlqs_pb2.RateLimitQuotaUsageReports(domain="edge")
            usage = report.bucket_quota_usages.add(num_requests_allowed=7)
            usage.bucket_id.bucket["user"] = "ann"
            await call.write(report.SerializeToString())
            response = await asyncio.wait_for(call.read(), 60)
            (action,) = response.bucket_action
            assert action.quota_assignment_action.rate_limit_strategy.token_bucket.max_tokens > 0
            waited_s = time.monotonic() - started_s
        async with httpx.AsyncClient(trust_env=False, timeout=20) as client:
            metrics = (await client.get(f"{one.urls[1]}/metrics")).text
        assert 'ratelimit_quota_events_total{event="granted"' in metrics
        await one.stop(1)
        return waited_s

    try:
        assert 18 < asyncio.run(asked()) < 40
    finally:
        one.kill()
