"""What is asked of the past, made sure of: bounded, and with the fault named.  Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from services.dashboard.past.cells import (
    ALLOWED,
    BASE,
    BORROWED,
    DENIED,
    EVERYTHING,
    GROWS,
    HEARD,
    KEEPS,
    KEYS,
    LENT,
    MINUTE_MS,
    MINUTES_KEPT_MS,
    SECOND_MS,
    SECONDS_KEPT_MS,
    Cell,
)

POINTS_MOST = 2_000
POINTS_USUAL = 360
STEPS_MS = tuple(
    1000 * seconds
    for seconds in (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200)
)
RANGE_USUAL_MS = 900_000
GRACE_MS = 10_000
"""A question for the last hour is some milliseconds old when it is answered."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """``name``: a rule as ``domain/rule``, a bucket key, or EVERYTHING.  Steps are whole ones of ``step_ms``, the
    first begins at or before ``from_ms``; the last ends at or before ``until_ms``."""

    name: str
    from_ms: int
    until_ms: int
    step_ms: int

    @property
    def source_ms(self) -> int:
        return SECOND_MS if self.step_ms % MINUTE_MS else MINUTE_MS

    def begins(self) -> range:
        begin = self.from_ms - self.from_ms % self.step_ms
        return range(begin, self.until_ms - self.until_ms % self.step_ms, self.step_ms)


class BadQuestion(ValueError):
    """What is asked cannot be answered; the text names the field and says what would be right."""


def span(from_ms: int | None, until_ms: int | None, now_ms: int, usual_ms: int = RANGE_USUAL_MS) -> tuple[int, int]:
    """The time that is meant.  Raises BadQuestion."""
    until = min(until_ms if until_ms is not None else now_ms, now_ms)
    begin = from_ms if from_ms is not None else until - usual_ms
    if begin >= until:
        raise BadQuestion(f"from: must be before to (and before now): {begin} is not before {until}")
    if until - begin > MINUTES_KEPT_MS:
        raise BadQuestion(f"from: at most 30 days before to, {MINUTES_KEPT_MS} ms")
    return begin, until


def has_seconds(begin_ms: int, now_ms: int) -> bool:
    """Whether all from then on is kept by the second."""
    return begin_ms >= now_ms - SECONDS_KEPT_MS - GRACE_MS


def wanted(
    domain: str | None, rule: str | None, key: str | None, time: tuple[int, int], step_ms: int | None, now_ms: int
) -> Wanted:
    """``step_ms`` None: the least of STEPS_MS with at most POINTS_USUAL points.  Raises BadQuestion."""
    begin, until = time
    if key is not None and not key.startswith("rl:"):
        raise BadQuestion("key: must be a bucket key, rl:{…}:domain/rule:identity, as /v1/keys tells them")
    if rule is not None and domain is None:
        raise BadQuestion("domain: is needed with rule")
    if domain is not None and rule is None and key is None:
        raise BadQuestion("rule: is needed with domain")
    name = key or (f"{domain}/{rule}" if rule is not None else EVERYTHING)
    by_second = has_seconds(begin, now_ms)
    if step_ms is None:
        least = SECOND_MS if by_second else MINUTE_MS
        step_ms = next(
            (step for step in STEPS_MS if step >= least and (until - begin) // step <= POINTS_USUAL), STEPS_MS[-1]
        )
    if step_ms < SECOND_MS or step_ms % SECOND_MS:
        raise BadQuestion("step: must be whole seconds, in ms: 1000, 2000, …")
    if step_ms % MINUTE_MS and not by_second:
        raise BadQuestion("step: must be whole minutes (60000 ms) for what is more than an hour ago")
    if (until - begin) // step_ms > POINTS_MOST:
        raise BadQuestion(
            f"step: at least {-(-(until - begin) // POINTS_MOST)} ms: an answer has {POINTS_MOST} points"
        )
    return Wanted(name, begin, until, step_ms)


def columns(asked: Wanted, found: Mapping[str, Mapping[int, Cell]], regions: Sequence[str]) -> dict[str, Any]:
    """Rates per second, shares and counts by region; None where the region was not heard.  ``totals``: sums."""
    begins = asked.begins()
    names = [*regions, *sorted(set(found) - set(regions))]
    return {
        "name": asked.name,
        "step_ms": asked.step_ms,
        "from_ms": begins.start,
        "to_ms": begins[-1] + asked.step_ms if begins else begins.start,
        "at_ms": list(begins),
        "regions": {
            name: _region(asked.step_ms, [found.get(name, {}).get(at_ms) for at_ms in begins]) for name in names
        },
        "totals": {name: _totals(found.get(name, {}).values()) for name in names},
    }


def _region(step_ms: int, cells: Sequence[Cell | None]) -> dict[str, list[Any]]:
    def rate(field: int) -> list[float | None]:
        return [None if not cell or not cell[HEARD] else round(cell[field] * 1000 / step_ms, 3) for cell in cells]

    def share(field: int) -> list[float | None]:
        """Of a key, on average over the keys and over the step."""
        return [None if not cell or not cell[KEYS] else round(cell[field] / cell[KEYS], 1) for cell in cells]

    return {
        "allowed": rate(ALLOWED),
        "denied": rate(DENIED),
        "base": share(BASE),
        "lent": share(LENT),
        "borrowed": share(BORROWED),
        "grows": [cell[GROWS] if cell else 0 for cell in cells],
        "keeps": [cell[KEEPS] if cell else 0 for cell in cells],
    }


def _totals(cells: Any) -> dict[str, int]:
    sums = [sum(column) for column in zip(*cells, strict=True)] or [0] * 9
    return {"allowed": sums[ALLOWED], "denied": sums[DENIED], "grows": sums[GROWS], "keeps": sums[KEEPS]}
