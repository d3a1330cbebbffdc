"""Rules in shadow mode: asked beside the checks that were allowed, counted, and heard by nobody.  I/O.

A shadow rule sees what it would see if it were enforced: the checks that every other rule allows.  Each is asked in
a call of its own, after the answer is known, so that it can neither change an answer nor take back another rule's
charge.  It charges the bucket that the enforced rule will use: a promotion keeps the counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from regional_limiter.model.decision import Reason, Verdict
from regional_limiter.model.errors import InvalidCheck
from regional_limiter.model.keys import identity_of
from regional_limiter.plan import Plan, Step
from regional_limiter.store.base import BucketCall, SubmittingStore

RULES_MOST = 10_000
EXAMPLES_MOST = 10

_DENIED_OUTRIGHT = Verdict(False, Reason.BLOCKED, 0, None, 0)
_NEVER_LIMITED = Verdict(True, Reason.OK, 0, 0, 0)


@dataclass(slots=True)
class ShadowCount:
    """What a shadow rule would have done on this node since it began.

    ``undecided``: its bucket could not be asked.  ``examples``: the identities denied last, as bucket keys write
    them (hashed where the rule says ``hash_key``), and how often each.
    """

    would_allow: int = 0
    would_deny: int = 0
    would_deny_cost: int = 0
    undecided: int = 0
    examples: dict[str, int] = field(default_factory=dict)

    def denied(self, identity: str, cost: int) -> None:
        self.would_deny += 1
        self.would_deny_cost += cost
        times = self.examples.pop(identity, 0)
        self.examples[identity] = times + 1
        if len(self.examples) > EXAMPLES_MOST:
            del self.examples[next(iter(self.examples))]


Count = Callable[[Step, BucketCall, Verdict], None]
"""Told of every decision that counts: not of one that the same request already had."""


class Shadows:
    """Asks and counts."""

    def __init__(self, store: SubmittingStore, count: Count) -> None:
        self._store = store
        self._count = count
        self._counts: dict[str, ShadowCount] = {}

    def counts(self) -> Mapping[str, ShadowCount]:
        """By ``domain/rule``."""
        return self._counts

    def ask(self, plan: Plan, cost: int, request_id: str | None) -> None:
        """The check has been allowed by every rule that is enforced."""
        for step in plan.shadows:
            try:
                call = plan.call_of(step, cost)
            except InvalidCheck:  # a cost that only this rule cannot read
                self._of(step.name).undecided += 1
                continue
            if step.rule.blocked or step.rule.unlimited:
                self._decided(step, call, _DENIED_OUTRIGHT if step.rule.blocked else _NEVER_LIMITED)
                continue
            self._submit(step, call, shadow_request(step, request_id))

    def _submit(self, step: Step, call: BucketCall, request_id: str | None) -> None:
        def done(outcome: list[Verdict] | Exception) -> None:
            if isinstance(outcome, Exception):
                self._of(step.name).undecided += 1
            elif not outcome[0].replayed:
                self._decided(step, call, outcome[0])

        prepared = self._store.prepare([call], request_id)
        if self._store.is_crowded(prepared):  # what is enforced goes first
            self._of(step.name).undecided += 1
            return
        try:
            self._store.submit(prepared, done)
        except Exception as error:
            done(error)

    def _decided(self, step: Step, call: BucketCall, verdict: Verdict) -> None:
        counted = self._of(step.name)
        if verdict.allowed:
            counted.would_allow += 1
        else:
            counted.denied(identity_of(step.key), call.cost)
        self._count(step, call, verdict)

    def _of(self, name: str) -> ShadowCount:
        counted = self._counts.get(name)
        if counted is None:
            if len(self._counts) >= RULES_MOST:
                del self._counts[next(iter(self._counts))]
            counted = self._counts[name] = ShadowCount()
        return counted


def shadow_request(step: Step, request_id: str | None) -> str | None:
    """Under which id the bucket of a shadow rule is asked: its answer is not that of the enforced ones."""
    return None if request_id is None else f"{request_id}\0~{step.rule.id}"
