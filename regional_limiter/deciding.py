"""A decision: what a check asks the store for, what is answered without it, and what is made of its word.

All by callback, on the loop: nothing here waits.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic_ns
from typing import Any

from regional_limiter.completing import Completing, Outcome
from regional_limiter.counted_answers import CountedAnswers
from regional_limiter.denials import Denials
from regional_limiter.fallback import shed
from regional_limiter.model.decision import Answer, Check, Verdict
from regional_limiter.model.errors import StoreUnavailable
from regional_limiter.node_counts import NodeCounts
from regional_limiter.plan import Asking, Plan, Planner
from regional_limiter.shadow import Shadows
from regional_limiter.split_calls import SplitCalls
from regional_limiter.store.base import Allowed, Decided
from regional_limiter.token_lease_calls import TokenLeaseCalls

Done = Callable[[Answer | Exception], None]
"""Called once with the answer of a check, or with an error: OtherRequest, or one that nobody foresaw."""

DonePlainly = Callable[[Answer | Allowed | Exception], None]
"""As Done, but what allows may be told shortly."""

_UNANSWERED = StoreUnavailable("not answered yet")


class Deciding:
    """Decides by token leases, by remembered denials, and by the store."""

    def __init__(
        self,
        planner: Planner,
        calls: SplitCalls,
        token_leases: TokenLeaseCalls,
        denials: Denials,
        shadows: Shadows,
        counts: NodeCounts,
        completing: Completing,
    ) -> None:
        self._planner = planner
        self._calls = calls
        self._token_leases = token_leases
        self._denials = denials
        self._shadows = shadows
        self._counts = counts
        self._completing = completing
        self._answers = CountedAnswers(counts)

    def asking(self, check: Check, cost: int, request_id: str | None) -> Asking:
        """What to ask for a check.  Kept with it if it would ask the same again."""
        asking = self.asking_by(self._planner.plan(check), cost, request_id, check.lease_id or "")
        if asking is asking.plan.asking and cost == check.cost and check.request_id is None:
            object.__setattr__(check, "asking", asking)
        return asking

    def asking_by(self, plan: Plan, cost: int, request_id: str | None, lease_id: str) -> Asking:
        """What to ask by a plan.  Kept with it, since most checks cost the same, unless it names who asks."""
        asking = plan.asking
        if asking is None or asking.cost != cost or request_id is not None:
            holder = lease_id or request_id or secrets.token_hex(16) if cost and plan.has_holders else ""
            calls = plan.calls(cost, holder)
            prepared = [
                self._calls.prepare([calls[place] for place in group], plan.request_id_of(group, request_id))
                for group in plan.groups
            ]
            asking = Asking(plan, cost, calls, prepared, request_id)
            if request_id is None and plan.may_be_asked_again:
                plan.asking = asking
        return asking

    def ask(self, asking: Asking, request_id: str | None, done: Done) -> None:
        """Answer, or ask the store; :meth:`_combine` goes on when everything has been answered."""
        plan, calls = asking.plan, asking.calls
        if plan.shadows and asking.cost > 0:
            done = self._then_shadows(plan, asking.cost, request_id, done)
        if not calls:
            done(self._answers.without_store(plan, asking.cost))
            return
        asked_us = monotonic_ns() // 1000
        leases = self._token_leases
        if asking.may_lease and leases.table.holds and (leased := leases.spend(calls, asked_us)) is not None:
            done(self._answers.of(asking, leased))
            return
        denials = self._denials
        if asking.alone and denials.known and (denial := denials.verdict(calls[0], asked_us)) is not None:
            done(self._answers.of(asking, [denial]))
            return
        if plan.may_be_shed and any(map(self._calls.is_crowded, asking.prepared)):
            self._counts.degraded("shed")
            told = [shed(call, step.rule.shed) for call, step in zip(calls, plan.steps, strict=True)]
            done(self._answers.of(asking, told))
            return
        if len(asking.prepared) == 1:
            self._submit(asking.prepared[0], partial(self._decided_by_one, asking, request_id, asked_us, done))
            return
        left = len(asking.prepared)
        outcomes: list[Outcome] = [_UNANSWERED] * left

        def one_decided(place: int, outcome: Outcome) -> None:
            nonlocal left
            outcomes[place] = outcome
            left -= 1
            if not left:
                self._decided(asking, outcomes, request_id, asked_us, done)

        for place, prepared in enumerate(asking.prepared):
            self._submit(prepared, partial(one_decided, place))

    def leased(self, asking: Asking) -> Allowed | None:
        """What token leases allow, where :attr:`Asking.is_plain`."""
        leases = self._token_leases
        if not (asking.may_lease and asking.is_plain and leases.table.holds):
            return None
        leased = leases.spend_plainly(asking.calls, monotonic_ns() // 1000)
        if leased is not None:
            self._counts.allowed(asking)
            leased.asking = asking
        return leased

    def ask_plainly(self, asking: Asking, done: DonePlainly) -> None:
        """:meth:`ask` where :attr:`Asking.is_plain`."""
        if (leased := self.leased(asking)) is not None:
            done(leased)
        else:
            self.ask_unleased(asking, done)

    def ask_unleased(self, asking: Asking, done: DonePlainly) -> None:
        """:meth:`ask_plainly` when :meth:`leased` has said None."""
        asked_us = monotonic_ns() // 1000
        denials = self._denials
        if asking.alone and denials.known and (denial := denials.verdict(asking.calls[0], asked_us)) is not None:
            done(self._answers.of(asking, [denial]))
            return
        if asking.plan.may_be_shed and self._calls.is_crowded(asking.prepared[0]):
            self.ask(asking, None, done)
            return
        decided = partial(self._decided_plainly, asking, asked_us, done)
        try:
            self._calls.submit_plainly(asking.prepared[0], decided)
        except Exception as error:
            decided(error)

    def _submit(self, prepared: Any, decided: Decided) -> None:
        try:
            self._calls.submit(prepared, decided)
        except Exception as error:
            decided(error)

    # ---- when the store has answered

    def _decided_plainly(
        self, asking: Asking, asked_us: int, done: DonePlainly, outcome: list[Verdict] | Allowed | Exception
    ) -> None:
        if not isinstance(outcome, Allowed):
            self._decided_by_one(asking, None, asked_us, done, outcome)
            return
        told: Allowed | Exception = outcome
        try:
            if asking.may_lease and asking.generation == self._planner.generation:
                self._token_leases.note_allowed(asking.calls, outcome.left, asked_us)
            self._counts.allowed(asking)
            outcome.asking = asking
        except Exception as error:
            told = error
        done(told)

    def _decided_by_one(
        self, asking: Asking, request_id: str | None, asked_us: int, done: Done, outcome: Outcome
    ) -> None:
        """The one call of a check has been answered: nearly always all that there is to combine."""
        if not (asking.is_plain and isinstance(outcome, list)):
            self._decided(asking, (outcome,), request_id, asked_us, done)
            return
        try:
            answer: Answer | Exception = self._noted(asking, outcome, asked_us, degraded=False)
        except Exception as error:
            answer = error
        done(answer)

    def _decided(
        self, asking: Asking, outcomes: Sequence[Outcome], request_id: str | None, asked_us: int, done: Done
    ) -> None:
        """All calls of a check have been answered."""
        # An error that nobody foresaw is handed on: never an allow.
        try:
            answer: Answer | Exception = self._combine(asking, outcomes, request_id, asked_us)
        except Exception as error:
            answer = error
        done(answer)

    def _combine(
        self, asking: Asking, outcomes: Sequence[Outcome], request_id: str | None, asked_us: int
    ) -> Answer:
        plan, calls = asking.plan, asking.calls
        only = outcomes[0]
        if len(outcomes) == 1 and isinstance(only, list) and not plan.is_adaptive:
            return self._noted(asking, only, asked_us, degraded=False)
        verdicts = self._completing.verdicts(plan, asking.cost, calls, outcomes, request_id, asked_us)
        return self._noted(asking, verdicts, asked_us, degraded=any(verdict.degraded for verdict in verdicts))

    def _noted(self, asking: Asking, verdicts: list[Verdict], asked_us: int, *, degraded: bool) -> Answer:
        """Remember of the verdicts what decides later checks, and answer."""
        # A limit that was raised while the store was asked must not meet the denial, or the lease, of the old one.
        if asking.generation == self._planner.generation:
            if asking.alone and not verdicts[0].allowed:
                self._denials.remember(asking.calls[0], verdicts[0], asked_us)
            if asking.may_lease and not degraded:
                self._token_leases.note(asking.calls, verdicts)
        return self._answers.of(asking, verdicts)

    def _then_shadows(self, plan: Plan, cost: int, request_id: str | None, done: Done) -> Done:
        def answered(answer: Answer | Exception) -> None:
            done(answer)
            if isinstance(answer, Answer) and answer.allowed:
                self._shadows.ask(plan, cost, request_id)

        return answered
