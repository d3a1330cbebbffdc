"""From a gateway's request to the share that it led to: check, report, grant and write are one story in traces."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from regional_limiter.model.share import ProtocolTimes
from services.check_api.app import NodeOptions, create_app
from services.check_api.fast_http import FastHttp
from services.embedded import Embedded
from services.sync_service.traces import SyncTraces
from services.tracing import Context, Span, Tracer
from tests.unit.check_api.wire import Connection

RULES = {
    "domain": "default",
    "regions": {"a": 1, "b": 1},
    "rules": [{"id": "r", "match": {}, "capacity": 40, "refill": "20/s", "scope": "global"}],
}


class Story:
    """The spans of one tracer, by name."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self.spans: list[Span] = []

    def named(self, name: str) -> list[Span]:
        self.spans += self._tracer.take()
        return [span for span in self.spans if span.name == name]


def links_to(span: Span, others: list[Span]) -> list[Context]:
    return [link for link in span.links if link in {other.context for other in others}]


async def until(true: Callable[[], bool], what: str, ask: Callable[[], None] = lambda: None) -> None:
    async with asyncio.timeout(30):
        while not true():
            ask()
            await asyncio.sleep(0.02)
    assert true(), what


@pytest.mark.timeout(90)
async def test_a_traced_check_is_linked_with_the_report_and_that_with_the_grant_and_its_writes(
    tmp_path: Path,
) -> None:
    node_tracer, agent_tracer, leader_tracer = Tracer(0.0, 10**6), Tracer(0.0, 10**6), Tracer(0.0, 10**6)
    checks, agents, leaders = Story(node_tracer), Story(agent_tracer), Story(leader_tracer)
    system = Embedded(["a", "b"], ProtocolTimes.scaled(0.2), tmp_path)
    for region in system.regions.values():
        region.agent.traces, region.leader.traces = SyncTraces(agent_tracer), SyncTraces(leader_tracer)
    await system.start()
    limiter = system.regions["a"].limiter
    node = create_app(limiter, NodeOptions("a", "a-1"), tracer=node_tracer)
    assert node.tracing is not None
    limiter.traces = node.tracing.shared
    try:
        await until(lambda: any(region.leader.active for region in system.regions.values()), "somebody leads")
        await system.put_rules(RULES)
        await until(lambda: limiter.ready and limiter.knows("default"), "the rules are here")
        connection, number = Connection(node, FastHttp), 0

        def ask() -> None:
            nonlocal number
            number += 1
            body = json.dumps({"client_key": "one", "resource": "r"})
            head = f"POST /v1/check HTTP/1.1\r\nHost: x\r\ntraceparent: {Context(number, 7).header()}\r\n"
            connection.send(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())

        def told() -> bool:
            asked, reports = checks.named("POST /v1/check"), agents.named("report")
            grants, writes = leaders.named("grant"), agents.named("write")
            linked = [report for report in reports if links_to(report, asked)]
            granted = [grant for grant in grants if links_to(grant, linked)]
            followed = {write.context.trace_id for write in writes}
            return any(grant.context.trace_id in followed for grant in granted)

        await until(told, "a traced check has led to a write", ask)
    finally:
        await system.stop()
    writes = agents.named("write")
    assert {write.attributes["ratelimit.region"] for write in writes} <= {"a", "b"}
    assert all(write.parent_id for write in writes)
    assert not any("one" in str(span.attributes) for span in (*checks.spans, *agents.spans, *leaders.spans))


async def test_where_nobody_traces_nothing_is_said_about_it() -> None:
    from global_sync import codec
    from global_sync.protocol.messages import Beat, Report

    beat, report = Beat(1, 2, {}), Report("a", "x", 1, 1, (0, 0), 0, {})
    assert b"trace" not in codec.encode_records([beat]) + codec.encode_report(report)
    told = codec.encode_records([beat], trace="00-ab")
    assert (codec.trace_of(told), codec.decode_records(told)) == ("00-ab", [beat])
    told = codec.encode_report(report, trace="00-cd")
    assert (codec.trace_of(told), codec.decode_report(told)) == ("00-cd", report)
    assert codec.trace_of(b'{"trace":') == ""
