"""A node's limiter: rules -> engine -> store -> decision.  I/O.

One check, in order: match the rules, make their keys, ask the store once for each hash tag (all at the same time,
under one deadline), let the fallback decide for what did not answer, combine, and give back what was charged in
vain.  Beside it run the heartbeat, the delivery of refunds and the handing on of demand.

Here the parts are put together and named to callers.  A check is decided in ``deciding.py``, with ``completing.py``
for what the store did not answer and ``counted_answers.py`` for the answer.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from time import monotonic_ns

from regional_limiter.completing import Completing
from regional_limiter.debt_payments import DebtPayments
from regional_limiter.deciding import Deciding, Done, DonePlainly
from regional_limiter.demand_offers import DemandOffers
from regional_limiter.denials import Denials
from regional_limiter.fallback import Fallback
from regional_limiter.giving_back import GivingBack
from regional_limiter.heartbeat import Heartbeat
from regional_limiter.home_calls import HomeCalls, HomeStore, NoHomes, rules_without_homes
from regional_limiter.inspecting import Explained, ExplainedStep, Inspecting, Inspection
from regional_limiter.lending import Brought, Lent
from regional_limiter.lending_calls import LendingCalls
from regional_limiter.limiter_status import LimiterStatus, ShardStatus
from regional_limiter.model.decision import Answer, Check, Verdict
from regional_limiter.model.rule import RuleSet
from regional_limiter.model.share import ProtocolTimes
from regional_limiter.node_counts import NodeCounts
from regional_limiter.node_rules import NodeRules
from regional_limiter.plan import Asking, Planner, answer_in_full
from regional_limiter.quota import NoQuota, Quota, quota_of
from regional_limiter.refunds import REFUNDS_MOST, Refunds
from regional_limiter.shadow import Shadows
from regional_limiter.slots import Slots
from regional_limiter.split_calls import SplitCalls
from regional_limiter.store.base import (
    Allowed,
    BucketCall,
    CheckStore,
    NodeBeat,
    Sharing,
    SubmittingStore,
    TokenLease,
    TouchReply,
)
from regional_limiter.store.subjects import SubjectLookup
from regional_limiter.subject_cache import CLIENTS_MOST
from regional_limiter.subject_lookups import SubjectLookups
from regional_limiter.submitting import InTasks, settle, settled
from regional_limiter.together import Asked, Together, joint_plan
from regional_limiter.token_lease_calls import TokenLeaseCalls

__all__ = [
    "Done",
    "DonePlainly",
    "DoneTogether",
    "Explained",
    "ExplainedStep",
    "Inspection",
    "Limiter",
    "LimiterStatus",
    "ShardStatus",
]

STOP_WAIT_S = 1.0
SUBJECT_WAIT = 0.5
"""Of a check's deadline: how long it waits for what is known of its client."""

DoneTogether = Callable[[Together | Exception], None]
"""As Done, of several checks as one request."""


