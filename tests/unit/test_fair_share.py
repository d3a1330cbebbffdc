"""Who gets how much: a table of worked cases, and what must hold of every instance."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from global_sync.allocation.fair_share import fair_share

Row = tuple[int, list[int], list[int], list[int], list[int]]

TABLE: list[Row] = [  # capacity, wants, weights, floors, right
    (120, [1000, 60, 10], [1, 1, 1], [], [55, 55, 10]),
    (120, [1000, 50, 10], [1, 1, 1], [], [60, 50, 10]),
    (120, [60, 60, 10], [1, 1, 1], [], [55, 55, 10]),
    (120, [1000, 500, 200], [6, 4, 2], [], [60, 40, 20]),
    (1000, [2000, 500, 700], [10, 10, 30], [], [200, 200, 600]),
    (120, [65, 45, 20], [3, 2, 1], [], [60, 40, 20]),
    (100, [100, 5, 20, 30, 5], [1, 10, 5, 1, 10], [], [40, 5, 20, 30, 5]),
    (100, [80, 80, 80], [3, 2, 1], [], [50, 33, 17]),
    (100, [10, 80, 80], [3, 2, 1], [], [10, 60, 30]),
    (100, [500, 2, 2, 2, 2], [1, 1, 1, 1, 1], [5, 5, 5, 5, 5], [92, 2, 2, 2, 2]),
]


def named(values: list[int]) -> dict[str, int]:
    return {f"r{i}": value for i, value in enumerate(values)}


@pytest.mark.parametrize("row", TABLE)
def test_the_table_of_worked_cases(row: Row) -> None:
    capacity, wants, weights, floors, right = row
    assert fair_share(capacity, named(wants), named(weights), named(floors)) == named(right)


def test_a_tie_goes_to_the_region_that_already_held_the_unit() -> None:
    wants, weights, floors = named([300, 300, 300]), named([3, 1, 1]), named([0, 30, 0])
    # exact: 52.5, 30, 17.5
    assert fair_share(100, wants, weights, floors, held=named([53, 30, 17])) == named([53, 30, 17])
    assert fair_share(100, wants, weights, floors, held=named([52, 30, 18])) == named([52, 30, 18])


def test_a_tie_that_nobody_held_is_the_same_every_time_and_not_always_the_first_region() -> None:
    wants, weights = named([3, 3, 3, 3]), named([1, 1, 1, 1])
    first = fair_share(10, wants, weights, tie_key="a")
    assert sorted(first.values()) == [2, 2, 3, 3]
    turned = dict(reversed(wants.items()))
    assert fair_share(10, turned, weights, tie_key="a") == first
    assert len({tuple(sorted(fair_share(10, wants, weights, tie_key=str(n)).items())) for n in range(20)}) > 1


def test_fewer_units_than_regions() -> None:
    shares = fair_share(3, named([1] * 5), named([1] * 5))
    assert sorted(shares.values()) == [0, 0, 1, 1, 1]


def test_what_nobody_wants_goes_towards_the_peaks_first_and_then_in_equal_parts() -> None:
    wants, ones = named([10, 10, 10]), named([1, 1, 1])
    shares = fair_share(100, wants, ones, peaks=named([30, 0, 0]))
    assert sum(shares.values()) == 100
    assert min(shares["r0"] - shares["r1"], shares["r0"] - shares["r2"]) >= 19
    assert fair_share(40, wants, ones, peaks=named([90, 90, 0])) == named([15, 15, 10])


def test_nothing_to_give_and_nobody_to_give_to() -> None:
    assert fair_share(0, named([5, 5]), named([1, 1])) == named([0, 0])
    assert fair_share(100, {}, {}, peaks={}) == {}
    assert fair_share(100, named([0, 0]), named([1, 3]), peaks={}) == named([50, 50])


@pytest.mark.parametrize(
    ("capacity", "wants", "weights", "floors"),
    [(-1, [1], [1], []), (1, [-1], [1], []), (1, [1], [0], []), (1, [1, 1], [1, 1], [1, 1])],
)
def test_arguments_out_of_range_are_refused(
    capacity: int, wants: list[int], weights: list[int], floors: list[int]
) -> None:
    with pytest.raises(ValueError, match=r"never negative|weight above|more than the capacity"):
        fair_share(capacity, named(wants), named(weights), named(floors))


@st.composite
def instances(draw: st.DrawFn) -> tuple[int, dict[str, int], dict[str, int], dict[str, int]]:
    n = draw(st.integers(1, 8))
    some = st.integers(0, 20_000) | st.integers(0, 12)
    wants = draw(st.lists(some, min_size=n, max_size=n))
    weights = draw(st.lists(st.integers(1, 10_000) | st.integers(1, 6), min_size=n, max_size=n))
    floors = draw(st.lists(st.integers(0, 200), min_size=n, max_size=n))
    capacity = draw(st.integers(sum(floors), 12_000))
    return capacity, named(wants), named(weights), named(floors)


def exact(
    capacity: int, wants: dict[str, int], weights: dict[str, int], floors: dict[str, int]
) -> dict[str, Fraction]:
    """Another way to the same numbers: try every segment between two levels."""
    low = {r: min(floors[r], w) for r, w in wants.items()}
    if sum(wants.values()) <= capacity:
        return {r: Fraction(w) for r, w in wants.items()}

    def at(level: Fraction) -> dict[str, Fraction]:
        return {r: min(max(level * weights[r], Fraction(low[r])), Fraction(w)) for r, w in wants.items()}

    levels = sorted({Fraction(x[r], weights[r]) for x in (low, wants) for r in wants})
    under = max((x for x in levels if sum(at(x).values()) <= capacity), default=Fraction(0))
    rising = sum(weights[r] for r in wants if low[r] <= under * weights[r] < wants[r])
    missing = capacity - sum(at(under).values())
    return at(under + Fraction(missing) / rising) if missing else at(under)


@example((1, {"r0": 0, "r1": 2}, {"r0": 1, "r1": 1}, {"r0": 0, "r1": 1}))  # gave 2 of 1
@given(instances())
@settings(max_examples=400, deadline=None)
def test_every_unit_is_given_out_close_to_the_exact_share(
    instance: tuple[int, dict[str, int], dict[str, int], dict[str, int]],
) -> None:
    capacity, wants, weights, floors = instance
    shares = fair_share(capacity, wants, weights, floors)
    right = exact(capacity, wants, weights, floors)
    assert sum(shares.values()) == min(capacity, sum(wants.values()))
    for region, share in shares.items():
        assert abs(share - right[region]) < 1
        assert min(floors[region], wants[region]) <= share <= wants[region]


@given(instances())
@settings(max_examples=400, deadline=None)
def test_whoever_is_short_has_at_least_as_much_for_its_weight_as_anyone_above_its_floor(
    instance: tuple[int, dict[str, int], dict[str, int], dict[str, int]],
) -> None:
    capacity, wants, weights, floors = instance
    shares = fair_share(capacity, wants, weights, floors)
    for short in (r for r in shares if shares[r] < wants[r]):
        for other in (r for r in shares if shares[r] > floors[r]):
            assert Fraction(shares[short] + 1, weights[short]) >= Fraction(shares[other] - 1, weights[other])


@given(instances(), st.integers(2, 10))
@settings(max_examples=200, deadline=None)
def test_claiming_more_than_one_wants_gains_nothing_once_one_is_short(
    instance: tuple[int, dict[str, int], dict[str, int], dict[str, int]], times: int
) -> None:
    capacity, wants, weights, floors = instance
    shares = fair_share(capacity, wants, weights, floors)
    for short in (r for r in shares if shares[r] < wants[r]):
        louder = fair_share(capacity, {**wants, short: wants[short] * times}, weights, floors)
        assert louder[short] <= shares[short] + 1
