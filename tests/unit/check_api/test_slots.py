"""Slots over HTTP: acquired, renewed and released at a node whose store has a clock that the test moves."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from regional_limiter.model.errors import StoreUnavailable
from regional_limiter.store.memory import MemoryStore
from services.check_api.app import NodeApp, NodeOptions, create_app
from tests.unit.check_api.fakes import FakeLimiter, Response, call, node_of
from tests.unit.limiter_store import TIMES, blob_of, rule, running

SLOTS = {"algorithm": "concurrency", "limit": 2, "lease": "30s", "match": {"resource": "slots*"}}


def limit(rule_id: str, **fields: Any) -> dict[str, Any]:
    """A rule with nothing but its own numbers."""
    return {"id": rule_id, "key": ["client_key"], **fields}


RULES = blob_of(
    limit("slots", **SLOTS),
    rule("charged", match={"resource": "slots-charged"}),
    rule("elsewhere", match={"resource": "slots-elsewhere"}, key=["resource"], capacity=1),
    limit("queue", match={"resource": "queue"}, algorithm="leaky_bucket", capacity=3, leak="1/s", queue=True),
    limit("log", match={"resource": "log"}, algorithm="sliding_window_log", limit=2, window="1h"),
    limit("counter", match={"resource": "counter"}, algorithm="sliding_window_counter", limit=2, window="1h"),
    limit("window", match={"resource": "window"}, algorithm="fixed_window", limit=2, window="1h"),
    limit("month", match={"resource": "month"}, algorithm="fixed_window", limit=2, window={"calendar": "month"}),
    limit("gcra", match={"resource": "gcra"}, algorithm="gcra", capacity=2, refill="1/h"),
    rule("bucket", match={"resource": "bucket"}, capacity=2, refill="1/h"),
)


class World:
    """One node, and the clock of its store."""

    def __init__(self) -> None:
        self.now_us = 1_700_000_000_000_000
        self.store = MemoryStore(lambda: self.now_us, TIMES)
        self.node: NodeApp

    async def ask(self, path: str, resource: str = "slots", **fields: Any) -> Response:
        body = {"client_key": "alice", "resource": resource, **fields}
        return await call(self.node, "POST", f"/v1/{path}", json.dumps(body).encode())

    async def said(self, path: str, resource: str = "slots", **fields: Any) -> dict[str, Any]:
        response = await self.ask(path, resource, **fields)
        assert response.status == 200, response.body
        document = response.json()
        assert isinstance(document, dict)
        return document

    async def seen(self, path: str, resource: str = "slots") -> dict[str, Any]:
        query = f"client_key=alice&resource={resource}".encode()
        document = (await call(self.node, "GET", f"/v1/{path}", query=query)).json()
        assert isinstance(document, dict)
        return document


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    made = World()
    async with running(made.store, tmp_path, RULES) as limiter:
        made.node = create_app(limiter, NodeOptions(region="us", node="n1"))
        yield made


async def test_apache_apisix_12823_slots_of_a_killed_caller_come_back_and_two_releases_free_one(
    world: World,
) -> None:
    taken = [await world.said("acquire") for _ in range(2)]
    assert [answer["allowed"] for answer in taken] == [True, True]
    assert not (await world.said("acquire"))["allowed"]
    world.now_us += 31_000_000
    for lease_id in ("c", "d"):
        assert (await world.said("acquire", lease_id=lease_id))["allowed"]
    assert await world.said("renew", lease_id=taken[0]["lease_id"]) == {"held": False}
    assert [await world.said("release", lease_id="c") for _ in range(2)] == [
        {"released": True},
        {"released": False},
    ]
    assert [(await world.said("acquire"))["allowed"] for _ in range(2)] == [True, False]


async def test_asking_again_under_a_lease_renews_it_and_takes_no_second_slot(world: World) -> None:
    first = await world.said("acquire", lease_id="mine")
    assert (first["lease_id"], first["lease_ms"], first["remaining"]) == ("mine", 30_000, 1)
    world.now_us += 20_000_000
    assert (await world.said("acquire", lease_id="mine"))["remaining"] == 1
    world.now_us += 20_000_000
    assert await world.said("renew", lease_id="mine") == {"held": True}
    world.now_us += 20_000_000
    assert (await world.seen("peek"))["remaining"] == 1


async def test_a_lease_id_that_nobody_gave_is_made_anew_each_time_and_nobody_guesses_it(world: World) -> None:
    made = {(await world.said("acquire"))["lease_id"] for _ in range(3)}
    assert len(made) == 3
    assert {len(bytes.fromhex(lease_id)) for lease_id in made} == {16}


async def test_a_denied_acquisition_holds_nothing(world: World) -> None:
    await world.said("acquire", cost=2)
    denied = await world.said("acquire", lease_id="late")
    assert (denied["allowed"], denied["lease_id"], denied["lease_ms"]) == (False, "late", None)
    assert denied["retry_after_ms"] == 30_000
    assert await world.said("renew", lease_id="late") == {"held": False}


async def test_all_are_taken_or_none(world: World) -> None:
    for _ in range(3):
        await world.said("acquire", "slots-charged", lease_id="a")
    charged = next(
        item for item in (await world.seen("inspect", "slots-charged"))["buckets"] if item["rule"] == "charged"
    )
    assert charged["remaining"] == 7  # an acquisition is a check: each of them is charged
    assert (await world.said("acquire", "slots-elsewhere", lease_id="b"))["allowed"]
    await world.said("release", "slots-elsewhere", lease_id="b")
    assert not (await world.said("acquire", "slots-elsewhere", lease_id="c"))["allowed"]
    await world.node.limiter.stop()  # type: ignore[attr-defined]  # delivers what is given back
    assert await world.said("renew", lease_id="c") == {"held": False}


async def test_a_holder_that_asks_again_in_vain_keeps_what_it_had(world: World) -> None:
    assert (await world.said("acquire", lease_id="mine"))["allowed"]
    assert (await world.said("acquire", "slots-elsewhere", lease_id="other"))["allowed"]
    await world.said("release", "slots-elsewhere", lease_id="other")
    assert not (await world.said("acquire", "slots-elsewhere", lease_id="mine"))["allowed"]  # elsewhere: none left
    await world.node.limiter.stop()  # type: ignore[attr-defined]  # delivers what is given back
    assert await world.said("renew", lease_id="mine") == {"held": True}
    assert await world.said("release", lease_id="mine") == {"released": True}


async def test_a_check_takes_its_slots_under_its_request_or_a_new_id(world: World) -> None:
    named = await world.said("check", request_id="r1")
    assert (named["lease_id"], named["lease_ms"]) == ("r1", 30_000)
    assert await world.said("check", request_id="r1") == named
    item = await world.said("check")
    assert len(item["lease_id"]) == 32
    denied = await world.said("check")
    assert (denied["allowed"], "lease_id" in denied) == (False, False)
    assert await world.said("release", lease_id=item["lease_id"]) == {"released": True}
    assert (await world.seen("peek"))["remaining"] == 1


async def test_items_of_a_batch_take_slots_each_under_its_own_id(world: World) -> None:
    item = {"client_key": "alice", "resource": "slots"}
    body = json.dumps({"checks": [item, {**item, "request_id": "r1"}, item]}).encode()
    answers = (await call(world.node, "POST", "/v1/check:batch", body)).json()["answers"]
    assert [answer["allowed"] for answer in answers] == [True, True, False]
    assert answers[1]["lease_id"] == "r1"
    assert answers[0]["lease_id"] != "r1"


async def test_a_request_whose_slot_was_released_is_decided_anew(world: World) -> None:
    assert (await world.said("check", request_id="r1"))["allowed"]
    await world.said("release", lease_id="r1")
    for lease_id in ("a", "b"):
        assert (await world.said("acquire", lease_id=lease_id))["allowed"]
    assert not (await world.said("check", request_id="r1"))["allowed"]


async def test_a_refund_frees_the_slots_of_its_request_and_of_nobody_else(world: World) -> None:
    await world.said("check", "slots-charged", request_id="r1")
    await world.said("acquire", lease_id="other")
    for fields in ({}, {"request_id": "r2"}):
        await world.said("refund", "slots-charged", **fields)
        assert (await world.seen("peek"))["remaining"] == 0
    await world.said("refund", "slots-charged", request_id="r1")
    assert (await world.seen("peek"))["remaining"] == 1
    assert await world.said("renew", lease_id="other") == {"held": True}


async def test_what_meets_no_slots_holds_none(world: World) -> None:
    answer = await world.said("acquire", "bucket", lease_id="a")
    assert (answer["allowed"], answer["lease_id"], answer["lease_ms"]) == (True, "a", None)
    for path, said in (("renew", "held"), ("release", "released")):
        for resource in ("bucket", "nothing"):
            assert await world.said(path, resource, lease_id="a") == {said: False}


@pytest.mark.parametrize(
    "resource", ["slots", "queue", "log", "counter", "window", "month", "gcra", "bucket", "slots-charged"]
)
async def test_peek_inspect_and_reset_know_every_kind(world: World, resource: str) -> None:
    whole = (await world.seen("peek", resource))["remaining"]
    while (await world.said("check", resource))["allowed"]:
        pass
    assert (await world.seen("peek", resource))["remaining"] == 0
    buckets = (await world.seen("inspect", resource))["buckets"]
    assert min(bucket["remaining"] for bucket in buckets) == 0
    assert all(bucket["ttl_ms"] > 0 for bucket in buckets)
    assert (await world.said("reset", resource))["reset"] == [bucket["key"] for bucket in buckets]
    assert (await world.seen("peek", resource))["remaining"] == whole
    assert (await world.said("check", resource))["allowed"]


async def test_a_reset_also_takes_back_what_a_sliding_window_has_of_the_one_before(world: World) -> None:
    for _ in range(2):
        await world.said("check", "counter")
    world.now_us += 3_600_000_000
    assert (await world.seen("peek", "counter"))["remaining"] < 2
    await world.said("reset", "counter")
    assert (await world.seen("peek", "counter"))["remaining"] == 2


async def test_a_queue_tells_each_request_how_long_to_wait_for_its_turn(world: World) -> None:
    answers = [await world.said("check", "queue") for _ in range(4)]
    assert [answer.get("wait_ms") for answer in answers] == [None, 1000, 2000, None]
    body = b'{"client_key":"bob","resource":"queue","cost":2}'
    await call(world.node, "POST", "/v1/check", body)
    detailed = (await call(world.node, "POST", "/v1/check", body[:-2] + b"1}", query=b"detail=1")).json()
    assert (detailed["wait_ms"], detailed["verdicts"][0]["wait_ms"]) == (2000, 2000)


@pytest.mark.parametrize("path", ["acquire", "renew", "release"])
@pytest.mark.parametrize("lease_id", ["", 5, "x" * 129, "\ud800"])
async def test_a_wrong_lease_id_is_named(world: World, path: str, lease_id: object) -> None:
    response = await world.ask(path, lease_id=lease_id)
    assert response.status == 422
    assert [fault["field"] for fault in response.json()["errors"]] == ["lease_id"]


async def test_a_lease_is_renewed_and_released_by_its_name_alone(world: World) -> None:
    for path in ("renew", "release"):
        for fields in ({}, {"lease_id": None}):
            assert [fault["field"] for fault in (await world.ask(path, **fields)).json()["errors"]] == ["lease_id"]
        assert (await world.ask(path, lease_id="a", cost=1)).json()["errors"][0]["field"] == "cost"
    assert (await world.ask("acquire", request_id="r")).json()["errors"][0]["field"] == "request_id"
    assert (await world.said("acquire", lease_id=None))["allowed"]


@pytest.mark.parametrize("path", ["renew", "release"])
async def test_a_store_that_does_not_answer_is_no_answer(path: str) -> None:
    node = node_of(FakeLimiter(refund_error=StoreUnavailable("timeout")))
    body = b'{"client_key":"a","resource":"b","lease_id":"c"}'
    assert (await call(node, "POST", f"/v1/{path}", body)).status == 503


async def test_slots_that_were_taken_without_the_store_are_released_here(world: World) -> None:
    (point,) = await world.store.points()
    world.store.cut(point)
    taken = await world.said("acquire", lease_id="a")
    assert (taken["allowed"], taken["degraded"], taken["lease_ms"]) == (True, True, 30_000)
    world.store.heal(point)
    assert await world.said("release", lease_id="a") == {"released": True}
