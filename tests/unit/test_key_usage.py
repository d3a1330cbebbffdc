"""Usage by key: of the busiest keys, in windows, and each check once however often it is told."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from global_sync.key_usage import FORGOTTEN_AFTER_US, OTHERS_TOLD, ROWS_TOLD, WINDOWS_MOST, KeyUsage
from regional_limiter.key_windows import LAST_TOLD_FOR_US, KeyWindows
from regional_limiter.store.base import KEYS_TOLD, RuleTotals

SECOND = 1_000_000
Heard = dict[tuple[str, str], tuple[int, ...]]


def told(usage: KeyUsage, heard: Heard, now_us: int) -> None:
    """As whoever reads the topic merges it."""
    for window, rows in usage.rows(now_us).items():
        for key, totals in rows.items():
            known = heard.get((window, key), (0,) * 6)
            heard[window, key] = tuple(map(max, known, totals))


@pytest.mark.parametrize("seed", range(8))
def test_the_counts_equal_an_independent_log_whatever_is_repeated_or_taken_over(seed: int) -> None:
    random = Random(seed)
    log: Counter[tuple[str, str]] = Counter()
    windows = {node: KeyWindows(window_us=30 * SECOND) for node in ("a", "b")}
    incarnation = dict.fromkeys(windows, 1)
    beats = dict.fromkeys(windows, 0)
    agent, heard = KeyUsage(), Heard()
    for moment in range(600):
        now_us = moment * SECOND // 3
        for node, own in windows.items():
            for _ in range(random.randrange(5)):
                key, cost = f"k{random.randrange(20)}", random.randrange(1, 4)
                if random.random() < 0.7:
                    own.add_allowed(key, cost)
                    log["allowed", key] += cost
                else:
                    own.add(key, False, cost, False)
                    log["denied", key] += cost
            beats[node] += 1
            said = own.told(now_us)
            for _ in range(random.choice((0, 1, 1, 3)) if moment < 590 else 1):  # missed, or seen at each point
                agent.take(f"{node} {incarnation[node]}", beats[node], said, now_us)
            if moment < 580 and random.random() < 0.01:  # it ends as it should, with a last beat that is seen
                agent.take(f"{node} {incarnation[node]}", beats[node] + 1, own.told(now_us), now_us)
                windows[node], incarnation[node], beats[node] = (
                    KeyWindows(window_us=30 * SECOND),
                    incarnation[node] + 1,
                    0,
                )
        if moment % 3 == 0 or moment > 595:
            told(agent, heard, now_us)
            if random.random() < 0.05:
                agent = KeyUsage()  # another takes over; the beats are still there
                for node, own in windows.items():
                    agent.take(f"{node} {incarnation[node]}", beats[node], own.told(now_us), now_us)
    told(agent, heard, 200 * SECOND)
    counted: Counter[tuple[str, str]] = Counter()
    for (_, key), totals in heard.items():
        counted["allowed", key] += totals[2]
        counted["denied", key] += totals[3]
    assert +counted == +log


def test_a_window_begins_with_nothing_and_the_one_before_is_told_a_while_longer() -> None:
    windows = KeyWindows(window_us=60 * SECOND)
    windows.add_allowed("k", 2)
    assert windows.told(30 * SECOND) == {"0": {"k": RuleTotals(1, 0, 2, 0)}}
    windows.add_allowed("k", 3)
    assert windows.told(60 * SECOND) == {"0": {"k": RuleTotals(2, 0, 5, 0)}}
    windows.add_allowed("k", 1)
    assert windows.told(61 * SECOND) == {"1": {"k": RuleTotals(1, 0, 1, 0)}, "0": {"k": RuleTotals(2, 0, 5, 0)}}
    assert list(windows.told(60 * SECOND + LAST_TOLD_FOR_US)) == ["1"]


def test_of_many_keys_the_busiest_are_told() -> None:
    windows = KeyWindows()
    for number in range(20_000):
        windows.add_allowed(f"seldom {number}", 1)
        windows.add_allowed(f"busy {number % 50}", 1)
    (said,) = windows.told(1).values()
    assert len(said) == KEYS_TOLD
    assert {f"busy {number}" for number in range(50)} <= set(said)
    assert all(said[f"busy {number}"].allowed == 400 for number in range(50))


def test_what_an_agent_keeps_and_tells_at_once_is_bounded() -> None:
    agent = KeyUsage()
    for node in range(2 * WINDOWS_MOST):
        agent.take(f"n{node} 1", 1, {"0": {f"k{n}": RuleTotals(1, 0, 1, 0) for n in range(3)}}, node)
    assert len(agent._windows) == len(agent._told) == WINDOWS_MOST
    rows = agent.rows(1)
    assert sum(map(len, rows.values())) <= ROWS_TOLD + OTHERS_TOLD
    assert agent.rows(FORGOTTEN_AFTER_US + 10_000) == {}


def test_everything_is_told_again_in_turn_for_whoever_missed_it() -> None:
    agent, heard = KeyUsage(), Heard()
    agent.take("n 1", 1, {"0": {f"k{n}": RuleTotals(1, 0, 1, 0) for n in range(300)}}, 0)
    agent.rows(0)  # lost
    for _ in range(4):
        told(agent, heard, 0)
    assert len(heard) == 300
