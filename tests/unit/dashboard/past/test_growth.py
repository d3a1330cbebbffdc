"""Running totals into what belongs to each second: nothing twice, nothing lost, nothing invented."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.dashboard.past import growth as module
from services.dashboard.past.cells import ALLOWED, BORROWED, DENIED, EVERYTHING, HEARD, KEYS, LENT, Placed, spread
from services.dashboard.past.growth import GAP_MOST_MS, GrowthState, UsageGrowth
from tests.unit.dashboard.past.usage import KEY, OTHER, START_MS, usage


def sums(placed: list[Placed], name: str, field: int = ALLOWED) -> dict[int, int]:
    found: dict[int, int] = {}
    for one in placed:
        if one.name == name:
            second = (one.at_ms - START_MS) // 1000
            found[second] = found.get(second, 0) + one.cell[field]
    return found


def kept(state: GrowthState) -> dict[str, Any]:
    """As it is read again."""
    for _ in state.write_down():
        pass
    found: dict[str, Any] = msgspec.msgpack.decode(state.encoded())
    return found


def test_growth_belongs_to_the_second_of_the_message_and_repeats_count_once() -> None:
    growth = UsageGrowth()
    first = growth.take(usage("eu", {"n1": {"d/g": (10, 1)}}), 0, START_MS)
    second = growth.take(usage("eu", {"n1": {"d/g": (30, 4)}, "n2": {"d/g": (5, 0)}}), 1, START_MS + 1_010)
    again = growth.take(usage("eu", {"n1": {"d/g": (30, 4)}}), 2, START_MS + 2_020)
    older = growth.take(usage("eu", {"n1": {"d/g": (20, 2)}}), 3, START_MS + 3_000)
    assert sums(first, "d/g") == {0: 10}
    assert sums(second, "d/g") == {1: 25}
    assert sums(second, "d/g", DENIED) == {1: 3}
    assert sums(again, "d/g") == {2: 0}
    assert sums(older, "d/g") == {3: 0}
    assert sums(older, EVERYTHING, HEARD) == {3: 1}
    assert growth.take(usage("eu", {"n1": {"d/g": (99, 9)}}), 3, START_MS + 4_000) == [], "taken before"


def test_what_was_there_before_a_start_in_the_middle_is_not_growth() -> None:
    growth = UsageGrowth()
    begun = growth.take(usage("eu", {"n1": {"d/g": (1_000, 0)}}), 700, START_MS)
    later = growth.take(usage("eu", {"n1": {"d/g": (1_007, 0)}, "n2": {"d/g": (500, 0)}}), 701, START_MS + 1_000)
    new = growth.take(usage("eu", {"n3": {"d/g": (9, 0)}}), 702, START_MS + 121_000)
    assert (sums(begun, "d/g"), sums(later, "d/g")) == ({0: 0}, {1: 7})
    assert sum(sums(new, "d/g").values()) == 9


def test_a_region_that_was_silent_has_done_it_all_the_while() -> None:
    growth = UsageGrowth()
    growth.take(usage("eu", {"n1": {"d/g": (0, 0)}}), 0, START_MS + 300)
    healed = growth.take(usage("eu", {"n1": {"d/g": (101, 0)}}), 1, START_MS + 10_400)
    parts = sums(healed, "d/g")
    assert list(parts) == list(range(1, 11))
    assert sum(parts.values()) == 101
    assert set(parts.values()) == {10, 11}
    assert sums(healed, EVERYTHING, HEARD) == dict.fromkeys(range(1, 11), 1)


def test_after_a_long_silence_only_minutes_are_told() -> None:
    growth = UsageGrowth()
    growth.take(usage("eu", {"n1": {"d/g": (0, 0)}}), 0, START_MS)
    healed = growth.take(usage("eu", {"n1": {"d/g": (600, 0)}}), 1, START_MS + 7_200_000)
    assert {one.by_minute for one in healed} == {True}
    assert sum(one.cell[ALLOWED] for one in healed if one.name == "d/g") == 600
    assert len({one.at_ms for one in healed}) == 120


def test_after_a_day_of_silence_it_is_told_where_it_was_heard() -> None:
    growth = UsageGrowth()
    growth.take(usage("eu", {"n1": {"d/g": (0, 0)}}), 0, START_MS)
    healed = growth.take(usage("eu", {"n1": {"d/g": (600, 0)}}), 1, START_MS + GAP_MOST_MS + 1)
    assert sums(healed, "d/g") == {GAP_MOST_MS // 1000: 600}


def test_keys_of_a_new_agent_begin_with_what_the_nodes_had() -> None:
    growth = UsageGrowth()
    growth.take(usage("eu", {}, {KEY: (100, 0, None)}), 0, START_MS)
    grown = growth.take(usage("eu", {}, {KEY: (120, 5, None)}), 1, START_MS + 1_000)
    taken_over = growth.take(usage("eu", {}, {KEY: (121, 5, None)}, agent="b"), 2, START_MS + 2_000)
    after = growth.take(usage("eu", {}, {KEY: (130, 5, None)}, agent="b"), 3, START_MS + 3_000)
    assert sums(grown, KEY) == {1: 20}
    assert sums(taken_over, KEY) == {2: 0}
    assert sums(after, KEY) == {3: 9}


@pytest.mark.parametrize(
    ("share", "session_ms", "consent_ms", "lent", "borrowed"),
    [
        (None, 1, 1, 0, 0),
        (-1, 1, 1, 0, 0),
        (7_500, 1, 1, 0, 2_500),
        (100, 1, 1, 4_900, 0),
        (7_500, 0, 1, 4_900, 0),
        (7_500, 0, 0, 0, 0),
    ],
)
def test_a_lease_counts_while_the_session_lives_and_then_the_floor_and_the_base(
    share: int | None, session_ms: int, consent_ms: int, lent: int, borrowed: int
) -> None:
    message = usage("eu", {}, {KEY: (0, 0, share)}, session_ms=session_ms, consent_ms=consent_ms)
    (cell,) = (one.cell for one in UsageGrowth().take(message, 0, START_MS) if one.name == "d/g")
    assert (cell[KEYS], cell[LENT], cell[BORROWED]) == (1, lent, borrowed)


def test_shares_of_a_rule_are_the_sum_over_its_keys() -> None:
    message = usage("eu", {}, {KEY: (0, 0, 8_000), OTHER: (0, 0, 1_000)})
    (cell,) = (one.cell for one in UsageGrowth().take(message, 0, START_MS) if one.name == "d/g")
    assert (cell[KEYS], cell[LENT], cell[BORROWED]) == (2, 4_000, 3_000)


def test_a_dashboard_that_comes_back_goes_on_as_if_it_had_never_been_away() -> None:
    rng = random.Random(7)
    total = [0, 0]
    messages = []
    for offset in range(60):
        for place in range(2):
            total[place] += rng.randrange(20)
        messages.append((usage("eu", {"n1": {"d/g": (total[0], total[1])}}), offset, START_MS + offset * 1000))
    whole = UsageGrowth()
    expected = [one for message in messages for one in whole.take(*message)]
    before, after = UsageGrowth(), UsageGrowth()
    found = [one for message in messages[:31] for one in before.take(*message)]
    after.restore(kept(before.state()))
    found += [one for message in messages[25:] for one in after.take(*message)]
    assert found == expected
    assert sum(one.cell[ALLOWED] for one in found if one.name == "d/g") == total[0]


@pytest.mark.parametrize("broken", [{"keys": 3}, {"counted": {"n1": 5}}, {"points": [3]}, {"bases": None}])
def test_what_is_no_usage_is_a_malformed_record(broken: dict[str, object]) -> None:
    message = {**usage("eu", {"n1": {"d/g": (1, 1)}}, {KEY: (1, 1, 5)}), **broken}
    with pytest.raises(ValueError, match="not a usage message"):
        UsageGrowth().take(message, 0, START_MS)


@settings(deadline=None)
@given(st.integers(0, 10**9), st.integers(0, 10**6), st.integers(1, 10**6), st.sampled_from([1_000, 60_000]))
def test_spreading_loses_nothing_and_is_even(total: int, begin_ms: int, length_ms: int, step_ms: int) -> None:
    parts = list(spread(total, begin_ms, begin_ms + length_ms, step_ms))
    assert sum(part for _, part in parts) == total
    assert max(part for _, part in parts) - min(part for _, part in parts) <= 1
    assert [at for at, _ in parts] == list(range(parts[0][0], parts[-1][0] + 1, step_ms))


def test_what_is_written_down_is_of_one_moment_though_more_is_taken_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Or what was taken meanwhile would count twice, or never, for a dashboard that comes back."""
    monkeypatch.setattr(module, "TOLD_AT_ONCE", 1)
    growth = UsageGrowth()
    nodes = {f"n{number}": {"d/g": (number, 0)} for number in range(6)}
    growth.take(usage("eu", nodes), 0, START_MS)
    state = growth.state()
    steps = state.write_down()
    next(steps)
    later = usage("eu", {"n1": {"d/g": (101, 0)}, "n5": {"d/g": (105, 0)}, "n9": {"d/g": (9, 0)}})
    growth.take(later, 1, START_MS + 1_000)
    growth.forget(START_MS + 1_000, after_ms=0, over_after_ms=0)
    assert sum(1 for _ in steps) >= 2, "a part at a time"
    after = UsageGrowth()
    after.restore(msgspec.msgpack.decode(state.encoded()))
    assert after.next_offset == 1
    assert sums(after.take(later, 1, START_MS + 1_000), "d/g") == {1: 209}


