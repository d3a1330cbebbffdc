"""Versions of a set: what a change would do before it is made, what it did, and back to any of them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random
from typing import Any

import httpx

from global_sync.transport.memory import MemoryHub
from services.control_api.knowledge import HISTORY_FILE
from tests.unit.control_api.conftest import Serving
from tests.unit.control_api.fake_leader import FakeLeader
from tests.unit.control_api.test_rules_api import RULE, SET, YAML, problem


async def put(client: httpx.AsyncClient, name: str, capacity: int, **more: Any) -> int:
    answer = await client.put(f"/rules/{name}", json={**RULE, "capacity": capacity}, **more)
    assert answer.is_success, answer.text
    return int(answer.json()["version"])


async def document(client: httpx.AsyncClient, version: int) -> Any:
    return (await client.get(f"/rulesets/default/versions/{version}")).json()["document"]


async def test_a_dry_run_tells_what_would_change_and_changes_nothing(serving: Serving, leader: FakeLeader) -> None:
    async with serving() as client:
        version = await put(client, "r", 20)
        tried = await client.put("/rules/r", json={**RULE, "capacity": 30}, params={"dry_run": True})
        body = tried.json()
        assert (body["dry_run"], body["made_from"]) == (True, version)
        (effect,) = body["effect"]["rules"]
        assert (effect["rule"], effect["effect"], effect["keeps_counts"]) == ("r", "change", True)
        assert effect["fields"]["capacity"] == {"before": 20, "after": 30}
        for change in (
            client.delete("/rules/r", params={"dry_run": True}),
            client.put("/rulesets/default", content="rules: []", headers=YAML, params={"dry_run": True}),
        ):
            assert [one["effect"] for one in (await change).json()["effect"]["rules"]] == ["vanish"]
        assert (await client.get("/rules/r")).json()["version"] == version
        assert len((await client.get("/history")).json()["changes"]) == 1


async def test_a_dry_run_is_refused_like_the_change(serving: Serving, leader: FakeLeader) -> None:
    dry = {"dry_run": True}
    async with serving() as client:
        problem(await client.put("/rules/r", json={**RULE, "capacity": -1}, params=dry), 422)
        problem(await client.delete("/rules/r", params=dry), 404)
        problem(await client.put("/rules/r", json=RULE, params=dry, headers={"if-match": '"7"'}), 412)


async def test_every_version_can_be_read_compared_and_gone_back_to(serving: Serving, leader: FakeLeader) -> None:
    async with serving() as client:
        first = await put(client, "a", 20)
        second = await put(client, "b", 20)
        third = await put(client, "a", 30)
        await client.delete("/rules/b")
        assert [rule["id"] for rule in (await document(client, second))["rules"]] == ["a", "b"]
        assert (await document(client, third))["rules"][0]["capacity"] == 30

        diff = (await client.get("/rulesets/default/diff", params={"from": first, "to": third})).json()
        assert {one["rule"]: one["effect"] for one in diff["effect"]["rules"]} == {"a": "change", "b": "appear"}
        newest = (await client.get("/rulesets/default/diff", params={"from": third})).json()
        assert [(one["rule"], one["effect"]) for one in newest["effect"]["rules"]] == [("b", "vanish")]

        to = {"to": second}
        tried = await client.post("/rulesets/default:rollback", params={**to, "dry_run": True})
        assert {one["rule"]: one["effect"] for one in tried.json()["effect"]["rules"]} == {
            "a": "change",
            "b": "appear",
        }
        back = await client.post("/rulesets/default:rollback", params=to, headers={"apportion-reason": "worse"})
        assert back.json()["document"] == await document(client, second)
        told = (await client.get("/rulesets/default/versions")).json()["versions"]
        assert [one["version"] for one in told] == [back.json()["version"], third + 1, third, second, first]
        assert (told[0]["restores"], told[0]["reason"]) == (second, "worse")
        problem(await client.post("/rulesets/default:rollback", params={"to": 999}), 404)


async def test_versions_come_in_pages(serving: Serving, leader: FakeLeader) -> None:
    async with serving() as client:
        made = [await put(client, "r", capacity) for capacity in range(1, 8)]
        seen: list[int] = []
        before: int | None = None
        while True:
            params = {"limit": 3, **({"before": before} if before else {})}
            page = (await client.get("/rulesets/default/versions", params=params)).json()
            seen += [one["version"] for one in page["versions"]]
            if (before := page["next"]) is None:
                break
        assert seen == made[::-1]


async def test_rules_and_domains_come_in_pages(serving: Serving, leader: FakeLeader) -> None:
    async with serving() as client:
        for name in "abcde":
            await put(client, name, 5)
            await put(client, "x", 5, params={"domain": f"d-{name}"})
        rules: list[str] = []
        after: str | None = None
        while True:
            page = (await client.get("/rules", params={"limit": 2, **({"after": after} if after else {})})).json()
            rules += [rule["id"] for rule in page["rules"]]
            if (after := page["next"]) is None:
                break
        assert rules == list("abcde")
        problem(await client.get("/rules", params={"after": "gone"}), 422)
        page = (await client.get("/rulesets", params={"limit": 4})).json()
        rest = (await client.get("/rulesets", params={"after": page["next"]})).json()
        names = [one["domain"] for one in page["rulesets"] + rest["rulesets"]]
        assert names == ["d-a", "d-b", "d-c", "d-d", "d-e", "default"]


async def test_the_history_is_searched_by_who_what_when_and_why(serving: Serving, leader: FakeLeader) -> None:
    async with serving() as client:
        for number, (author, reason) in enumerate([("ann", "launch"), ("bob", "Launch, again"), ("ann", "tidy")]):
            headers = {"apportion-author": author, "apportion-reason": reason}
            await client.put(f"/rules/r{number}", json=RULE, headers=headers)
        await client.put("/rulesets/shop", content=SET, headers=YAML)

        async def found(**params: Any) -> list[str | None]:
            body = (await client.get("/history", params=params)).json()
            return [one["rule_id"] for one in body["changes"]]

        assert await found(author="ann") == ["r2", "r0"]
        assert await found(text="launch") == ["r1", "r0"]
        assert await found(rule="r1") == ["r1"]
        assert await found(domain="shop", kind="put_set") == [None]
        assert await found(accepted=False) == []
        assert await found(since_ms=1_700_000_000_001) == []
        page = (await client.get("/history", params={"limit": 2})).json()
        assert await found(before=page["next"]) == ["r1", "r0"]
        one = (await client.get(f"/history/{page['changes'][0]['offset']}")).json()
        assert one["change"]["document"]["domain"] == "shop"
        assert one["origin"] == "127.0.0.1"
        problem(await client.get("/history/77"), 404)


async def test_the_history_is_whole_again_without_any_local_file(
    serving: Serving, leader: FakeLeader, tmp_path: Path
) -> None:
    async with serving(state_dir=tmp_path) as client:
        versions = [await put(client, "r", capacity) for capacity in range(1, 30)]
        seen = (await client.get("/history")).json()
    (tmp_path / HISTORY_FILE).unlink()
    async with serving(state_dir=tmp_path) as client:
        assert (await client.get("/history")).json() == seen
        for capacity, version in enumerate(versions, 1):
            assert (await document(client, version))["rules"][0]["capacity"] == capacity


async def test_any_version_is_built_as_the_leader_had_it(serving: Serving, leader: FakeLeader) -> None:
    random = Random(5)
    had: dict[int, Any] = {}
    async with serving() as client:
        for _ in range(120):
            name = random.choice("abc")
            kind = random.random()
            if kind < 0.1:
                await client.put("/rulesets/default", content=SET.replace("shop", "default"), headers=YAML)
            elif kind < 0.3:
                await client.delete(f"/rules/{name}")
            else:
                await put(client, name, random.randrange(1, 99))
            state = leader.book.states().get("default")
            if state is not None:
                had[state.version] = state.document
        asked = list(had)
        random.shuffle(asked)
        for version in asked:
            assert await document(client, version) == had[version]


async def test_two_operators_racing_200_writes_lose_none_silently(serving: Serving, leader: FakeLeader) -> None:
    refused = {409: 0, 412: 0}

    async def operator(client: httpx.AsyncClient) -> None:
        """Adds 1 to the capacity a hundred times, each time to what was read."""
        done = 0
        while done < 100:
            seen = await client.get("/rules/counter")
            capacity = seen.json()["source"]["capacity"]
            headers = {"if-match": seen.headers["etag"]}
            answer = await client.put("/rules/counter", json={**RULE, "capacity": capacity + 1}, headers=headers)
            if answer.status_code == 200:
                done += 1
            else:
                refused[answer.status_code] += 1

    async with serving(changes_per_second=1000, reads_per_second=1000) as client:
        first = await put(client, "counter", 1)
        await asyncio.gather(operator(client), operator(client))
        assert (await client.get("/rules/counter")).json()["source"]["capacity"] == 201
        assert sum(refused.values()) > 0
        told = (await client.get("/rulesets/default/versions", params={"limit": 500})).json()["versions"]
        assert len([one for one in told if one["version"] > first]) == 200


async def test_a_change_that_no_record_could_hold_is_refused_before_it_is_proposed(
    serving: Serving, leader: FakeLeader
) -> None:
    rule = {"capacity": 1, "refill": "1/s", "description": "x" * 1000}
    rules = [{"id": f"r{number}", **rule} for number in range(900)]
    async with serving() as client:
        body = problem(await client.put("/rulesets/default", json={"rules": rules}), 413)
        assert "900,000" in body["detail"]


async def test_just_after_a_start_the_newest_version_is_read_before_it_is_compared(
    serving: Serving, hub: MemoryHub, leader: FakeLeader
) -> None:
    async with serving() as client:
        first = (await client.put("/rules/a", json=RULE)).json()["version"]
        second = (await client.put("/rules/b", json=RULE)).json()["version"]
    hub.slow("control", 200)
    async with serving() as client:
        diff = (await client.get("/rulesets/default/diff", params={"from": first})).json()
        assert (diff["to"], [one["rule"] for one in diff["effect"]["rules"]]) == (second, ["b"])


async def test_a_domain_is_deleted_and_comes_back_as_it_was(serving: Serving, leader: FakeLeader) -> None:
    async with serving() as client:
        await client.put("/rulesets/shop", content=SET, headers=YAML)
        await client.put("/rules/a", json=RULE)
        version = (await client.get("/rulesets/shop")).json()["version"]
        tried = (await client.delete("/rulesets/shop", params={"dry_run": True})).json()
        assert [one["effect"] for one in tried["effect"]["rules"]] == ["vanish", "vanish"]
        assert (await client.get("/rulesets/shop")).status_code == 200
        problem(await client.delete("/rulesets/shop", headers={"if-match": '"77"'}), 412)
        gone = await client.delete(
            "/rulesets/shop", headers={"if-match": f'"{version}"', "apportion-author": "ann"}
        )
        assert gone.json() == {"domain": "shop", "deleted": True, "version": version + 2}
        problem(await client.get("/rulesets/shop"), 404)
        problem(await client.delete("/rulesets/shop"), 404)
        assert [one["domain"] for one in (await client.get("/rulesets")).json()["rulesets"]] == ["default"]
        told = (await client.get("/history", params={"domain": "shop"})).json()["changes"][0]
        assert (told["kind"], told["author"]) == ("delete_domain", "ann")
    async with serving() as client:  # read anew
        problem(await client.get("/rulesets/shop"), 404)
        back = await client.post("/rulesets/shop:rollback", params={"to": version})
        assert back.status_code == 201
        assert (await client.get("/rulesets/shop")).json()["document"] == leader.book.states()["shop"].document
        assert [one["id"] for one in (await client.get("/rulesets/shop")).json()["document"]["rules"]] == ["a", "b"]
        await client.delete("/rulesets/shop")
        first = await client.put("/rules/new", json=RULE, params={"domain": "shop"}, headers={"if-none-match": "*"})
        assert first.status_code == 201
        document = (await client.get("/rulesets/shop")).json()["document"]
        assert (document["regions"], len(document["rules"])) == ({"us-east": 3, "eu-west": 1}, 1)
