"""Usage by the minute: equal to an independent log, whatever is repeated, late, restarted or taken over."""

from __future__ import annotations

import asyncio
import csv
import io
import sqlite3
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from global_sync.node_usage import NodeUsage
from global_sync.transport.base import USAGE
from global_sync.transport.memory import MemoryHub
from regional_limiter.store.base import BeatSeen, NodeBeat, RuleTotals
from services.control_api import questions, usage_minutes
from services.control_api.knowledge import Hub
from services.control_api.usage_minutes import MINUTE_MS, SETTLING_MS, UsageMinutes, Wanted, csv_lines
from services.tasks import ended
from tests.unit.control_api.conftest import Serving, hub_settings
from tests.unit.control_api.test_rules_api import problem

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


def test_who_asks_and_who_counts_do_not_wait_for_each_other(tmp_path: Path) -> None:
    path = tmp_path / "usage?.db"  # a name that an address would have to escape
    minutes = UsageMinutes(path)
    minutes.take(usage(60_000, {"n 1": {"default/r": [5, 0, 5, 0], "default/s": [1, 0, 1, 0]}}), 0)
    with ThreadPoolExecutor(1) as asks, minutes._lock:  # as one that counts holds it
        assert asks.submit(summed, minutes).result(timeout=10)[60_000, "r", ""] == (5, 0)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        cursor = other.execute("select * from minutes")
        cursor.fetchone()  # a question that is not done yet
        minutes.take(usage(61_000, {"n 1": {"default/r": [7, 0, 7, 0]}}), 1)
    assert summed(minutes)[60_000, "r", ""] == (7, 0)
    minutes.close()


@pytest.mark.parametrize("in_file", [True, False])
def test_a_question_that_takes_too_long_is_given_up_and_the_next_one_answered(
    in_file: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    minutes = UsageMinutes(tmp_path / "usage.db" if in_file else None)
    minutes.take(usage(60_000, {"n 1": {f"default/r{n}": [1, 0, 1, 0] for n in range(5000)}}), 0)
    with monkeypatch.context() as patched:
        for bound in ("ANSWER_MOST_S", "IN_MEMORY_MOST_S"):
            patched.setattr(questions, bound, 0.0)
        with pytest.raises(questions.TookTooLong, match="ask for less"):
            minutes.rows(EVER, 10_000)
    assert len(minutes.rows(EVER, 10_000)) == 5000
    minutes.close()


async def test_over_http_too_large_a_question_is_a_problem_that_says_what_to_ask(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_long(*given: object) -> None:
        raise questions.TookTooLong(5)

    monkeypatch.setattr(questions.Questions, "ask", too_long)
    async with serving() as client:
        for path in ("/v1/usage/minutes", "/history"):
            assert "since_ms" in problem(await client.get(path), 503)["detail"]


def keys_told(costs: dict[str, int]) -> dict[str, Any]:
    return {f"rl:{{t}}:default/g:{name}": {"totals": [cost, 0, cost, 0]} for name, cost in costs.items()}


def test_a_minute_keeps_its_busiest_keys_and_no_more_than_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage_minutes, "KEYS_A_MINUTE_MOST", 20)
    minutes = UsageMinutes()
    costs = {f"k{n}": 0 for n in range(100)}
    minutes.take(usage(60_000, {}, keys=keys_told(costs)), 0)
    for offset in range(1, 50):
        costs = {name: cost + 1 + int(name[1:]) for name, cost in costs.items()}
        minutes.take(usage(60_000 + offset, {}, keys=keys_told(costs)), offset)
        assert len(minutes.rows(Wanted(0, 10**9, by="key"), 1000)) <= 20
    rows = minutes.rows(Wanted(0, 10**9, by="key"), 1000)
    assert [row["key"] for row in rows] == [f"k{n}" for n in range(99, 89, -1)]
    assert rows[0]["allowed"] == 49 * 100


def held(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as base:
        return [name for (name,) in base.execute("select name from counted order by name")]


def test_what_is_not_heard_of_any_more_is_forgotten_and_what_stands_still_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage_minutes, "SWEEP_EVERY", 2)
    path = tmp_path / "usage.db"
    minutes = UsageMinutes(path)
    gone = keys_told({"gone": 5})
    minutes.take(
        usage(0, {"n 1": {"default/idle": [5, 0, 5, 0]}, "n 2": {"default/r": [5, 0, 5, 0]}}, keys=gone), 0
    )
    day_ms = 86_400_000
    for day in range(1, 17):
        rows = {"n 1": {"default/idle": [5, 0, 5, 0]}}
        minutes.take(usage(day * day_ms, rows, keys=keys_told({"here": 1})), day)
    assert held(path) == ["default/idle", "rl:{t}:default/g:here"]
    assert set(minutes._known) == {("us", "node n 1"), ("us", "agent a")}
    assert summed(minutes, Wanted(9 * day_ms, 17 * day_ms)) == {}  # what stood still was not counted again
    minutes.close()


def test_one_source_cannot_fill_the_memory_with_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage_minutes, "SWEEP_EVERY", 2)
    monkeypatch.setattr(usage_minutes, "NAMES_A_SOURCE_MOST", 10)
    path = tmp_path / "usage.db"
    minutes = UsageMinutes(path)
    for offset in range(9):
        rows = {"n 1": {f"default/r{offset}-{n}": [1, 0, 1, 0] for n in range(4)}}
        keys = keys_told({f"k{offset}-{n}": 1 for n in range(4)})
        minutes.take(usage(60_000 + offset, rows, keys=keys), offset)
    names = held(path)
    assert len([name for name in names if name.startswith("default/")]) == 10
    newest = [name.rpartition(":")[2] for name in names if name.startswith("rl:")]
    assert len(newest) == 10
    assert set(newest) > {f"k{offset}-{n}" for offset in (7, 8) for n in range(4)}
    minutes.close()


