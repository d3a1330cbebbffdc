"""What must hold of a run: read from the log of answers and the list of what was done to the system.  Pure.

Of each key of each rule, in any window (s, t], what was surely admitted in it is at most capacity + rate * (t - s)
* 1.001, and on top only what docs/semantics.md names ("What the bound is"): what a failover had not replicated, and
a region's base where its store is silent for some.  Both come from faults of Redis, in known regions and times: cut
links, lost brokers and leaders, dead agents add nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SLACK = 0.001
REGIONS = 3
UNREPLICATED_S = 0.2
"""What a primary has charged and not yet handed on when it dies."""


@dataclass(frozen=True)
class Limit:
    capacity: int
    rate: float


LIMITS = {"hot": Limit(30, 60.0), "many": Limit(12, 6.0)}


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

    def burst(self, limit: Limit) -> float:
        """A node that loses sight of a bucket begins with its part of the region's base, full; and what was charged
        last may be lost."""
        return limit.capacity / REGIONS + 1 + limit.rate * UNREPLICATED_S

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
    # For a window (s, t], what is allowed on top is f(t) - g(s) for each excuse from a to b:
    # the burst as [t >= a] - [s > b], the rate as overlap, min(t, b) - max(s, a), which is 0 outside.
    events: list[tuple[float, int, float]] = []
    for sent, answered in admitted:
        events += [(sent, 1, 1.0), (answered, 2, 1.0)]
    rates: list[tuple[float, float]] = []
    for excuse in excuses:
        events += [(excuse.start, 0, -excuse.burst(limit)), (excuse.end, 3, -excuse.burst(limit))]
        rates += [(excuse.start, excuse.rate(limit)), (excuse.end, -excuse.rate(limit))]
        events += [(excuse.start, 4, excuse.rate(limit)), (excuse.end, 4, -excuse.rate(limit))]
    events.sort()
    per_s = limit.rate * (1 + SLACK)
    answered_by = sent_before = 0.0
    lowest, lowest_at = float("inf"), 0.0
    worst, worst_at = float("-inf"), (0.0, 0.0)
    level, before = 0.0, events[0][0] if events else 0.0
    for at, kind, amount in events:
        level, before = level + per_s * (at - before), at
        if kind == 4:
            per_s += amount
        elif kind in (0, 2):
            answered_by += amount
            if kind == 2 and answered_by - level - lowest - limit.capacity > worst:
                worst, worst_at = answered_by - level - lowest - limit.capacity, (lowest_at, at)
        else:
            if kind == 1 and sent_before - level < lowest:
                lowest, lowest_at = sent_before - level, at
            sent_before += amount
    return worst, worst_at
