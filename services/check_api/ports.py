"""What the HTTP layer needs of a limiter.  ``regional_limiter.limiter.Limiter`` has it; so have tests' fakes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from regional_limiter.model.decision import Answer, Check


@dataclass(frozen=True, slots=True)
class ShardStatus:
    """One enforcement point as this node sees it.  ``breaker``: closed, open or half_open."""

    point: str
    breaker: str


@dataclass(frozen=True, slots=True)
class LimiterStatus:
    """What a node tells of itself.  ``degraded``: answers by cause; ``base_version`` -1: none known."""

    rules_version: int
    base_version: int
    shards: Sequence[ShardStatus] = ()
    degraded: Mapping[str, int] = field(default_factory=dict)


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
