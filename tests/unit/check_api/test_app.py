"""The node's HTTP, called in memory with a limiter that says what the test wants."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regional_limiter.limiter import ShardStatus
from regional_limiter.model.decision import Reason, ShareKind
from regional_limiter.model.errors import InvalidCheck, RulesUnavailable, StoreUnavailable
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


@pytest.mark.parametrize("path", ["/v1/check", "/v1/peek", "/v1/refund", "/v1/node"])
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


async def test_the_node_tells_its_own_view() -> None:
    node = node_of(FakeLimiter(degraded={"timeout": 3}))
    document = (await call(node, "GET", "/v1/node")).json()
    assert (document["node"], document["region"], document["rules_version"]) == ("us-east-1", "us-east", 7)
    assert document["shards"] == [{"point": "127.0.0.1:7001/1", "breaker": "closed", "answers": True}]
    assert document["degraded"] == {"timeout": 3}


async def test_the_documentation_names_the_routes_that_fastapi_never_sees() -> None:
    document = (await call(node_of(FakeLimiter()), "GET", "/openapi.json")).json()
    assert {"/v1/check", "/v1/peek", "/v1/refund", "/v1/node", "/readyz"} <= set(document["paths"])
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
    path=st.sampled_from([("POST", "/v1/check"), ("POST", "/v1/refund"), ("GET", "/v1/peek")]),
    query=st.binary(max_size=40),
)
@settings(deadline=None)
async def test_no_request_whatever_makes_a_5xx(body: bytes, path: tuple[str, str], query: bytes) -> None:
    response = await call(NODE, *path, body, query=query)
    assert response.status in (200, 400, 413, 422)
    assert NODE.counts.unexpected_errors == 0
