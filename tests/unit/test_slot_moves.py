"""Slots move as few as can be, and end evenly: by example and by property."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.region.slot_moves import choose_primaries, plan_moves
from regional_limiter.store.topology import SLOTS


def dealt(*counts: int) -> dict[int, range]:
    ends = [sum(counts[: place + 1]) for place in range(len(counts))]
    assert ends[-1] == SLOTS
    return {
        7000 + place: range(end - count, end) for place, (end, count) in enumerate(zip(ends, counts, strict=True))
    }


def test_a_fourth_primary_gets_a_quarter_and_nobody_else_moves() -> None:
    moves = plan_moves(dealt(5462, 5461, 5461), [7000, 7001, 7002, 7003])
    assert [(move.source, move.target, len(move.slots)) for move in moves] == [
        (7000, 7003, 1366),
        (7001, 7003, 1365),
        (7002, 7003, 1365),
    ]


def test_other_servers_take_all() -> None:
    moves = plan_moves(dealt(5462, 5461, 5461), [8000, 8001])
    assert sum(len(move.slots) for move in moves) == SLOTS
    assert {move.target for move in moves} == {8000, 8001}


@given(
    cuts=st.lists(st.integers(0, SLOTS), max_size=7),
    targets=st.lists(st.integers(7000, 7012), min_size=1, max_size=8, unique=True),
)
def test_every_slot_ends_at_a_target_evenly_and_no_more_move_than_must(cuts: list[int], targets: list[int]) -> None:
    ends = [0, *sorted(cuts), SLOTS]
    owned = {7000 + place: set(range(*pair)) for place, pair in enumerate(pairwise(ends))}
    before = {port: len(slots) for port, slots in owned.items()}
    moves = plan_moves(owned, targets)
    for move in moves:
        assert owned[move.source] >= set(move.slots)
        owned[move.source] -= set(move.slots)
        owned.setdefault(move.target, set()).update(move.slots)
    after = {port: len(slots) for port, slots in owned.items() if slots}
    assert sum(after.values()) == SLOTS
    assert after.keys() <= set(targets)
    assert max(after.values()) - min(after.get(port, 0) for port in targets) <= 1
    moved = sum(len(move.slots) for move in moves)
    assert moved == sum(max(0, count - after.get(port, 0)) for port, count in before.items())
    assert plan_moves(owned, targets) == []


@pytest.mark.parametrize(
    ("serving", "replicas", "count", "chosen"),
    [
        ([1, 2, 3], [4, 5, 6], 3, [1, 2, 3]),
        ([2, 5, 6], [1, 3, 4], 3, [2, 5, 6]),
        ([1, 2, 3], [4, 5, 6], 4, [1, 2, 3, 7]),
        ([1, 2, 3], [4, 5, 6, 7, 8], 4, [1, 2, 3, 4]),
        ([1, 2, 3, 7], [4, 5, 6, 8], 3, [1, 2, 3]),
        ([11, 12, 13], [14, 15, 16], 3, [1, 2, 3]),
    ],
    ids=["whole", "after failovers", "grown", "grown, attached as replicas", "shrunk", "others"],
)
def test_who_serves_goes_on_to_serve(
    serving: list[int], replicas: list[int], count: int, chosen: list[int]
) -> None:
    assert choose_primaries(list(range(1, 9)), serving, replicas, count) == chosen
