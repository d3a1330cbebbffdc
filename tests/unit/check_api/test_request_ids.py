"""A request that comes again over HTTP, and another one under its id."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from regional_limiter.limiter import Limiter
from regional_limiter.model.errors import StoreUnavailable
from regional_limiter.model.keys import rule_of
from regional_limiter.store.base import BucketCall, Decided
from regional_limiter.store.memory import MemoryStore
from services.check_api.app import NodeOptions, create_app
from tests.unit.check_api.fakes import Response, call
from tests.unit.limiter_store import TIMES, blob_of, rule, running

RULES = blob_of(
    rule("mine", capacity=10, refill="1/h"),
    rule(
        "ours", match={"resource": "shared"}, key=["resource"], capacity=10, refill="1/h", on_store_failure="closed"
    ),
    rule("sized", match={"resource": "sized"}, capacity=10, refill="1/h", cost={"attribute": "size", "per": 1}),
    *(rule(f"many-{number}", match={"resource": "many"}, capacity=10, refill="1/h") for number in range(40)),
)


class SlowStore(MemoryStore):
    """``silent``: of which rules it answers nothing.  ``refunding``: what refunds wait for."""

    def __init__(self) -> None:
        super().__init__(lambda: 1_700_000_000_000_000, TIMES)
        self.silent: set[str] = set()
        self.refunding: list[asyncio.Event] = []

    def submit(self, prepared: tuple[Sequence[BucketCall], str | None], done: Decided) -> None:
        if any(rule_of(call.key)[1] in self.silent for call in prepared[0]):
            done(StoreUnavailable("timeout"))
        else:
            super().submit(prepared, done)

    async def refund(
        self, calls: Sequence[BucketCall], request_id: str | None = None, turn: int | None = None
    ) -> None:
        if turn is not None:
            self.refunding.append(asyncio.Event())
            await self.refunding[-1].wait()
        await super().refund(calls, request_id, turn)


class Node:
    def __init__(self, limiter: Limiter, store: SlowStore) -> None:
        self.limiter = limiter
        self.store = store
        self.app = create_app(limiter, NodeOptions(region="us", node="n1"))

    async def deliver(self) -> None:
        """Whatever is under way of refunds, the latest first."""
        for under_way in reversed(self.store.refunding):
            under_way.set()
            await asyncio.sleep(0.01)

    async def ask(self, resource: str, client_key: str = "alice", **fields: Any) -> Response:
        body = json.dumps({"client_key": client_key, "resource": resource, **fields}).encode()
        answer = await call(self.app, "POST", "/v1/check", body)
        await asyncio.sleep(0)  # refunds begin in tasks of their own
        return answer

    async def remaining(self, resource: str, client_key: str = "alice") -> dict[str, int]:
        query = f"client_key={client_key}&resource={resource}".encode()
        buckets = (await call(self.app, "GET", "/v1/inspect", query=query)).json()["buckets"]
        return {bucket["rule"]: bucket["remaining"] for bucket in buckets}


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    store = SlowStore()
    async with running(store, tmp_path, RULES) as limiter:
        yield Node(limiter, store)


@pytest.mark.parametrize(
    ("resource", "fields"),
    [
        ("plain", {"cost": 2}),
        ("plain", {"cost": 0}),
        ("sized", {}),
        ("shared", {"cost": 2}),
    ],
)
async def test_another_cost_or_other_rules_under_a_requests_id_are_a_fault(
    node: Node, resource: str, fields: dict[str, Any]
) -> None:
    assert (await node.ask("plain", request_id="r1")).json()["allowed"]
    response = await node.ask(resource, request_id="r1", **fields)
    assert response.status == 422
    (fault,) = response.json()["errors"]
    assert fault["field"] == "request_id"
    again = (await node.ask("plain", request_id="r1")).json()
    assert (again["allowed"], again["remaining"]) == (True, 9)
    await node.deliver()
    assert await node.remaining("shared") == {"mine": 9, "ours": 10}
    assert await node.remaining("sized") == {"mine": 9, "sized": 10}


async def test_a_measured_cost_is_a_cost(node: Node) -> None:
    first = await node.ask("sized", request_id="r1", attributes={"size": "3"})
    assert (await node.ask("sized", request_id="r1", attributes={"size": "3"})).body == first.body
    assert (await node.ask("sized", request_id="r1", attributes={"size": "4"})).status == 422
    assert await node.remaining("sized") == {"mine": 9, "sized": 7}


async def test_what_only_a_part_of_the_buckets_refuses_is_charged_to_none(node: Node) -> None:
    """Alice's and Bob's requests have one id and meet in one bucket, at different costs."""
    await node.ask("shared", "bob", request_id="r1", cost=3)
    assert (await node.ask("shared", "alice", request_id="r1", cost=2)).status == 422
    await node.deliver()
    assert await node.remaining("shared") == {"mine": 10, "ours": 7}
    assert (await node.remaining("shared", "bob"))["mine"] == 7


async def test_a_batch_tells_it_in_its_place(node: Node) -> None:
    checks = [{"client_key": "a", "resource": "plain", "request_id": "r1", "cost": cost} for cost in (1, 2, 1)]
    body = json.dumps({"checks": checks}).encode()
    first, second, third = (await call(node.app, "POST", "/v1/check:batch", body)).json()["answers"]
    assert second["error"]["status"] == 422
    assert first == third


async def test_more_rules_of_a_tag_than_one_call_decides_are_one_request(node: Node) -> None:
    first = await node.ask("many", request_id="r1", cost=4)
    assert first.json()["allowed"]
    assert (await node.ask("many", request_id="r1", cost=4)).body == first.body
    assert set((await node.remaining("many")).values()) == {6}
    body = b'{"client_key":"alice","resource":"many","request_id":"r1","cost":4}'
    assert (await call(node.app, "POST", "/v1/refund", body)).status == 200
    assert set((await node.remaining("many")).values()) == {10}


async def test_a_retry_before_the_refund_of_its_first_try_keeps_what_it_was_allowed(node: Node) -> None:
    node.store.silent = {"ours"}
    denied = (await node.ask("shared", request_id="r1", cost=4)).json()
    assert (denied["allowed"], denied["reason"]) == (False, "store_unavailable")
    node.store.silent = set()
    assert (await node.ask("shared", request_id="r1", cost=4)).json()["allowed"]
    await node.deliver()
    assert await node.remaining("shared") == {"mine": 6, "ours": 6}


async def test_a_denied_request_is_answered_alike_however_often_it_comes_and_costs_nothing(node: Node) -> None:
    await node.ask("shared", "bob", cost=8)
    answers = [(await node.ask("shared", request_id="r1", cost=4)).body for _ in range(3)]
    assert [json.loads(answer)["allowed"] for answer in answers] == [False] * 3
    assert len(set(answers)) == 1
    await node.deliver()
    assert len(node.store.refunding) == 3
    assert await node.remaining("shared") == {"mine": 10, "ours": 2}
    assert (await node.ask("shared", request_id="r1", cost=4)).body == answers[0]
    await node.deliver()
    assert await node.remaining("shared") == {"mine": 10, "ours": 2}
