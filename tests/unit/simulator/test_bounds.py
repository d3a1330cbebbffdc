"""What is left at best, against what is reckoned by hand."""

from __future__ import annotations

import pytest

from services.simulator import traces
from services.simulator.bounds import fair_rates, gifts, ideal_tokens, lost_by_a_jump, lost_by_moving

DELAYS_S = [0.002, 0.03, 0.09]


def test_what_is_fair_leaves_nobody_short_for_the_sake_of_who_asks_for_more() -> None:
    assert fair_rates([200, 10, 30], 100) == pytest.approx([60, 10, 30], abs=0.02)
    assert fair_rates([200, 10, 70], 120) == pytest.approx([55, 10, 55], abs=0.02)
    assert fair_rates([20, 10, 30], 100) == pytest.approx([20, 10, 30], abs=0.02)


def test_one_bucket_admits_its_burst_and_then_its_rate() -> None:
    assert ideal_tokens(traces.overload(100, 3), 3, 100, 20, 10.0) == pytest.approx(1020, abs=6)
    assert ideal_tokens(traces.overload(100, 3, 0.5), 3, 100, 20, 10.0) == pytest.approx(500, abs=3)


def test_a_jump_costs_two_ways_there_and_back_and_the_others_part_of_the_burst() -> None:
    given_ = gifts([300, 10, 30], 90, 0)
    assert given_ == pytest.approx({1: 20, 2: 0}, abs=0.02)
    # From the place 30 ms away: 2 x 32 ms at 20 a second; and of a burst of 33 it has 1 + 30 / 3.
    assert lost_by_a_jump(0, given_, DELAYS_S, 33, 3333) == pytest.approx(20 * 0.064 + 33 - 10, abs=1.01)


@pytest.mark.parametrize("high", [1.3, 2.0, 3.0])
def test_what_moves_is_lost_for_the_distances_of_who_gives_and_who_takes(high: float) -> None:
    """All of a limit but 1 % goes from the first to the last within ten seconds, however fast at which moment."""

    def trace(place: int, at_s: float) -> float:
        if place == 1:
            return 0.0
        return 100 * high * (min(1.0, at_s / 10) if place == 2 else max(0.0, 1 - at_s / 10)) + 1

    assert lost_by_moving(trace, DELAYS_S, 100, 11.0) == pytest.approx(98 * (0.002 + 0.09), rel=0.02)
    assert lost_by_moving(traces.overload(100, 3), DELAYS_S, 100, 5.0) == 0
