"""Refunds that nobody waits for, delivered beside the checks.  I/O."""

from __future__ import annotations

import asyncio
import logging

from regional_limiter.model.errors import StoreUnavailable
from regional_limiter.split_calls import SplitCalls
from regional_limiter.store.base import BucketCall

_log = logging.getLogger("apportion.node")

REFUNDS_MOST = 1024


class Refunds:
    """``tasks``: the refunds under way.  ``dropped``: how many were not delivered."""

    def __init__(self, calls: SplitCalls) -> None:
        self.tasks: set[asyncio.Task[None]] = set()
        self.dropped = 0
        self._calls = calls

    def later(self, calls: list[BucketCall], request_id: str | None, turn: int | None) -> None:
        """A refund that cannot be delivered is dropped and counted: it errs to the strict side.

        A request that came again meanwhile was charged nothing then, so the charge is no longer to be given back
        for this ``turn`` of it, but for the later one if that was denied as well.
        """
        if len(self.tasks) >= REFUNDS_MOST:
            self.dropped += 1
            return
        task = asyncio.get_running_loop().create_task(self._refund_quietly(calls, request_id, turn))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _refund_quietly(self, calls: list[BucketCall], request_id: str | None, turn: int | None) -> None:
        try:
            await self._calls.refund(calls, request_id, turn)
        except StoreUnavailable:
            self.dropped += 1
        except Exception:
            self.dropped += 1
            _log.exception("a refund failed")
