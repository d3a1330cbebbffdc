"""Forward-auth: what a gateway asks becomes a check, and no stranger can make it an error that lets them pass."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regional_limiter.in_process import in_memory
from regional_limiter.model.decision import VALUE_BYTES_MOST, Check, Reason
from regional_limiter.model.errors import InvalidCheck
from services.check_api.app import NodeOptions, create_app
from services.check_api.authorize import METHODS, AuthorizeOptions, Authorizer
from tests.unit.check_api.fakes import FakeLimiter, Response, answer_of, call, node_of, rule_verdict

ASKED = {"X-Forwarded-Method": "POST", "X-Forwarded-Uri": "/orders?page=2", "X-Forwarded-Host": "shop.example"}
PATH = "/v1/authorize"


async def asked(
    path: str = PATH,
    query: bytes = b"",
    method: str = "GET",
    headers: dict[str, str] | None = None,
    **options: Any,
) -> Check:
    """The check that a node makes of a request."""
    limiter = FakeLimiter()
    node = node_of(limiter, authorize=AuthorizeOptions(**options))
    response = await call(node, method, path, query=query, headers=ASKED if headers is None else headers)
    assert response.status == 200, response.body
    return limiter.checks[0]


async def denied(*, query: bytes = b"", path: str = PATH, reason: Reason = Reason.LIMITED) -> Response:
    verdict = rule_verdict(allowed=False, reason=reason, remaining=0, retry_after_ms=1334)
    return await call(node_of(FakeLimiter(answer_of(verdict))), "GET", path, query=query, headers=ASKED)


async def test_a_request_is_what_the_gateway_says_it_was_asked() -> None:
    check = await asked(headers={**ASKED, "X-Forwarded-For": "192.0.2.7"})
    assert (check.domain, check.cost, check.request_id) == ("default", 1, None)
    assert check.attributes == {
        "client_key": "192.0.2.7",
        "resource": "POST /orders",
        "ip": "192.0.2.7",
        "full_ip": "192.0.2.7",
        "method": "POST",
        "path": "/orders",
        "host": "shop.example",
    }


async def test_behind_a_prefix_the_request_itself_is_what_was_asked() -> None:
    headers = {"Host": "shop.example", "X-Forwarded-Uri": "/free", "X-Forwarded-Method": "GET"}
    check = await asked("/v1/authorize//orders%20/7", b"cost=0&denied=200&domain=no", "DELETE", headers)
    assert check.attributes["resource"] == "DELETE //orders%20/7"
    assert (check.attributes["host"], check.cost, check.domain) == ("shop.example", 1, "default")


async def test_what_the_operator_writes_into_the_address_is_constant() -> None:
    query = b"domain=logins&resource=log-in&cost=5&attributes.tier=gold"
    check = await asked(query=query, headers={})
    assert (check.domain, check.cost) == ("logins", 5)
    assert (check.attributes["resource"], check.attributes["tier"]) == ("log-in", "gold")
    assert "path" not in check.attributes


@pytest.mark.parametrize(
    ("query", "field"),
    [
        (b"cost=-1", "cost"),
        (b"cost=1.5", "cost"),
        (b"cost=2147483648", "cost"),
        (b"cost=%C2%B2", "cost"),
        (b"denied=200", "denied"),
        (b"domain=a/b", "domain"),
        (b"recource=x", "recource"),
        (b"attributes.client_key=x", "attributes.client_key"),
        (b"attributes.=x", "attributes."),
        (b"=x", ""),
        (b"nothing", "query"),
        (b"a=%FF", "query"),
        (b"&".join(b"attributes.a%d=x" % i for i in range(33)), "attributes"),
    ],
)
async def test_what_the_operator_got_wrong_is_named(query: bytes, field: str) -> None:
    response = await call(node_of(FakeLimiter()), "GET", PATH, query=query, headers=ASKED)
    assert response.status == 422
    assert [error["field"] for error in response.json()["errors"]] == [field]


@pytest.mark.parametrize("missing", ["X-Forwarded-Method", "X-Forwarded-Uri"])
async def test_a_gateway_that_does_not_say_what_it_was_asked_is_told_so(missing: str) -> None:
    headers = {name: value for name, value in ASKED.items() if name != missing}
    response = await call(node_of(FakeLimiter()), "GET", PATH, headers=headers)
    assert response.status == 422
    assert response.json()["errors"][0]["field"] == missing.lower()


@pytest.mark.parametrize("method", [*METHODS, "PROPFIND"])
async def test_every_method_asks(method: str) -> None:
    limiter = FakeLimiter()
    node = node_of(limiter)
    assert (await call(node, method, "/v1/authorize/x")).status == 200
    assert limiter.checks[0].attributes["method"] == method
    assert list(node.counts.durations) == [(method if method in METHODS else "_OTHER", PATH, 200)]


async def test_an_allowed_request_passes_with_the_headers_of_a_check() -> None:
    node = node_of(FakeLimiter(answer_of(rule_verdict())))
    response = await call(node, "GET", PATH, headers=ASKED)
    assert (response.status, response.body) == (200, b"")
    assert response.headers["ratelimit"] == '"orders-free";r=7;t=12'
    assert response.headers["cache-control"] == "no-store"
    assert node.counts.checks == {("default", "orders-free", "allowed", "ok"): 1}


async def test_a_denial_is_429_with_what_a_caller_needs() -> None:
    response = await denied()
    assert response.status == 429
    assert response.headers["retry-after"] == "2"
    assert response.headers["content-type"] == "application/problem+json"
    assert response.headers["x-apportion-status"] == "429"
    assert response.json() == {
        "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
        "title": "Quota exceeded",
        "status": 429,
        "detail": "the limit is reached",
        "violated-policies": ["orders-free"],
        "retry_after_ms": 1334,
        "reason": "limited",
    }


@pytest.mark.parametrize(
    ("path", "query", "reason", "status", "meant"),
    [
        (PATH, b"", Reason.STORE_UNAVAILABLE, 503, "503"),
        (PATH, b"denied=403", Reason.LIMITED, 403, "429"),
        (PATH, b"denied=403", Reason.STORE_UNAVAILABLE, 403, "503"),
        # Envoy takes 5xx for no answer, and may let the request through.
        (PATH + "/orders", b"", Reason.STORE_UNAVAILABLE, 429, "429"),
    ],
)
async def test_a_denial_has_a_status_that_the_gateway_does_not_take_for_no_answer(
    path: str, query: bytes, reason: Reason, status: int, meant: str
) -> None:
    response = await denied(path=path, query=query, reason=reason)
    assert (response.status, response.headers["x-apportion-status"]) == (status, meant)
    assert response.json()["status"] == status


@pytest.mark.parametrize(("query", "status"), [(b"", 400), (b"denied=403", 403)])
async def test_what_a_rule_cannot_read_of_a_request_is_a_denial(query: bytes, status: int) -> None:
    node = node_of(FakeLimiter(InvalidCheck("body_size", "a number from 0 on")))
    response = await call(node, "GET", PATH, query=query, headers=ASKED)
    assert (response.status, response.headers["x-apportion-status"]) == (status, "400")


async def test_a_path_that_is_too_long_is_limited_like_any_other_and_stays_apart_from_others() -> None:
    texts = set()
    for tail in ("a", "b"):
        check = await asked(headers={**ASKED, "X-Forwarded-Uri": "/orders/" + "é" * 2000 + tail})
        assert check.attributes["resource"].startswith("POST /orders/éé")
        assert len(check.attributes["resource"].encode()) <= VALUE_BYTES_MOST
        texts.add(check.attributes["resource"])
    assert len(texts) == 2


@given(st.dictionaries(st.sampled_from(["x-forwarded-for", "x-api-key", "host"]), st.binary(max_size=3000)))
def test_nothing_that_a_stranger_sends_is_an_error(headers: dict[str, bytes]) -> None:
    scope = {
        "type": "http", "method": "GET", "path": "/v1/authorize/x", "raw_path": b"/v1/authorize/\xff\xfe",
        "query_string": b"%&=&&", "client": ("127.0.0.1", 1),
        "headers": [(name.encode(), value) for name, value in headers.items()],
    }  # fmt: skip
    options = AuthorizeOptions(client_key=["header:x-api-key", "address"], attributes={"key": "header:x-api-key"})
    read = Authorizer(options).read(scope).check
    assert all(len(text.encode()) <= VALUE_BYTES_MOST for text in read.attributes.values())


async def test_of_several_sources_of_the_key_one_cannot_be_passed_off_as_another() -> None:
    sources = {"client_key": ["header:X-Api-Key", "address"]}
    given_key = await asked(headers={**ASKED, "X-Api-Key": "192.0.2.7"}, **sources)
    by_address = await asked(headers={**ASKED, "X-Forwarded-For": "192.0.2.7"}, **sources)
    assert given_key.attributes["client_key"] == "x-api-key:192.0.2.7"
    assert by_address.attributes["client_key"] == "address:192.0.2.7"


async def test_a_header_that_is_not_there_is_an_empty_key_and_no_attribute() -> None:
    check = await asked(client_key=["header:x-api-key"], attributes={"key": "header:x-api-key"})
    assert check.attributes["client_key"] == ""
    assert "key" not in check.attributes


async def test_of_a_header_that_comes_twice_the_last_counts() -> None:
    scope = {
        "type": "http", "method": "GET", "path": PATH, "raw_path": PATH.encode(), "query_string": b"",
        "client": None,
        "headers": [
            (b"x-forwarded-uri", b"/of-a-stranger"), (b"x-forwarded-uri", b"/orders"),
            (b"x-forwarded-method", b"GET"),
        ],
    }  # fmt: skip
    assert Authorizer(AuthorizeOptions()).read(scope).check.attributes["resource"] == "GET /orders"


TOKEN = "a-token-of-16-or-more"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"X-Apportion-Token": "another-token-of-that-length"}, 401),
        ({"X-Apportion-Token": TOKEN}, 200),
        ({"X-Apportion-Token": TOKEN, "Authorization": "Bearer of-the-caller"}, 200),
        ({"Authorization": f"Bearer {TOKEN}"}, 200),
    ],
)
async def test_the_gateways_token_stands_beside_what_its_caller_authorises_itself_by(
    headers: dict[str, str], status: int
) -> None:
    node = node_of(FakeLimiter(), token=TOKEN)
    assert (await call(node, "GET", PATH, headers={**ASKED, **headers})).status == status


FIVE_BY_ADDRESS = """
rules:
  - {id: by-address, key: [ip], algorithm: fixed_window, limit: 5, window: 1d}
