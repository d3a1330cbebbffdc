"""What the HTTP layer needs of a limiter.  ``regional_limiter.limiter.Limiter`` has it; so have tests' fakes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from regional_limiter.lending import Brought, Lent
from regional_limiter.limiter import Done, DonePlainly, DoneTogether, Explained, Inspection, LimiterStatus
from regional_limiter.model.decision import Answer, Check, Verdict
from regional_limiter.store.base import Allowed, BucketCall
from regional_limiter.together import Asked

Submit = Callable[[Check, DonePlainly], None]
Leased = Callable[[Check], Allowed | None]


class CheckLimiter(Protocol):
    @property
    def ready(self) -> bool:
        """Whether a valid rule set is in force.  Redis may be down."""
        ...

    def submit(self, check: Check, done: Done) -> None:
        """``check`` by callback.  Raises InvalidCheck and RulesUnavailable, and then does not call ``done``."""
        ...

    def submit_together(self, asked: Sequence[Asked], done: DoneTogether) -> None:
        """Several checks as one request.  Raises as :meth:`submit` does."""
        ...

    def knows(self, domain: str) -> bool:
        """Whether ``domain`` has rules in force here."""
        ...

    async def check(self, check: Check) -> Answer: ...

    async def peek(self, check: Check) -> Answer: ...

    async def refund(self, check: Check) -> None:
        """Raises StoreUnavailable when the refund could not be delivered."""
        ...

    async def renew(self, check: Check) -> bool:
        """Whether ``check.lease_id`` still holds its slots, for a new lease.  Raises StoreUnavailable."""
        ...

    async def release(self, check: Check) -> bool:
        """Whether ``check.lease_id`` held slots, which are free now.  Raises StoreUnavailable."""
        ...

    async def lend(self, check: Check, want: int, brought: Brought | None) -> Lent:
        """A token lease for an application.  Raises StoreUnavailable: none, and what came back may be lost."""
        ...

    async def reset(self, check: Check) -> Sequence[str]:
        """The keys of the buckets that are full again.  Raises StoreUnavailable."""
        ...

    async def inspect(self, check: Check) -> Sequence[Inspection]: ...

    async def explain(self, check: Check) -> Explained: ...

    def status(self) -> LimiterStatus: ...


@runtime_checkable
class PlainLimiter(CheckLimiter, Protocol):
    """One that can say shortly that it allows, as the limiter on a store that can."""

    def submit_plainly(self, check: Check, done: DonePlainly) -> None:
        """:meth:`submit`; ``done`` may get an Allowed."""
        ...

    def leased(self, check: Check) -> Allowed | None:
        """The answer to a check that token leases decide at once.  None: it is to be submitted."""
        ...


@runtime_checkable
class HomeLimiter(Protocol):
    """One that decides for nodes of other regions about buckets that are here.

    Raises StoreUnavailable; ``check_here`` also OtherRequest.
    """

    def is_asked_here(self, domain: str, rule: str) -> bool:
        """Whether other regions may ask here for buckets of that rule: not if it is known and has no homes."""
        ...

    async def check_here(self, calls: Sequence[BucketCall], request_id: str | None) -> list[Verdict]: ...

    async def refund_here(self, calls: Sequence[BucketCall], request_id: str | None, turn: int | None) -> None: ...

    async def renew_here(self, calls: Sequence[BucketCall]) -> list[bool]: ...

    async def release_here(self, calls: Sequence[BucketCall], request_id: str) -> list[bool]: ...

    async def drop_here(self, call: BucketCall) -> None: ...


def plainest(limiter: CheckLimiter) -> Submit:
    """How to ask ``limiter`` so that most answers come in the shortest way that it has."""
    return limiter.submit_plainly if isinstance(limiter, PlainLimiter) else limiter.submit


def leased_by(limiter: CheckLimiter) -> Leased:
    """How to learn what ``limiter`` decides at once by token leases: nothing, if it cannot say so shortly."""
    return limiter.leased if isinstance(limiter, PlainLimiter) else _nothing_leased


def _nothing_leased(check: Check) -> None:
    return None
