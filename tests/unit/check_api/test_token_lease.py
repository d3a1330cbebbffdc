"""``POST /v1/token-lease``: what is wrong is named, what is right reaches the limiter."""

from __future__ import annotations

import json
from typing import Any

import pytest

from regional_limiter.lending import Brought, Lent
from regional_limiter.model.errors import StoreUnavailable
from tests.unit.check_api.fakes import FakeLimiter, Response, call, node_of

PATH = "/v1/token-lease"
ASKED: dict[str, Any] = {"client_key": "a", "resource": "r", "want": 50}
BACK: dict[str, Any] = {"lease": "12.ab", "tokens": 5, "unspent": 2, "checks": 3}


async def post(limiter: FakeLimiter, body: Any) -> Response:
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    return await call(node_of(limiter), "POST", PATH, text)


async def test_what_is_wanted_and_brought_back_reaches_the_limiter() -> None:
    limiter = FakeLimiter(lent=Lent(40, 300, "13.ab", "hot", 1000, 860, 1500, 2, 0))
    response = await post(limiter, {**ASKED, "domain": "shop", "attributes": {"tier": "x"}, "back": BACK})
    assert response.status == 200
    assert response.json() == {
        "tokens": 40, "ends_in_ms": 300, "lease": "13.ab", "rule": "hot", "limit": 1000, "remaining": 860,
        "reset_after_ms": 1500, "credited": 2, "again_after_ms": 0,
    }  # fmt: skip
    [(check, want, brought)] = limiter.lendings
    assert (check.domain, want) == ("shop", 50)
    assert check.attributes == {"client_key": "a", "resource": "r", "tier": "x"}
    assert brought == Brought("12.ab", 5, 2, 3)


@pytest.mark.parametrize("body", [ASKED, {**ASKED, "back": None}])
async def test_nothing_has_to_be_brought_back(body: Any) -> None:
    limiter = FakeLimiter()
    assert (await post(limiter, body)).json()["tokens"] == 0
    assert limiter.lendings[0][2] is None


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"want": -1}, "want"),
        ({"want": True}, "want"),
        ({"want": "5"}, "want"),
        ({"cost": 5}, "cost"),
        ({"client_key": 5}, "client_key"),
        ({"back": []}, "back"),
        ({"back": {**BACK, "tokens": -1}}, "back.tokens"),
        ({"back": {**BACK, "checks": 1.5}}, "back.checks"),
        ({"back": {**BACK, "unspent": 6}}, "back.unspent"),
        ({"back": {**BACK, "lease": 5}}, "back.lease"),
        ({"back": {**BACK, "lease": "x" * 65}}, "back.lease"),
        ({"back": {**BACK, "tokens_": 1}}, "back.tokens_"),
        ({"back": {name: value for name, value in BACK.items() if name != "checks"}}, "back.checks"),
    ],
)
async def test_what_is_wrong_is_named(changes: dict[str, Any], field: str) -> None:
    limiter = FakeLimiter()
    response = await post(limiter, {**ASKED, **changes})
    assert response.status == 422
    assert [error["field"] for error in response.json()["errors"]] == [field]
    assert limiter.lendings == []


async def test_a_field_of_what_comes_back_is_not_given_twice() -> None:
    text = json.dumps({**ASKED, "back": BACK}).replace('"unspent": 2', '"unspent": 2, "unspent": 5')
    response = await post(FakeLimiter(), text.encode())
    assert [error["field"] for error in response.json()["errors"]] == ["back.unspent"]


async def test_what_is_missing_is_named_and_what_is_no_json_is_400() -> None:
    response = await post(FakeLimiter(), {"client_key": "a", "resource": "r"})
    assert [error["field"] for error in response.json()["errors"]] == ["want"]
    assert (await post(FakeLimiter(), b"{")).status == 400


async def test_without_the_store_nothing_is_lent() -> None:
    response = await post(FakeLimiter(refund_error=StoreUnavailable("deadline")), ASKED)
    assert response.status == 503
