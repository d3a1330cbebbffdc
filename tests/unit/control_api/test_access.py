"""Tokens, roles and limits of the control API: who may, who may not, and what an attacker is told."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import httpx
import pytest

from global_sync.changes import PUT_TOKEN, decode_history
from global_sync.transport.base import HISTORY
from global_sync.transport.memory import MemoryHub
from services.control_api.access import Principal, Role, Tokens
from services.control_api.own_limits import OwnLimits
from tests.unit.control_api.conftest import Serving
from tests.unit.control_api.fake_leader import FakeLeader
from tests.unit.control_api.test_rules_api import RULE, problem

ROOT = "a-token-of-enough-length"


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


async def made(client: httpx.AsyncClient, **wanted: Any) -> dict[str, Any]:
    answer = await client.post("/tokens", json={"name": "ann", "role": "operator", **wanted}, headers=bearer(ROOT))
    assert answer.status_code == 201, answer.text
    body: dict[str, Any] = answer.json()
    return body


async def test_a_token_is_the_author_of_what_it_changes_and_only_its_hash_is_kept(
    serving: Serving, hub: MemoryHub, leader: FakeLeader
) -> None:
    async with serving(token=ROOT) as client:
        token = (await made(client))["token"]
        headers = {**bearer(token), "apportion-author": "somebody-else", "apportion-reason": "launch"}
        assert (await client.put("/rules/r", json=RULE, headers=headers)).status_code == 201
        change = (await client.get("/history", headers=bearer(ROOT))).json()["changes"][0]
        assert (change["author"], change["origin"], change["reason"]) == ("ann", "127.0.0.1", "launch")
        listed = (await client.get("/tokens", headers=bearer(ROOT))).json()["tokens"]
        assert [(one["name"], one["role"], one["domains"]) for one in listed] == [("ann", "operator", ["*"])]
    reader = await hub.transport("looks").reader(HISTORY, "earliest")
    kept = b"".join(message.value for message in await reader.read(timeout_ms=100))
    assert token.encode() not in kept


@pytest.mark.parametrize(
    ("trusted", "forwarded", "origin"),
    [
        ([], "192.0.2.7", "127.0.0.1"),
        (["10.0.0.0/8"], "192.0.2.7", "127.0.0.1"),
        (["127.0.0.0/8"], "192.0.2.7", "192.0.2.7"),
        (["127.0.0.0/8", "10.0.0.0/8"], "198.51.100.1, 192.0.2.7, 10.1.1.1", "192.0.2.7"),
        (["127.0.0.0/8"], "2001:db8:1:2:3::7", "2001:db8:1:2::/64"),
        (["127.0.0.0/8"], "nonsense", "127.0.0.1"),
    ],
    ids=[
        "nobody",
        "another",
        "the dashboard",
        "a proxy before it too",
        "the network of an IPv6 address",
        "nonsense",
    ],
)
async def test_an_address_that_is_forwarded_is_believed_only_of_those_that_are_trusted(
    serving: Serving, leader: FakeLeader, trusted: list[str], forwarded: str, origin: str
) -> None:
    async with serving(token=ROOT, trusted_proxies=trusted) as client:
        headers = {**bearer(ROOT), "x-forwarded-for": forwarded}
        assert (await client.put("/rules/r", json=RULE, headers=headers)).status_code == 201
        assert (await client.get("/history", headers=bearer(ROOT))).json()["changes"][0]["origin"] == origin


async def test_a_revoked_token_is_refused_at_once(serving: Serving, leader: FakeLeader) -> None:
    async with serving(token=ROOT) as client:
        token = await made(client)
        assert (await client.get("/rules", headers=bearer(token["token"]))).status_code == 200
        answer = await client.delete(f"/tokens/{token['id']}", headers=bearer(ROOT))
        assert answer.json() == {"id": token["id"], "revoked": True}
        problem(await client.get("/rules", headers=bearer(token["token"])), 401)
        problem(await client.delete(f"/tokens/{token['id']}", headers=bearer(ROOT)), 404)
        kinds = [one["kind"] for one in (await client.get("/history", headers=bearer(ROOT))).json()["changes"]]
        assert kinds == ["revoke_token", "put_token"]


async def test_a_token_ends_when_it_said(
    serving: Serving, leader: FakeLeader, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(token=ROOT) as client:
        token = (await made(client, expires_in_s=60))["token"]
        assert (await client.get("/rules", headers=bearer(token))).status_code == 200
        later = int(time.time() * 1000) + 61_000
        monkeypatch.setattr("services.control_api.guard.wall_ms", lambda: later)
        problem(await client.get("/rules", headers=bearer(token)), 401)


CHANGES = [
    ("PUT", "/rules/r?domain={}", RULE),
    ("DELETE", "/rules/r?domain={}", None),
    ("PUT", "/rulesets/{}", {"rules": []}),
    ("POST", "/rulesets/{}:rollback?to=1", None),
]


@pytest.mark.parametrize(("method", "path", "body"), CHANGES)
async def test_a_role_reaches_no_further_than_its_domains(
    serving: Serving, leader: FakeLeader, method: str, path: str, body: Any
) -> None:
    async with serving(token=ROOT) as client:
        reader = (await made(client, name="rea", role="reader", domains=["shop"]))["token"]
        operator = (await made(client, name="ope", domains=["shop"]))["token"]

        async def asked(token: str, domain: str) -> httpx.Response:
            return await client.request(method, path.format(domain), json=body, headers=bearer(token))

        refused = problem(await asked(reader, "shop"), 403)
        assert "operator in domain shop" in refused["detail"]
        problem(await asked(operator, "default"), 403)
        assert (await asked(operator, "shop")).status_code != 403
        dry = f"{path.format('shop')}{'&' if '?' in path else '?'}dry_run=1"
        tried = await client.request(method, dry, json=body, headers=bearer(reader))
        assert tried.status_code != 403


async def test_every_address_but_the_open_ones_refuses_who_has_no_role_there(
    serving: Serving, leader: FakeLeader
) -> None:
    async with serving(token=ROOT) as client:
        nowhere = bearer((await made(client, name="no", role="reader", domains=["elsewhere"]))["token"])
        paths = (await client.get("/openapi.json", headers=nowhere)).json()["paths"]
        for path, methods in paths.items():
            if path in ("/livez", "/readyz", "/metrics", "/rulesets", "/history", "/history/{offset}"):
                continue  # what belongs to no domain, and lists that show only what one may see
            if path in ("/v1/status", "/v1/usage", "/v1/me", "/v1/regions"):
                continue
            rest = {"client_key": "acme", "client_key:path": "acme", "region": "us-east"}
            address = path.format(
                domain="shop", rule_id="r", token_id="0" * 16, version=1, override_id="0" * 16, **rest
            )
            for method in methods:
                params = {"domain": "shop", "from": 1, "to": 1, "client_key": "a", "resource": "b"}
                answer = await client.request(method, address, json={}, params=params, headers=nowhere)
                assert answer.status_code == 403, (method, path, answer.text)


async def test_who_asks_is_told_who_they_are(serving: Serving, leader: FakeLeader) -> None:
    async with serving(token=ROOT) as client:
        mine = bearer((await made(client, name="rea", role="reader", domains=["shop"]))["token"])
        said = (await client.get("/v1/me", headers=mine)).json()
        assert said == {"name": "rea", "role": "reader", "domains": ["shop"], "named": True}
        problem(await client.get("/v1/me"), 401)
    async with serving() as client:
        said = (await client.get("/v1/me")).json()
        assert (said["role"], said["named"]) == ("admin", False)


async def test_lists_show_only_what_one_may_see(serving: Serving, leader: FakeLeader) -> None:
    async with serving(token=ROOT) as client:
        for domain in ("shop", "bank"):
            await client.put("/rules/r", params={"domain": domain}, json=RULE, headers=bearer(ROOT))
        mine = bearer((await made(client, name="rea", role="reader", domains=["shop"]))["token"])
        sets = (await client.get("/rulesets", headers=mine)).json()["rulesets"]
        assert [one["domain"] for one in sets] == ["shop"]
        changes = (await client.get("/history", headers=mine)).json()["changes"]
        assert {one["domain"] for one in changes} == {"shop"}
        problem(await client.get("/history", params={"domain": "bank"}, headers=mine), 403)
        tokens = (await client.get("/history", params={"kind": "put_token"}, headers=bearer(ROOT))).json()
        problem(await client.get(f"/history/{tokens['changes'][0]['offset']}", headers=mine), 403)


async def test_an_operator_makes_no_tokens(serving: Serving, leader: FakeLeader) -> None:
    async with serving(token=ROOT) as client:
        for role, domains in (("operator", ["*"]), ("admin", ["shop"])):
            token = bearer((await made(client, role=role, domains=domains))["token"])
            problem(await client.post("/tokens", json={"name": "me", "role": "admin"}, headers=token), 403)
            problem(await client.get("/tokens", headers=token), 403)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"role": "operator"}, "name"),
        ({"name": "a b", "role": "operator"}, "name"),
        ({"name": "ann", "role": "king"}, "role"),
        ({"name": "ann", "role": "reader", "domains": []}, "domains"),
        ({"name": "ann", "role": "reader", "domains": ["A"]}, "domains"),
        ({"name": "ann", "role": "reader", "expires_in_s": 0}, "expires_in_s"),
        ({"name": "ann", "role": "reader", "color": "red"}, "color"),
    ],
)
async def test_a_token_that_cannot_be_names_the_field(serving: Serving, body: Any, field: str) -> None:
    async with serving() as client:
        refused = problem(await client.post("/tokens", json=body), 422)
        assert field in str(refused["errors"])


async def test_wrong_tokens_use_up_what_their_address_has_and_then_none_is_looked_at(serving: Serving) -> None:
    async with serving(token=ROOT, failed_logins_per_minute=3) as client:
        for _ in range(3):
            problem(await client.get("/rules", headers=bearer("wrong")), 401)
        for token in ("wrong", ROOT):
            refused = await client.get("/rules", headers=bearer(token))
            problem(refused, 429)
            assert int(refused.headers["retry-after"]) >= 1
        assert (await client.get("/livez")).status_code == 200


async def test_nobody_who_names_another_address_each_time_may_try_tokens_without_end(serving: Serving) -> None:
    async with serving(token=ROOT, trusted_proxies=["127.0.0.0/8"], failed_logins_per_minute=1) as client:

        async def asked(token: str, address: str) -> int:
            headers = {**bearer(token), "x-forwarded-for": address}
            return (await client.get("/rules", headers=headers)).status_code

        assert [await asked("wrong", "192.0.2.1") for _ in range(2)] == [401, 429]
        assert await asked(ROOT, "192.0.2.2") == 200
        statuses = [await asked("wrong", f"198.51.100.{n}") for n in range(40)]
        assert statuses[:9] == [401] * 9
        assert 429 in statuses


async def test_wrong_tokens_of_others_at_its_address_do_not_lock_out_whoever_has_a_good_one(
    serving: Serving, leader: FakeLeader
) -> None:
    async with serving(token=ROOT, failed_logins_per_minute=3) as client:
        token = bearer((await made(client))["token"])
        answers = [await client.get("/rules", headers=bearer(f"wrong-{n}")) for n in range(5)]
        assert [answer.status_code for answer in answers] == [401, 401, 401, 429, 429]
        assert (await client.put("/rules/r", json=RULE, headers=token)).status_code == 201
        problem(await client.get("/rules", headers=bearer(ROOT)), 429)


async def test_a_caller_that_asks_too_much_is_told_when_to_come_again(
    serving: Serving, leader: FakeLeader, monkeypatch: pytest.MonkeyPatch
) -> None:
    held_ns = time.time_ns()
    monkeypatch.setattr("regional_limiter.in_process.time_ns", lambda: held_ns)
    async with serving(reads_per_second=1, changes_per_second=1) as client:
        answers = await asyncio.gather(*(client.get("/rules") for _ in range(30)))
        refused = [answer for answer in answers if answer.status_code != 200]
        assert len(answers) - len(refused) == 10
        for answer in refused:
            problem(answer, 429)
            assert answer.headers["retry-after"] == "1"
            assert answer.headers["ratelimit"].startswith('"reads";r=0')


async def test_without_its_limiter_reads_go_on_and_changes_and_logins_do_not(
    serving: Serving, leader: FakeLeader, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(token=ROOT) as client:
        token = bearer((await made(client))["token"])

        async def fails(*given: Any, **more: Any) -> None:
            return None

        monkeypatch.setattr(OwnLimits, "admit", fails)
        assert (await client.get("/rules", headers=token)).status_code == 200
        problem(await client.put("/rules/r", json=RULE, headers=token), 503)
        for needs_a_login in ("wrong", ROOT):
            problem(await client.get("/rules", headers=bearer(needs_a_login)), 503)
    async with serving() as client:
        assert (await client.get("/rules")).status_code == 200
        problem(await client.put("/rules/r", json=RULE), 503)


async def test_a_token_that_may_be_good_is_not_called_wrong_before_the_history_is_read(
    serving: Serving, hub: MemoryHub, leader: FakeLeader
) -> None:
    async with serving(token=ROOT) as client:
        token = (await made(client))["token"]
    hub.cut("control")
    async with serving(token=ROOT) as client:
        problem(await client.get("/rules", headers=bearer(token)), 503)


async def test_without_a_leader_no_token_is_made(serving: Serving) -> None:
    async with serving(wait_s=0.1) as client:
        problem(await client.post("/tokens", json={"name": "ann", "role": "admin"}), 504)
        assert (await client.get("/tokens")).json()["tokens"] == []


@pytest.mark.parametrize(
    ("principal", "role", "domain", "may"),
    [
        (Principal("a", Role.READER), Role.READER, "x", True),
        (Principal("a", Role.READER), Role.OPERATOR, "x", False),
        (Principal("a", Role.ADMIN, frozenset({"x"})), Role.OPERATOR, "x", True),
        (Principal("a", Role.ADMIN, frozenset({"x"})), Role.OPERATOR, "y", False),
        (Principal("a", Role.ADMIN, frozenset({"x"})), Role.READER, None, False),
        (Principal("a", Role.OPERATOR), Role.READER, None, True),
        (Principal("a", Role.READER, frozenset()), Role.READER, "x", False),
    ],
)
def test_what_a_role_may_where(principal: Principal, role: Role, domain: str | None, may: bool) -> None:
    assert principal.may(role, domain) is may


def test_a_malformed_token_in_the_history_is_refused_and_gives_nobody_access() -> None:
    tokens = Tokens()
    value = (
        b'{"id": "p", "domain": "", "kind": "put_token", "offset": 1, "accepted": true, "version": 2,'
        b' "token": {"id": "1", "name": "x", "hash": "h", "role": "king", "domains": ["*"]}}'
    )
    entry = decode_history(value)
    assert entry.kind == PUT_TOKEN
    with pytest.raises(ValueError, match="not a token"):
        tokens.take(entry)
    assert len(tokens) == 0


async def test_without_a_token_no_other_site_makes_a_browser_change_anything(
    serving: Serving, leader: FakeLeader
) -> None:
    async with serving() as client:
        await client.put("/rules/r", json=RULE)
        for headers in (
            {"Host": "evil.example", "Origin": "http://evil.example"},  # its name leads here
            {"Origin": "http://evil.example"},
            {"Sec-Fetch-Site": "cross-site"},
        ):
            problem(await client.post("/rulesets/default:rollback?to=1", headers=headers), 403)
            problem(await client.post("/tokens", content=b"{}", headers=headers), 403)
            problem(await client.post("/subjects:import", content=b"[]", headers=headers), 403)
            problem(await client.post("/v1/try", content=b"{}", headers=headers), 403)
        problem(await client.get("/rules", headers={"Host": "evil.example"}), 403)
        assert (await client.get("/livez", headers={"Host": "evil.example"})).status_code == 200
        kinds = [one["kind"] for one in (await client.get("/history")).json()["changes"]]
        assert kinds == ["put_rule"]
    async with serving(token=ROOT) as client:  # it tells who asks, by whatever name
        assert (await client.get("/rules", headers={**bearer(ROOT), "Host": "rates.example"})).status_code == 200
