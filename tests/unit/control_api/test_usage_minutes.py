"""Usage by the minute: equal to an independent log, whatever is repeated, late, restarted or taken over."""

from __future__ import annotations

import csv
import io
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest

from global_sync.node_usage import NodeUsage
from regional_limiter.store.base import BeatSeen, NodeBeat, RuleTotals
from services.control_api.usage_minutes import MINUTE_MS, SETTLING_MS, UsageMinutes, Wanted, csv_lines

EVER = Wanted(0, 2**50)


def usage(at_ms: int, counted: Any, region: str = "us", agent: str = "a", keys: Any = None) -> dict[str, Any]:
    return {"region": region, "agent": agent, "at_ms": at_ms, "counted": counted, "keys": keys or {}}


def summed(minutes: UsageMinutes, wanted: Wanted = EVER) -> dict[tuple[Any, ...], tuple[int, int]]:
    return {
        (row["minute_ms"], row["rule"], row["variant"]): (row["allowed"], row["denied"])
        for row in minutes.rows(wanted, 100_000)
    }


class Node:
    """Counts, and is an independent log of the same events."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.incarnation = 1
        self.counts: dict[str, RuleTotals] = {}

    def event(self, rule: str, allowed: bool, cost: int) -> None:
        old = self.counts.get(rule, RuleTotals())
        if allowed:
            new = RuleTotals(old.allowed + 1, old.denied, old.allowed_cost + cost, old.denied_cost)
        else:
            new = RuleTotals(old.allowed, old.denied + 1, old.allowed_cost, old.denied_cost + cost)
        self.counts[rule] = new

    def restart(self) -> None:
        self.incarnation += 1
        self.counts = {}

    def beat(self, agent: NodeUsage) -> None:
        seen = NodeBeat(self.name, str(self.incarnation), "", 1, 1, dict(self.counts))
        agent.take(BeatSeen(seen, 0), now_us=1)


@pytest.mark.parametrize("seed", range(12))
def test_the_counts_equal_an_independent_log(seed: int, tmp_path: Path) -> None:
    random = Random(seed)
    log: Counter[tuple[int, str, str]] = Counter()
    nodes = {region: [Node(f"{region}-{n}") for n in range(2)] for region in ("us", "eu")}
    agents = {region: (NodeUsage(10**9), 0) for region in nodes}
    published: list[dict[str, Any]] = []
    minutes = UsageMinutes(tmp_path / "usage.db")
    taken = 0
    for second in range(240):
        at_ms = 1_790_000_040_000 + 1000 * second
        for region, own in nodes.items():
            for node in own:
                for _ in range(random.randrange(4)):
                    rule, allowed, cost = random.choice("ab"), random.random() < 0.7, random.randrange(1, 5)
                    node.event(f"default/{rule}", allowed, cost)
                    minute = at_ms - at_ms % MINUTE_MS
                    log[minute, rule, "allowed" if allowed else "denied"] += 1
                    log[minute, rule, "allowed_cost" if allowed else "denied_cost"] += cost
            if random.random() < 0.05:  # an agent takes over, and hears of all nodes anew
                agents[region] = NodeUsage(10**9), agents[region][1] + 1
            agent, number = agents[region]
            for node in own:
                node.beat(agent)
            published.append(usage(at_ms, agent.rows(), region, f"{region}-{number}"))
            for node in own:
                if random.random() < 0.03:
                    node.restart()
        while taken < len(published):
            minutes.take(published[taken], taken)
            again = random.randrange(taken + 1)
            minutes.take(published[again], again)  # read again after a fault
            taken += 1
        if random.random() < 0.05:
            minutes.close()
            minutes = UsageMinutes(tmp_path / "usage.db")
    rows = minutes.rows(EVER, 100_000)
    minutes.close()
    names = ("allowed", "denied", "allowed_cost", "denied_cost")
    found = {(row["minute_ms"], row["rule"], name): row[name] for row in rows for name in names if row[name]}
    assert found == dict(log)


def test_one_that_begins_in_the_middle_counts_no_past_as_new() -> None:
    minutes = UsageMinutes()
    began = 1_790_000_000_000
    minutes.take(usage(began, {"n 1": {"default/r": [1000, 0, 1000, 0]}}), 500)
    minutes.take(usage(began + 1000, {"n 1": {"default/r": [1007, 0, 1007, 0]}}), 501)
    later = began + SETTLING_MS + 1000
    minutes.take(usage(later, {"n 2": {"default/r": [3, 0, 3, 0]}}), 502)
    assert sum(allowed for allowed, _ in summed(minutes).values()) == 10
    assert minutes.since_ms == began + SETTLING_MS


def test_rows_beside_a_rules_own_have_a_variant_and_do_not_count_for_the_domain() -> None:
    minutes = UsageMinutes()
    rows = {"shop/r": [5, 1, 5, 1], "shop/r#shadow": [4, 2, 4, 2], "bank/r": [9, 0, 9, 0]}
    minutes.take(usage(60_000, {"n 1": rows}), 0)
    assert summed(minutes, Wanted(0, 10**9, domains=frozenset({"shop"}))) == {
        (60_000, "r", ""): (5, 1),
        (60_000, "r", "shadow"): (4, 2),
    }
    by_domain = minutes.rows(Wanted(0, 10**9, by="domain", minutes=False), 10)
    assert [(row["domain"], row["allowed"], row["denied"]) for row in by_domain] == [("bank", 9, 0), ("shop", 5, 1)]


def test_the_busiest_keys_come_first() -> None:
    minutes = UsageMinutes()

    def keys(acme: int, hooli: int) -> dict[str, Any]:
        return {
            "rl:{t}:default/g:acme": {"totals": [acme, 0, acme, 0]},
            "rl:{u}:default/g:hooli": {"totals": [hooli, 0, hooli, 0]},
        }

    minutes.take(usage(60_000, {}, keys=keys(10, 10)), 0)
    minutes.take(usage(61_000, {}, keys=keys(12, 19)), 1)
    minutes.take(usage(62_000, {}, agent="b", keys=keys(15, 19)), 2)  # takes over, and begins with all of it
    minutes.take(usage(63_000, {}, agent="b", keys=keys(16, 19)), 3)
    rows = minutes.rows(Wanted(0, 10**9, by="key"), 10)
    assert [(row["key"], row["allowed"]) for row in rows] == [("hooli", 9), ("acme", 3)]


def test_two_processes_with_one_directory_do_not_count_twice(tmp_path: Path) -> None:
    first, second = UsageMinutes(tmp_path / "usage.db"), UsageMinutes(tmp_path / "usage.db")
    for minutes in (first, second):
        minutes.take(usage(60_000, {"n 1": {"default/r": [5, 0, 5, 0]}}), 0)
        assert summed(minutes) == {(60_000, "r", ""): (5, 0)}
    first.close()
    second.close()
    again = UsageMinutes(tmp_path / "usage.db")
    assert summed(again) == {(60_000, "r", ""): (5, 0)}
    again.close()


def test_another_topic_is_begun_anew() -> None:
    minutes = UsageMinutes()
    minutes.take(usage(60_000, {"n 1": {"default/r": [5, 0, 5, 0]}}), 0)
    minutes.clear()
    assert (minutes.next_offset, summed(minutes)) == (None, {})


def test_csv_is_read_back_as_it_was_and_holds_no_formula() -> None:
    rows = [{"minute_ms": 1, "key": 'a "b", c'}, {"minute_ms": 2, "key": "=SUM(A1)"}]
    read = list(csv.DictReader(io.StringIO("".join(csv_lines(rows)))))
    assert [row["key"] for row in read] == ['a "b", c', "'=SUM(A1)"]
    assert list(csv_lines([])) == []
