"""What is asked where and when: rates by region and time.  Pure.

A trace is a function (place of the region in the list, seconds) -> requests a second.  ``arrivals`` turns a rate
into requests, as many as chance brings (a Poisson process) from one seed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import cos, exp, pi, sqrt
from random import Random

Trace = Callable[[int, float], float]
"""(place of the region, seconds) -> requests a second."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A named trace for a limit and a number of regions.  ``hot``: the place where the load is, or turns up."""

    words: str
    make: Callable[[float, int, int], Trace]


def steady(limit: float, regions: int, hot: int) -> Trace:
    """One region asks for twice the limit, the others for 2 % of it each."""
    return lambda place, _: 2 * limit if place == hot else 0.02 * limit


def on_off(limit: float, hot: int, period_s: float) -> Trace:
    """One region asks for one and a half limits, then for 5 % of one, by turns; the others for 2 % each."""

    def rate(place: int, at_s: float) -> float:
        if place != hot:
            return 0.02 * limit
        return 1.5 * limit if int(at_s / period_s) % 2 == 0 else 0.05 * limit

    return rate


def swap(limit: float, one: int, other: int, period_s: float) -> Trace:
    """One and a half limits, now in one region and now in another."""

    def rate(place: int, at_s: float) -> float:
        turn = one if int(at_s / period_s) % 2 == 0 else other
        return 1.5 * limit if place == turn else 0.02 * limit

    return rate


def follow_sun(limit: float, regions: int, day_s: float = 120.0) -> Trace:
    """Each region has its day, one after the other: what it asks for rises from next to nothing to 1.3 limits."""

    def rate(place: int, at_s: float) -> float:
        height = cos(2 * pi * (at_s / day_s - place / regions))
        return limit * (0.02 + 1.3 * max(0.0, height) ** 2)

    return rate


def flash(limit: float, hot: int, every_s: float = 60.0, first_s: float = 10.0, length_s: float = 6.0) -> Trace:
    """Every region asks for a tenth of the limit, and one, six seconds a minute, for one and a half limits."""

    def rate(place: int, at_s: float) -> float:
        in_flash = place == hot and first_s <= at_s % every_s < first_s + length_s
        return 1.5 * limit if in_flash else 0.1 * limit

    return rate


def even(limit: float, hot: int, regions: int, hot_part: float, total: float = 1.0) -> Trace:
    """A steady load of ``total`` limits; ``hot_part`` of a limit in one region, the rest in equal parts."""
    rest = (total - hot_part) * limit / max(1, regions - 1)
    return lambda place, _: hot_part * limit if place == hot else rest


def overload(limit: float, regions: int, times: float = 2.0) -> Trace:
    """Every region asks for ``times`` its equal part."""
    return lambda place, at_s: times * limit / regions


def wandering(limit: float, regions: int, total: float, seed: int, every_s: float = 4.0) -> Trace:
    """``total`` limits in all, of which each region's part is drawn anew every few seconds."""
    drawn: dict[int, list[float]] = {}

    def rate(place: int, at_s: float) -> float:
        turn = int(at_s / every_s)
        if turn not in drawn:
            random = Random(seed * 1_000_003 + turn)
            parts = [random.random() ** 3 for _ in range(regions)]
            drawn[turn] = [total * limit * part / sum(parts) for part in parts]
        return drawn[turn][place]

    return rate


SHAPES: dict[str, Shape] = {
    "steady": Shape("one region asks for twice the limit", steady),
    "on-off": Shape("one region, five seconds on, five off", lambda limit, n, hot: on_off(limit, hot, 5.0)),
    "swap": Shape(
        "the load jumps to the farthest region and back, every ten seconds",
        lambda limit, n, hot: swap(limit, hot, n - 1 if hot != n - 1 else 0, 10.0),
    ),
    "follow-sun": Shape("each region has its day", lambda limit, n, hot: follow_sun(limit, n)),
    "flash": Shape("a flash crowd, six seconds a minute", lambda limit, n, hot: flash(limit, hot)),
    "even": Shape(
        "the limit is just used up, most of it in one region",
        lambda limit, n, hot: even(limit, hot, n, 0.302),
    ),
    "overload": Shape("every region asks for twice its part", lambda limit, n, hot: overload(limit, n)),
    "wandering": Shape(
        "85 % of the limit, whose parts move every four seconds", lambda limit, n, hot: wandering(limit, n, 0.85, 1)
    ),
}


def arrivals(random: Random, mean: float) -> int:
    """How many requests come where ``mean`` are expected."""
    if mean <= 0:
        return 0
    if mean > 50:
        return max(0, round(random.gauss(mean, sqrt(mean))))
    count, left, least = 0, random.random(), exp(-mean)
    while left > least:
        count += 1
        left *= random.random()
    return count
