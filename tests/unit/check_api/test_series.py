"""Series stay bounded by what we have, not by what callers send: 100,000 keys and 10,000 rules on a real node."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from services.check_api.app import NodeApp, NodeOptions, create_app
from services.check_api.fast_http import FastHttp
from services.telemetry import OTHER, SERIES_MOST
from services.tracing import Tracer
from tests.unit.check_api.test_metrics import samples
from tests.unit.check_api.wire import Connection
from tests.unit.limiter_store import PromptStore, blob_of, rule, running

RULES, KEYS, BATCH = 10_000, 100_000, 1000


@pytest.mark.timeout(300)
async def test_ten_thousand_rules_and_a_hundred_thousand_keys_are_a_bounded_number_of_series(
    tmp_path: Path,
) -> None:
    rules = [rule(f"r{n}", match={"resource": f"p{n}"}) for n in range(RULES)]
    async with running(PromptStore(), tmp_path, blob_of(*rules)) as limiter:
        node = create_app(limiter, NodeOptions("eu", "eu-1"), tracer=Tracer(0.01, 10**6))
        for first in range(0, KEYS, BATCH):
            numbers = range(first, first + BATCH)
            checks = [{"client_key": f"secret-{n}", "resource": f"p{n // (KEYS // RULES)}"} for n in numbers]
            body = json.dumps({"checks": checks}).encode()
            await asked(node, body)
        exposition = await node.metrics()
        text = (await exposition.told()).text.decode()
        newer = (await exposition.told("application/openmetrics-text")).text.decode()
        exposition.look()
        series_sent = sum(
            len(metric.data.data_points)
            for told in exposition.collected().resource_metrics
            for scope in told.scope_metrics
            for metric in scope.metrics
        )
        tables = limiter.status().tables
    assert "secret-" not in text + newer
    found = samples(text)
    by_rule = found["ratelimit_checks_total"]
    assert len(by_rule) <= SERIES_MOST + 10
    assert sum(value for _, value in by_rule) == KEYS, "what has no series of its own is counted all the same"
    assert sum(value for labels, value in by_rule if labels["rule"] == OTHER) > 0
    others = sum(len(series) for name, series in found.items() if name != "ratelimit_checks_total")
    assert others < 300
    assert series_sent < SERIES_MOST + 300
    assert all(entries <= most for entries, most in tables.values())
    assert tables["rules_counted"][0] == RULES


async def asked(node: NodeApp, body: bytes) -> None:
    """A batch, as one request over a connection: the store answers at once, and so does the node."""
    connection = Connection(node, FastHttp)
    connection.send(b"POST /v1/check:batch HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    assert connection.said.startswith(b"HTTP/1.1 200")
