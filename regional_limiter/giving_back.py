"""Giving back what checks have charged: one charge, or all that a bucket was charged.  I/O."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from time import time_ns

from regional_limiter.algorithms.registry import ALGORITHMS
from regional_limiter.denials import Denials
from regional_limiter.fallback import Fallback
from regional_limiter.model.decision import COST_MOST, Check
from regional_limiter.model.errors import InvalidCheck
from regional_limiter.plan import Planner
from regional_limiter.refunds import Refunds
from regional_limiter.shadow import shadow_request
from regional_limiter.split_calls import SplitCalls
from regional_limiter.submitting import all_of


class GivingBack:
    """Also from what was decided without the store, and from remembered denials."""

    def __init__(
        self, planner: Planner, calls: SplitCalls, fallback: Fallback, denials: Denials, refunds: Refunds
    ) -> None:
        self._planner = planner
        self._calls = calls
        self._fallback = fallback
        self._denials = denials
        self._refunds = refunds

    async def refund(self, check: Check) -> None:
        """See :meth:`Limiter.refund`."""
        plan = self._planner.plan(check)
        holder = check.request_id or ""
        calls = plan.calls(check.cost, holder)
        if check.cost == 0:
            return
        for step in plan.shadows:
            with suppress(InvalidCheck):  # a cost that only this rule cannot take, which was not charged either
                self._refunds.later([plan.call_of(step, check.cost)], shadow_request(step, check.request_id), None)
        if not calls:
            return
        groups = plan.groups
        if plan.has_holders and not holder:
            # Nobody says whose slots: they stay until they are released.
            groups = [[place for place in group if not plan.steps[place].has_holders] for group in groups]
        for call in (calls[place] for group in groups for place in group):
            self._denials.forget(call.key)
            self._fallback.release(call, time_ns() // 1_000_000)
        await all_of(
            self._calls.refund([calls[i] for i in group], plan.request_id_of(group, check.request_id))
            for group in groups
            if group
        )

    async def reset(self, check: Check) -> list[str]:
        """See :meth:`Limiter.reset`.

        A bucket that may follow a share is not deleted: where the share has shrunk, one that is not there holds
        less than a full one.  What is given back is more than any bucket can owe, twice because one that owes earns
        its way to 0 first.
        """
        plan = self._planner.plan(check)
        calls = [replace(call, cost=2 * max(call.capacity, COST_MOST)) for call in plan.calls(0)]
        groups = []
        dropped = []
        for group in plan.groups:
            dropped += [calls[i] for i in group if ALGORITHMS[calls[i].algorithm].new_when_dropped]
            groups.append([calls[i] for i in group if not ALGORITHMS[calls[i].algorithm].new_when_dropped])
        for call in calls:
            self._denials.forget(call.key)
        shadows = [plan.call_of(step, 0) for step in plan.shadows]
        dropped += [call for call in shadows if ALGORITHMS[call.algorithm].new_when_dropped]
        groups += [
            [replace(call, cost=2 * max(call.capacity, COST_MOST))]
            for call in shadows
            if not ALGORITHMS[call.algorithm].new_when_dropped
        ]
        tasks = [self._calls.refund(group) for group in groups if group for _ in range(2)]
        await all_of((*tasks, *map(self._calls.drop, dropped)))
        return [call.key for call in (*calls, *shadows)]