def test_csv_is_read_back_as_it_was_and_holds_no_formula() -> None:
    rows = [{"minute_ms": 1, "key": 'a "b", c'}, {"minute_ms": 2, "key": "=SUM(A1)"}]
    read = list(csv.DictReader(io.StringIO("".join(csv_lines(rows)))))
    assert [row["key"] for row in read] == ['a "b", c', "'=SUM(A1)"]
    assert list(csv_lines([])) == []


def keyed(at_ms: int, windows: Any, agent: str = "a") -> dict[str, Any]:
    return {"region": "us", "agent": agent, "at_ms": at_ms, "counted": {}, "keys": {}, "counted_keys": windows}


def by_key(minutes: UsageMinutes) -> dict[str, tuple[int, int]]:
    rows = minutes.rows(Wanted(0, 2**50, by="key", minutes=False), 1000)
    return {row["key"]: (row["allowed"], row["denied"]) for row in rows}


def test_what_nodes_counted_by_key_counts_once_over_windows_repeats_and_agents(tmp_path: Path) -> None:
    key, start_ms = "rl:{t}:default/r:acme", 1_790_000_040_000
    told = [
        {"n 1/7": {key: [3, 1, 3, 1, 0, 0]}},
        {"n 1/7": {key: [3, 1, 3, 1, 0, 0]}},  # told again in turn
        {"n 1/7": {key: [5, 1, 5, 1, 0, 0]}, "n 1/8": {key: [1, 0, 1, 0, 0, 0]}},
        {"n 1/7": {key: [4, 1, 4, 1, 0, 0]}},  # late
        {"n 1/8": {key: [2, 2, 2, 2, 0, 0]}, "n 2/1": {key: [10, 0, 10, 0, 0, 0]}},  # it began anew
    ]
    minutes = UsageMinutes(tmp_path / "usage.db")
    for offset, windows in enumerate(told):
        minutes.take(keyed(start_ms + 1000 * offset, windows, agent="ab"[offset % 2]), offset)
        if offset == 2:
            minutes.close()
            minutes = UsageMinutes(tmp_path / "usage.db")  # this process began anew
    assert by_key(minutes) == {"acme": (17, 3)}
    day_ms = 86_400_000
    for offset in range(10, 10 + 2 * usage_minutes.SWEEP_EVERY):
        minutes.take(keyed(start_ms + day_ms + offset, {}), offset)
    assert not [source for _, source in minutes._known if source.startswith("keys ")]
    assert by_key(minutes) == {"acme": (17, 3)}
    minutes.close()


def test_windows_are_bounded_in_number_and_the_ones_heard_last_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage_minutes, "SWEEP_EVERY", 2)
    monkeypatch.setattr(usage_minutes, "WINDOWS_MOST", 3)
    minutes = UsageMinutes()
    for offset in range(9):
        windows = {f"n 1/{offset}": {"rl:{t}:default/r:acme": [1, 0, 1, 0, 0, 0]}}
        minutes.take({**keyed(60_000 + offset, windows), "counted": {"n 1": {"default/r": [1, 0, 1, 0]}}}, offset)
    assert sorted(source for _, source in minutes._known) == ["keys n 1/6", "keys n 1/7", "keys n 1/8", "node n 1"]
    minutes.close()


async def test_usage_is_written_beside_the_loop_that_answers(
    hub: MemoryHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    control = Hub(hub.transport("control"), hub_settings())
    threads: list[int] = []
    take = control.minutes.take

    def noted(told: Any, offset: int) -> None:
        threads.append(threading.get_ident())
        take(told, offset)

    monkeypatch.setattr(control.minutes, "take", noted)
    told = {**usage(60_000, {"n 1": {"default/r": [2, 1, 2, 1]}}), "totals": {}, "points": []}
    following = asyncio.create_task(control.run())
    await hub.transport("agent").send(USAGE, [msgspec.json.encode(told)])
    async with asyncio.timeout(30):
        while not control.minutes.rows(EVER, 10):  # noqa: ASYNC110 (nothing tells)
            await asyncio.sleep(0.01)
    await ended(following)
    await control.close()
    assert threads
    assert threading.get_ident() not in threads
