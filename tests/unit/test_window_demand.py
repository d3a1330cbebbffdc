"""When a region asks for more of a window, and for how much."""

from __future__ import annotations

import pytest

from global_sync.allocation import window_demand
from global_sync.allocation.window_demand import WindowDemand
from regional_limiter.model.escrow import WindowUse
from regional_limiter.model.share import WINDOW_POOL

KEY = "rl:{0}:shop/all:a"
SECOND = 1_000_000
END_MS = 60_000


def use(used: int, offered: int, part: int = 100, granted: int = 0, capacity: int = 1003) -> WindowUse:
    return WindowUse(KEY, 0, END_MS, used, offered, part, granted, capacity, 3)


def offer(demand: WindowDemand, seconds: float, rate: int, used: int, *, at_ms: int = 0, part: int = 100) -> None:
    for step in range(round(seconds * 20)):
        demand.take(use(used, rate // 20, part), at_ms + 50 * step, step * SECOND // 20)


def nothing_held(key: str, window: int) -> int:
    return 0


def test_a_window_that_lasts_is_not_asked_for() -> None:
    demand = WindowDemand()
    offer(demand, 2, rate=40, used=60)
    assert demand.asks(2 * SECOND, nothing_held) == {}


def test_about_a_second_of_demand_is_asked_for_before_the_window_is_used_up() -> None:
    demand = WindowDemand()
    offer(demand, 2, rate=40, used=85)
    (ask,) = demand.asks(2 * SECOND, nothing_held).values()
    assert (ask.window, ask.end_ms, ask.held) == (0, END_MS, 0)
    assert 40 * 10 <= ask.wanted <= 60 * 10
    assert ask.least == 10
    assert demand.asks(2 * SECOND, nothing_held) == {}  # until the store tells more


def test_denied_demand_counts_and_the_pool_is_the_most() -> None:
    demand = WindowDemand()
    offer(demand, 1, rate=4000, used=100)
    (ask,) = demand.asks(SECOND, nothing_held).values()
    assert ask.wanted == WINDOW_POOL
    offer(demand, 1, rate=4000, used=100)
    assert demand.asks(SECOND, lambda key, window: WINDOW_POOL) == {}


def test_no_more_than_the_rest_of_the_window_needs() -> None:
    demand = WindowDemand()
    offer(demand, 1, rate=100, used=100, at_ms=END_MS - 1100)
    (ask,) = demand.asks(SECOND, nothing_held).values()
    assert ask.wanted <= 250


def test_windows_that_are_over_go_and_limits_without_a_unit_to_move_are_left_alone() -> None:
    demand = WindowDemand()
    demand.take(use(100, 9), END_MS - 10, 0)
    assert demand.asks(20_000, nothing_held) == {}
    assert len(demand) == 0
    demand.take(use(1, 9, part=1, capacity=3), 0, 0)
    assert demand.asks(0, nothing_held) == {}


def test_of_too_many_windows_those_told_of_last_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window_demand, "KEYS_MOST", 3)
    demand = WindowDemand()
    for name in ("a", "b", "c", "a", "d"):
        demand.take(WindowUse(name, 0, END_MS, 1, 1, 1, 0, 10, 2), 0, 0)
    assert set(demand.asks(0, nothing_held)) == {"a", "c", "d"}
