"""What the busiest key of each rule asks for on average, by which pages tell how near limits are.  Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from services.dashboard.told import rule_name

LEAST_S, MOST_S = 10.0, 300.0

Asking = tuple[str, float]
"""A key, and its cost per second, allowed and denied."""


@dataclass(frozen=True, slots=True)
class Asked:
    """``per_s``: averaged; ``seconds``: over how much of it."""

    key: str
    per_s: float
    seconds: float


def busiest(asked: Mapping[str, tuple[float, float]]) -> dict[str, Asking]:
    """``domain/rule`` -> that of its keys which asks for most.  ``asked``: allowed and denied by key."""
    found: dict[str, Asking] = {}
    for key, rate in asked.items():
        rule, per_s = rule_name(key), sum(rate)
        if rule not in found or per_s > found[rule][1]:
            found[rule] = key, per_s
    return found


def averaged(before: Asked | None, now: Asking | None, window_s: float | None, elapsed_s: float) -> Asked | None:
    """``elapsed_s`` later.  A bucket is averaged over some seconds, of the first of them it is their plain mean; a
    window, which one busy second does not use up, always over the whole of its length.  None: nothing is known."""
    if before is None and now is None:
        return None
    was = before or Asked("", 0.0, 0.0)
    key, per_s = now or (was.key, 0.0)
    over_s = min(MOST_S, max(LEAST_S, window_s or 0.0))
    seconds = min(over_s, was.seconds + elapsed_s)
    weight = min(1.0, elapsed_s / (seconds if window_s is None else over_s)) if elapsed_s > 0 else 0.0
    return Asked(key, was.per_s + (per_s - was.per_s) * weight, seconds)
