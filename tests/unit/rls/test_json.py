"""``POST /json``: the same service for callers without gRPC; and what either is told without Redis."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from regional_limiter.in_process import in_memory
from regional_limiter.limiter import Limiter
from regional_limiter.model.errors import StoreUnavailable
from regional_limiter.rules import parse_document
from services.check_api.app import NodeOptions, create_app
from services.rls.messages import Request
from services.rls.rpc import Failed
from services.rls.service import RateLimitService
from tests.unit.check_api.fakes import FakeLimiter, call, node_of
from tests.unit.limiter_store import FakeStore, limiter_of
from tests.unit.rls.test_service import ADDRESS, MINUTE_LIMITS, one

BODY = {"domain": "edge", "descriptors": [{"entries": [{"key": "user", "value": "ann"}]}], "hitsAddend": 3}


async def test_what_is_allowed_is_200_and_what_is_over_429_without_zero_fields() -> None:
    async with in_memory(MINUTE_LIMITS) as limiter:
        app = create_app(limiter, NodeOptions("us-east", "n1"))
        first = await call(app, "POST", "/json", json.dumps(BODY).encode())
        over = await call(app, "POST", "/json", json.dumps(BODY).encode())
    assert (first.status, over.status) == (200, 429)
    assert first.headers["content-type"] == "application/json"
    said = first.json()
    (status,) = said["statuses"]
    assert float(status.pop("durationUntilReset").removesuffix("s")) > 10_000
    assert said["overallCode"] == "OK"
    assert status == {"code": "OK", "currentLimit": {"name": "bucket", "requestsPerUnit": 5}, "limitRemaining": 2}
    assert over.json()["overallCode"] == "OVER_LIMIT"
    assert {header["key"] for header in over.json()["responseHeadersToAdd"]} >= {"retry-after", "ratelimit"}
    assert app.counts.checks[("edge", "bucket", "denied", "limited")] == 1


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("{", "the body is not JSON"),
        ('{"domian": "edge"}', "domian: unknown field"),
        ('{"domain": "", "descriptors": []}', "domain: must not be empty"),
        ('{"domain": "edge"}', "descriptors: must name at least one"),
    ],
)
async def test_what_is_wrong_is_400_and_named(body: str, words: str) -> None:
    async with in_memory(MINUTE_LIMITS) as limiter:
        reply = await call(create_app(limiter, NodeOptions("us-east", "n1")), "POST", "/json", body.encode())
    assert (reply.status, reply.json()["detail"]) == (400, words)


async def test_a_fault_of_ours_is_500_and_no_allow() -> None:
    reply = await call(node_of(FakeLimiter(answer=ZeroDivisionError())), "POST", "/json", json.dumps(BODY).encode())
    assert reply.status == 500


async def test_a_node_without_rules_and_a_caller_without_the_token_are_told_so() -> None:
    body = json.dumps(BODY).encode()
    assert (await call(node_of(FakeLimiter(ready=False)), "POST", "/json", body)).status == 503
    assert (await call(node_of(FakeLimiter(), token="0123456789abcdef"), "POST", "/json", body)).status == 401


# ---- without Redis


@asynccontextmanager
async def over_store(store: FakeStore, directory: Path, rules: Mapping[str, Any]) -> AsyncIterator[Limiter]:
    limiter = limiter_of(store, directory)
    limiter.give_rules([parse_document(dict(rules))])
    await limiter.start()
    try:
        yield limiter
    finally:
        await limiter.stop()


@pytest.mark.parametrize(("mode", "code"), [("open", 1), ("closed", 2), ("local", 1)])
async def test_without_the_shard_the_rule_decides(tmp_path: Path, mode: str, code: int) -> None:
    rules = {**MINUTE_LIMITS, "rules": [{**rule, "on_store_failure": mode} for rule in MINUTE_LIMITS["rules"]]}
    store = FakeStore(default=StoreUnavailable("deadline"))
    async with over_store(store, tmp_path, rules) as limiter:
        service = RateLimitService(limiter, lambda domain, answer: None, tells_metadata=True)
        told = await service.answer(Request("edge", (ADDRESS, one(user="ann"))))
        assert told.code == code
        assert told.metadata is not None
        assert told.metadata["degraded"] is True
        assert limiter.status().degraded == {"deadline": 2}


async def test_hits_that_cannot_be_given_back_are_said_to_be_kept(tmp_path: Path) -> None:
    store = FakeStore(refund_error=StoreUnavailable("deadline"))
    async with over_store(store, tmp_path, MINUTE_LIMITS) as limiter:
        service = RateLimitService(limiter, lambda domain, answer: None)
        with pytest.raises(Failed, match="could not be given back: deadline") as failed:
            await service.answer(Request("edge", (one(1, negative=True, user="ann"),)))
    assert failed.value.code == 14
