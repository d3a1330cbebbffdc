"""What is known of clients, over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from services.control_api import subject_changes
from services.errors import problem_response
from tests.unit.control_api.conftest import Serving
from tests.unit.control_api.fake_leader import FakeLeader
from tests.unit.control_api.test_rules_api import RULE, problem


async def test_a_client_is_given_attributes_and_they_are_replaced_listed_and_forgotten(
    serving: Serving, leader: FakeLeader
) -> None:
    async with serving() as client:
        await client.put("/rules/r", json=RULE)
        made = await client.put("/subjects/a%2Fcme%20x", json={"tier": "gold", "country": "DE"})
        assert made.status_code == 201
        assert made.headers["location"] == "/subjects/a%2Fcme%20x?domain=default"
        again = await client.put("/subjects/a%2Fcme%20x", json={"tier": "free"})
        assert again.status_code == 200
        known = (await client.get(made.headers["location"])).json()
        assert (known["client_key"], known["set"]) == ("a/cme x", {"tier": "free"})
        listed = (await client.get("/subjects")).json()["subjects"]
        assert listed == [{"where": {"client_key": "a/cme x"}, "set": {"tier": "free"}, "also_stored": False}]
        assert (await client.delete("/subjects/a%2Fcme%20x")).json()["deleted"] is True
        problem(await client.get("/subjects/a%2Fcme%20x"), 404)
        problem(await client.delete("/subjects/a%2Fcme%20x"), 404)
        kinds = [one["kind"] for one in (await client.get("/history")).json()["changes"]]
        assert kinds == ["delete_subjects", "put_subjects", "put_subjects", "put_rule"]


async def test_many_are_imported_in_one_change_and_the_others_stay(serving: Serving, leader: FakeLeader) -> None:
    async with serving() as client:
        await client.put("/rules/r", json=RULE)
        await client.put("/subjects/stays", json={"tier": "gold"})
        many = [{"client_key": f"c{number}", "set": {"tier": "free"}} for number in range(2000)]
        answer = await client.post("/subjects:import", json=many)
        assert answer.json()["imported"] == 2000
        seen = []
        skip: int | None = 0
        while skip is not None:
            page = (await client.get("/subjects", params={"limit": 700, "skip": skip})).json()
            seen += page["subjects"]
            skip = page["next"]
        assert len(seen) == 2001
        assert (await client.get("/subjects/stays")).json()["set"] == {"tier": "gold"}


@pytest.mark.parametrize(
    ("subjects", "field"),
    [
        ([{"client_key": "a", "set": {"tier": 1}}], "subjects[0].set.tier"),
        ([{"set": {"tier": "x"}}], "subjects[0]"),
        ([{"client_key": "a*", "set": {}}], "subjects[0].client_key"),
        (["acme"], "[0]"),
        ({"client_key": "a"}, "body"),
    ],
)
async def test_what_cannot_be_known_is_refused(
    serving: Serving, leader: FakeLeader, subjects: Any, field: str
) -> None:
    async with serving() as client:
        await client.put("/rules/r", json=RULE)
        await client.put("/subjects/other", json={"tier": "x"})  # so that it would be subjects[1] in the set
        body = problem(await client.post("/subjects:import", json=subjects), 422)
        assert body["errors"][0]["field"] == field


STORED = {"stored_subjects": {"keep": "5s"}, "rules": [{"id": "r", **RULE}]}
NDJSON = {"content-type": "application/x-ndjson"}
CSV = {"content-type": "text/csv"}


async def in_parts(content: bytes, size: int = 1000) -> AsyncIterator[bytes]:
    for at in range(0, len(content), size):
        yield content[at : at + size]


async def listed(client: httpx.AsyncClient) -> dict[str, Any]:
    """Of all pages of what is stored."""
    found: dict[str, Any] = {}
    after: str | None = ""
    while after is not None:
        page = (await client.get("/subjects:stored", params={"limit": 700, "after": after})).json()
        found |= {one["client_key"]: one["set"] for one in page["subjects"]}
        after = page["next"]
    assert page["clients"] == len(found)
    return found


async def test_what_is_stored_of_a_client_is_no_version_of_the_set_but_a_change_of_the_history(
    serving: Serving, leader: FakeLeader
) -> None:
    async with serving() as client:
        first = (await client.put("/rulesets/default", json=STORED)).json()["version"]
        tried = await client.put("/subjects/a%2Fcme", json={"tier": "gold"}, params={"dry_run": True})
        assert tried.json()["effect"]["subjects"] == {"appear": 1, "change": 0, "vanish": 0}
        made = await client.put("/subjects/a%2Fcme", json={"tier": "gold"}, headers={"apportion-author": "ann"})
        assert (made.status_code, made.headers["location"]) == (201, "/subjects/a%2Fcme?domain=default")
        known = (await client.get(made.headers["location"])).json()
        assert (known["set"], known["version"]) == ({"tier": "gold"}, made.json()["version"])
        assert (await client.put("/subjects/a%2Fcme", json={"tier": "free"})).status_code == 200
        assert await listed(client) == {"a/cme": {"tier": "free"}}
        assert (await client.delete("/subjects/a%2Fcme")).json()["deleted"] is True
        problem(await client.get("/subjects/a%2Fcme"), 404)
        problem(await client.delete("/subjects/a%2Fcme"), 404)
        who = (await client.get(f"/history/{known['version'] - 1}")).json()
        assert (who["kind"], who["author"]) == ("store_subjects", "ann")
        assert who["change"]["subjects"] == [{"client_key": "a/cme", "set": {"tier": "gold"}}]
        versions = (await client.get("/rulesets/default/versions")).json()["versions"]
        assert [one["version"] for one in versions] == [first]
        assert (await client.get(f"/rulesets/default/versions/{first}")).status_code == 200
        problem(await client.put("/subjects/x", json={"tier": "x"}, headers={"if-match": '"1"'}), 400)


@pytest.mark.parametrize("kind", [NDJSON, CSV], ids=["json lines", "csv"])
async def test_more_than_a_set_may_have_are_imported_as_they_come(
    serving: Serving, leader: FakeLeader, monkeypatch: pytest.MonkeyPatch, kind: dict[str, str]
) -> None:
    monkeypatch.setattr(subject_changes, "CLIENTS_A_CHANGE", 900)
    lines = [f'{{"client_key": "c{n}", "set": {{"tier": "t{n % 7}"}}}}' for n in range(12_000)]
    if kind is CSV:
        lines = ["tier,client_key", *(f'"t{n % 7}",c{n}' for n in range(12_000))]
    content = "\n".join(lines).encode()
    async with serving() as client:
        await client.put("/rulesets/default", json=STORED)
        await client.put("/subjects/stays", json={"tier": "gold"})
        tried = await client.post(
            "/subjects:import", content=in_parts(content), headers=kind, params={"dry_run": True}
        )
        assert tried.json()["effect"]["subjects"] == {"appear": 12_000, "change": 0, "vanish": 0}
        answer = (await client.post("/subjects:import", content=in_parts(content), headers=kind)).json()
        assert (answer["imported"], answer["changes"]) == (12_000, 14)
        known = await listed(client)
        assert known == {"stays": {"tier": "gold"}} | {f"c{n}": {"tier": f"t{n % 7}"} for n in range(12_000)}
    async with serving() as client:  # anew, out of the topic
        assert await listed(client) == known


async def test_an_import_stops_at_what_cannot_be_stored_and_says_what_is(
    serving: Serving, leader: FakeLeader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subject_changes, "CLIENTS_A_CHANGE", 2)
    lines = [f'{{"client_key": "c{n}", "set": {{"tier": "x"}}}}' for n in range(5)]
    lines[3] = '{"client_key": "c3", "set": {"tier": 7}}'
    content = "\n".join(lines)
    async with serving() as client:
        await client.put("/rulesets/default", json=STORED)
        tried = await client.post("/subjects:import", content=content, headers=NDJSON, params={"dry_run": True})
        assert problem(tried, 422)["errors"][0]["field"] == "line 4.set.tier"
        assert await listed(client) == {}
        body = problem(await client.post("/subjects:import", content=content, headers=NDJSON), 422)
        assert (body["errors"][0]["field"], body["imported"]) == ("line 4.set.tier", 2)
        assert list(await listed(client)) == ["c0", "c1"]
        for wrong in ("a,b\n1,2\n", "client_key,client_key\n", "client_key,tier\nx\n"):
            problem(await client.post("/subjects:import", content=wrong, headers=CSV), 422)
        problem(await client.post("/subjects:import", content="", headers=CSV), 422)


NAMED = {**STORED, "subjects": [{"client_key": name, "set": {"tier": "gold", "in": "x"}} for name in "abc"]}


async def known(client: httpx.AsyncClient, client_key: str) -> tuple[Any, Any]:
    said = (await client.get(f"/subjects/{client_key}")).json()
    return said.get("set"), said.get("stands_in")


async def test_a_client_that_the_set_names_too_is_changed_where_it_counts(
    serving: Serving, leader: FakeLeader
) -> None:
    async with serving() as client:
        await client.put("/rulesets/default", json={**NAMED, "stored_subjects": False})
        assert await known(client, "a") == ({"tier": "gold", "in": "x"}, ["set"])
        await client.put("/rulesets/default", json=NAMED)
        dry = {"dry_run": True}
        tried = (await client.put("/subjects/a", json={"tier": "silver"}, params=dry)).json()["effect"]
        assert tried["subjects"] == {"appear": 0, "change": 1, "vanish": 0}
        assert (tried["set"]["subjects"]["before"], tried["set"]["subjects"]["after"]) == (3, 2)
        assert (await client.put("/subjects/a", json={"tier": "silver"})).status_code == 200
        assert await known(client, "a") == ({"tier": "silver"}, ["stored"])
        assert [one["where"]["client_key"] for one in (await client.get("/subjects")).json()["subjects"]] == [*"bc"]
        for headers, content in (
            (CSV, "client_key,tier\nb,free\n"),
            ({}, '[{"client_key": "c", "set": {"t": "f"}}]'),
        ):
            tried = await client.post("/subjects:import", content=content, headers=headers, params=dry)
            named = tried.json()["effect"]["set"]["subjects"]
            assert named["before"] - named["after"] == 1
            assert (await client.post("/subjects:import", content=content, headers=headers)).status_code == 200
        assert [await known(client, name) for name in "bc"] == [
            ({"tier": "free"}, ["stored"]),
            ({"t": "f"}, ["stored"]),
        ]
        assert (await client.get("/subjects")).json()["subjects"] == []


async def test_what_set_and_store_both_say_is_told_as_it_counts_and_forgotten_in_both(
    serving: Serving, leader: FakeLeader
) -> None:
    async with serving() as client:
        await client.put("/rulesets/default", json=STORED)
        await client.put("/subjects/a", json={"tier": "silver"})
        await client.put("/rulesets/default", json=NAMED)  # as somebody's file still has it
        assert await known(client, "a") == ({"tier": "silver", "in": "x"}, ["stored", "set"])
        page = (await client.get("/subjects")).json()["subjects"]
        assert [one["also_stored"] for one in page] == [True, False, False]
        for name in "ab":
            tried = await client.delete(f"/subjects/{name}", params={"dry_run": True})
            assert tried.json()["effect"]["subjects"]["vanish"] == 1
            assert (await client.delete(f"/subjects/{name}")).json()["deleted"] is True
            problem(await client.get(f"/subjects/{name}"), 404)
            problem(await client.delete(f"/subjects/{name}"), 404)
        await client.put("/subjects/a", json={"tier": "silver"})
        await client.put("/rulesets/default", json={**NAMED, "stored_subjects": False})
        assert await known(client, "a") == ({"tier": "gold", "in": "x"}, ["set"])
        assert (await client.get("/subjects:stored")).json()["looked_up"] is False


async def test_of_a_client_in_both_places_what_is_stored_is_forgotten_last(
    serving: Serving, leader: FakeLeader
) -> None:
    async with serving() as client:
        await client.put("/rulesets/default", json=STORED)
        await client.put("/subjects/a", json={"tier": "silver"})
        await client.put("/rulesets/default", json=NAMED)
        assert (await client.delete("/subjects/a")).status_code == 200
        kinds = [one["kind"] for one in (await client.get("/history")).json()["changes"]]
        assert kinds[:2] == ["forget_subjects", "delete_subjects"]


@pytest.mark.parametrize("others", ["a", "abc"])
async def test_clients_that_somebody_else_takes_out_of_the_set_at_the_same_time_are_no_fault(
    serving: Serving, leader: FakeLeader, monkeypatch: pytest.MonkeyPatch, others: str
) -> None:
    real, first = subject_changes.changed, [others]

    async def after_others(hub: Any, request: Any, domain: str, kind: str, fields: Any) -> Any:
        if first:
            theirs = {"subjects": [{"client_key": name} for name in first.pop()]}
            await real(hub, request, domain, kind, theirs)
        return await real(hub, request, domain, kind, fields)

    monkeypatch.setattr(subject_changes, "changed", after_others)
    async with serving() as client:
        await client.put("/rulesets/default", json=NAMED)
        content = "client_key,tier\na,x\nb,x\nc,x\n"
        answer = await client.post("/subjects:import", content=content, headers=CSV)
        assert (answer.status_code, answer.json()["imported"]) == (200, 3)
        assert [await known(client, name) for name in "abc"] == [({"tier": "x"}, ["stored"])] * 3
        assert (await client.get("/subjects")).json()["subjects"] == []


async def test_two_who_say_something_of_one_client_at_once_are_both_answered(
    serving: Serving, leader: FakeLeader
) -> None:
    async with serving() as client:
        await client.put("/rulesets/default", json=NAMED)
        answers = await asyncio.gather(*(client.put("/subjects/a", json={"tier": tier}) for tier in "xyz"))
        assert [answer.status_code for answer in answers] == [200] * 3
        assert (await known(client, "a"))[1] == ["stored"]


@pytest.mark.parametrize(("undecided", "status"), [(1, 200), (99, 503)])
async def test_an_import_is_as_patient_with_what_the_set_names_as_with_what_is_stored(
    serving: Serving, leader: FakeLeader, monkeypatch: pytest.MonkeyPatch, undecided: int, status: int
) -> None:
    real, left = subject_changes.changed, [undecided]

    async def not_decided(*asked: Any) -> Any:
        left[0] -= 1
        return problem_response(503, "nobody decides") if left[0] >= 0 else await real(*asked)

    monkeypatch.setattr(subject_changes, "changed", not_decided)
    monkeypatch.setattr(subject_changes, "TRY_AGAIN_S", 0.0)
    monkeypatch.setattr(subject_changes, "APPLIED_WAIT_S", 0.1)
    async with serving() as client:
        await client.put("/rulesets/default", json=NAMED)
        answer = await client.post("/subjects:import", content="client_key,tier\na,x\n", headers=CSV)
        assert (answer.status_code, answer.json()["imported"]) == (status, 1)
        if status == 503:
            assert "the set still names" in problem(answer, 503)["detail"]


async def test_without_the_setting_lines_go_into_the_set_as_far_as_it_holds_them(
    serving: Serving, leader: FakeLeader
) -> None:
    async with serving() as client:
        await client.put("/rules/r", json=RULE)
        answer = await client.post("/subjects:import", content="client_key,tier\nacme,gold\n", headers=CSV)
        assert answer.json()["imported"] == 1
        assert (await client.get("/subjects/acme")).json()["set"] == {"tier": "gold"}
        many = "client_key,tier\n" + "".join(f"c{n},x\n" for n in range(10_001))
        body = problem(await client.post("/subjects:import", content=many, headers=CSV), 422)
        assert "stored_subjects" in body["errors"][0]["problem"]


async def test_an_empty_import_is_told_so(serving: Serving, leader: FakeLeader) -> None:
    async with serving() as client:
        problem(await client.post("/subjects:import", json=[]), 422)
