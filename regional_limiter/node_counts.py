"""What a node counts of its decisions: totals by rule and by key, demand, and what was decided degraded.

Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from regional_limiter.key_windows import KeyWindows
from regional_limiter.lending import Brought
from regional_limiter.model.decision import Reason, ShareKind, Verdict
from regional_limiter.plan import Asking, Plan, Step
from regional_limiter.store.base import KEYS_TOLD, BucketCall, RuleTotals, Sharing, TokenLease
from regional_limiter.usage import CANARY, SHADOW, Totals, is_interesting

RULES_COUNTED = 10_000
KEYS_COUNTED = 1000
CAUSES_MOST = 32
NOTED_MOST = 1024
"""Of what is asked again and again: that it was allowed is noted there, and counted when somebody looks."""

# In Python 3.11 to name a member of an enumeration costs 0.2 us, and these are named for every check.
_FLOOR: Final = ShareKind.FLOOR
_WHOLE: Final = Sharing.WHOLE
_ADAPTIVE: Final = Sharing.ADAPTIVE


class NodeCounts:
    """``wanted`` is told the key and the cost of what other regions may lend to."""

    def __init__(self, wanted: Callable[[str, int], None]) -> None:
        self._rules = Totals(RULES_COUNTED)
        self._keys = Totals(KEYS_COUNTED)
        self._windows = KeyWindows()
        self._degraded: dict[str, int] = {}
        self._wanted = wanted
        self._noted: list[Asking] = []

    def filled(self) -> dict[str, tuple[int, int]]:
        """By table: entries, and how many there may be."""
        self._count_noted()
        return {"rules_counted": self._rules.filled, "keys_counted": self._keys.filled}

    def usage(self) -> Mapping[str, RuleTotals]:
        """By ``domain/rule``, and the rows beside it (see ``usage.py``)."""
        self._count_noted()
        return self._rules.snapshot(RULES_COUNTED)

    def key_usage(self) -> Mapping[str, RuleTotals]:
        """By key, of the busiest keys of global rules."""
        return self._keys.snapshot(KEYS_TOLD)

    def windows(self, now_us: int) -> Mapping[str, Mapping[str, RuleTotals]]:
        """By window, of the busiest keys of all rules (see ``key_windows.py``)."""
        self._count_noted()
        return self._windows.told(now_us)

    def degraded_by_cause(self) -> dict[str, int]:
        return dict(self._degraded)

    def degraded(self, cause: str) -> None:
        if cause not in self._degraded and len(self._degraded) >= CAUSES_MOST:
            cause = "other"
        self._degraded[cause] = self._degraded.get(cause, 0) + 1

    def allowed(self, asking: Asking) -> None:
        """:meth:`decided` of a plain check that was allowed."""
        asking.noted += 1
        if asking.noted == 1:
            self._noted.append(asking)
            if len(self._noted) >= NOTED_MOST:
                self._count_noted()

    def _count_noted(self) -> None:
        noted, self._noted = self._noted, []
        for asking in noted:
            checks, asking.noted = asking.noted, 0
            for name, key, cost in asking.counted:
                self._rules.add_allowed(name, cost, checks)
                self._windows.add_allowed(key, cost, checks)

    def handed_on(self, rule: str, allowed: int, denied: int) -> None:
        """Checks of cost 1 that others have decided, by what they were given of ``rule`` (``domain/rule``)."""
        for is_allowed, checks in ((True, allowed), (False, denied)):
            if checks:
                self._rules.add(rule, is_allowed, checks, False, checks=checks)

    def unlimited(self, plan: Plan, cost: int) -> None:
        for step in plan.unlimited:
            self._rules.add(step.name, allowed=True, cost=step.cost_of(cost), degraded=False)
            self._windows.add(step.key, allowed=True, cost=step.cost_of(cost), degraded=False)

    def blocked(self, step: Step, cost: int) -> None:
        self._rules.add(step.name, allowed=False, cost=step.cost_of(cost), degraded=False)
        self._windows.add(step.key, allowed=False, cost=step.cost_of(cost), degraded=False)

    def shadow(self, step: Step, call: BucketCall, verdict: Verdict) -> None:
        self.row(step, SHADOW, call, verdict)

    def row(self, step: Step, row: str, call: BucketCall, verdict: Verdict) -> None:
        """Count in a row beside the rule's own, which says only what was decided for callers."""
        if verdict.replayed:
            return
        self._rules.add(step.name + row, verdict.allowed, call.cost, verdict.degraded)
        if call.sharing is _ADAPTIVE and is_interesting(call, verdict):
            self._wanted(call.key, call.cost)

    def decided(
        self, steps: Sequence[Step], calls: Sequence[BucketCall], verdicts: Sequence[Verdict], charged: bool
    ) -> None:
        """A rule counts as allowing only what it was charged for: what another rule denied is no use of it.

        What was charged before, by the same request, was counted then; a peek beside what is charged, never.
        """
        for step, call, verdict in zip(steps, calls, verdicts, strict=True):
            if verdict.replayed or not call.cost or (verdict.allowed and not charged and not call.charge_denied):
                continue
            at_floor = verdict.share_kind is _FLOOR and not verdict.degraded
            degraded = verdict.degraded or at_floor
            self._rules.add(step.name, verdict.allowed, call.cost, degraded, at_floor)
            self._windows.add(call.key, verdict.allowed, call.cost, degraded, at_floor)
            if step.is_canary:
                self._rules.add(step.name + CANARY, verdict.allowed, call.cost, degraded, at_floor)
            if call.sharing is not _WHOLE:
                self._shared(call, verdict, degraded, at_floor)

    def _shared(self, call: BucketCall, verdict: Verdict, degraded: bool, at_floor: bool) -> None:
        """What the share protocol wants to know of a global rule."""
        self._keys.add(call.key, verdict.allowed, call.cost, degraded, at_floor)
        if at_floor:
            self.degraded("floor")
        if is_interesting(call, verdict):
            self._wanted(call.key, call.cost)

    def lent(self, name: str, call: BucketCall, brought: Brought, lease: TokenLease) -> None:
        """Count as allowed what ``call.cost`` says was spent of what was lent, in ``brought.checks``."""
        self._rules.add(name, True, call.cost, False, checks=brought.checks)
        self._windows.add(call.key, True, call.cost, False, checks=brought.checks)
        if call.sharing is _WHOLE:
            return
        self._keys.add(call.key, True, call.cost, False, checks=brought.checks)
        told = Verdict(True, Reason.OK, lease.remaining, 0, lease.reset_after_ms, lease.share, lease.share_kind)
        if is_interesting(call, told):
            self._wanted(call.key, call.cost)