def test_of_more_sources_than_there_is_room_for_none_counts_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SOURCES_MOST", 3)
    growth, counted = UsageGrowth(), 0
    for turn in range(10):
        rows = {"stays": {"d/g": (100 + turn, 0)}, f"n{turn}": {"d/g": (7, 0)}}
        counted += sum(sums(growth.take(usage("eu", rows), turn, START_MS + turn * 1_000), "d/g").values())
    assert counted == 109 + 7 * 10, (
        "what a new one has counted before it is heard is growth, however many there were"
    )
    before, growth = growth, UsageGrowth()
    growth.restore(kept(before.state()))
    again = growth.take(usage("eu", {"n0": {"d/g": (5_000, 0)}}), 10, START_MS + 10_000)
    assert sums(again, "d/g") == {10: 0}, "it was let go of: what it had counted by then may have been told"
    more = growth.take(usage("eu", {"n0": {"d/g": (5_004, 0)}}), 11, START_MS + 11_000)
    assert sums(more, "d/g") == {11: 4}


def test_when_not_even_the_names_of_all_that_went_are_known_nothing_is_counted_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "SOURCES_MOST", 1)
    monkeypatch.setattr(module, "LET_GO_MOST", 2)
    growth = UsageGrowth()
    for turn in range(5):
        growth.take(usage("eu", {f"n{turn}": {"d/g": (7, 0)}}), turn, START_MS + turn * 1_000)
    assert sums(growth.take(usage("eu", {"n0": {"d/g": (8, 0)}}), 5, START_MS + 5_000), "d/g") == {5: 0}


