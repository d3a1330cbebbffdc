"""The slots of rules that count what is under way: a new lease for them, and freeing them.  I/O."""

from __future__ import annotations

from dataclasses import replace
from time import time_ns

from regional_limiter.fallback import Fallback
from regional_limiter.model.decision import Check
from regional_limiter.plan import Planner
from regional_limiter.split_calls import SplitCalls
from regional_limiter.submitting import all_of


class Slots:
    """Those that the store holds, and those taken while it did not answer."""

    def __init__(self, planner: Planner, calls: SplitCalls, fallback: Fallback) -> None:
        self._planner = planner
        self._calls = calls
        self._fallback = fallback

    async def renew(self, check: Check) -> bool:
        """See :meth:`Limiter.renew`."""
        plan = self._planner.plan(check)
        groups = plan.with_holders(plan.calls(0, check.lease_id or ""))
        held = await all_of(self._calls.renew(group) for group in groups)
        return bool(held) and all(map(all, held))

    async def release(self, check: Check) -> bool:
        """See :meth:`Limiter.release`."""
        plan = self._planner.plan(check)
        holder = check.lease_id or ""
        calls = [replace(call, cost=1) for call in plan.calls(0, holder)]
        here = [
            self._fallback.release(call, time_ns() // 1_000_000)
            for group in plan.with_holders(calls)
            for call in group
        ]
        held = await all_of(
            self._calls.release([calls[place] for place in group], plan.request_id_of(group, holder) or "")
            for group in plan.groups
            if any(plan.steps[place].has_holders for place in group)
        )
        return any(here) or any(map(any, held))
