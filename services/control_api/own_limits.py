"""What one caller may ask of the control API: decided by the limiter itself, in this process's memory.  [IO]"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from enum import StrEnum

import structlog

from regional_limiter.in_process import in_memory
from regional_limiter.limiter import Limiter
from regional_limiter.model.decision import Answer, Check
from services.settings import ControlLimits

log = structlog.get_logger(__name__)


class Asked(StrEnum):
    """What a request is to the limiter."""

    READ = "read"
    CHANGE = "change"
    LOGIN = "login"
    LOGIN_THROUGH = "login_through"
    """A failed login by way of a proxy, which may have any number of addresses behind it, or say that it has."""


THROUGH_A_PROXY = 10
"""So many addresses' failed logins may come through one proxy."""


class OwnLimits:
    """Reads are let through when the limiter fails; changes and logins are not."""

    def __init__(self, limiter: Limiter) -> None:
        self._limiter = limiter

    async def admit(self, asked: Asked, who: str, cost: int = 1) -> Answer | None:
        """The limiter's answer; None: it could not decide, and this may not pass without."""
        check = Check("default", {"client_key": who, "resource": asked.value}, cost)
        try:
            return await self._limiter.check(check)
        except Exception:
            log.exception("the control API's own limiter failed", asked=asked.value)
            return None


@asynccontextmanager
async def own_limits(limits: ControlLimits) -> AsyncIterator[OwnLimits]:
    async with in_memory({"rules": _rules(limits)}) as limiter:
        yield OwnLimits(limiter)


def _rules(limits: ControlLimits) -> list[dict[str, object]]:
    return [
        {
            "id": "reads",
            "match": {"resource": Asked.READ.value},
            "capacity": 10 * limits.reads_per_second,
            "refill": f"{limits.reads_per_second}/s",
        },
        {
            "id": "changes",
            "match": {"resource": Asked.CHANGE.value},
            "capacity": 20 * limits.changes_per_second,
            "refill": f"{limits.changes_per_second}/s",
        },
        {
            "id": "failed-logins",
            "match": {"resource": Asked.LOGIN.value},
            "capacity": limits.failed_logins_per_minute,
            "refill": f"{limits.failed_logins_per_minute}/min",
            "on_store_failure": "closed",
        },
        {
            "id": "failed-logins-through-a-proxy",
            "match": {"resource": Asked.LOGIN_THROUGH.value},
            "capacity": THROUGH_A_PROXY * limits.failed_logins_per_minute,
            "refill": f"{THROUGH_A_PROXY * limits.failed_logins_per_minute}/min",
            "on_store_failure": "closed",
        },
    ]
