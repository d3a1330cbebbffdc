"""What the busiest key of a rule of windows asks for on average; static/nearness.js goes on with it.  Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

LEAST_S, MOST_S = 10.0, 300.0

Asked = tuple[str, float]
"""A key, and its cost per second, allowed and denied."""


def busiest(keys: Sequence[tuple[str, Mapping[str, Any]] | list[Any]]) -> Asked | None:
    """``keys``: as a frame tells them.  None: nothing is known of any."""
    known = [(key, point["a"] + (point["d"] or 0.0)) for key, point in keys if point["a"] is not None]
    return max(known, key=lambda one: one[1], default=None)


def averaged(before: Asked | None, now: Asked | None, window_s: float) -> Asked:
    """After one more second.  One of both must be known."""
    key, per_s = now or (before[0] if before else "", 0.0)
    seconds = min(MOST_S, max(LEAST_S, window_s))
    was = before[1] if before else 0.0
    return key, was + (per_s - was) / seconds
