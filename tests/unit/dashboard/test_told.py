"""Of which keys frames tell: the nearest to their limits, within bounds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.dashboard.told import KEYS_A_RULE, KEYS_MOST, keys_told, rule_name


def key(rule: str, client: str) -> str:
    return f"rl:{{t}}:d/{rule}:{client}"


@pytest.mark.parametrize(
    ("asked", "even", "told"),
    [
        ({}, {}, {}),
        ({key("a", "x"): 5.0, key("a", "y"): 9.0}, {"d/a": 10.0}, {"d/a": ["y", "x"]}),
        ({key("big", "x"): 50.0, key("small", "x"): 9.0}, {"d/big": 1000.0, "d/small": 10.0},
         {"d/small": ["x"], "d/big": ["x"]}),
        ({key("slots", "x"): 50.0, key("a", "x"): 1.0}, {"d/slots": None, "d/a": 10.0},
         {"d/a": ["x"], "d/slots": ["x"]}),
    ],
    ids=["none", "the busier first", "nearer before busier", "without a rate last"],
)  # fmt: skip
def test_the_nearest_come_first(
    asked: dict[str, float], even: dict[str, float | None], told: dict[str, list[str]]
) -> None:
    found = keys_told(asked, even)
    assert {rule: [one.rsplit(":", 1)[1] for one in keys] for rule, keys in found.items()} == told
    assert list(found) == list(told)


@given(st.dictionaries(st.tuples(st.integers(0, 30), st.integers(0, 30)), st.floats(0, 1e6), max_size=300))
def test_a_rule_with_many_keys_leaves_room_for_others(asked: dict[tuple[int, int], float]) -> None:
    found = keys_told({key(f"r{rule}", f"{client}"): rate for (rule, client), rate in asked.items()}, {})
    assert all(len(keys) <= KEYS_A_RULE for keys in found.values())
    assert set(found) == {f"d/r{rule}" for rule, _ in asked}
    assert all(rule_name(one) == rule for rule, keys in found.items() for one in keys)


def test_a_frame_is_bounded_however_many_rules_there_are() -> None:
    found = keys_told({key(f"r{rule}", f"{client}"): 1.0 for rule in range(KEYS_MOST) for client in range(2)}, {})
    assert sum(map(len, found.values())) == KEYS_MOST


def test_what_is_no_bucket_has_no_rule() -> None:
    assert rule_name("something else") == ""
