"""How the buckets that a check meets stand, and what it would be told: nothing is charged.  I/O."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from time import monotonic_ns

from regional_limiter.foretold import Foretold, foretold, foretold_of
from regional_limiter.model.decision import Answer, Check, Verdict
from regional_limiter.model.errors import StoreUnavailable
from regional_limiter.model.rule import Algorithm
from regional_limiter.plan import Planner
from regional_limiter.rules.judged import Judged
from regional_limiter.split_calls import SplitCalls
from regional_limiter.store.base import BucketCall
from regional_limiter.token_lease_calls import TokenLeaseCalls

INSPECT_WAIT_S = 1.0


@dataclass(frozen=True, slots=True)
class Inspection:
    """How one bucket stands.

    ``verdict``: of a check of cost 0, degraded if the store did not answer.  ``ttl_ms``: for how long the store
    keeps it, None: not kept (as good as new), or not known.
    """

    rule: str
    key: str
    algorithm: Algorithm
    limit: int
    verdict: Verdict
    ttl_ms: int | None


@dataclass(frozen=True, slots=True)
class ExplainedStep:
    """One rule that limits the check.  ``leased``: its tokens that this node holds, for ``lease_left_us``."""

    bucket: Inspection
    foretold: Foretold
    is_canary: bool
    leased: int
    lease_left_us: int


@dataclass(frozen=True, slots=True)
class Explained:
    """``attributes``: as rules see them.  ``rules``: every rule of the set.  ``foretold``: the whole check."""

    attributes: Mapping[str, str]
    rules: Sequence[Judged]
    steps: Sequence[ExplainedStep]
    foretold: Foretold


class Inspecting:
    """``peek``: asks a check at no cost."""

    def __init__(
        self,
        planner: Planner,
        calls: SplitCalls,
        token_leases: TokenLeaseCalls,
        peek: Callable[[Check], Awaitable[Answer]],
    ) -> None:
        self._planner = planner
        self._calls = calls
        self._token_leases = token_leases
        self._peek = peek

    async def inspect(self, check: Check) -> list[Inspection]:
        """See :meth:`Limiter.inspect`."""
        plan = self._planner.plan(check)
        calls = plan.calls(0)
        answer = await self._peek(check)
        ttls = await asyncio.gather(*map(self._ttl_ms, calls))
        return [
            Inspection(step.rule.id, step.key, step.rule.algorithm, step.rule.capacity, told.verdict, ttl_ms)
            for step, told, ttl_ms in zip(plan.steps, answer.verdicts, ttls, strict=True)
        ]

    async def explain(self, check: Check) -> Explained:
        """See :meth:`Limiter.explain`."""
        plan = self._planner.plan(check)
        attributes, rules = self._planner.judged(check)
        calls = plan.calls(check.cost)
        buckets = await self.inspect(replace(check, cost=0, request_id=None))
        now_us = monotonic_ns() // 1000
        steps = [
            ExplainedStep(
                bucket,
                foretold_of(step, call, bucket.verdict),
                step.is_canary,
                *self._token_leases.held(call.key, now_us),
            )
            for step, call, bucket in zip(plan.steps, calls, buckets, strict=True)
        ]
        return Explained(attributes, rules, steps, foretold(plan, [one.foretold for one in steps]))

    async def _ttl_ms(self, call: BucketCall) -> int | None:
        try:
            async with asyncio.timeout(INSPECT_WAIT_S):
                return await self._calls.ttl_ms(call)
        except (StoreUnavailable, TimeoutError):
            return None
