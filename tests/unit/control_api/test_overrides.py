"""Overrides over HTTP: made for a while, listed, ended, kept through a new set, and all of it in the history."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from global_sync.rule_desk import END_AGAIN_MOST_MS, END_AGAIN_MS, EndsProposed, RuleDesk
from global_sync.transport.memory import MemoryHub
from tests.unit.control_api.conftest import Serving
from tests.unit.control_api.fake_leader import FakeLeader
from tests.unit.control_api.test_rules_api import RULE, problem

MORE = {"rule": "r", "key": {"client_key": "acme"}, "multiply": 10, "why": "launch"}
BLOCK = {"rule": "r", "key": {"client_key": "mallory"}, "block": True}


def in_s(seconds: float) -> str:
    return (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()


async def overrides(client: httpx.AsyncClient, **params: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await client.get("/overrides", params=params)).json()["overrides"]
    return found


async def test_an_override_is_made_replaced_listed_and_ended(serving: Serving, leader: FakeLeader) -> None:
    async with serving() as client:
        await client.put("/rules/r", json=RULE)
        made = await client.put("/overrides", json={**MORE, "until": in_s(3600)})
        assert (made.status_code, made.json()["in_words"]) == (201, "200 at once, then 100/s")
        again = await client.put("/overrides", json={**MORE, "multiply": 3})
        assert (again.status_code, again.json()["id"]) == (200, made.json()["id"])
        await client.put("/overrides", json=BLOCK)
        assert [(one["key"]["client_key"], one["in_words"]) for one in await overrides(client)] == [
            ("acme", "60 at once, then 30/s"),
            ("mallory", "blocked"),
        ]
        assert (await client.get(made.headers["location"])).json() == again.json()
        gone = await client.delete(f"/overrides/{made.json()['id']}")
        assert gone.json()["deleted"] is True
        problem(await client.delete(f"/overrides/{made.json()['id']}"), 404)
        kinds = [one["kind"] for one in (await client.get("/history")).json()["changes"]]
        assert kinds == ["delete_override", "put_override", "put_override", "put_override", "put_rule"]


async def test_an_override_can_be_tried(serving: Serving, leader: FakeLeader) -> None:
    async with serving() as client:
        await client.put("/rules/r", json=RULE)
        body = (await client.put("/overrides", json=BLOCK, params={"dry_run": True})).json()
        (effect,) = body["effect"]["overrides"]
        assert (effect["effect"], effect["key"], effect["in_words"]) == (
            "appear",
            {"client_key": "mallory"},
            "blocked",
        )
        assert await overrides(client) == []


async def test_an_override_that_does_nothing_for_what_is_known_of_its_client_is_warned_of(
    serving: Serving, leader: FakeLeader
) -> None:
    named = [{"client_key": "acme", "set": {"tier": "gold"}}]
    rules = [{"id": "r", **RULE, "match": {"tier": "free"}}]
    async with serving() as client:
        await client.put("/rulesets/default", json={"stored_subjects": True, "subjects": named, "rules": rules})
        await client.put("/subjects/globex", json={"tier": "silver"})

        async def warning(client_key: str, **params: Any) -> str | None:
            override = {**BLOCK, "key": {"client_key": client_key}}
            told: str | None = (await client.put("/overrides", json=override, params=params)).json().get("warning")
            return told

        for client_key, tier in (("acme", "gold"), ("globex", "silver")):
            for params in ({"dry_run": True}, {}):
                told = await warning(client_key, **params)
                assert told is not None
                assert f'r does not apply: tier is "{tier}", and must be free' in told
        assert await warning("hooli") is None


@pytest.mark.parametrize(
    ("override", "field"),
    [
        ({**MORE, "until": "friday"}, "until"),
        ({**MORE, "until": "2001-01-01T00:00:00Z"}, "until"),
        ({**MORE, "rule": "s"}, "rule"),
        ({**MORE, "key": {"client": "acme"}}, "key.client"),
        ({**MORE, "block": True}, "override"),
        ({"rule": ["r"], "key": 7}, "rule"),
    ],
)
async def test_an_override_that_means_nothing_is_refused(
    serving: Serving, leader: FakeLeader, override: Any, field: str
) -> None:
    async with serving() as client:
        await client.put("/rules/r", json=RULE)
        await client.put("/overrides", json=BLOCK)  # so that it would be overrides[1] in the set
        refused = problem(await client.put("/overrides", json=override), 422)
        assert refused["errors"][0]["field"] == field


async def test_overrides_come_in_pages_and_by_rule(serving: Serving, leader: FakeLeader) -> None:
    async with serving() as client:
        for name in "rs":
            await client.put(f"/rules/{name}", json=RULE)
            for number in range(3):
                one = {"rule": name, "key": {"client_key": f"c{number}"}, "block": True}
                await client.put("/overrides", json=one)
        assert len(await overrides(client, rule="s")) == 3
        seen: list[str] = []
        after: str | None = None
        while True:
            params = {"limit": 4, **({"after": after} if after else {})}
            page = (await client.get("/overrides", params=params)).json()
            seen += [one["id"] for one in page["overrides"]]
            if (after := page["next"]) is None:
                break
        assert len(seen) == len(set(seen)) == 6


async def test_a_new_set_may_keep_the_overrides_whose_rules_stay(serving: Serving, leader: FakeLeader) -> None:
    async with serving() as client:
        for name in "rs":
            await client.put(f"/rules/{name}", json=RULE)
            await client.put("/overrides", json={**BLOCK, "rule": name})
        await client.put("/subjects/acme", json={"tier": "gold"})
        kept = {"rules": [{"id": "r", "capacity": 7, "refill": "1/s"}]}
        await client.put("/rulesets/default", json=kept, params={"keep_unnamed": True})
        assert [one["rule"] for one in await overrides(client)] == ["r"]
        assert (await client.get("/subjects/acme")).status_code == 200
        await client.put("/rulesets/default", json=kept)
        assert await overrides(client) == []


async def test_just_after_a_start_nothing_is_dropped_that_could_not_be_read_yet(
    serving: Serving, hub: MemoryHub, leader: FakeLeader, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving() as client:
        await client.put("/rules/r", json=RULE)
        await client.put("/overrides", json={**BLOCK, "rule": "r"})
        await client.put("/subjects/acme", json={"tier": "gold"})
    kept = {"rules": [{"id": "r", "capacity": 7, "refill": "1/s"}]}
    keeping = {"keep_unnamed": True}
    hub.slow("control", 200)
    async with serving() as client:  # the first question to a process that has read nothing
        assert (await client.put("/rulesets/default", json=kept, params=keeping)).status_code == 200
        assert [one["rule"] for one in await overrides(client)] == ["r"]
        assert (await client.get("/subjects/acme")).status_code == 200

    async def unread(*given: object, **more: object) -> bool:
        return False

    monkeypatch.setattr("services.control_api.knowledge.Hub.rules_known", unread)
    async with serving() as client:
        for params in (keeping, {**keeping, "dry_run": True}):
            assert (await client.put("/rulesets/default", json=kept, params=params)).status_code == 503
    assert len(leader.book.states()["default"].document["overrides"]) == 1


async def test_a_set_that_keeps_what_there_is_does_not_replace_one_that_came_meanwhile(
    serving: Serving, leader: FakeLeader, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving() as client:
        await client.put("/rules/r", json=RULE)
        await client.put("/overrides", json={**BLOCK, "rule": "r"})
        monkeypatch.setattr("services.accepted_rules.Book.get", lambda book, domain: None)  # as read before both
        kept = {"rules": [{"id": "r", "capacity": 7, "refill": "1/s"}]}
        answer = await client.put("/rulesets/default", json=kept, params={"keep_unnamed": True})
        assert answer.status_code == 409
    assert len(leader.book.states()["default"].document["overrides"]) == 1


async def nobody_ends(region: str) -> str | None:
    return f"no region is called {region}"


async def test_the_leader_takes_out_what_is_over_and_the_history_says_so(serving: Serving, hub: MemoryHub) -> None:
    desk = RuleDesk(hub.transport("leader"), nobody_ends)
    desk.lead(1)
    task = asyncio.create_task(desk.run())
    try:
        async with serving() as client:
            await client.put("/rules/r", json=RULE)
            await client.put("/overrides", json=BLOCK)
            await client.put("/overrides", json={**MORE, "until": in_s(0.4)})
            assert len(await overrides(client)) == 2
            began = time.monotonic()
            while len(await overrides(client)) > 1:
                assert time.monotonic() - began < 20, "still listed"
                await asyncio.sleep(0.02)
            assert [one["in_words"] for one in await overrides(client)] == ["blocked"]
            ended = (await client.get("/history")).json()["changes"][0]
            assert (ended["kind"], ended["author"], ended["accepted"]) == ("end_overrides", "apportion", True)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def test_an_end_that_is_refused_is_proposed_ever_more_seldom_until_the_set_changes() -> None:
    proposed = EndsProposed()
    moments = range(0, 40 * END_AGAIN_MS, END_AGAIN_MS // 5)
    due = [now_ms // END_AGAIN_MS for now_ms in moments if proposed.is_due("d", 7, now_ms)]
    assert due == [0, 1, 3, 7, 15, 31]
    assert proposed.is_due("d", 8, 40 * END_AGAIN_MS)  # changed: it may be allowed now
    assert proposed.is_due("other", 1, 0)
    late = 0
    for _ in range(30):
        late += 2 * END_AGAIN_MOST_MS
        assert proposed.is_due("d", 8, late)
    assert not proposed.is_due("d", 8, late + END_AGAIN_MOST_MS - 1)
    assert proposed.is_due("d", 8, late + END_AGAIN_MOST_MS)


async def test_what_was_tried_tells_the_version_that_the_change_is_refused_without(
    serving: Serving, leader: FakeLeader
) -> None:
    async with serving() as client:
        await client.put("/rules/r", json=RULE)
        made = (await client.put("/overrides", json=MORE)).json()
        dry = {"dry_run": "true"}
        for method, path, change in (
            ("PUT", "/overrides", BLOCK),
            ("DELETE", f"/overrides/{made['id']}", None),
            ("POST", "/rulesets/default:rollback?to=1", None),
        ):
            tried = (await client.request(method, path, json=change, params={"to": 1, **dry})).json()
            headers = {"if-match": f'"{tried["made_from"]}"'}
            await client.put("/overrides", json={**MORE, "multiply": tried["made_from"] + 2})  # somebody is first
            problem(await client.request(method, path, json=change, headers=headers), 412)
        tried = (await client.put("/overrides", json=BLOCK, params=dry)).json()
        again = await client.put("/overrides", json=BLOCK, headers={"if-match": f'"{tried["made_from"]}"'})
        assert again.status_code == 201