def test_sources_of_very_many_names_are_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "NAMES_MOST", 10)
    growth = UsageGrowth()
    for turn in range(4):
        rows = {f"d/g{number}": (1, 0) for number in range(6)}
        growth.take(usage("eu", {f"n{turn}": rows}), turn, START_MS + turn * 1_000)
    known = kept(growth.state())["sources"]
    assert sum(map(len, known.values())) <= 12
    assert "eu node n3" in known


def test_a_node_that_is_over_is_forgotten_and_those_of_a_region_that_is_cut_off_are_not() -> None:
    growth = UsageGrowth()
    growth.take(usage("us", {"n1": {"d/g": (7, 0)}}), 0, START_MS)
    growth.take(usage("eu", {"over": {"d/g": (9, 0)}, "lives": {"d/g": (1, 0)}}), 1, START_MS)
    growth.take(usage("eu", {"lives": {"d/g": (2, 0)}}), 2, START_MS + 50_000)
    growth.forget(START_MS + 50_000, after_ms=90_000, over_after_ms=40_000)
    assert [source for source in kept(growth.state())["sources"] if "node" in source] == [
        "us node n1",
        "eu node lives",
    ]
    growth.forget(START_MS + 90_001, after_ms=90_000, over_after_ms=40_000)
    assert [source for source in kept(growth.state())["sources"] if "node" in source] == ["eu node lives"]
