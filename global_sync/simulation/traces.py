"""How much is asked for, when: traces of demand.  Pure.  Times in microseconds, rates in tokens a second."""

from __future__ import annotations

from collections.abc import Callable
from math import cos, tau

Trace = Callable[[int], float]
"""Time -> tokens a second."""

SECOND_US = 1_000_000


def steady(per_second: float) -> Trace:
    return lambda at_us: per_second


def on_off(per_second: float, period_us: int, *, first_on: bool = True) -> Trace:
    """``per_second`` for a period, nothing for a period, and so on."""
    return lambda at_us: per_second if (at_us // period_us % 2 == 0) is first_on else 0.0


def flash(usual: float, crowd: float, from_us: int, until_us: int) -> Trace:
    """``usual``, and ``crowd`` between the two times."""
    return lambda at_us: crowd if from_us <= at_us < until_us else usual


def follow_sun(least: float, most: float, day_us: int, noon_us: int) -> Trace:
    """A day's swing between ``least`` and ``most``, highest at ``noon_us``."""
    return lambda at_us: least + (most - least) * (1 + cos(tau * (at_us - noon_us) / day_us)) / 2
