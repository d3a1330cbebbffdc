"""Tokens that nodes hold as leases, and how a bucket refills meanwhile.  Pure integers.

A token that is out has left the level but still counts against the capacity: until it is back, or until its
lease's life is over, the level rises no higher than ``top - out``.  So level and out together never pass the
capacity, and a node may spend a leased token at any instant of its life without any span of time seeing more than
C + R x t.

Leases end on *edges* of the store's clock, so a bucket that many nodes lease from needs two counters and no list
of leases: at its edge a counter drops by itself, and what it counted is taken as spent.  Between edges the cap is
constant, so a bucket that is looked at late is brought up to date piece by piece.
"""

from __future__ import annotations

from typing import Final

Out = tuple[tuple[int, int], ...]
"""(edge in ms of the store's clock, tokens that are out until then), by edge, at most ``EDGES_MOST``."""

NONE_OUT: Final[Out] = ()
EDGES_MOST: Final = 2


def cap_at(at_ms: int, top: int, unit: int, out: Out) -> int:
    """The most that the level may be at ``at_ms`` (0 when more is out than the capacity is now)."""
    return max(0, top - unit * sum(tokens for edge_ms, tokens in out if edge_ms > at_ms)) if out else top


def gained(level: int, elapsed_ms: int, per_ms: int, top: int) -> int:
    """``level`` after ``elapsed_ms`` under one cap; cut before it is multiplied, so that no product passes 2^53."""
    if level >= top:
        return top
    if elapsed_ms <= 0 or per_ms == 0:
        return level
    return top if elapsed_ms >= -(-(top - level) // per_ms) else level + elapsed_ms * per_ms


def accrued(level: int, from_ms: int, to_ms: int, per_ms: int, top: int, unit: int, out: Out) -> int:
    """The level at ``to_ms`` of a bucket that held ``level`` at ``from_ms``."""
    for edge_ms, _ in out:
        if from_ms < edge_ms < to_ms:
            level = gained(level, edge_ms - from_ms, per_ms, cap_at(from_ms, top, unit, out))
            from_ms = edge_ms
    return gained(level, to_ms - from_ms, per_ms, cap_at(from_ms, top, unit, out))


def reached_ms(level: int, at_ms: int, target: int, per_ms: int, top: int, unit: int, out: Out) -> int:
    """When the bucket will hold ``target`` (at most ``top``), which at ``at_ms`` it does not.  ``per_ms`` > 0."""
    for edge_ms, _ in out:
        if edge_ms > at_ms:
            cap = cap_at(at_ms, top, unit, out)
            if target <= cap and -(-(target - level) // per_ms) <= edge_ms - at_ms:
                break
            level, at_ms = gained(level, edge_ms - at_ms, per_ms, cap), edge_ms
    return at_ms + max(0, -(-(target - level) // per_ms))


def still_out(out: Out, now_ms: int) -> Out:
    """What is left of ``out``: at its edge a counter drops."""
    return tuple(held for held in out if held[0] > now_ms) if out else out


def shifted(out: Out, by_ms: int) -> Out:
    """The clock went back by ``by_ms`` and the bucket with it: what is out stays out equally long."""
    return tuple((edge_ms - by_ms, tokens) for edge_ms, tokens in out)


def given(out: Out, edge_ms: int, tokens: int) -> Out:
    """``tokens`` more are out until ``edge_ms``.

    A third edge (the rule's edges changed, or the clock stepped) is counted with the latest: longer is the strict
    side, though a lease of the edge that went can no longer be returned.
    """
    by_edge = dict(out)
    by_edge[edge_ms] = by_edge.get(edge_ms, 0) + tokens
    held = sorted(by_edge.items())
    while len(held) > EDGES_MOST:
        last_ms, last = held.pop()
        held[-1] = (last_ms, held[-1][1] + last)
    return tuple(held)


def taken_back(out: Out, edge_ms: int, tokens: int) -> Out | None:
    """``out`` without a lease of ``tokens`` that would have ended at ``edge_ms``.

    None: no such lease is known here (its edge has passed, or the bucket was lost meanwhile).
    """
    for held in out:
        if held[0] == edge_ms and 0 < tokens <= held[1]:
            rest = ((edge_ms, held[1] - tokens),) if tokens < held[1] else ()
            return tuple(sorted((*(other for other in out if other is not held), *rest)))
    return None
