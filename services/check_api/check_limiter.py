"""What the HTTP layer needs of a limiter.  ``regional_limiter.limiter.Limiter`` has it; so have tests' fakes."""

from __future__ import annotations

from typing import Protocol

from regional_limiter.limiter import LimiterStatus
from regional_limiter.model.decision import Answer, Check


class CheckLimiter(Protocol):
    @property
    def ready(self) -> bool:
        """Whether a valid rule set is in force.  Redis may be down."""
        ...

    async def check(self, check: Check) -> Answer: ...

    async def peek(self, check: Check) -> Answer: ...

    async def refund(self, check: Check) -> None:
        """Raises StoreUnavailable when the refund could not be delivered."""
        ...

    def status(self) -> LimiterStatus: ...
