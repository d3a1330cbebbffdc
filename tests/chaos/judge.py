"""What must hold of a run: read from the log of answers and the list of what was done to the system.  Pure.

Of each key of each rule, in any window (s, t], what was surely admitted in it is at most capacity + rate * (t - s)
* 1.001, and on top only what docs/semantics.md names ("What the bound is"): what a failover had not replicated, and
a region's base where its store is silent for some.  Both come from faults of Redis, in known regions and times: cut
links, lost brokers and leaders, dead agents add nothing.  The checker is the one of the simulated world.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil, floor
from typing import Any

from global_sync.simulation.bound import BoundChecker
from regional_limiter.model.rule import Rate
from tests.e2e.bound import moments, replay

SLACK_PER_MILLE = 1
REGIONS = 3
UNREPLICATED_S = 0.2
"""What a primary has charged and not yet handed on when it dies."""


@dataclass(frozen=True)
class Limit:
    capacity: int
    rate: int  # a second

    @property
    def refill(self) -> Rate:
        return Rate(self.rate, 1000)


LIMITS = {"hot": Limit(30, 60), "many": Limit(12, 6)}


@dataclass(frozen=True)
class Excuse:
    """From ``start`` to ``end`` something was done.

    ``url``: a node that could not answer.  Without one: a store of ``region``, its ``shard``, that was silent for
    some nodes or lost charges.
    """

    region: str
    start: float
    end: float
    url: str | None = None
    shard: int = 0
    unreplicated_s: float = UNREPLICATED_S

    def burst(self, limit: Limit) -> float:
        """A node that loses sight of a bucket begins with its part of the region's base, full; and what was charged
        last may be lost."""
        return limit.capacity / REGIONS + 1 + limit.rate * self.unreplicated_s

    def rate(self, limit: Limit) -> float:
        return limit.rate / REGIONS


@dataclass(frozen=True)
class Verdict:
    """``worst``: of all keys, the largest excess in checks (at most 0: the bound holds).  ``worst_wait_s``: of all
    checks that were answered by a node that was neither stopped nor killed."""

    checks: int
    allowed: int
    degraded: int
    excused: int
    worst: float
    worst_wait_s: float
    problems: list[str]


def judge(
    rows: Iterable[Mapping[str, Any]], excuses: Sequence[Excuse], shard_of: Callable[[str, str], int]
) -> Verdict:
    """``rows``: of the load's log.  ``shard_of``: rule and key."""
    admitted: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    problems: list[str] = []
    checks = allowed = degraded = excused = 0
    worst_wait = 0.0
    dead = [excuse for excuse in excuses if excuse.url is not None]
    for row in rows:
        checks += 1
        allowed += row["allowed"]
        degraded += row["degraded"]
        if row["allowed"]:
            admitted[row["rule"], row["key"]].append((row["sent_at"], row["answered_at"]))
        if any(e.url == row["url"] and e.start <= row["answered_at"] and row["due_at"] <= e.end for e in dead):
            excused += row["error"] is not None
        elif row["error"] is not None:
            problems.append(f"no answer from {row['url']} at {row['sent_at']:.3f}: {row['error']}")
        else:
            worst_wait = max(worst_wait, row["answered_at"] - row["sent_at"])
    worst = float("-inf")
    stores = [excuse for excuse in excuses if excuse.url is None]
    for (rule, key), times in sorted(admitted.items()):
        shard = shard_of(rule, key)
        excess, at = worst_excess(times, LIMITS[rule], [one for one in stores if one.shard == shard])
        worst = max(worst, excess)
        if excess > 0:
            problems.append(f"{rule}/{key}: {excess:.1f} checks above the bound in {at[0]:.3f} to {at[1]:.3f}")
    return Verdict(checks, allowed, degraded, excused, worst, worst_wait, problems)


def worst_excess(
    admitted: Iterable[tuple[float, float]], limit: Limit, excuses: Sequence[Excuse]
) -> tuple[float, tuple[float, float]]:
    """The largest excess over the bound in any window, in checks, and that window.

    ``admitted``: (sent at, answered at).  Surely admitted in (s, t] is at least what was answered by t, less what
    was sent before s.  An excuse counts for every window that meets it: its burst once, its rate for as long as
    both last.
    """
    checker = BoundChecker(limit.capacity, limit.refill, slack_per_mille=SLACK_PER_MILLE)
    events = moments(admitted, checker)
    for excuse in excuses:
        start_us, end_us = floor(excuse.start * 1e6), ceil(excuse.end * 1e6)
        more = excuse.burst(limit), excuse.rate(limit)
        events.append((start_us, 0, partial(checker.allow_from, start_us, *more)))
        events.append((end_us, 3, partial(checker.allow_until, end_us, *more)))
    replay(events)
    return checker.worst, (checker.worst_since_us / 1e6, checker.worst_at_us / 1e6)
