"""Running totals: merged by maximum, and named."""

from __future__ import annotations

from typing import Any

from services.control_api.totals import UsageTotals


def usage(*totals: int, agent: str = "a") -> dict[str, Any]:
    return {"region": "us-east", "agent": agent, "totals": {"default/r": list(totals)}}


def test_the_two_causes_of_degraded_are_counted_and_an_older_agent_counts_fewer_things() -> None:
    totals = UsageTotals()
    totals.take(usage(9, 1, 9, 1, 5))
    totals.take(usage(4, 0, 4, 0, 3, 2, agent="b"))
    assert totals.shown()["default/r"]["total"] == {
        "allowed": 13, "denied": 1, "allowed_cost": 13, "denied_cost": 1, "degraded": 8, "at_floor": 2,
    }  # fmt: skip
