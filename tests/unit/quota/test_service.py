"""The quota service by a grpcio client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import grpc
import pytest
from envoy.service.rate_limit_quota.v3 import rlqs_pb2

from regional_limiter.model.decision import Check
from regional_limiter.quota import NoQuota, Quota
from services.quota import service as quota_service
from services.quota.messages import METHOD
from services.quota.service import KEEPALIVE, QuotaService
from services.rls.grpcio_server import GrpcioServer
from services.rls.methods import Observer
from services.rls.serving import FrontOptions
from tests.unit.check_api.fakes import FakeLimiter, call, node_of

Response = rlqs_pb2.RateLimitQuotaResponse
TEN = Quota("rl:{t}:edge/api:ann", "edge/api", 100, Fraction(10, 1000))


@dataclass
class Rules:
    """``told``: what any check gets."""

    told: Quota | NoQuota
    quota_version: int = 0
    asked: list[Check] = field(default_factory=list)
    used: list[tuple[str, int, int]] = field(default_factory=list)

    def quota(self, check: Check) -> Quota | NoQuota:
        self.asked.append(check)
        return self.told

    def count_quota(self, rule: str, allowed: int, denied: int) -> None:
        self.used.append((rule, allowed, denied))

    def change(self, told: Quota | NoQuota) -> None:
        self.told, self.quota_version = told, self.quota_version + 1


class Client:
    def __init__(self, channel: grpc.aio.Channel, token: str | None = None) -> None:
        metadata = (("authorization", f"Bearer {token}"),) if token else ()
        self.call: Any = channel.stream_stream(
            METHOD,
            request_serializer=rlqs_pb2.RateLimitQuotaUsageReports.SerializeToString,
            response_deserializer=Response.FromString,
        )(metadata=metadata)

    async def report(self, domain: str = "edge", allowed: int = 1, denied: int = 0, **bucket: str) -> None:
        report = rlqs_pb2.RateLimitQuotaUsageReports(domain=domain)
        usage = report.bucket_quota_usages.add(num_requests_allowed=allowed, num_requests_denied=denied)
        usage.bucket_id.bucket.update(bucket)
        await self.call.write(report)

    async def told(self) -> Any:
        """The one action of the next response."""
        response = await asyncio.wait_for(self.call.read(), 10)
        (action,) = response.bucket_action
        return action


@asynccontextmanager
async def served(rules: Rules, token: str | None = None) -> AsyncIterator[Callable[[], Client]]:
    service = QuotaService(rules, ttl_s=15, opens_in_ms=0)
    options = FrontOptions("127.0.0.1", 0, "grpcio", token=token)
    server = GrpcioServer(service.methods(), options, Observer(), KEEPALIVE)
    await server.start()
    running = asyncio.create_task(service.run())
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
            yield lambda: Client(channel, token)
    finally:
        running.cancel()
        await server.stop(0)


async def test_a_report_is_answered_by_a_bucket_and_counted() -> None:
    rules = Rules(TEN)
    async with served(rules) as connect:
        client = connect()
        await client.report(user="ann", path="/", allowed=3, denied=2)
        action = await client.told()
        assert dict(action.bucket_id.bucket) == {"user": "ann", "path": "/"}
        assignment = action.quota_assignment_action
        assert assignment.assignment_time_to_live.seconds == 15
        bucket = assignment.rate_limit_strategy.token_bucket
        assert (bucket.max_tokens, bucket.tokens_per_fill.value, bucket.fill_interval.seconds) == (75, 9, 1)
        assert rules.used == [("edge/api", 3, 2)]
        attributes = {"user": "ann", "path": "/", "descriptor.keys": "path/user"}
        assert rules.asked[0] == Check("edge", attributes, 1)


async def test_a_changed_rule_is_told_at_once_and_so_that_envoy_sees_it() -> None:
    """It compares nothing but tokens and nanoseconds."""
    rules = Rules(TEN)
    async with served(rules) as connect:
        client = connect()
        await client.report(user="ann")
        seen = [await client.told()]
        for rate in (Fraction(1, 1000), Fraction(1, 2000)):
            rules.change(Quota(TEN.key, TEN.rule, 100, rate))
            seen.append(await asyncio.wait_for(client.told(), 1))
        told = [action.quota_assignment_action.rate_limit_strategy.token_bucket for action in seen]
        assert len({(one.max_tokens, one.tokens_per_fill.value, one.fill_interval.nanos) for one in told}) == 3
        rules.change(Quota(TEN.key, TEN.rule, 0, Fraction(0)))
        strategy = (await client.told()).quota_assignment_action.rate_limit_strategy
        assert strategy.WhichOneof("strategy") == "blanket_rule"
        assert strategy.blanket_rule == strategy.DENY_ALL
        rules.change(NoQuota("edge/api", "no more"))
        assert (await client.told()).WhichOneof("bucket_action") == "abandon_action"


async def test_what_cannot_be_pushed_gets_nothing_and_is_counted() -> None:
    rules = Rules(NoQuota("edge/api", "adaptive"))
    async with served(rules) as connect:
        client = connect()
        await client.report(user="ann")
        # It is answered when a rule of it can be pushed, and not before.
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(answer := asyncio.create_task(client.told())), 0.3)
        rules.change(TEN)
        assert (await answer).quota_assignment_action.rate_limit_strategy.HasField("token_bucket")
        assert rules.used == []


@pytest.mark.parametrize(
    ("domain", "bucket", "words"),
    [("", {"user": "ann"}, "domain: must not be empty"), ("edge", {}, "bucket_quota_usages[0].bucket_id")],
)
async def test_a_wrong_report_ends_the_stream_and_names_the_field(
    domain: str, bucket: dict[str, str], words: str
) -> None:
    async with served(Rules(TEN)) as connect:
        client = connect()
        await client.report(domain, **bucket)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await client.told()
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert words in refused.value.details()


async def test_a_token_is_asked_for() -> None:
    async with served(Rules(TEN), token="a token of sixteen or so") as connect:
        client = connect()
        await client.report(user="ann")
        await client.told()


async def test_streams_are_bounded_and_one_that_ends_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quota_service, "STREAMS_MOST", 1)
    async with served(Rules(TEN)) as connect:
        first = connect()
        await first.report(user="ann")
        await first.told()
        second = connect()
        await second.report(user="ann")
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await second.told()
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        await first.call.done_writing()
        while await first.call.read() is not grpc.aio.EOF:
            pass
        third = connect()
        await third.report(user="bob")
        with pytest.raises(TimeoutError):  # it waits: the first one's gateway still has what it was granted
            await asyncio.wait_for(third.call.read(), 0.3)


async def test_a_stream_that_does_not_take_what_is_sent_is_cut_and_what_it_holds_counts_on() -> None:
    now_s = 0.0
    service = QuotaService(Rules(TEN), ttl_s=15, opens_in_ms=0, clock_s=lambda: now_s)

    async def reports() -> AsyncIterator[bytes]:
        report = rlqs_pb2.RateLimitQuotaUsageReports(domain="edge")
        report.bucket_quota_usages.add().bucket_id.bucket["user"] = "ann"
        yield report.SerializeToString()
        await asyncio.Event().wait()

    taken, ended = asyncio.Event(), asyncio.Event()

    async def stalled() -> None:
        try:
            async for _ in service.stream(reports()):
                taken.set()
                await asyncio.Event().wait()
        finally:
            ended.set()

    task = asyncio.create_task(stalled())
    await asyncio.wait_for(taken.wait(), 5)
    now_s = 0.9
    service.turn()
    assert not task.cancelling()
    now_s = 1.1
    service.turn()
    await asyncio.wait_for(ended.wait(), 5)
    assert service.counts["cut"] == 1


async def test_what_happened_is_in_the_metrics() -> None:
    service = QuotaService(Rules(NoQuota("edge/api", "adaptive")), ttl_s=15, opens_in_ms=0)
    service.counts["refused"] += 2
    node = node_of(FakeLimiter())
    node.counts.quota_events = service.counts
    text = (await call(node, "GET", "/metrics")).body.decode()
    assert 'ratelimit_quota_events_total{event="refused",region="us-east"} 2.0' in text
