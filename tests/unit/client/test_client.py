"""The Python client: what it asks, how it reads answers, and what it does when there is none."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import httpx
import pytest
from apportion import Answer, AsyncClient, Check, Client, InvalidRequest, NoAnswer

from services.check_api.app import NodeApp
from tests.unit.check_api.fakes import FakeLimiter, answer_of, node_of, rule_verdict

URL = "http://node"
Handler = Callable[[httpx.Request], httpx.Response]


def blocking(handler: Handler, **options: Any) -> Client:
    return Client(URL, transport=httpx.MockTransport(handler), **options)


def times_out(request: httpx.Request) -> httpx.Response:
    raise httpx.ReadTimeout("too slow", request=request)


def refuses(request: httpx.Request) -> httpx.Response:
    raise httpx.ConnectError("refused", request=request)


def of_node(node: NodeApp, **options: Any) -> AsyncClient:
    return AsyncClient(URL, transport=httpx.ASGITransport(app=node), timeout_s=5, **options)


async def test_a_check_reaches_a_real_node_and_comes_back_whole() -> None:
    limiter = FakeLimiter(answer_of(rule_verdict(allowed=False, remaining=0, retry_after_ms=334)))
    async with of_node(node_of(limiter), domain="shop") as client:
        answer = await client.check("u:1", "GET /x", cost=3, attributes={"tier": "free"}, request_id="r1")
    assert answer == Answer(False, "limited", 20, 0, 334, 11_200, "orders-free")
    [check] = limiter.checks
    assert (check.domain, check.cost, check.request_id) == ("shop", 3, "r1")
    assert check.attributes == {"client_key": "u:1", "resource": "GET /x", "tier": "free"}


async def test_peek_and_refund_reach_a_real_node() -> None:
    limiter = FakeLimiter()
    async with of_node(node_of(limiter)) as client:
        assert (await client.peek("u:1 é", "GET /x?a=b&c", attributes={"tier": "free"})).reason == "no_rule"
        await client.refund("u:1", "GET /x", cost=2)
    assert limiter.peeks[0].attributes == {"client_key": "u:1 é", "resource": "GET /x?a=b&c", "tier": "free"}
    assert limiter.refunds[0].cost == 2


async def test_a_token_is_sent() -> None:
    node = node_of(FakeLimiter(), token="a-token-of-16-or-more")
    async with of_node(node, token="a-token-of-16-or-more") as client:
        assert (await client.check("a", "b")).allowed
    async with of_node(node) as client:
        with pytest.raises(InvalidRequest):
            await client.check("a", "b")


@pytest.mark.parametrize("handler", [times_out, refuses])
@pytest.mark.parametrize(("choice", "allowed"), [("allow", True), ("deny", False)])
def test_without_an_answer_the_caller_has_chosen(handler: Handler, choice: Any, allowed: bool) -> None:
    answer = blocking(handler, on_no_answer=choice).check("a", "b")
    assert (answer.allowed, answer.decided, answer.degraded, answer.reason) == (allowed, False, True, "no_answer")


def test_raise_raises() -> None:
    with pytest.raises(NoAnswer):
        blocking(times_out, on_no_answer="raise").check("a", "b")


def test_a_choice_that_does_not_exist_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="allow, deny or raise"):
        blocking(times_out, on_no_answer="opne")


def test_a_timeout_is_not_sent_again() -> None:
    requests: list[httpx.Request] = []

    def handler(request: httpx.Request) -> httpx.Response:
        requests.append(request)
        return times_out(request)

    blocking(handler).check("a", "b")
    assert len(requests) == 1


@pytest.mark.parametrize("status", [500, 502, 503, 429, 408, 302])
def test_what_is_no_decision_is_no_answer_never_an_allow_by_itself(status: int) -> None:
    client = blocking(lambda request: httpx.Response(status, json={"allowed": True}), on_no_answer="deny")
    assert client.check("a", "b").allowed is False


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b'{"allowed": "yes"}', b"{}"])
def test_a_200_that_is_not_an_answer_is_no_answer(body: bytes) -> None:
    client = blocking(lambda request: httpx.Response(200, content=body), on_no_answer="deny")
    answer = client.check("a", "b")
    assert (answer.allowed, answer.decided) == (False, False)


async def test_a_refused_request_raises_whatever_the_choice_is() -> None:
    async with of_node(node_of(FakeLimiter()), on_no_answer="allow") as client:
        with pytest.raises(InvalidRequest, match="client_key") as caught:
            await client.check("x" * 2000, "b")
        with pytest.raises(InvalidRequest, match="UTF-8"):
            await client.check("\ud800", "b")
    assert caught.value.status == 422
    assert caught.value.problem["errors"][0]["field"] == "client_key"


async def test_a_refund_without_an_answer_says_that_it_may_not_have_happened() -> None:
    with pytest.raises(NoAnswer):
        blocking(times_out, on_no_answer="allow").refund("a", "b")


async def test_the_async_timeout_bounds_the_whole_request() -> None:
    never = asyncio.Event()

    class Silent(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            await never.wait()
            raise AssertionError("unreachable")

    async with AsyncClient(URL, transport=Silent(), timeout_s=0.01, on_no_answer="deny") as client:
        assert (await client.check("a", "b")).decided is False


def test_both_clients_send_the_same() -> None:
    seen: list[tuple[str, str, Any]] = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append((request.method, str(request.url), json.loads(request.content or b"null")))
        return httpx.Response(200, json={"allowed": True, "reason": "ok"})

    with blocking(handler) as client:
        client.check("a", "b", attributes={"t": "1"})
        client.peek("a", "b", attributes={"t": "1"})
        client.refund("a", "b")

    async def again() -> None:
        async with AsyncClient(URL, transport=httpx.MockTransport(handler)) as client:
            await client.check("a", "b", attributes={"t": "1"})
            await client.peek("a", "b", attributes={"t": "1"})
            await client.refund("a", "b")

    asyncio.run(again())
    assert seen[:3] == seen[3:]
    assert len(seen) == 6


async def test_a_batch_comes_back_in_order_with_what_is_wrong_in_its_place() -> None:
    limiter = FakeLimiter(answer_of(rule_verdict(remaining=3)))
    checks = [Check("a", "r"), Check("b", "r", cost=-1), Check("c", "r", attributes={"t": "x"}, request_id="q")]
    async with of_node(node_of(limiter), domain="shop") as client:
        first, wrong, last = await client.check_batch(checks)
    assert isinstance(first, Answer)
    assert isinstance(last, Answer)
    assert isinstance(wrong, InvalidRequest)
    assert (first.remaining, wrong.status, last.remaining) == (3, 422, 3)
    assert [check.attributes["client_key"] for check in limiter.checks] == ["a", "c"]
    assert {check.domain for check in limiter.checks} == {"shop"}


async def test_a_check_that_the_node_failed_is_as_if_nobody_had_answered() -> None:
    async with of_node(node_of(FakeLimiter(RuntimeError())), on_no_answer="deny") as client:
        [answer] = await client.check_batch([Check("a", "r")])
    assert (answer.allowed, answer.decided) == (False, False)  # type: ignore[union-attr]


def test_a_batch_without_an_answer_is_what_the_client_was_told_to_make_of_it() -> None:
    checks = [Check("a", "r")] * 3
    with blocking(times_out, on_no_answer="deny") as client:
        assert [answer.allowed for answer in client.check_batch(checks)] == [False] * 3  # type: ignore[union-attr]
    with blocking(lambda request: httpx.Response(200, json={"answers": []})) as client:
        assert [answer.decided for answer in client.check_batch(checks)] == [False] * 3  # type: ignore[union-attr]
    with blocking(refuses, on_no_answer="raise") as client, pytest.raises(NoAnswer):
        client.check_batch(checks)


HELD = replace(answer_of(rule_verdict()), lease_id="a", lease_ms=30_000)


async def test_a_lease_is_released_once_at_the_end_of_its_block() -> None:
    limiter = FakeLimiter(HELD)
    async with of_node(node_of(limiter), domain="shop") as client:
        async with await client.acquire(
            "u:1", "GET /x", cost=2, attributes={"tier": "free"}, lease_id="a"
        ) as lease:
            assert (lease.allowed, lease.lease_id, lease.answer.lease_ms) == (True, "a", 30_000)
            assert await lease.renew()
            assert limiter.releases == []
        assert len(limiter.releases) == 1
        async with await client.acquire("u:1", "GET /x") as lease:
            assert await lease.release()
    assert [check.cost for check in limiter.checks] == [2, 1]
    taken = limiter.checks[0]
    assert limiter.renewals[0] == limiter.releases[0] == replace(taken, cost=0)
    assert (taken.domain, taken.lease_id) == ("shop", "a")
    assert len(limiter.releases) == 2
    assert limiter.releases[1].lease_id == limiter.checks[1].lease_id not in (None, "a")


async def test_a_denied_acquisition_has_nothing_to_release() -> None:
    limiter = FakeLimiter(answer_of(rule_verdict(allowed=False)))
    async with of_node(node_of(limiter)) as client, await client.acquire("u:1", "GET /x") as lease:
        assert (lease.allowed, lease.answer.lease_id) == (False, None)
    assert limiter.releases == []


@pytest.mark.parametrize("choice", ["allow", "deny"])
def test_what_may_have_been_taken_without_an_answer_is_released_and_its_loss_is_no_error(choice: Any) -> None:
    asked: list[tuple[str, Any]] = []

    def handler(request: httpx.Request) -> httpx.Response:
        asked.append((request.url.path, json.loads(request.content)["lease_id"]))
        return times_out(request)

    with blocking(handler, on_no_answer=choice) as client:
        with client.acquire("u", "r") as lease:
            assert (lease.allowed, lease.answer.decided) == (choice == "allow", False)
            with pytest.raises(NoAnswer):
                lease.renew()
        with pytest.raises(NoAnswer):
            lease.release()
    assert asked == [(f"/v1/{path}", lease.lease_id) for path in ("acquire", "renew", "release", "release")]


def test_a_lease_that_is_over_says_so_and_a_refusal_is_raised() -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        told = {"acquire": {"allowed": True, "lease_id": "a", "lease_ms": 5}, "renew": {"held": False}}
        document = told.get(request.url.path.removeprefix("/v1/"))
        return httpx.Response(401, json={}) if document is None else httpx.Response(200, json=document)

    with blocking(handler) as client:
        lease = client.acquire("u", "r", lease_id="a")
        assert not lease.renew()
        with pytest.raises(InvalidRequest):
            lease.release()


def test_a_queues_wait_is_told() -> None:
    with blocking(lambda request: httpx.Response(200, json={"allowed": True, "wait_ms": 250})) as client:
        assert client.check("u", "r").wait_ms == 250
