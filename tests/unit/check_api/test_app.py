"""The node's HTTP, called in memory with a limiter that says what the test wants."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regional_limiter.durations import Durations
from regional_limiter.limiter import ShardStatus
from regional_limiter.model.decision import Reason, ShareKind
from regional_limiter.model.errors import InvalidCheck, RulesUnavailable, StoreUnavailable
from services.check_api import app
from services.check_api.batches import Batches
from services.check_api.bodies import parse_batch
from services.check_api.counts import StoreCalls
from tests.unit.check_api.fakes import FakeLimiter, Response, answer_of, call, node_of, rule_verdict

CHECK = b'{"client_key":"user:42","resource":"POST /orders"}'
FIELDS = ["allowed", "limit", "remaining", "retry_after_ms", "reset_after_ms", "rule", "reason", "degraded"]


def assert_problem(response: Response, status: int) -> dict[str, Any]:
    document = response.json()
    assert response.status == status
    assert response.headers["content-type"] == "application/problem+json"
    assert response.headers["cache-control"] == "no-store"
    assert document["status"] == status
    assert "allowed" not in document
    return dict(document)


async def test_an_allowed_check_is_200_with_exactly_the_promised_fields() -> None:
    limiter = FakeLimiter(answer_of(rule_verdict(reset_after_ms=4200, remaining=37, limit=100)))
    response = await call(node_of(limiter), "POST", "/v1/check", CHECK)
    assert response.status == 200
    assert list(response.json()) == FIELDS
    assert response.json() == {
        "allowed": True,
        "limit": 100,
        "remaining": 37,
        "retry_after_ms": 0,
        "reset_after_ms": 4200,
        "rule": "orders-free",
        "reason": "ok",
        "degraded": False,
    }
    assert response.headers["ratelimit"] == '"orders-free";r=37;t=5'
    assert response.headers["content-length"] == str(len(response.body))
    assert "retry-after" not in response.headers


async def test_a_denied_check_is_200_too_and_carries_retry_after() -> None:
    denied = rule_verdict(allowed=False, remaining=0, retry_after_ms=1500)
    response = await call(node_of(FakeLimiter(answer_of(denied))), "POST", "/v1/check", CHECK)
    assert response.status == 200
    assert response.json()["allowed"] is False
    assert response.json()["reason"] == "limited"
    assert response.headers["retry-after"] == "2"


async def test_quantumnous_new_api_1026_zero_limit_has_no_retry_after() -> None:
    zero = rule_verdict(allowed=False, reason=Reason.ZERO_LIMIT, limit=0, remaining=0, retry_after_ms=None)
    response = await call(node_of(FakeLimiter(answer_of(zero))), "POST", "/v1/check", CHECK)
    assert response.json()["retry_after_ms"] is None
    assert "retry-after" not in response.headers


async def test_no_matching_rule_is_null_and_sends_no_rate_limit_headers() -> None:
    response = await call(node_of(FakeLimiter()), "POST", "/v1/check", CHECK)
    document = response.json()
    assert (document["allowed"], document["reason"]) == (True, "no_rule")
    assert document["limit"] is document["remaining"] is document["rule"] is None
    assert not [name for name in response.headers if "ratelimit" in name]


@pytest.mark.parametrize("kind", [ShareKind.LEASE, ShareKind.BASE, ShareKind.FLOOR])
async def test_detail_tells_each_rules_share(kind: ShareKind) -> None:
    answer = answer_of(rule_verdict("global", share_kind=kind, share=3333), rule_verdict("local"))
    response = await call(node_of(FakeLimiter(answer)), "POST", "/v1/check", CHECK, query=b"detail=1")
    document = response.json()
    assert list(document) == [*FIELDS, "share", "verdicts"]
    assert document["share"] == kind.name.lower()
    assert [(item["rule"], item["share"], item["share_units"]) for item in document["verdicts"]] == [
        ("global", kind.name.lower(), 3333),
        ("local", None, None),
    ]


async def test_the_limiter_gets_the_check_as_it_was_asked() -> None:
    limiter = FakeLimiter()
    body = {"client_key": "k", "resource": "r", "cost": 5, "attributes": {"tier": "free"}, "request_id": "q-1"}
    await call(node_of(limiter), "POST", "/v1/check", json.dumps(body).encode())
    [check] = limiter.checks
    assert check.attributes == {"tier": "free", "client_key": "k", "resource": "r"}
    assert (check.cost, check.request_id) == (5, "q-1")


async def test_mailgun_gubernator_156_a_negative_cost_is_422_and_never_reaches_the_limiter() -> None:
    limiter = FakeLimiter()
    response = await call(node_of(limiter), "POST", "/v1/check", b'{"client_key":"a","resource":"b","cost":-5}')
    problem = assert_problem(response, 422)
    assert problem["errors"] == [{"field": "cost", "problem": "must be an integer from 0 to 2147483647"}]
    assert limiter.checks == []


async def test_jsocol_django_ratelimit_3_a_key_of_10_kb_is_422() -> None:
    body = json.dumps({"client_key": "x" * 10_240, "resource": "b"}).encode()
    problem = assert_problem(await call(node_of(FakeLimiter()), "POST", "/v1/check", body), 422)
    assert problem["errors"][0]["field"] == "client_key"


async def test_an_unknown_field_is_refused_with_the_nearest_name() -> None:
    body = b'{"client_key":"a","resource":"b","costs":1}'
    problem = assert_problem(await call(node_of(FakeLimiter()), "POST", "/v1/check", body), 422)
    assert "did you mean cost?" in problem["detail"]


async def test_a_body_over_64_kib_is_413_whether_announced_or_not() -> None:
    node = node_of(FakeLimiter())
    announced = await call(node, "POST", "/v1/check", b"", headers={"Content-Length": str(65_537)})
    streamed = await call(node, "POST", "/v1/check", [b" " * 40_000, b" " * 40_000])
    assert_problem(announced, 413)
    assert_problem(streamed, 413)


async def test_a_body_in_parts_and_a_wrong_content_type_are_fine() -> None:
    parts = [CHECK[:10], CHECK[10:30], CHECK[30:]]
    headers = {"Content-Type": "text/plain"}
    response = await call(node_of(FakeLimiter()), "POST", "/v1/check", parts, headers=headers)
    assert response.status == 200


async def test_bad_json_is_400() -> None:
    assert_problem(await call(node_of(FakeLimiter()), "POST", "/v1/check", b"{"), 400)


@pytest.mark.parametrize(
    "error", [RuntimeError("secret"), StoreUnavailable("timeout"), KeyError("x"), TimeoutError()]
)
async def test_an_unexpected_exception_is_a_counted_500_never_an_allow(error: Exception) -> None:
    node = node_of(FakeLimiter(error))
    problem = assert_problem(await call(node, "POST", "/v1/check", CHECK), 500)
    assert "secret" not in json.dumps(problem)
    assert node.counts.unexpected_errors == 1
    assert node.counts.checks == {}


async def test_what_the_limiter_finds_wrong_is_422() -> None:
    limiter = FakeLimiter(InvalidCheck("attributes.ip", "must be an address"))
    problem = assert_problem(await call(node_of(limiter), "POST", "/v1/check", CHECK), 422)
    assert problem["errors"] == [{"field": "attributes.ip", "problem": "must be an address"}]


async def test_a_caller_that_hung_up_gets_nothing_and_charges_nothing() -> None:
    limiter = FakeLimiter()
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/v1/check", "query_string": b"", "headers": []}
    await node_of(limiter)(scope, receive, send)
    assert sent == []
    assert limiter.checks == []


async def test_a_node_without_rules_answers_no_check_and_is_not_ready_but_alive() -> None:
    node = node_of(FakeLimiter(ready=False))
    problem = assert_problem(await call(node, "POST", "/v1/check", CHECK), 503)
    assert problem["type"].endswith("#temporary-reduced-capacity")
    assert_problem(await call(node, "GET", "/readyz"), 503)
    assert (await call(node, "GET", "/livez")).status == 200


async def test_a_node_whose_redis_is_down_is_ready_and_says_degraded() -> None:
    limiter = FakeLimiter(shards=(ShardStatus("127.0.0.1:7001/1", "open"),))
    response = await call(node_of(limiter), "GET", "/readyz")
    assert response.status == 200
    assert response.json() == {"ready": True, "degraded": True}


async def test_a_domain_whose_rules_cannot_be_read_is_503_and_named() -> None:
    node = node_of(FakeLimiter(RulesUnavailable("shop", "rules[0]"), refused_domains={"shop": "rules[0]"}))
    problem = assert_problem(await call(node, "POST", "/v1/check", CHECK), 503)
    assert "shop" in problem["detail"]
    assert node.counts.unexpected_errors == 0
    assert (await call(node, "GET", "/readyz")).json()["refused_domains"] == ["shop"]


async def test_a_draining_node_is_not_ready_but_still_answers_checks() -> None:
    node = node_of(FakeLimiter())
    node.draining = True
    assert_problem(await call(node, "GET", "/readyz"), 503)
    assert (await call(node, "POST", "/v1/check", CHECK)).status == 200


async def test_peek_asks_for_nothing_and_refund_gives_back() -> None:
    limiter = FakeLimiter()
    node = node_of(limiter)
    peeked = await call(node, "GET", "/v1/peek", query=b"client_key=a&resource=b")
    assert peeked.status == 200
    assert list(peeked.json()) == FIELDS
    assert [check.cost for check in limiter.peeks] == [0]
    refunded = await call(node, "POST", "/v1/refund", b'{"client_key":"a","resource":"b","cost":5}')
    assert (refunded.status, refunded.json()) == (200, {"refunded": True})
    assert [check.cost for check in limiter.refunds] == [5]
    assert limiter.checks == []
    assert node.counts.checks == {}


async def test_a_refund_that_was_not_delivered_says_so() -> None:
    node = node_of(FakeLimiter(refund_error=StoreUnavailable("timeout")))
    assert_problem(await call(node, "POST", "/v1/refund", CHECK), 503)


@pytest.mark.parametrize(("method", "path"), [("GET", "/v1/check"), ("POST", "/v1/peek"), ("PUT", "/v1/refund")])
async def test_a_wrong_method_names_the_right_one(method: str, path: str) -> None:
    response = await call(node_of(FakeLimiter()), method, path, CHECK)
    assert_problem(response, 405)
    assert response.headers["allow"] in ("GET", "POST")


async def test_an_unknown_path_is_problem_json_too() -> None:
    assert_problem(await call(node_of(FakeLimiter()), "GET", "/v2/check"), 404)


@pytest.mark.parametrize("path", ["/v1/check", "/v1/peek", "/v1/refund", "/v1/node", "/metrics", "/openapi.json"])
async def test_with_a_token_nobody_asks_without_it(path: str) -> None:
    limiter = FakeLimiter()
    node = node_of(limiter, token="a-token-of-16-or-more")
    method = "POST" if path in ("/v1/check", "/v1/refund") else "GET"
    query = b"client_key=a&resource=b"
    for headers in ({}, {"Authorization": "Bearer wrong"}):
        response = await call(node, method, path, CHECK, query=query, headers=headers)
        assert_problem(response, 401)
    right = {"Authorization": "Bearer a-token-of-16-or-more"}
    assert (await call(node, method, path, CHECK, query=query, headers=right)).status == 200
    assert (await call(node, "GET", "/livez")).status == 200


async def test_the_node_tells_how_long_each_server_took() -> None:
    took = Durations((0.001, 0.002))
    for seconds in (0.0005, 0.0015, 0.003):
        took.record(seconds)
    slots = {"127.0.0.1:7001": ((0, 5_461), (9_000, 9_001))}
    calls = StoreCalls({"127.0.0.1:7001": took}, {"127.0.0.1:7001": 2}, lambda address: slots[address])
    node = app.create_app(FakeLimiter(), app.NodeOptions(region="us-east", node="us-east-1"), calls)
    (shard,) = (await call(node, "GET", "/v1/node")).json()["shards"]
    assert (shard["took"], shard["unanswered"]) == ({"bounds_s": [0.001, 0.002], "counts": [1, 1, 1]}, 2)
    assert shard["slots"] == [[0, 5_461], [9_000, 9_001]]


async def test_the_node_tells_its_own_view() -> None:
    node = node_of(FakeLimiter(degraded={"timeout": 3}))
    document = (await call(node, "GET", "/v1/node")).json()
    assert (document["node"], document["region"], document["rules_version"]) == ("us-east-1", "us-east", 7)
    shard = {"point": "127.0.0.1:7001/1", "breaker": "closed", "answers": True}
    shard |= {"unanswered": 0, "slots": [], "took": None}
    assert document["shards"] == [shard]
    assert document["degraded"] == {"timeout": 3}


async def test_the_documentation_names_the_routes_that_fastapi_never_sees() -> None:
    document = (await call(node_of(FakeLimiter()), "GET", "/openapi.json")).json()
    raw = {"check", "check:batch", "peek", "refund", "reset", "inspect", "node", "acquire", "renew", "release"}
    assert {"/livez", "/readyz", *(f"/v1/{name}" for name in raw)} <= set(document["paths"])
    named = set(re.findall(r'"#/components/schemas/(\w+)"', json.dumps(document)))
    assert named <= set(document["components"]["schemas"])
    assert "client_key" in document["components"]["schemas"]["CheckBody"]["properties"]
    assert (await call(node_of(FakeLimiter()), "GET", "/docs")).status == 200


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)
NODE = node_of(FakeLimiter(answer_of(rule_verdict())))


@given(
    body=st.binary(max_size=100)
    | st.dictionaries(st.sampled_from(["client_key", "resource", "cost", "attributes", "y"]), JSON).map(
        lambda fields: json.dumps(fields).encode()
    ),
    path=st.sampled_from(
        [("POST", f"/v1/{name}") for name in ("check", "check:batch", "refund", "reset")]
        + [("GET", f"/v1/{name}") for name in ("peek", "inspect")]
    ),
    query=st.binary(max_size=40),
)
@settings(deadline=None)
async def test_no_request_whatever_makes_a_5xx(body: bytes, path: tuple[str, str], query: bytes) -> None:
    response = await call(NODE, *path, body, query=query)
    assert response.status in (200, 400, 413, 422)
    assert NODE.counts.unexpected_errors == 0


# ---- batches, reset, inspection


def batch(*checks: object) -> bytes:
    return json.dumps({"checks": list(checks)}).encode()


GOOD = {"client_key": "user:42", "resource": "POST /orders"}


async def test_a_batch_is_answered_in_order_and_counted_check_by_check() -> None:
    limiter = FakeLimiter(answer_of(rule_verdict()))
    node = node_of(limiter)
    keys = [f"u{number}" for number in range(1000)]
    response = await call(node, "POST", "/v1/check:batch", batch(*({**GOOD, "client_key": key} for key in keys)))
    answers = response.json()["answers"]
    assert response.status == 200
    assert [list(answer) for answer in answers] == [FIELDS] * 1000
    assert [check.attributes["client_key"] for check in limiter.checks] == keys
    assert sum(node.counts.checks.values()) == 1000


async def test_one_bad_item_is_an_error_in_its_own_place_and_costs_the_others_nothing() -> None:
    limiter = FakeLimiter(answer_of(rule_verdict()))
    bad = [{**GOOD, "cost": -1}, {"resource": "b"}, 7, {**GOOD, "domain": "No Domain"}, {**GOOD, "costs": 1}]
    response = await call(node_of(limiter), "POST", "/v1/check:batch", batch(GOOD, *bad, GOOD))
    first, *errors, last = response.json()["answers"]
    assert first["allowed"]
    assert last["allowed"]
    assert len(limiter.checks) == 2
    assert [item["error"]["status"] for item in errors] == [422] * 5
    places = [[fault["field"] for fault in item["error"]["errors"]] for item in errors]
    assert places == [["cost"], ["client_key"], ["body"], ["domain"], ["costs"]]
    assert not [item for item in errors if "allowed" in item]


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        (b"{", 400, "body"),
        (b"[]", 422, "body"),
        (b"{}", 422, "checks"),
        (b'{"checks":{}}', 422, "checks"),
        (b'{"checks":[],"check":1}', 422, "check"),
        (b'{"checks":[],"checks":[]}', 422, "checks"),
        (batch(*[GOOD] * 1001), 422, "checks"),
        (b'{"checks":[' + b"[" * 100_000, 400, "body"),
    ],
)
async def test_what_is_no_batch_is_refused_whole(body: bytes, status: int, field: str) -> None:
    limiter = FakeLimiter()
    problem = assert_problem(await call(node_of(limiter), "POST", "/v1/check:batch", body), status)
    assert [fault["field"] for fault in problem["errors"]] == [field]
    assert limiter.checks == []


async def test_an_empty_batch_has_no_answers_and_one_above_1_mib_is_413() -> None:
    node = node_of(FakeLimiter())
    assert (await call(node, "POST", "/v1/check:batch", batch())).json() == {"answers": []}
    assert_problem(await call(node, "POST", "/v1/check:batch", b" " * (1024 * 1024 + 1)), 413)


async def test_an_error_of_one_check_in_a_batch_is_counted_and_never_an_allow() -> None:
    node = node_of(FakeLimiter(RuntimeError("secret")))
    response = await call(node, "POST", "/v1/check:batch", batch(GOOD, GOOD))
    assert [item["error"]["status"] for item in response.json()["answers"]] == [500, 500]
    assert b"secret" not in response.body
    assert (node.counts.unexpected_errors, node.counts.checks) == (2, {})
    unreadable = node_of(FakeLimiter(RulesUnavailable("shop", "rules[0]")))
    response = await call(unreadable, "POST", "/v1/check:batch", batch(GOOD))
    assert response.json()["answers"][0]["error"]["status"] == 503


async def test_too_many_large_batches_that_wait_for_a_thread_are_sent_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    go_on, large = threading.Event(), batch(*[{**GOOD, "cost": -1}] * 200)

    def slowly(body: bytes) -> object:
        assert go_on.wait(10)
        return parse_batch(body)

    monkeypatch.setattr(app, "parse_batch", slowly)
    monkeypatch.setattr(app, "PARSED_BESIDE_MOST", 2)
    node = node_of(FakeLimiter())
    waiting = [asyncio.create_task(call(node, "POST", "/v1/check:batch", large)) for _ in range(2)]
    await asyncio.sleep(0)
    assert_problem(await call(node, "POST", "/v1/check:batch", large), 503)
    go_on.set()
    assert [response.status for response in await asyncio.gather(*waiting)] == [200, 200]
    assert (await call(node, "POST", "/v1/check:batch", large)).status == 200


async def test_too_many_batches_that_wait_are_sent_elsewhere() -> None:
    node = node_of(FakeLimiter())
    node.batches = Batches(node.limiter.submit, waiting_most=0)
    problem = assert_problem(await call(node, "POST", "/v1/check:batch", batch(GOOD)), 503)
    assert problem["type"].endswith("#temporary-reduced-capacity")


async def test_a_reset_names_the_buckets_and_takes_neither_cost_nor_request() -> None:
    limiter = FakeLimiter()
    body = b'{"client_key":"u","resource":"r","attributes":{"tier":"free"},"domain":"shop"}'
    response = await call(node_of(limiter), "POST", "/v1/reset", body)
    assert response.json() == {"reset": ["rl:{t}:default/orders-free:u"]}
    [check] = limiter.resets
    assert (check.domain, check.attributes["tier"], check.cost) == ("shop", "free", 0)
    for field in (b'"cost":1', b'"request_id":"r"', b'"client_key":"v"'):
        wrong = b'{"client_key":"u","resource":"r",' + field + b"}"
        problem = assert_problem(await call(node_of(limiter), "POST", "/v1/reset", wrong), 422)
        assert [fault["field"] for fault in problem["errors"]] == [field.split(b'"')[1].decode()]
    assert_problem(await call(node_of(limiter), "POST", "/v1/reset", b"nope"), 400)
    assert_problem(await call(node_of(limiter), "POST", "/v1/reset", b"[]"), 422)
    assert len(limiter.resets) == 1


async def test_a_reset_that_could_not_be_delivered_is_503() -> None:
    node = node_of(FakeLimiter(refund_error=StoreUnavailable("timeout")))
    assert_problem(await call(node, "POST", "/v1/reset", CHECK), 503)


async def test_an_inspection_tells_each_bucket_and_shares_of_global_rules_only() -> None:
    answer = answer_of(rule_verdict("global", share_kind=ShareKind.LEASE, share=3333), rule_verdict("local"))
    limiter = FakeLimiter(answer)
    response = await call(node_of(limiter), "GET", "/v1/inspect", query=b"client_key=u&resource=r")
    document = response.json()
    assert document["domain"] == "default"
    first, second = document["buckets"]
    assert (first["rule"], first["key"], first["algorithm"]) == ("global", "rl:{t}:default/global:u", "gcra")
    assert (first["limit"], first["remaining"], first["ttl_ms"]) == (20, 7, 1500)
    assert (first["share"], first["share_units"], first["session_left_ms"]) == ("lease", 3333, 0)
    assert second["share"] is second["share_units"] is second["session_left_ms"] is None
    assert limiter.checks == []


@pytest.mark.parametrize("path", ["/v1/check:batch", "/v1/reset", "/v1/inspect"])
async def test_what_operators_and_callers_ask_needs_the_nodes_token(path: str) -> None:
    node = node_of(FakeLimiter(), token="a-token-of-16-or-more")
    method = "GET" if path == "/v1/inspect" else "POST"
    arguments = {"query": b"client_key=u&resource=r"} if method == "GET" else {}
    body = batch() if path == "/v1/check:batch" else CHECK
    assert_problem(await call(node, method, path, body, **arguments), 401)
    bearer = {"Authorization": "Bearer a-token-of-16-or-more"}
    assert (await call(node, method, path, body, headers=bearer, **arguments)).status == 200
