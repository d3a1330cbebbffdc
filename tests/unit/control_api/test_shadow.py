"""What shadow rules would have done, gathered from all nodes."""

from __future__ import annotations

from typing import Any

import pytest

from services.probes import Probes
from tests.unit.control_api.conftest import Serving
from tests.unit.control_api.fake_leader import FakeLeader


def view(region: str, **rules: int) -> dict[str, Any]:
    counted = {
        f"default/{name}": {
            "would_allow": 10,
            "would_deny": denied,
            "would_deny_cost": denied,
            "undecided": 1,
            "examples": [{"key": "acme", "times": denied}],
        }
        for name, denied in rules.items()
    }
    return {"region": region, "rules": {**counted, "shop/r": {"would_deny": 7}}}


async def test_counts_are_summed_over_nodes_and_the_silent_ones_are_named(
    serving: Serving, leader: FakeLeader, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def answers(self: Probes, path: str) -> dict[str, Any]:
        assert path == "/v1/shadow"
        return {"http://a:1": view("us", r=3, s=1), "http://b:1": view("eu", r=5), "http://c:1": None}

    monkeypatch.setattr(Probes, "ask_nodes", answers)
    async with serving() as client:
        body = (await client.get("/v1/shadow")).json()
        assert (body["nodes_asked"], body["nodes_silent"]) == (3, ["http://c:1"])
        rule = body["rules"]["r"]
        assert (rule["would_allow"], rule["would_deny"], rule["undecided"]) == (20, 8, 2)
        assert [(one["region"], one["times"]) for one in rule["examples"]] == [("eu", 5), ("us", 3)]
        assert set(body["rules"]) == {"r", "s"}
        assert set((await client.get("/v1/shadow", params={"rule": "s"})).json()["rules"]) == {"s"}
        await client.put("/rules/quiet", json={"capacity": 1, "refill": "1/s"})
        assert (await client.get("/v1/shadow", params={"rule": "quiet"})).json()["rules"] == {}
        for params in ({"rule": "none"}, {"rule": "NONE SUCH"}, {"rule": "r", "domain": "none"}):
            missing = await client.get("/v1/shadow", params=params)
            words = f"there is no rule {params['rule']} in domain {params.get('domain', 'default')}"
            assert (missing.status_code, missing.json()["detail"]) == (404, words)