"""


@pytest.mark.parametrize(
    ("trusted", "callers", "statuses"),
    [
        # A peer that is not trusted says that it is somebody else each time (case 23).
        ([], [f"192.0.2.{i}" for i in range(6)], [200] * 5 + [429]),
        (["127.0.0.1"], [f"192.0.2.{i}" for i in range(6)], [200] * 6),
        # One /64 is one caller (case 24).
        (
            ["127.0.0.1"],
            [*(f"2001:db8:1:2::{i}" for i in range(1, 7)), "2001:db8:1:3::1"],
            [200] * 5 + [429, 200],
        ),
    ],
)
async def test_fastify_rate_limit_7_and_express_rate_limit_502_addresses_count_as_they_can_be_believed(
    trusted: list[str], callers: list[str], statuses: list[int]
) -> None:
    async with in_memory(FIVE_BY_ADDRESS) as limiter:
        options = NodeOptions("local", "local-1", authorize=AuthorizeOptions(trusted_proxies=trusted))
        node = create_app(limiter, options)
        seen = [
            (await call(node, "GET", PATH, headers={**ASKED, "X-Forwarded-For": caller})).status
            for caller in callers
        ]
    assert seen == statuses


async def test_the_document_of_all_paths_names_it() -> None:
    document = json.loads((await call(node_of(FakeLimiter()), "GET", "/openapi.json")).body)
    assert list(document["paths"]["/v1/authorize"]) == ["get"]
