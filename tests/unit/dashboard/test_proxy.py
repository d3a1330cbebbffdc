"""What pages ask of the control API: with the viewer's rights, and never with ours."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from services.dashboard.proxy import (
    BODY_BYTES_MOST,
    FORWARDED_MOST,
    ControlProxy,
    could_ask_directly,
    forwarded,
    is_known,
)
from services.settings import DashboardSettings
from tests.unit.control_api.conftest import hub_settings

OURS = {"Apportion-Dashboard": "1", "Host": "localhost:25091"}
Answering = Callable[[httpx.Request], httpx.Response]


@asynccontextmanager
async def proxy(
    answering: Answering, host: str = "127.0.0.1", *, without_token: bool = True
) -> AsyncIterator[httpx.AsyncClient]:
    dashboard = DashboardSettings(port=25091, host=host, insecure=True, control_without_token=without_token)
    settings = hub_settings().model_copy(update={"dashboard": dashboard})
    one = ControlProxy(settings, httpx.MockTransport(answering))
    app = FastAPI()
    app.include_router(one.router())
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost:25091") as client:
        yield client
    await one.close()


@pytest.mark.parametrize(
    ("method", "path", "known"),
    [
        ("GET", "rules", True),
        ("GET", "rules/orders-free", True),
        ("GET", "rulesets/default/versions/3", True),
        ("GET", "rulesets/default/diff", True),
        ("PUT", "rules/orders-free", True),
        ("PUT", "overrides", True),
        ("DELETE", "overrides/0123456789abcdef", True),
        ("POST", "rulesets/default:rollback", True),
        ("GET", "tokens", False),
        ("POST", "tokens", False),
        ("DELETE", "tokens/0123456789abcdef", False),
        ("PUT", "rulesets/default", False),
        ("GET", "rules/../tokens", False),
        ("GET", "rules/orders-free/../../tokens", False),
        ("GET", "/rules", False),
        ("GET", "metrics", False),
        ("PATCH", "rules", False),
        ("GET", "rules/Orders", False),
    ],
)
def test_only_what_pages_need_is_passed_on(method: str, path: str, known: bool) -> None:
    assert is_known(method, path) is known


@pytest.mark.parametrize(
    ("listens_on", "headers", "could"),
    [
        ("127.0.0.1", {"host": "localhost:8191"}, True),
        ("127.0.0.1", {"host": "127.0.0.1:8191"}, True),
        ("::1", {"host": "[::1]:8191"}, True),
        ("127.0.0.1", {"host": "localhost"}, True),
        ("0.0.0.0", {"host": "localhost:8191"}, False),
        ("127.0.0.1", {"host": "attacker.example:8191"}, False),
        ("127.0.0.1", {"host": "127.0.0.1.attacker.example"}, False),
        ("127.0.0.1", {"host": "localhost:8191", "x-forwarded-for": "192.0.2.7"}, False),
        ("127.0.0.1", {"host": "localhost:8191", "forwarded": "for=192.0.2.7"}, False),
        ("127.0.0.1", {}, False),
    ],
)
def test_without_a_token_only_who_could_ask_directly_is_passed_on(
    listens_on: str, headers: dict[str, str], could: bool
) -> None:
    assert could_ask_directly(listens_on, headers) is could


def told(seen: list[httpx.Request], status: int = 200, **said: Any) -> Answering:
    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(status, json=said, headers={"etag": '"7"', "set-cookie": "a=b", "server": "x"})

    return answer


async def test_the_viewers_token_is_passed_on_and_nothing_else_of_who_they_are() -> None:
    seen: list[httpx.Request] = []
    async with proxy(told(seen, rules=[])) as client:
        headers = {
            **OURS,
            "Apportion-Control-Token": "apt_mine",
            "Authorization": "Bearer the-dashboards-own-token",
            "Cookie": "apportion_dashboard=secret",
            "Apportion-Author": "somebody else",
            "Apportion-Reason": "tried",
            "If-Match": '"6"',
        }
        answer = await client.put("/control/rules/a?dry_run=true", headers=headers, content=b"{}")
    (asked,) = seen
    assert str(asked.url) == "http://127.0.0.1:25090/rules/a?dry_run=true"
    assert (asked.method, asked.content) == ("PUT", b"{}")
    assert asked.headers["authorization"] == "Bearer apt_mine"
    assert (asked.headers["if-match"], asked.headers["apportion-reason"]) == ('"6"', "tried")
    assert not {"cookie", "apportion-author", "apportion-control-token"} & set(asked.headers)
    assert (answer.status_code, answer.headers["etag"], answer.headers["cache-control"]) == (200, '"7"', "no-store")
    assert "set-cookie" not in answer.headers


async def test_the_viewers_address_is_told_after_what_a_proxy_told() -> None:
    seen: list[httpx.Request] = []
    async with proxy(told(seen)) as client:
        headers = {**OURS, "Apportion-Control-Token": "apt_mine"}
        await client.get("/control/rules", headers=headers)
        await client.get("/control/rules", headers={**headers, "X-Forwarded-For": "192.0.2.7"})
    assert [one.headers["x-forwarded-for"] for one in seen] == ["127.0.0.1", "192.0.2.7, 127.0.0.1"]


@pytest.mark.parametrize(
    ("came_from", "told"),
    [
        (["192.0.2.7 ,192.0.2.8", "127.0.0.1"], "192.0.2.7, 192.0.2.8, 127.0.0.1"),
        (["192.0.2.7, \xfc, ,10.0.0.1\x7f", "", "127.0.0.1"], "192.0.2.7, 127.0.0.1"),
        ([", ".join(["110.0.0.1"] * 500), "127.0.0.1"], ", ".join(["110.0.0.1"] * 180 + ["127.0.0.1"])),
        (["1" * FORWARDED_MOST, "127.0.0.1"], "127.0.0.1"),
    ],
)
def test_of_a_list_of_addresses_the_last_are_passed_on_each_of_them_whole(came_from: list[str], told: str) -> None:
    assert forwarded(came_from) == told
    assert len(told) <= FORWARDED_MOST


async def test_a_forwarded_address_in_other_letters_is_no_fault_of_ours() -> None:
    seen: list[httpx.Request] = []
    async with proxy(told(seen)) as client:
        headers = {**OURS, "Apportion-Control-Token": "apt_mine"}
        sent = {name.encode(): value.encode() for name, value in headers.items()}
        answer = await client.get("/control/rules", headers={**sent, b"X-Forwarded-For": b"d\xfc, 192.0.2.7"})
    assert (answer.status_code, seen[0].headers["x-forwarded-for"]) == (200, "192.0.2.7, 127.0.0.1")


async def test_another_site_cannot_make_a_browser_ask() -> None:
    seen: list[httpx.Request] = []
    async with proxy(told(seen)) as client:
        no_header = await client.put("/control/rules/a", content=b"{}", headers={"Host": "localhost"})
        other = await client.get("/control/rules", headers={**OURS, "Sec-Fetch-Site": "cross-site"})
        preflight = await client.options("/control/rules/a", headers={"Origin": "https://other.example"})
    assert (no_header.status_code, other.status_code) == (403, 403)
    assert preflight.status_code == 405
    assert seen == []


async def test_a_dashboard_that_others_reach_passes_nothing_on_without_a_token() -> None:
    seen: list[httpx.Request] = []
    async with proxy(told(seen, name="ann", role="reader", domains=["d"]), host="0.0.0.0") as client:
        assert (await client.get("/control/rules", headers=OURS)).status_code == 401
        who = await client.get("/control/whoami", headers=OURS)
        assert (who.status_code, who.json()["known"], who.json()["status"]) == (200, False, 401)
        assert seen == []
        signed = {**OURS, "Apportion-Control-Token": "apt_mine"}
        who = await client.get("/control/whoami", headers=signed)
    assert who.json() == {"name": "ann", "role": "reader", "domains": ["d"], "known": True, "status": 200}


async def test_a_proxy_that_says_nothing_of_itself_makes_nobody_an_admin() -> None:
    """By default nginx and HAProxy ask by the loopback name that they were told, and add no header."""
    seen: list[httpx.Request] = []
    async with proxy(told(seen), without_token=False) as client:
        assert (await client.get("/control/rules", headers=OURS)).status_code == 401
        assert (await client.put("/control/rules/a", headers=OURS, content=b"{}")).status_code == 401
        assert seen == []
        signed = {**OURS, "Apportion-Control-Token": "apt_mine"}
        assert (await client.get("/control/rules", headers=signed)).status_code == 200


async def test_a_refusal_comes_back_as_it_was_said() -> None:
    async with proxy(told([], status=422, detail="refused whole", errors=[])) as client:
        answer = await client.put("/control/rules/a", headers=OURS, content=b"{}")
    assert (answer.status_code, answer.json()["detail"]) == (422, "refused whole")


async def test_a_control_api_that_is_away_is_said_to_be() -> None:
    def away(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused", request=request)

    async with proxy(away) as client:
        answer = await client.get("/control/rules", headers=OURS)
        who = await client.get("/control/whoami", headers=OURS)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
    assert "does not answer" in answer.json()["detail"]
    assert who.json()["known"] is False


async def test_a_body_without_end_is_not_kept() -> None:
    seen: list[httpx.Request] = []
    async with proxy(told(seen)) as client:
        answer = await client.put("/control/rules/a", headers=OURS, content=b"x" * (BODY_BYTES_MOST + 1))
    assert answer.status_code == 413
    assert seen == []
