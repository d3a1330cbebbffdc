"""What of a rule one node may hand on to gateways that decide by themselves.  Pure.

A gateway keeps what it was given for many seconds, so only what no message can shrink meanwhile is handed on: rules
of scope ``region`` and global ones that are ``static``.  A node hands on its own part, divided as the fallback
divides it (``fallback.node_part``).
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from regional_limiter.fallback import node_part
from regional_limiter.model.rule import Algorithm, Mode
from regional_limiter.plan import Plan
from regional_limiter.store.base import Sharing

_BUCKETS = (Algorithm.TOKEN_BUCKET, Algorithm.GCRA)


@dataclass(frozen=True, slots=True)
class Quota:
    """``key``: of the bucket.  ``rule``: "domain/id".  ``capacity``: tokens, 0 denies; ``rate``: tokens a ms."""

    key: str
    rule: str
    capacity: int
    rate: Fraction


@dataclass(frozen=True, slots=True)
class NoQuota:
    """``rule``: "domain/id", or "" where none is meant.  ``why``: what would have to be different."""

    rule: str
    why: str


def quota_of(plan: Plan, nodes: int) -> Quota | NoQuota:
    """What this node may hand on for the requests of ``plan``, of which each costs 1.  ``nodes``: of the region."""
    if plan.blocked is not None:
        return Quota(plan.blocked.key, plan.blocked.name, 0, Fraction(0))
    if not plan.steps:
        return NoQuota("", "no rule limits these requests")
    step = plan.steps[0]
    rule = step.rule
    why = ""
    if len(plan.steps) > 1:
        why = f"{len(plan.steps)} rules limit these requests; only one can be pushed to a gateway"
    elif step.elsewhere is not None:
        why = f"its bucket is in {step.elsewhere.region}: ask a node there"
    elif step.sharing is Sharing.ADAPTIVE:
        why = "its share may shrink before what a gateway was given ends: use scope region or distribution static"
    elif rule.algorithm not in _BUCKETS:
        why = f"a gateway cannot keep a {rule.algorithm.value}: use token_bucket or gcra"
    elif rule.mode is not Mode.ENFORCE:
        why = "a gateway enforces what it is given: use mode enforce"
    elif not step.costs_as_asked:
        why = "a gateway charges 1 for each request: leave cost out"
    if why:
        return NoQuota(step.name, why)
    (call,) = plan.calls(1)
    part = node_part(call, nodes)
    if part is None:
        return Quota(step.key, step.name, 0, Fraction(0))
    capacity, refill = part
    assert refill is not None  # of the kinds above
    return Quota(step.key, step.name, capacity, Fraction(refill.tokens, refill.period_ms))