class Limiter:
    """Decides checks of one region.

    ``secret``: the deployment's key secret.  ``state_dir``: where the node keeps its rules and bases (in a
    directory of its own).  ``deadline_s``: the most that a check waits for a store that keeps no deadline of its
    own (see SubmittingStore).  ``homes``: asks other regions for what is there, within ``home_deadline_s``; None:
    nobody does, and such checks find their home unreachable.
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
        homes: HomeStore | None = None,
        home_deadline_s: float = 1.0,
    ) -> None:
        self._store = store
        self._node = node
        self._address = address
        self._incarnation = secrets.token_hex(8)
        self._beats = count(1)
        self.traces: Callable[[], Sequence[str]] = tuple
        """Of checks of global rules that were traced lately: told to the agent with the next beat."""
        # A check that waits for it and is then asked still comes back in time.
        lookup = store if isinstance(store, SubjectLookup) else None
        self._subjects = SubjectLookups(lookup, SUBJECT_WAIT * deadline_s)
        submitting = store if isinstance(store, SubmittingStore) else InTasks(store, deadline_s)
        self._without_homes: Mapping[str, frozenset[str]] | None = None
        """By domain; made when it is first asked for."""
        there = HomeCalls(store, homes or NoHomes(), home_deadline_s)
        self._calls = calls = SplitCalls(store, submitting, deadline_s, homes=there)
        self._rules = NodeRules(region, store, self.directory_of(state_dir, node), self._rules_changed)
        self._planner = planner = Planner(secret)
        # A little more often than asked for, so that a late turn is still in time.
        self._heart = Heartbeat(store, times.touch_us * 0.9 / 1_000_000, self._beat, self._hear)
        self._fallback = fallback = Fallback(
            consent_us=times.consent_us, gap_us=times.gap_us, started_us=monotonic_ns() // 1000
        )
        self._denials = denials = Denials()
        self._token_leases = leases = TokenLeaseCalls(calls, deadline_s, self._hear_of_share)

        self._offers = DemandOffers(store, self._heart.reachable_point)
        self._payments = DebtPayments(calls, fallback)
        self._refunds = refunds = Refunds(calls)
        self._counts = counts = NodeCounts(self._offers.add)
        self._shadows = shadows = Shadows(calls, counts.shadow)

        completing = Completing(fallback, counts, refunds, self._payments, self._heart.nodes_most)
        self._deciding = Deciding(planner, calls, leases, denials, shadows, counts, completing)
        self._giving_back = GivingBack(planner, calls, fallback, denials, refunds)
        self._slots = Slots(planner, calls, fallback)
        self._lending = LendingCalls(planner, store, counts, deadline_s, self._hear_of_share)
        self._inspecting = Inspecting(planner, calls, leases, self.peek)

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
        self._payments.stopping.set()
        if last := self._under_way():
            await asyncio.wait(last, timeout=STOP_WAIT_S)
        await self._heart.stop()
        await self._rules.stop()
        leftover = self._under_way()
        for task in leftover:
            task.cancel()
        await asyncio.gather(*leftover, return_exceptions=True)

    def _under_way(self) -> list[asyncio.Task[None]]:
        tasks = (*self._refunds.tasks, self._offers.task, self._payments.task)
        return [task for task in tasks if task is not None]

    def _beat(self) -> NodeBeat:
        return NodeBeat(
            node=self._node,
            incarnation=self._incarnation,
            address=self._address,
            rules_version=self._rules.rules_version,
            base_version=self._rules.base_version,
            usage=self._counts.usage(),
            key_usage=self._counts.key_usage(),
            library=self._store.version,
            windows=self._counts.windows(monotonic_ns() // 1000),
            told=next(self._beats),
            traces=tuple(self.traces()),
        )

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
            degraded=self._counts.degraded_by_cause(),
            refused_sets=self._rules.refused_sets,
            refused_domains=dict(self._rules.refused),
            refunds_dropped=self._refunds.dropped,
            debts_dropped=self._fallback.debts.dropped,
            demand_dropped=self._offers.dropped,
            shadows=self._shadows.counts(),
            leases=self._token_leases.counts(),
            subjects=self._subjects.counts,
            tables={
                "plans": self._planner.filled,
                "denials": self._denials.filled,
                "token_leases": self._token_leases.table.filled,
                "fallback": self._fallback.filled,
                "debts": self._fallback.debts.filled,
                "demand": self._offers.filled,
                "refunds": (len(self._refunds.tasks), REFUNDS_MOST),
                "split_keys": self._calls.filled,
                "subjects": (self._subjects.kept, CLIENTS_MOST),
                **self._counts.filled(),
            },
        )

    # ---- rules

    def _rules_changed(self) -> None:
        rules = self._rules
        self._subjects.use(rules.in_force)
        self._without_homes = None
        self._planner.use(rules.in_force, rules.refused, max(0, rules.base_version), rules.bases)
        self._denials.clear()
        self._token_leases.clear()

    def give_rules(self, rule_sets: Iterable[RuleSet]) -> None:
        """Rules of this node's own, in place of those given before (:meth:`NodeRules.give`)."""
        self._rules.give(rule_sets)

    def knows(self, domain: str) -> bool:
        """Whether ``domain`` has rules in force here."""
        return self._planner.knows(domain)

    # ---- checks

    def submit(self, check: Check, done: Done) -> None:
        """:meth:`check` by callback; ``done`` may be called before this returns.

        Raises InvalidCheck and RulesUnavailable, and then never calls ``done``.
        """
        if self._subjects.is_needed:
            self._knowing(check, partial(self._submit, done=done), done)
        else:
            self._submit(check, done)

    def _submit(self, check: Check, done: Done) -> None:
        self._deciding.ask(self._asking(check), check.request_id, done)

    def _asking(self, check: Check) -> Asking:
        asking: Asking | None = check.asking
        if asking is None or asking.generation != self._planner.generation:
            asking = self._deciding.asking(check, check.cost, check.request_id)
        return asking

    def _knowing(self, check: Check, ask: Callable[[Check], None], done: Callable[[Exception], None]) -> None:
        """Ask with what is known of the check's client.

        Raises InvalidCheck and RulesUnavailable; of what is wrong only with what is known, ``done`` is told.
        """
        known = self._subjects.at_once(check)
        if known is not None:
            ask(known)
            return
        self._planner.plan(check)

        def then(completed: Check) -> None:
            try:
                ask(completed)
            except Exception as error:
                done(error)

        self._subjects.complete(check, then)

    async def _known(self, check: Check) -> Check:
        """The check with what is known of its client.  Raises InvalidCheck and RulesUnavailable."""
        known = self._subjects.at_once(check)
        if known is not None:
            return known
        self._planner.plan(check)
        found: asyncio.Future[Check] = asyncio.get_running_loop().create_future()
        self._subjects.complete(check, partial(settle, found))
        return await found

    def submit_plainly(self, check: Check, done: DonePlainly) -> None:
        """:meth:`submit` for callers to whom an Allowed says enough (its ``asking`` says what was asked)."""
        if self._subjects.is_needed:
            self._knowing(check, partial(self._submit_plainly, done=done), done)
        else:
            self._submit_plainly(check, done)

    def leased(self, check: Check) -> Allowed | None:
        """The answer to a check that token leases decide at once, counted.  None: it is to be submitted."""
        if not self._token_leases.table.holds:
            return None
        asking: Asking | None = check.asking
        if asking is None or self._subjects.is_needed or asking.generation != self._planner.generation:
            return None
        return self._deciding.leased(asking)

    def _submit_plainly(self, check: Check, done: DonePlainly) -> None:
        asking = self._asking(check)
        if asking.is_plain:
            self._deciding.ask_plainly(asking, done)
        else:
            self._deciding.ask(asking, check.request_id, done)

    def submit_together(self, asked: Sequence[Asked], done: DoneTogether) -> None:
        """Several checks as one request (``together.py``): all are charged or none.  As :meth:`submit` otherwise.

        The checks are of one domain, and have no ``request_id``.
        """
        if all(self._subjects.at_once(one.check) is not None for one in asked):
            self._submit_together([self._knows_of(one) for one in asked], done)
            return
        joint_plan(self._planner, asked)  # raises as this does
        left = len(asked)

        def known(_: Check) -> None:
            nonlocal left
            left -= 1
            if left:
                return
            try:
                self._submit_together([self._knows_of(one) for one in asked], done)
            except Exception as error:
                done(error)

        for one in asked:
            if (at_once := self._subjects.at_once(one.check)) is not None:
                known(at_once)
            else:
                self._subjects.complete(one.check, known)

    def _knows_of(self, asked: Asked) -> Asked:
        return asked._replace(check=self._subjects.known(asked.check))

    def _submit_together(self, asked: Sequence[Asked], done: DoneTogether) -> None:
        plan = joint_plan(self._planner, asked)

        def told(answer: Answer | Exception) -> None:
            try:
                outcome: Together | Exception = answer if isinstance(answer, Exception) else plan.told(answer)
                for step, cost in plan.turned_away:
                    self._counts.blocked(step, cost)
            except Exception as error:
                outcome = error
            done(outcome)

        self._deciding.ask(self._deciding.asking_by(plan, plan.cost, None, ""), None, told)

    async def check(self, check: Check) -> Answer:
        """May this happen now?  Charges when it may, and takes slots.

        Raises InvalidCheck (also for a request's id that asked for something else before) and RulesUnavailable.
        """
        if self._subjects.is_needed:
            check = await self._known(check)
        asking = self._asking(check)
        if not asking.is_plain:
            return await settled(partial(self._deciding.ask, asking, check.request_id))
        told: Answer | Allowed | None = self._deciding.leased(asking)
        if told is None:
            future: asyncio.Future[Answer | Allowed] = asyncio.get_running_loop().create_future()
            self._deciding.ask_unleased(asking, partial(settle, future))
            told = await future
        return answer_in_full(told) if isinstance(told, Allowed) else told

    async def peek(self, check: Check) -> Answer:
        """A check of cost 0: changes nothing."""
        check = await self._known(check)
        return await settled(partial(self._deciding.ask, self._deciding.asking(check, 0, None), None))

    # ---- for nodes of other regions

    def is_asked_here(self, domain: str, rule: str) -> bool:
        """Whether other regions may ask here for buckets of that rule: not if it is known and has no homes.

        One that is not known yet is decided all the same: the region that asks knows its numbers.
        """
        if self._without_homes is None:
            self._without_homes = rules_without_homes(self._rules.in_force)
        return rule not in self._without_homes.get(domain, ())

    async def check_here(self, calls: Sequence[BucketCall], request_id: str | None) -> list[Verdict]:
        """Decide a check of another region, whose buckets are here.  It is counted there.

        Raises OtherRequest and StoreUnavailable.
        """
        prepared = self._calls.prepare(calls, request_id)
        told: list[Verdict] = await settled(partial(self._calls.submit, prepared))
        return told

    async def refund_here(self, calls: Sequence[BucketCall], request_id: str | None, turn: int | None) -> None:
        """Raises StoreUnavailable."""
        for call in calls:
            self._denials.forget(call.key)
        await self._calls.refund(calls, request_id, turn)

    async def renew_here(self, calls: Sequence[BucketCall]) -> list[bool]:
        """Raises StoreUnavailable."""
        return await self._calls.renew(calls)

    async def release_here(self, calls: Sequence[BucketCall], request_id: str) -> list[bool]:
        """Raises StoreUnavailable."""
        return await self._calls.release(calls, request_id)

    async def drop_here(self, call: BucketCall) -> None:
        """Raises StoreUnavailable."""
        self._denials.forget(call.key)
        await self._calls.drop(call)

    # ---- beside checks

    async def refund(self, check: Check) -> None:
        """Give ``check.cost`` back to every bucket that the check meets; slots only to the request that took them.

        Raises InvalidCheck, RulesUnavailable, and StoreUnavailable when some of it could not be delivered.
        """
        await self._giving_back.refund(await self._known(check))

    async def reset(self, check: Check) -> list[str]:
        """Make every bucket that the check meets as if nothing had been used; their keys.

        Raises as :meth:`refund` does.
        """
        return await self._giving_back.reset(await self._known(check))

    async def renew(self, check: Check) -> bool:
        """A new lease for all slots that ``check.lease_id`` holds of what the check meets.

        False: it holds none any more of one of them, or the check meets none.  Raises InvalidCheck,
        RulesUnavailable, and StoreUnavailable: the lease may end as it was.
        """
        return await self._slots.renew(await self._known(check))

    async def release(self, check: Check) -> bool:
        """Free all slots that ``check.lease_id`` holds of what the check meets; whether it held any.

        Raises as :meth:`renew` does: what could not be freed is free when its lease ends.
        """
        return await self._slots.release(await self._known(check))

    async def lend(self, check: Check, want: int, brought: Brought | None = None) -> Lent:
        """Lend ``want`` tokens or fewer for checks like this one, and take back what is ``brought``.

        What was spent of it is counted as allowed by this node.  Raises InvalidCheck, RulesUnavailable, and
        StoreUnavailable: nothing is lent, and what was brought may or may not be back.
        """
        return await self._lending.lend(await self._known(check), want, brought)

    @property
    def quota_version(self) -> tuple[int, int]:
        """Another whenever :meth:`quota` may say something else."""
        return self._planner.generation, self._heart.nodes_most()

    def quota(self, check: Check) -> Quota | NoQuota:
        """What this node may hand on for checks like this one.  Raises InvalidCheck and RulesUnavailable."""
        return quota_of(self._planner.plan(self._subjects.known(check)), self._heart.nodes_most())

    def count_quota(self, rule: str, allowed: int, denied: int) -> None:
        """Gateways have decided so by what was handed on of ``rule`` ("domain/id")."""
        self._counts.handed_on(rule, allowed, denied)

    async def inspect(self, check: Check) -> list[Inspection]:
        """How every bucket that the check meets stands.  Raises InvalidCheck and RulesUnavailable."""
        return await self._inspecting.inspect(await self._known(check))

    async def explain(self, check: Check) -> Explained:
        """Which rules apply to a check and why, how its buckets stand, and what it would be told if it came now.

        Nothing is charged, created or renewed.  Raises InvalidCheck and RulesUnavailable.
        """
        return await self._inspecting.explain(await self._known(check))
