"""Rates are never negative, chance is fair, and the shapes are what their words say."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.simulator import traces


@pytest.mark.parametrize("name", traces.SHAPES)
@given(limit=st.floats(1, 1e6), regions=st.integers(2, 20), at_s=st.floats(0, 3600), data=st.data())
def test_no_shape_asks_for_less_than_nothing_or_more_than_some_limits(
    name: str, limit: float, regions: int, at_s: float, data: st.DataObject
) -> None:
    hot = data.draw(st.integers(0, regions - 1))
    trace = traces.SHAPES[name].make(limit, regions, hot)
    rates = [trace(place, at_s) for place in range(regions)]
    assert all(0 <= rate <= 2 * limit for rate in rates)
    assert 0 < sum(rates) <= 14 * limit


@pytest.mark.parametrize("mean", [0.0, 0.1, 5.0, 49.0, 80.0])
def test_as_many_requests_come_as_are_expected(mean: float) -> None:
    random = Random(3)
    counts = [traces.arrivals(random, mean) for _ in range(4000)]
    found = sum(counts) / len(counts)
    spread = sum((count - found) ** 2 for count in counts) / len(counts)
    assert abs(found - mean) <= 0.05 * mean + 0.01
    assert abs(spread - mean) <= 0.12 * mean + 0.01


def test_a_wandering_load_is_the_same_again_and_never_more_than_its_total() -> None:
    first, again = traces.wandering(1000, 5, 0.85, 7), traces.wandering(1000, 5, 0.85, 7)
    for at_s in (0.0, 3.9, 4.0, 77.0):
        rates = [first(place, at_s) for place in range(5)]
        assert rates == [again(place, at_s) for place in range(5)]
        assert abs(sum(rates) - 850) < 1e-6
