"""A node's limiter: rules -> engine -> store -> decision.  I/O.

One check, in order: match the rules, make their keys, ask the store once for each hash tag (all at the same time,
under one deadline), let the fallback decide for what did not answer, combine, and give back what was charged in
vain.  Beside it run the heartbeat, the delivery of refunds and the handing on of demand.
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from time import monotonic_ns, time_ns
from typing import Any, Final, TypeVar

from regional_limiter import engine
from regional_limiter.algorithms.registry import ALGORITHMS
from regional_limiter.debts import RequestDebt
from regional_limiter.denials import Denials
from regional_limiter.fallback import Fallback, Unanswered, shed
from regional_limiter.foretold import Foretold, foretold, foretold_of
from regional_limiter.heartbeat import Heartbeat
from regional_limiter.lending import Brought, Lent, brought_back, lent, lent_from
from regional_limiter.model.decision import COST_MOST, Answer, Check, Reason, ShareKind, Verdict
from regional_limiter.model.errors import InvalidCheck, OtherRequest, StoreUnavailable
from regional_limiter.model.rule import Algorithm, Mode, RuleSet
from regional_limiter.model.share import ProtocolTimes
from regional_limiter.node_rules import NodeRules
from regional_limiter.plan import Asking, Plan, Planner, Step, answer_in_full
from regional_limiter.rules.judged import Judged
from regional_limiter.shadow import ShadowCount, Shadows, shadow_request
from regional_limiter.soft import marked, softened
from regional_limiter.split_calls import SplitCalls
from regional_limiter.store.base import (
    KEYS_TOLD,
    Allowed,
    BucketCall,
    CheckStore,
    Decided,
    NodeBeat,
    Sharing,
    SubmittingStore,
    TokenLease,
    TouchReply,
)
from regional_limiter.submitting import InTasks, all_of, settled
from regional_limiter.together import Asked, Together, joint_plan
from regional_limiter.token_lease_calls import TokenLeaseCalls
from regional_limiter.token_lease_table import LeaseCounts
from regional_limiter.usage import CANARY, SHADOW, SOFT, Demand, Totals, is_interesting

_log = logging.getLogger("apportion.node")

_T = TypeVar("_T")

OFFER_EVERY_S = 0.02
OFFER_KEYS_MOST = 1000
REFUNDS_MOST = 1024
RULES_COUNTED = 10_000
KEYS_COUNTED = 1000
CAUSES_MOST = 32
REFUND_WAIT_S = 1.0
INSPECT_WAIT_S = 1.0
PAY_EVERY_S = 0.5
OWED_AT_ONCE = 200


@dataclass(frozen=True, slots=True)
class ShardStatus:
    """One enforcement point as this node sees it.

    ``breaker``: open while checks are refused without being sent, else closed.  ``answers``: to the last touch.
    """

    point: str
    breaker: str
    answers: bool = True


@dataclass(frozen=True, slots=True)
class LimiterStatus:
    """What a node tells of itself.  ``degraded``: degraded decisions, by cause ("floor": by the store; "shed": the
    store was not asked, since it was asked too much).
    Versions: -1 unknown.

    ``refused_domains``: domain -> why its newest rules are not in force here.  ``leases``: tokens taken ahead.
    ``shadows``: by ``domain/rule``.
    """

    rules_version: int
    base_version: int
    shards: Sequence[ShardStatus] = ()
    degraded: dict[str, int] = field(default_factory=dict)
    refused_sets: int = 0
    refused_domains: Mapping[str, str] = field(default_factory=dict)
    refunds_dropped: int = 0
    debts_dropped: int = 0
    demand_dropped: int = 0
    shadows: Mapping[str, ShadowCount] = field(default_factory=dict)
    leases: LeaseCounts = field(default_factory=LeaseCounts)


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


Done = Callable[[Answer | Exception], None]
"""Called once with the answer of a check, or with an error: OtherRequest, or one that nobody foresaw."""

DoneTogether = Callable[[Together | Exception], None]
"""The same, of several checks as one request."""

DonePlainly = Callable[[Answer | Allowed | Exception], None]
"""As Done, but what allows may be told shortly."""

Outcome = list[Verdict] | Exception
"""What came of one call to the store: an error is foreseen if it is StoreUnavailable or OtherRequest."""

# In Python 3.11 to name a member of an enumeration costs 0.2 us, and these are named for every check.
_FLOOR: Final = ShareKind.FLOOR
_WHOLE: Final = Sharing.WHOLE
_ADAPTIVE: Final = Sharing.ADAPTIVE
_UNANSWERED = StoreUnavailable("not answered yet")


class Limiter:
    """Decides checks of one region.

    ``secret``: the deployment's key secret.  ``state_dir``: where the node keeps its rules and bases (in a
    directory of its own).  ``deadline_s``: the most that a check waits for a store that keeps no deadline of its
    own (see SubmittingStore).
    """

    def __init__(
        self,
        region: str,
        store: CheckStore,
        secret: bytes,
        state_dir: Path,
        times: ProtocolTimes,
        *,
        node: str,
        address: str = "",
        deadline_s: float = 0.015,
    ) -> None:
        self._store = store
        self._node = node
        self._address = address
        self._incarnation = secrets.token_hex(8)
        self._deadline_s = deadline_s
        submitting = store if isinstance(store, SubmittingStore) else InTasks(store, deadline_s)
        self._calls = SplitCalls(store, submitting, deadline_s)
        self._rules = NodeRules(region, store, self.directory_of(state_dir, node), self._rules_changed)
        self._planner = Planner(secret)
        # A little more often than asked for, so that a late turn is still in time.
        self._heart = Heartbeat(store, times.touch_us * 0.9 / 1_000_000, self._beat, self._hear)
        self._fallback = Fallback(
            consent_us=times.consent_us, gap_us=times.gap_us, started_us=monotonic_ns() // 1000
        )
        self._denials = Denials()
        self._token_leases = TokenLeaseCalls(self._calls, deadline_s, self._hear_of_share)
        self._rule_totals = Totals(RULES_COUNTED)
        self._key_totals = Totals(KEYS_COUNTED)
        self._demand = Demand()
        self._shadows = Shadows(self._calls, self._count_shadow)
        self._offering: asyncio.Task[None] | None = None
        self._paying: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()
        self._refunding: set[asyncio.Task[None]] = set()
        self._refunds_dropped = 0
        self._degraded: dict[str, int] = {}

    @staticmethod
    def directory_of(state_dir: Path, node: str) -> Path:
        """Where ``node`` keeps its rules and bases (see NodeFiles)."""
        return state_dir / ("node-" + re.sub(r"[^A-Za-z0-9_.-]", "_", node))

    # ---- life

    async def start(self) -> None:
        """Take up what is on disk and begin to beat.  Needs nothing else to be up."""
        await self._rules.load()
        self._heart.begin_with(self._rules.nodes_on_disk)
        self._heart.start()

    async def stop(self) -> None:
        """Deliver what is under way, pay what is owed and send the last totals.

        The store is its maker's to close.
        """
        await self._token_leases.stop()
        self._stopping.set()
        last = [task for task in (*self._refunding, self._offering, self._paying) if task is not None]
        if last:
            await asyncio.wait(last, timeout=REFUND_WAIT_S)
        await self._heart.stop()
        await self._rules.stop()
        leftover = [task for task in (*self._refunding, self._offering, self._paying) if task is not None]
        for task in leftover:
            task.cancel()
        await asyncio.gather(*leftover, return_exceptions=True)

    def _hear(self, point: str, reply: TouchReply) -> None:
        self._fallback.hear_consent(point.partition("/")[0], reply.consent_left_us, monotonic_ns() // 1000)
        self._rules.hear(point, reply)
        self._rules.keep_nodes(self._heart.nodes_most())

    def _hear_of_share(self, call: BucketCall, lease: TokenLease, asked_us: int, answered_us: int) -> None:
        if call.sharing is Sharing.ADAPTIVE:
            self._fallback.remember(call.key, lease, asked_us, answered_us)

    @property
    def ready(self) -> bool:
        """Whether a valid rule set has ever been in force here.  The store may be down."""
        return self._rules.ever_valid

    def status(self) -> LimiterStatus:
        return LimiterStatus(
            rules_version=self._rules.rules_version,
            base_version=self._rules.base_version,
            shards=[
                ShardStatus(point, "open" if self._store.breaker_open(point) else "closed", answered)
                for point, answered in self._heart.points.items()
            ],
            degraded=dict(self._degraded),
            refused_sets=self._rules.refused_sets,
            refused_domains=dict(self._rules.refused),
            refunds_dropped=self._refunds_dropped,
            debts_dropped=self._fallback.debts.dropped,
            demand_dropped=self._demand.dropped,
            shadows=self._shadows.counts(),
            leases=self._token_leases.counts(),
        )

    def _rules_changed(self) -> None:
        rules = self._rules
        self._planner.use(rules.in_force, rules.refused, max(0, rules.base_version), rules.bases)
        self._denials.clear()
        self._token_leases.clear()

    def _beat(self) -> NodeBeat:
        return NodeBeat(
            node=self._node,
            incarnation=self._incarnation,
            address=self._address,
            rules_version=self._rules.rules_version,
            base_version=self._rules.base_version,
            usage=self._rule_totals.snapshot(RULES_COUNTED),
            key_usage=self._key_totals.snapshot(KEYS_TOLD),
            library=self._store.version,
        )

    def give_rules(self, rule_sets: Iterable[RuleSet]) -> None:
        """Rules of this node's own, in place of those given before (:meth:`NodeRules.give`)."""
        self._rules.give(rule_sets)

    # ---- what callers ask

    def submit(self, check: Check, done: Done) -> None:
        """:meth:`check` by callback; ``done`` may be called before this returns.

        Raises InvalidCheck and RulesUnavailable, and then never calls ``done``.
        """
        asking: Asking | None = check.asking
        if asking is None or asking.generation != self._planner.generation:
            asking = self._asking(check, check.cost, check.request_id)
        self._ask(asking, check.request_id, done)

    def submit_plainly(self, check: Check, done: DonePlainly) -> None:
        """:meth:`submit` for callers to whom an Allowed says enough (its ``asking`` says what was asked)."""
        asking: Asking | None = check.asking
        if asking is None or asking.generation != self._planner.generation:
            asking = self._asking(check, check.cost, check.request_id)
        if asking.is_plain:
            self._ask_plainly(asking, done)
        else:
            self._ask(asking, check.request_id, done)

    def submit_together(self, asked: Sequence[Asked], done: DoneTogether) -> None:
        """Several checks as one request (``together.py``): all are charged or none.  As :meth:`submit` otherwise.

        The checks are of one domain, and have no ``request_id``.
        """
        plan = joint_plan(self._planner, asked)

        def told(answer: Answer | Exception) -> None:
            try:
                outcome: Together | Exception = answer if isinstance(answer, Exception) else plan.told(answer)
            except Exception as error:
                outcome = error
            done(outcome)

        self._ask(self._asking_by(plan, plan.cost, None, ""), None, told)

    def knows(self, domain: str) -> bool:
        """Whether ``domain`` has rules in force here."""
        return self._planner.knows(domain)

    async def check(self, check: Check) -> Answer:
        """May this happen now?  Charges when it may, and takes slots.

        Raises InvalidCheck (also for a request's id that asked for something else before) and RulesUnavailable.
        """
        asking: Asking | None = check.asking
        if asking is None or asking.generation != self._planner.generation:
            asking = self._asking(check, check.cost, check.request_id)
        if not asking.is_plain:
            return await settled(partial(self._ask, asking, check.request_id))
        told: Answer | Allowed = await settled(partial(self._ask_plainly, asking))
        return answer_in_full(told) if isinstance(told, Allowed) else told

    async def peek(self, check: Check) -> Answer:
        """A check of cost 0: changes nothing."""
        return await self._decide(check, 0, None)

    async def refund(self, check: Check) -> None:
        """Give ``check.cost`` back to every bucket that the check meets; slots only to the request that took them.

        Raises InvalidCheck, RulesUnavailable, and StoreUnavailable when some of it could not be delivered.
        """
        plan = self._planner.plan(check)
        holder = check.request_id or ""
        calls = plan.calls(check.cost, holder)
        if check.cost == 0:
            return
        for step in plan.shadows:
            with suppress(InvalidCheck):  # a cost that only this rule cannot take, which was not charged either
                self._refund_later([plan.call_of(step, check.cost)], shadow_request(step, check.request_id), None)
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

    async def renew(self, check: Check) -> bool:
        """A new lease for all slots that ``check.lease_id`` holds of what the check meets.

        False: it holds none any more of one of them, or the check meets none.  Raises InvalidCheck,
        RulesUnavailable, and StoreUnavailable: the lease may end as it was.
        """
        plan = self._planner.plan(check)
        groups = plan.with_holders(plan.calls(0, check.lease_id or ""))
        held = await all_of(self._store.renew(group) for group in groups)
        return bool(held) and all(map(all, held))

    async def release(self, check: Check) -> bool:
        """Free all slots that ``check.lease_id`` holds of what the check meets; whether it held any.

        Raises as :meth:`renew` does: what could not be freed is free when its lease ends.
        """
        plan = self._planner.plan(check)
        holder = check.lease_id or ""
        calls = [replace(call, cost=1) for call in plan.calls(0, holder)]
        here = [
            self._fallback.release(call, time_ns() // 1_000_000)
            for group in plan.with_holders(calls)
            for call in group
        ]
        held = await all_of(
            self._store.release([calls[place] for place in group], plan.request_id_of(group, holder) or "")
            for group in plan.groups
            if any(plan.steps[place].has_holders for place in group)
        )
        return any(here) or any(map(any, held))

    async def lend(self, check: Check, want: int, brought: Brought | None = None) -> Lent:
        """Lend ``want`` tokens or fewer for checks like this one, and take back what is ``brought``.

        What was spent of it is counted as allowed by this node.  Raises InvalidCheck, RulesUnavailable, and
        StoreUnavailable: nothing is lent, and what was brought may or may not be back.
        """
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
        self._hear_of_share(call, lease, asked_us, monotonic_ns() // 1000)
        if brought is not None and returned:
            self._count_lent(
                plan.steps[0].name, replace(call, cost=brought.tokens - brought.unspent), brought, lease
            )
        return lent(plan, call, lease)

    def _count_lent(self, name: str, call: BucketCall, brought: Brought, lease: TokenLease) -> None:
        self._rule_totals.add(name, True, call.cost, False, checks=brought.checks)
        if call.sharing is _WHOLE:
            return
        self._key_totals.add(call.key, True, call.cost, False, checks=brought.checks)
        told = Verdict(True, Reason.OK, lease.remaining, 0, lease.reset_after_ms, lease.share, lease.share_kind)
        if is_interesting(call, told):
            self._note_demand(call)

    async def reset(self, check: Check) -> list[str]:
        """Make every bucket that the check meets as if nothing had been used; their keys.

        A bucket that may follow a share is not deleted: where the share has shrunk, one that is not there holds
        less than a full one.  What is given back is more than any bucket can owe, twice because one that owes earns
        its way to 0 first.  Raises as :meth:`refund` does.
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

    async def inspect(self, check: Check) -> list[Inspection]:
        """How every bucket that the check meets stands.  Raises InvalidCheck and RulesUnavailable."""
        plan = self._planner.plan(check)
        calls = plan.calls(0)
        answer = await self._decide(check, 0, None)
        ttls = await asyncio.gather(*map(self._ttl_ms, calls))
        return [
            Inspection(step.rule.id, step.key, step.rule.algorithm, step.rule.capacity, told.verdict, ttl_ms)
            for step, told, ttl_ms in zip(plan.steps, answer.verdicts, ttls, strict=True)
        ]

    async def explain(self, check: Check) -> Explained:
        """Which rules apply to a check and why, how its buckets stand, and what it would be told if it came now.

        Nothing is charged, created or renewed.  Raises InvalidCheck and RulesUnavailable.
        """
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

    # ---- a decision

    async def _decide(self, check: Check, cost: int, request_id: str | None) -> Answer:
        return await settled(lambda done: self._ask(self._asking(check, cost, request_id), request_id, done))

    def _asking(self, check: Check, cost: int, request_id: str | None) -> Asking:
        """What to ask for a check.  Kept with it if it would ask the same again."""
        asking = self._asking_by(self._planner.plan(check), cost, request_id, check.lease_id or "")
        if asking is asking.plan.asking and cost == check.cost and check.request_id is None:
            object.__setattr__(check, "asking", asking)
        return asking

    def _asking_by(self, plan: Plan, cost: int, request_id: str | None, lease_id: str) -> Asking:
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

    def _ask(self, asking: Asking, request_id: str | None, done: Done) -> None:
        """Answer, or ask the store; :meth:`_combine` goes on when everything has been answered."""
        plan, calls = asking.plan, asking.calls
        if plan.shadows and asking.cost > 0:
            done = self._then_shadows(plan, asking.cost, request_id, done)
        if not calls:
            done(self._answer_without_store(plan, asking.cost))
            return
        asked_us = monotonic_ns() // 1000
        leases = self._token_leases
        if asking.may_lease and leases.table.holds and (leased := leases.spend(calls, asked_us)) is not None:
            done(self._answer(asking, leased))
            return
        denials = self._denials
        if asking.alone and denials.known and (denial := denials.verdict(calls[0], asked_us)) is not None:
            done(self._answer(asking, [denial]))
            return
        if plan.may_be_shed and any(map(self._calls.is_crowded, asking.prepared)):
            self._count_degraded("shed")
            told = [shed(call, step.rule.shed) for call, step in zip(calls, plan.steps, strict=True)]
            done(self._answer(asking, told))
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

    def _ask_plainly(self, asking: Asking, done: DonePlainly) -> None:
        """:meth:`_ask` where :attr:`Asking.is_plain`."""
        asked_us = monotonic_ns() // 1000
        leases = self._token_leases
        calls = asking.calls
        if (
            asking.may_lease
            and leases.table.holds
            and (leased := leases.spend_plainly(calls, asked_us)) is not None
        ):
            self._count_allowed(asking)
            leased.asking = asking
            done(leased)
            return
        denials = self._denials
        if asking.alone and denials.known and (denial := denials.verdict(asking.calls[0], asked_us)) is not None:
            done(self._answer(asking, [denial]))
            return
        if asking.plan.may_be_shed and self._calls.is_crowded(asking.prepared[0]):
            self._ask(asking, None, done)
            return
        decided = partial(self._decided_plainly, asking, asked_us, done)
        try:
            self._calls.submit_plainly(asking.prepared[0], decided)
        except Exception as error:
            decided(error)

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
            self._count_allowed(asking)
            outcome.asking = asking
        except Exception as error:
            told = error
        done(told)

    def _count_allowed(self, asking: Asking) -> None:
        """:meth:`_count` of a plain check that was allowed."""
        for name, cost in asking.counted:
            self._rule_totals.add_allowed(name, cost)

    def _submit(self, prepared: Any, decided: Decided) -> None:
        try:
            self._calls.submit(prepared, decided)
        except Exception as error:
            decided(error)

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

    def _then_shadows(self, plan: Plan, cost: int, request_id: str | None, done: Done) -> Done:
        def answered(answer: Answer | Exception) -> None:
            done(answer)
            if isinstance(answer, Answer) and answer.allowed:
                self._shadows.ask(plan, cost, request_id)

        return answered

    def _combine(
        self, asking: Asking, outcomes: Sequence[Outcome], request_id: str | None, asked_us: int
    ) -> Answer:
        plan, calls = asking.plan, asking.calls
        only = outcomes[0]
        if len(outcomes) == 1 and isinstance(only, list) and not plan.is_adaptive:
            return self._noted(asking, only, asked_us, degraded=False)
        verdicts = self._complete(plan, asking.cost, calls, outcomes, request_id, asked_us)
        return self._noted(asking, verdicts, asked_us, degraded=any(verdict.degraded for verdict in verdicts))

    def _noted(self, asking: Asking, verdicts: list[Verdict], asked_us: int, *, degraded: bool) -> Answer:
        """Remember of the verdicts what decides later checks, and answer."""
        # A limit that was raised while the store was asked must not meet the denial, or the lease, of the old one.
        if asking.generation == self._planner.generation:
            if asking.alone and not verdicts[0].allowed:
                self._denials.remember(asking.calls[0], verdicts[0], asked_us)
            if asking.may_lease and not degraded:
                self._token_leases.note(asking.calls, verdicts)
        return self._answer(asking, verdicts)

    def _complete(
        self,
        plan: Plan,
        cost: int,
        calls: Sequence[BucketCall],
        outcomes: Sequence[Outcome],
        request_id: str | None,
        asked_us: int,
    ) -> list[Verdict]:
        """The verdict of every rule, out of what the store answered for each group, or did not."""
        refused = next((outcome for outcome in outcomes if isinstance(outcome, OtherRequest)), None)
        if refused is not None:
            self._take_nothing(plan, calls, outcomes, request_id)
            raise refused
        verdicts: list[Verdict | None] = [None] * len(calls)
        decided: list[list[int]] = []
        failed: dict[int, tuple[str | None, StoreUnavailable]] = {}
        for group, outcome in zip(plan.groups, outcomes, strict=True):
            if isinstance(outcome, StoreUnavailable):
                self._count_degraded(outcome.cause)
                failed.update(dict.fromkeys(group, (plan.request_id_of(group, request_id), outcome)))
                continue
            if isinstance(outcome, Exception):
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
                self._refund_later(back, plan.request_id_of(group, request_id), outcome[0].turn)

    def _answer_without_store(self, plan: Plan, cost: int) -> Answer:
        if cost > 0:
            self._count_unlimited(plan, cost)
            if (blocked := plan.blocked) is not None:
                self._rule_totals.add(blocked.name, allowed=False, cost=blocked.cost_of(cost), degraded=False)
        return plan.answer_without_store()

    def _answer(self, asking: Asking, verdicts: Sequence[Verdict]) -> Answer:
        plan, cost = asking.plan, asking.cost
        if plan.has_variants:
            return self._answer_with_variants(plan, cost, asking.calls, softened(plan.steps, verdicts))
        answer = plan.combined(verdicts)
        if cost > 0:
            self._count(plan.steps, asking.calls, verdicts, answer.allowed)
            if answer.allowed and plan.unlimited:
                self._count_unlimited(plan, cost)
            if answer.allowed and plan.has_holders:
                answer = _with_lease(answer, asking.calls)
        return answer

    def _answer_with_variants(
        self, plan: Plan, cost: int, calls: Sequence[BucketCall], verdicts: Sequence[Verdict]
    ) -> Answer:
        answer = marked(plan.combined(verdicts))
        if cost == 0:
            return answer
        passed = [place for place, verdict in enumerate(verdicts) if verdict.reason is Reason.SOFT_LIMITED]
        for place in passed:
            self._count_row(plan.steps[place], SOFT, calls[place], replace(verdicts[place], allowed=False))
        others = [place for place in range(len(verdicts)) if place not in passed]
        steps, counted = [plan.steps[place] for place in others], [calls[place] for place in others]
        self._count(steps, counted, [verdicts[place] for place in others], answer.allowed)
        if answer.allowed:
            self._count_unlimited(plan, cost)
            if plan.has_holders:
                answer = _with_lease(answer, calls)
        return answer

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
                self._refund_later(back, plan.request_id_of(group, request_id), verdicts[group[0]].turn)

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
                nodes=self._heart.nodes_most(),
                charge=nobody_denied,
            )
            for place, verdict in zip(places, local, strict=True):
                verdicts[place] = verdict
        if self._fallback.owes and self._paying is None:
            self._paying = asyncio.get_running_loop().create_task(self._pay())

    # ---- counting

    def _count_degraded(self, cause: str) -> None:
        if cause not in self._degraded and len(self._degraded) >= CAUSES_MOST:
            cause = "other"
        self._degraded[cause] = self._degraded.get(cause, 0) + 1

    def _count_unlimited(self, plan: Plan, cost: int) -> None:
        for step in plan.unlimited:
            self._rule_totals.add(step.name, allowed=True, cost=step.cost_of(cost), degraded=False)

    def _count_shadow(self, step: Step, call: BucketCall, verdict: Verdict) -> None:
        self._count_row(step, SHADOW, call, verdict)

    def _count_row(self, step: Step, row: str, call: BucketCall, verdict: Verdict) -> None:
        """Count in a row beside the rule's own, which says only what was decided for callers."""
        if verdict.replayed:
            return
        self._rule_totals.add(step.name + row, verdict.allowed, call.cost, verdict.degraded)
        if call.sharing is _ADAPTIVE and is_interesting(call, verdict):
            self._note_demand(call)

    def _count(
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
            self._rule_totals.add(step.name, verdict.allowed, call.cost, degraded, at_floor)
            if step.is_canary:
                self._rule_totals.add(step.name + CANARY, verdict.allowed, call.cost, degraded, at_floor)
            if call.sharing is not _WHOLE:
                self._count_shared(call, verdict, degraded, at_floor)

    def _count_shared(self, call: BucketCall, verdict: Verdict, degraded: bool, at_floor: bool) -> None:
        """What the share protocol wants to know of a global rule."""
        self._key_totals.add(call.key, verdict.allowed, call.cost, degraded, at_floor)
        if at_floor:
            self._count_degraded("floor")
        if is_interesting(call, verdict):
            self._note_demand(call)

    def _note_demand(self, call: BucketCall) -> None:
        self._demand.add(call.key, call.cost)
        if self._offering is None:
            self._offering = asyncio.get_running_loop().create_task(self._offer())

    # ---- in the background

    async def _offer(self) -> None:
        """Hand on demand, at most every 20 ms, to any point that answers: the agent collects from all of them."""
        try:
            while self._demand:
                await asyncio.sleep(OFFER_EVERY_S)
                point = self._heart.reachable_point()
                if point is None:
                    continue
                costs = self._demand.take(OFFER_KEYS_MOST)
                try:
                    await self._store.offer(point, costs)
                except StoreUnavailable as error:
                    if not error.may_have_run:
                        self._demand.put_back(costs)
        except Exception:
            _log.exception("handing on demand failed")
        finally:
            self._offering = None

    async def _pay(self) -> None:
        """Charge what was decided without the store to its buckets, once they answer; a last time when stopped."""
        fallback = self._fallback
        try:
            is_last = False
            while fallback.owes and not is_last:
                with suppress(TimeoutError):
                    async with asyncio.timeout(PAY_EVERY_S):
                        is_last = await self._stopping.wait()
                now_ms = time_ns() // 1_000_000
                for owed in fallback.debts.requests(now_ms, OWED_AT_ONCE):
                    if await self._settle(owed):
                        fallback.debts.settled(owed)
                for call in fallback.owed(now_ms, OWED_AT_ONCE):
                    try:
                        charged = await self._calls.charge(call)
                    except StoreUnavailable:
                        fallback.postpone(call)
                        continue
                    except Exception:
                        # One that cannot be charged must not keep the others unpaid.
                        _log.exception("what was decided locally for %s cannot be charged", call.key)
                        charged = call.cost
                    fallback.paid(replace(call, cost=charged))
        except Exception:
            _log.exception("charging what was decided locally failed")
        finally:
            self._paying = None

    async def _settle(self, owed: RequestDebt) -> bool:
        """Charge what was decided locally for a request with an id; whether that is over."""
        try:
            await self._calls.settle(owed.calls, owed.request)
        except StoreUnavailable:
            return False
        except OtherRequest:
            return True  # its id has asked for something else since
        except Exception:
            _log.exception("what was decided locally for a request cannot be charged")
        return True

    def _refund_later(self, calls: list[BucketCall], request_id: str | None, turn: int | None) -> None:
        """A refund that cannot be delivered is dropped and counted: it errs to the strict side.

        A request that came again meanwhile was charged nothing then, so the charge is no longer to be given back
        for this ``turn`` of it, but for the later one if that was denied as well.
        """
        if len(self._refunding) >= REFUNDS_MOST:
            self._refunds_dropped += 1
            return
        task = asyncio.get_running_loop().create_task(self._refund_quietly(calls, request_id, turn))
        self._refunding.add(task)
        task.add_done_callback(self._refunding.discard)

    async def _refund_quietly(self, calls: list[BucketCall], request_id: str | None, turn: int | None) -> None:
        try:
            await self._calls.refund(calls, request_id, turn)
        except StoreUnavailable:
            self._refunds_dropped += 1
        except Exception:
            self._refunds_dropped += 1
            _log.exception("a refund failed")


def _unanswered(step: Step, call: BucketCall, request: str | None, error: StoreUnavailable) -> Unanswered:
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


def _with_lease(answer: Answer, calls: Sequence[BucketCall]) -> Answer:
    """The answer to a check that has taken slots."""
    taken = [call for call in calls if call.holder and call.cost]
    if not taken:
        return answer
    return replace(answer, lease_id=taken[0].holder, lease_ms=min(call.lease_ms or 0 for call in taken))
