"""A wall clock that is set forward is not believed for a while."""

from __future__ import annotations

from global_sync.protocol.wall_clock import DOUBTED_US, STEP_MS_MOST, WallClock

DAY_MS = 86_400_000


def test_time_that_passes_and_small_steps_and_steps_back_are_believed() -> None:
    clock = WallClock()
    assert clock.look(0, 1_000_000)
    assert clock.look(DOUBTED_US, 1_000_000 + DOUBTED_US // 1000)
    assert clock.look(1000 * DAY_MS, 1_000_000 + DAY_MS + STEP_MS_MOST)
    assert clock.look(1000 * DAY_MS, 0)


def test_a_large_step_is_believed_after_minutes_and_at_once_when_it_is_taken_back() -> None:
    clock = WallClock()
    assert clock.look(0, 0)
    assert not clock.look(1000, DAY_MS + 1)
    assert clock.ahead_ms == DAY_MS
    assert clock.look(2000, 2)
    assert clock.ahead_ms == 0
    assert not clock.look(3000, DAY_MS + 3)
    assert not clock.look(2999 + DOUBTED_US, DAY_MS + DOUBTED_US // 1000 + 3)
    assert clock.look(3000 + DOUBTED_US, DAY_MS + DOUBTED_US // 1000 + 3)
    assert clock.look(4000 + DOUBTED_US, DAY_MS + DOUBTED_US // 1000 + 4)


def test_a_step_while_it_is_doubted_does_not_begin_it_anew() -> None:
    clock = WallClock()
    clock.look(0, 0)
    assert not clock.look(0, DAY_MS)
    assert not clock.look(DOUBTED_US // 2, 2 * DAY_MS)
    assert clock.look(DOUBTED_US, 2 * DAY_MS)
