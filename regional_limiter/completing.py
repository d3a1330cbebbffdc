"""The verdict of every rule of a check, out of what the store answered for each group of its calls, or did not.

The fallback decides for what did not answer, and what was charged in vain is given back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from time import monotonic_ns, time_ns
from typing import Final

from regional_limiter import engine
from regional_limiter.debt_payments import DebtPayments
from regional_limiter.fallback import Fallback, Unanswered
from regional_limiter.model.decision import Verdict
from regional_limiter.model.errors import OtherRequest, StoreUnavailable
from regional_limiter.model.rule import Mode, OnStoreFailure
from regional_limiter.node_counts import NodeCounts
from regional_limiter.plan import Plan, Step
from regional_limiter.refunds import Refunds
from regional_limiter.soft import softened
from regional_limiter.store.base import BucketCall, Sharing
from regional_limiter.sub_buckets import sub_call

Outcome = list[Verdict] | Exception
"""What came of one call to the store: an error is foreseen if it is StoreUnavailable or OtherRequest."""

_ADAPTIVE: Final = Sharing.ADAPTIVE


class Completing:
    """``nodes_most``: among how many nodes what the store leaves undecided is divided."""

    def __init__(
        self,
        fallback: Fallback,
        counts: NodeCounts,
        refunds: Refunds,
        payments: DebtPayments,
        nodes_most: Callable[[], int],
    ) -> None:
        self._fallback = fallback
        self._counts = counts
        self._refunds = refunds
        self._payments = payments
        self._nodes_most = nodes_most

    def verdicts(
        self,
        plan: Plan,
        cost: int,
        calls: Sequence[BucketCall],
        outcomes: Sequence[Outcome],
        request_id: str | None,
        asked_us: int,
    ) -> list[Verdict]:
        """``outcomes``: one for each group of the plan.  Raises OtherRequest, and what nobody foresaw."""
        refused = next((outcome for outcome in outcomes if isinstance(outcome, OtherRequest)), None)
        if refused is not None:
            self._take_nothing(plan, calls, outcomes, request_id)
            raise refused
        verdicts: list[Verdict | None] = [None] * len(calls)
        decided: list[list[int]] = []
        failed: dict[int, tuple[str | None, StoreUnavailable]] = {}
        for group, outcome in zip(plan.groups, outcomes, strict=True):
            if isinstance(outcome, StoreUnavailable):
                self._counts.degraded(outcome.cause)
                failed.update(dict.fromkeys(group, (plan.request_id_of(group, request_id), outcome)))
                continue
            if isinstance(outcome, Exception):
                self._take_nothing(plan, calls, outcomes, request_id)
                raise outcome
            decided.append(group)
            for place, verdict in zip(group, outcome, strict=True):
                verdicts[place] = verdict
                if calls[place].sharing is _ADAPTIVE:
                    self._fallback.remember(calls[place].key, verdict, asked_us, monotonic_ns() // 1000)
        if failed:
            self._decide_locally(plan, calls, verdicts, failed)
        complete = [verdict for verdict in verdicts if verdict is not None]
        assert len(complete) == len(calls)
        if plan.has_variants:
            complete = softened(plan.steps, complete)
        if cost > 0 and len(plan.groups) > 1 and not all(verdict.allowed for verdict in complete):
            self._give_back(plan, decided, calls, complete, request_id)
        return complete

    def _take_nothing(
        self, plan: Plan, calls: Sequence[BucketCall], outcomes: Sequence[Outcome], request_id: str | None
    ) -> None:
        """Give back what was charged just now; an answer that was given again is the other request's."""
        for group, outcome in zip(plan.groups, outcomes, strict=True):
            if isinstance(outcome, list) and not any(verdict.replayed for verdict in outcome):
                back = [calls[place] for place in group]
                self._refunds.later(back, plan.request_id_of(group, request_id), outcome[0].turn)

    def _give_back(
        self,
        plan: Plan,
        decided: Sequence[Sequence[int]],
        calls: Sequence[BucketCall],
        verdicts: list[Verdict],
        request_id: str | None,
    ) -> None:
        """Refund what was charged in vain, in the background; the verdicts tell what will be left then."""
        places = set(engine.to_give_back(decided, calls, verdicts))
        for place in places:
            verdicts[place] = engine.given_back(calls[place], verdicts[place])
        for group in decided:
            if not places.isdisjoint(group):
                # All of the group, so that the store knows the request again; 0 keeps a charge.
                back = [calls[place] if place in places else replace(calls[place], cost=0) for place in group]
                self._refunds.later(back, plan.request_id_of(group, request_id), verdicts[group[0]].turn)

    def _decide_locally(
        self,
        plan: Plan,
        calls: Sequence[BucketCall],
        verdicts: list[Verdict | None],
        failed: Mapping[int, tuple[str | None, StoreUnavailable]],
    ) -> None:
        """Fill in the verdicts of what the store did not answer.  Nothing is charged when another rule denied.

        ``failed``: the places, the id that the store was asked under, and what its error was.
        """
        soft = [place for place, step in enumerate(plan.steps) if step.rule.mode is Mode.SOFT]
        together = [place for place in failed if place not in soft]
        apart = [[place] for place in failed if place in soft]
        for places in (together, *apart) if together else apart:
            nobody_denied = all(
                verdict is None or verdict.allowed for place, verdict in enumerate(verdicts) if place not in soft
            )
            local = self._fallback.decide(
                [_unanswered(plan.steps[place], calls[place], *failed[place]) for place in places],
                now_ms=time_ns() // 1_000_000,
                now_us=monotonic_ns() // 1000,
                nodes=self._nodes_most(),
                charge=nobody_denied,
            )
            for place, verdict in zip(places, local, strict=True):
                verdicts[place] = verdict
        self._payments.begin()


def _unanswered(step: Step, call: BucketCall, request: str | None, error: StoreUnavailable) -> Unanswered:
    if step.elsewhere is not None:
        # What nobody reaches is nobody's to count: no part of it is here.
        mode = OnStoreFailure.OPEN if step.elsewhere.allows_unreachable else OnStoreFailure.CLOSED
        return Unanswered(call, mode, False, error.server, error.silent_since_us, "", error.may_have_run)
    if error.sub_bucket >= 0:
        # Only its part of the limit is at the node's: the others may answer, and have theirs.
        call = sub_call(call, error.sub_bucket)
    return Unanswered(
        call,
        step.rule.on_store_failure,
        # Without an id a call that may have run must not be charged once more.
        request is not None or not error.may_have_run,
        error.server,
        error.silent_since_us,
        request or "",
        error.may_have_run,
    )
