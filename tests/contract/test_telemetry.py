"""What real processes tell a collector: a node on a real Redis, and a sync service whose Kafka is not there."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.collector import Collector, collecting, values_of
from tests.contract.redis_cluster import RedisCluster
from tests.contract.region_processes import Region

RULES = {
    "domain": "default",
    "regions": {"us-east": 1},
    "rules": [{"id": "few", "match": {}, "key": ["client_key"], "capacity": 2, "refill": "1/h"}],
}
TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SECRET = "a-token-nobody-shall-see"

pytestmark = pytest.mark.timeout(120)


async def arrived(collector: Collector, until: Callable[[Collector], Any], what: str) -> None:
    await asyncio.to_thread(collector.wait, until, what)


async def test_a_check_is_traced_from_its_callers_request_to_redis_and_told_with_the_nodes_metrics(
    calm_cluster: RedisCluster, tmp_path: Path
) -> None:
    with collecting() as collector:
        telemetry = (
            f'telemetry = {{ endpoint = "{collector.endpoint}", interval_s = 0.3, headers = "x-key={SECRET}" }}'
        )
        region = Region(tmp_path, calm_cluster.addresses[:3], RULES, settings=telemetry)
        try:
            await region.start(1)
            headers = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
            body = {"client_key": "user:42", "resource": "r"}
            async with httpx.AsyncClient(base_url=region.urls[1], trust_env=False, timeout=20) as client:
                answers = [(await client.post("/v1/check", json=body, headers=headers)).json() for _ in range(3)]
                await client.post("/v1/check", json={**body, "client_key": "untraced"})
                openly = await client.get("/metrics", headers={"accept": "application/openmetrics-text"})
            assert [answer["allowed"] for answer in answers] == [True, True, False]
            await arrived(collector, lambda seen: len(seen.spans) >= 6, "two spans of each check")
            await arrived(collector, lambda seen: "db.client.operation.duration" in seen.metrics, "Redis' latency")
            await region.stop(1)
        finally:
            region.kill()
        requests = [span for span in collector.spans if span.name == "POST /v1/check"]
        calls = {span.parent_span_id: span for span in collector.spans if span.name == "FCALL check"}
        metrics = collector.metrics
    assert len(requests) == 3
    assert {(span.trace_id.hex(), span.parent_span_id.hex()) for span in collector.spans if span in requests} == {
        (TRACE, PARENT)
    }
    outcomes = [values_of(span.attributes)["ratelimit.outcome"] for span in requests]
    assert outcomes == ["allowed", "allowed", "denied"]
    for span in requests:
        call = calls[span.span_id]
        assert span.start_time_unix_nano <= call.start_time_unix_nano <= call.end_time_unix_nano
        assert call.end_time_unix_nano <= span.end_time_unix_nano
        told = values_of(call.attributes)
        assert f"{told['server.address']}:{told['server.port']}" in calm_cluster.addresses
    assert collector.resource["service.instance.id"] == "us-east-1"
    (count,) = (
        point.as_int
        for point in metrics["ratelimit.checks"].sum.data_points
        if values_of(point.attributes)["outcome"] == "denied"
    )
    assert count == 1
    assert sum(point.count for point in metrics["db.client.operation.duration"].histogram.data_points) >= 3
    assert f'trace_id="{TRACE}"' in openly.text
    assert "user:42" not in f"{metrics} {collector.spans} {openly.text} {region.log(1)}"
    assert SECRET not in region.log(1)
    assert collector.headers[0]["x-key"] == SECRET


async def test_a_sync_service_tells_of_itself_while_kafka_is_not_there(
    calm_cluster: RedisCluster, tmp_path: Path
) -> None:
    with collecting() as collector:
        telemetry = f'telemetry = {{ endpoint = "{collector.endpoint}", interval_s = 0.3 }}'
        Region(tmp_path, calm_cluster.addresses[:3], RULES, settings=telemetry)
        command = [sys.executable, "-m", "services.sync_service", "--config", str(tmp_path / "region.toml")]
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL)  # noqa: ASYNC220 - begins at once
        try:
            await arrived(
                collector, lambda seen: "ratelimit.sync.lag" in seen.metrics, "the sync service's metrics"
            )
        finally:
            process.terminate()
            await asyncio.to_thread(process.wait, 30)
        metrics, resource = collector.metrics, collector.resource
    assert (resource["service.name"], resource["region"]) == ("apportion-sync-service", "us-east")
    (leading,) = metrics["ratelimit.leader.leading"].gauge.data_points
    assert leading.as_double == 0
    assert "ratelimit.convergence.duration" in metrics
