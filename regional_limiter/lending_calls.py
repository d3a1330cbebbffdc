"""Tokens lent to applications, and what they bring back: the calls that this takes.  I/O."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from time import monotonic_ns

from regional_limiter.lending import Brought, Lent, brought_back, lent, lent_from
from regional_limiter.model.decision import Check
from regional_limiter.model.errors import StoreUnavailable
from regional_limiter.node_counts import NodeCounts
from regional_limiter.plan import Planner
from regional_limiter.store.base import CheckStore
from regional_limiter.token_lease_calls import Heard


class LendingCalls:
    """``deadline_s``: the most that a call may take.  ``heard`` is told every answer."""

    def __init__(
        self, planner: Planner, store: CheckStore, counts: NodeCounts, deadline_s: float, heard: Heard
    ) -> None:
        self._planner = planner
        self._store = store
        self._counts = counts
        self._deadline_s = deadline_s
        self._heard = heard

    async def lend(self, check: Check, want: int, brought: Brought | None = None) -> Lent:
        """See :meth:`Limiter.lend`."""
        plan = self._planner.plan(check)
        call = lent_from(plan)
        if call is None:
            return Lent()
        returned = () if brought is None else brought_back(call, brought)
        asked_us = monotonic_ns() // 1000
        try:
            async with asyncio.timeout(self._deadline_s):
                lease = await self._store.lease(call, want, returned)
        except TimeoutError:
            raise StoreUnavailable("deadline") from None
        self._heard(call, lease, asked_us, monotonic_ns() // 1000)
        if brought is not None and returned:
            self._counts.lent(
                plan.steps[0].name, replace(call, cost=brought.tokens - brought.unspent), brought, lease
            )
        return lent(plan, call, lease)
