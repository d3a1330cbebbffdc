"""Token leases that an application holds, and not a node: what may be lent, and how it comes back.  Pure.

An application gets a lease as a node does, from the same bucket and within the same bounds: at most a tenth of what
the bucket holds, until the same edge of the store's clock.  It counts the life from before it asked, so it ends
there before it ends at the store.  One that dies holds back its lease until that edge, and nothing else.

Only what one plain rule decides alone is lent: where several decide, an application would have to hold a lease of
each, and give all of them back when one is over.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

from regional_limiter.algorithms.token_lease import may_lease
from regional_limiter.plan import Plan
from regional_limiter.store.base import BucketCall, ReturnedLease, TokenLease

AGAIN_AFTER_MS: Final = 100
"""Where the bucket could spare nothing: it may soon."""
NOT_LENT_AGAIN_AFTER_MS: Final = 5000
"""Where the rules do not allow it: they may be changed."""


@dataclass(frozen=True, slots=True)
class Brought:
    """What an application gives back: ``tokens`` that it was lent as ``lease``, of them ``unspent``.

    The others were spent in ``checks``.
    """

    lease: str
    tokens: int
    unspent: int
    checks: int


@dataclass(frozen=True, slots=True)
class Lent:
    """``tokens`` to be spent for ``ends_in_ms`` from before they were asked for; 0: none, ask again in
    ``again_after_ms``.

    ``credited``: of what was brought back, what the bucket took.  ``rule``: whose bucket it is, None where nothing
    is ever lent; ``limit``, ``remaining`` (beside the lease) and ``reset_after_ms`` are then None, 0 and 0.
    """

    tokens: int = 0
    ends_in_ms: int = 0
    lease: str = ""
    rule: str | None = None
    limit: int | None = None
    remaining: int = 0
    reset_after_ms: int = 0
    credited: int = 0
    again_after_ms: int = NOT_LENT_AGAIN_AFTER_MS


def lent_from(plan: Plan) -> BucketCall | None:
    """The bucket that a check of this plan may be lent tokens of, at a cost of 1; None: it meets none alone."""
    if len(plan.met) != 1 or len(plan.steps) != 1 or plan.shadows or plan.has_variants:
        return None
    step = plan.steps[0]
    if not step.costs_as_asked or step.rule.split > 1:
        return None
    call = plan.calls(1)[0]
    return call if may_lease(call) else None


def brought_back(call: BucketCall, brought: Brought) -> tuple[ReturnedLease, ...]:
    """What comes back to the bucket; nothing of a lease of another one, or of no lease at all."""
    edge, _, bucket = brought.lease.partition(".")
    if bucket != _name(call) or not (edge.isascii() and edge.isdigit() and len(edge) < 16):
        return ()
    if not 0 <= brought.unspent <= brought.tokens:
        return ()
    return (ReturnedLease(int(edge), brought.tokens, brought.unspent),)


def lent(plan: Plan, call: BucketCall, lease: TokenLease) -> Lent:
    """What to tell the application of what the store has said."""
    rule = plan.steps[0].rule
    return Lent(
        tokens=lease.tokens,
        ends_in_ms=lease.ends_in_us // 1000,
        lease=f"{lease.edge_ms}.{_name(call)}" if lease.tokens else "",
        rule=rule.id,
        limit=rule.capacity,
        remaining=lease.remaining,
        reset_after_ms=lease.reset_after_ms,
        credited=lease.credited,
        again_after_ms=0 if lease.tokens else AGAIN_AFTER_MS,
    )


def _name(call: BucketCall) -> str:
    """Of a bucket: a lease that comes back after the rules have changed must not fill another one."""
    return blake2b(call.key.encode(), digest_size=8).hexdigest()
