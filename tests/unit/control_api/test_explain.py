"""Explain over the control API: what no region tells is said, and a wrong question is refused by its field."""

from __future__ import annotations

from tests.unit.control_api.conftest import Serving
from tests.unit.control_api.fake_leader import FakeLeader
from tests.unit.control_api.test_rules_api import problem


async def test_a_region_without_a_node_is_told_as_such(serving: Serving, leader: FakeLeader) -> None:
    async with serving() as client:
        answer = await client.get("/v1/explain", params={"client_key": "a", "resource": "b"})
        body = answer.json()
        assert answer.status_code == 200
        assert body["regions"] == {name: {"problem": "no node of it is known"} for name in ("us-east", "eu-west")}
        assert body["keys"] == {}


async def test_a_wrong_question_is_refused_by_its_field(serving: Serving, leader: FakeLeader) -> None:
    async with serving() as client:
        for params, field in (
            ({"client_key": "a"}, "resource"),
            ({"client_key": "a", "resource": "b", "cost": "-1"}, "cost"),
            ({"client_key": "a", "resource": "b", "tier": "x"}, "tier"),
        ):
            refused = problem(await client.get("/v1/explain", params=params), 422)
            assert [error["field"] for error in refused["errors"]] == [field]
