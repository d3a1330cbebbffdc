"""What is known of clients, over HTTP."""

from __future__ import annotations

from typing import Any

import pytest

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
        assert listed == [{"where": {"client_key": "a/cme x"}, "set": {"tier": "free"}}]
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
        body = problem(await client.post("/subjects:import", json=subjects), 422)
        assert body["errors"][0]["field"] == field


async def test_an_empty_import_is_told_so(serving: Serving, leader: FakeLeader) -> None:
    async with serving() as client:
        problem(await client.post("/subjects:import", json=[]), 422)
