"""Running totals: merged by maximum, and named."""

from __future__ import annotations

from typing import Any

from global_sync.node_usage import NodeUsage
from regional_limiter.store.base import BeatSeen, NodeBeat, RuleTotals
from services.control_api.totals import ENDED_AFTER_MS, SOURCES_KEPT, UsageTotals


def usage(*totals: int, agent: str = "a") -> dict[str, Any]:
    return {"region": "us-east", "agent": agent, "at_ms": 1, "totals": {"default/r": list(totals)}}


def test_the_two_causes_of_degraded_are_counted_and_an_older_agent_counts_fewer_things() -> None:
    totals = UsageTotals()
    totals.take(usage(9, 1, 9, 1, 5))
    totals.take(usage(4, 0, 4, 0, 3, 2, agent="b"))
    assert totals.shown()["default/r"]["total"] == {
        "allowed": 13, "denied": 1, "allowed_cost": 13, "denied_cost": 1, "degraded": 8, "at_floor": 2,
    }  # fmt: skip


def told(agent: NodeUsage, name: str, at_ms: int = 1) -> dict[str, Any]:
    return {"region": "us-east", "agent": name, "at_ms": at_ms, "totals": {}, "counted": agent.rows()}


def allowed(totals: UsageTotals) -> int:
    return int(totals.shown()["default/r"]["total"]["allowed"])


def beat(agent: NodeUsage, node: str, count: int, incarnation: str = "1") -> None:
    usage = {"default/r": RuleTotals(count, 0, count)}
    agent.take(BeatSeen(NodeBeat(node, incarnation, "", 1, 1, usage), 0), now_us=1)


def test_an_agent_that_takes_over_counts_nothing_twice() -> None:
    totals, first, second = UsageTotals(), NodeUsage(1), NodeUsage(1)
    beat(first, "n1", 40)
    beat(first, "n2", 2)
    beat(first, "n2", 3, incarnation="2")  # it was restarted
    totals.take(told(first, "a"))
    assert allowed(totals) == 45
    beat(second, "n1", 41)
    beat(second, "n2", 3, incarnation="2")
    totals.take(told(second, "b"))
    assert allowed(totals) == 46
    totals.take(told(first, "a"))
    assert allowed(totals) == 46


def test_who_begins_to_read_late_has_everything_after_a_while() -> None:
    agent = NodeUsage(1)
    for number in range(250):
        beat(agent, f"n{number}", 1)
    assert sum(map(len, agent.rows().values())) == 250, "nobody listens"
    totals = UsageTotals()
    for _ in range(3):
        totals.take(told(agent, "a"))
    assert allowed(totals) == 250


def test_the_table_is_bounded_and_what_ended_long_ago_still_counts() -> None:
    totals = UsageTotals()
    for number in range(2 * SOURCES_KEPT):
        at_ms = 1 if number < SOURCES_KEPT else 1 + ENDED_AFTER_MS
        rows = {f"n{number} 1": {"default/r": [1, 0, 1, 0]}}
        totals.take({"region": "us-east", "agent": "a", "at_ms": at_ms, "totals": {}, "counted": rows})
    assert len(totals._sources) == SOURCES_KEPT
    assert allowed(totals) == 2 * SOURCES_KEPT
