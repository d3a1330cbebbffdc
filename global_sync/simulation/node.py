"""One check node: the real plans, token leases, denials, fallback and demand, put together as the limiter does it.

Rules in shadow or soft mode play no part.  Checks are decided at once (a region's Redis is near: the moment of the
decision is the moment of the check); what goes on beside them (touches, demand, token leases, what is owed) takes
its time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from random import Random

from global_sync.simulation.clock import Clock
from global_sync.simulation.links import Law
from global_sync.simulation.parts import Parts
from global_sync.simulation.redis import LIBRARY, Copy, RegionRedis, Shard
from global_sync.simulation.scheduler import Scheduler
from regional_limiter import engine
from regional_limiter.algorithms.token_lease import may_lease
from regional_limiter.denials import Denials
from regional_limiter.fallback import Unanswered
from regional_limiter.model.decision import Check, Verdict
from regional_limiter.model.share import ProtocolTimes
from regional_limiter.plan import DomainRules, Plan, Planner
from regional_limiter.rules import KnownSet, compile_rules, read_blob
from regional_limiter.store.base import KEYS_TOLD, BucketCall, NodeBeat, Sharing, TokenLease, TouchReply
from regional_limiter.store.memory import MemoryPoint
from regional_limiter.token_lease_table import Ask
from regional_limiter.usage import Demand, Totals, is_interesting

OFFER_EVERY_US = 20_000
SWEEP_EVERY_US = 10_000
PAY_EVERY_US = 500_000
OFFER_KEYS_MOST = 1000
SECRET = b"simulated-simulated"


class Node:
    """``law``: one way to the region's Redis.  ``disk_us``: how long it takes to store bases."""

    def __init__(
        self,
        name: str,
        redis: RegionRedis,
        scheduler: Scheduler,
        random: Random,
        times: ProtocolTimes,
        clock: Clock,
        law: Law,
        parts: Parts,
        library: str = LIBRARY,
    ) -> None:
        self.name = name
        self.clock = clock
        self.law = law
        self.disk_us = 1000
        self.is_cut = False
        self.clings: set[Copy] = set()
        """Copies that are no longer primary, and that it takes for one."""
        self.asked_old_primary = False
        """In the last check."""
        self.library = library
        self._parts = parts
        self._redis = redis
        self._scheduler = scheduler
        self._random = random
        self._touch_us = times.touch_us * 9 // 10
        self._times = times
        self.leased: Callable[[str, int], None] = lambda key, tokens: None
        """Told of every lease that Redis gives it."""
        self._life = 0
        self._regions_most: dict[str, int] = {}
        self.frozen_until_us = 0
        self.bases: Mapping[str, int] = {}
        self.base_version = -1
        self._on_disk: tuple[int, Mapping[str, int]] = (-1, {})
        self._nodes_on_disk = 1
        self._rules_on_disk: tuple[int, bytes] = (-1, b"")
        self._start()

    def _start(self) -> None:
        """A new process of it: what is on disk is all that it has."""
        self._life += 1
        self._domains: dict[str, DomainRules] = {}
        self._rules_version, content = self._rules_on_disk
        if content:
            self._domains = self._with_regions(_domains(content, self._redis.region))
        self._learning_bases = False
        self.base_version, self.bases = self._on_disk
        self.planner = Planner(SECRET)
        self.leases = self._parts.token_leases()
        self._fallback = self._parts.fallback(
            consent_us=self._times.consent_us, gap_us=self._times.gap_us, started_us=self.now_us()
        )
        self._denials = Denials()
        self._demand = Demand()
        self._totals = Totals(1000)
        self._key_totals = Totals(1000)
        self._silent_since: dict[str, int] = {}
        self._nodes_seen = self._parts.nodes_seen()
        self._nodes_seen.begin_with(self._nodes_on_disk)
        self._offering = self._sweeping = self._paying = False
        self._incarnation = self._random.randbytes(8).hex()
        self._use_rules()
        self._touch_all(self._life)

    def restart(self) -> None:
        """It is killed, with the token leases that it holds, and starts again."""
        self._start()

    def begin_anew(self) -> None:
        """Another machine takes its place, with an empty disk."""
        self._on_disk, self._rules_on_disk, self._nodes_on_disk = (-1, {}), (-1, b""), 1
        self._start()

    @property
    def frozen(self) -> bool:
        return self._scheduler.now_us < self.frozen_until_us

    def now_us(self) -> int:
        """Its steady clock."""
        return self.clock.read(self._scheduler.now_us)

    def _use_rules(self) -> None:
        self.planner.use(self._domains, {}, max(0, self.base_version), self.bases)
        self._denials = Denials()
        self.leases.clear()

    @property
    def ready(self) -> bool:
        return bool(self._domains)

    # ---- a check

    def check(self, check: Check) -> tuple[bool, Sequence[BucketCall], Sequence[Verdict]]:
        """Whether it is allowed, and what each of its rules said."""
        self.asked_old_primary = False
        plan = self.planner.plan(check)
        calls = plan.calls(check.cost)
        if not calls:
            return plan.blocked is None, calls, ()
        now_us = self.now_us()
        if len(calls) == 1 and (denial := self._denials.verdict(calls[0], now_us)) is not None:
            return self._answer(plan, calls, [denial])
        may_be_leased = check.cost > 0 and all(map(may_lease, calls))
        if may_be_leased and self.leases.holds and (spent := self.leases.spend(calls, now_us)) is not None:
            self._lease()
            return self._answer(plan, calls, spent)
        verdicts = self._ask(plan, calls, now_us)
        if len(calls) == 1 and not verdicts[0].allowed:
            self._denials.remember(calls[0], verdicts[0], now_us)
        if may_be_leased and not any(verdict.degraded for verdict in verdicts):
            for call, verdict in zip(calls, verdicts, strict=True):
                self.leases.note(call, verdict, now_us)
            self._lease()
        return self._answer(plan, calls, verdicts)

    def _ask(self, plan: Plan, calls: Sequence[BucketCall], now_us: int) -> list[Verdict]:
        verdicts: list[Verdict | None] = [None] * len(calls)
        answered: list[tuple[list[int], Copy]] = []
        failed: list[tuple[int, Shard]] = []
        for group in plan.groups:
            shard = self._redis.shard_of(calls[group[0]].key)
            copy = self._primary(shard)
            if copy is None:
                self._silent_since.setdefault(shard.copies[0].name, now_us)
                failed += [(place, shard) for place in group]
                continue
            self._silent_since.pop(shard.copies[0].name, None)
            told = self._point(copy).check(copy.now_us(), [calls[place] for place in group])
            answered.append((group, copy))
            for place, verdict in zip(group, told, strict=True):
                verdicts[place] = verdict
                if calls[place].sharing is Sharing.ADAPTIVE:
                    self._fallback.remember(calls[place].key, verdict, now_us, now_us)
        if failed:
            self._decide_locally(plan, calls, verdicts, failed, now_us)
        complete = [verdict for verdict in verdicts if verdict is not None]
        if len(plan.groups) > 1 and not all(verdict.allowed for verdict in complete):
            places = set(engine.to_give_back([group for group, _ in answered], calls, verdicts))
            for group, copy in answered:
                back = [calls[place] for place in group if place in places]
                if back:
                    self._point(copy).refund(copy.now_us(), back)
        return complete

    def _primary(self, shard: Shard) -> Copy | None:
        """The copy that this node takes for the shard's primary, if it answers."""
        copy = shard.copy
        if shard.old_primary is not None and shard.old_primary in self.clings:
            copy = shard.old_primary
            self.asked_old_primary = True
        return None if copy.stopped or self.is_cut or self.library not in copy.points else copy

    def _point(self, copy: Copy) -> MemoryPoint:
        """The functions that it calls there."""
        return copy.points[self.library]

    def _decide_locally(
        self,
        plan: Plan,
        calls: Sequence[BucketCall],
        verdicts: list[Verdict | None],
        failed: Sequence[tuple[int, Shard]],
        now_us: int,
    ) -> None:
        unanswered = [
            Unanswered(
                calls[place],
                plan.steps[place].rule.on_store_failure,
                True,
                shard.copy.name,
                self._silent_since.get(shard.copies[0].name),
            )
            for place, shard in failed
        ]
        local = self._fallback.decide(
            unanswered,
            now_ms=now_us // 1000,
            now_us=now_us,
            nodes=self._nodes_seen.most(),
            charge=all(verdict is None or verdict.allowed for verdict in verdicts),
        )
        for (place, _), verdict in zip(failed, local, strict=True):
            verdicts[place] = verdict
        if self._fallback.owes and not self._paying:
            self._paying = True
            self._scheduler.later(PAY_EVERY_US, self._pay, self._life)

    def _answer(
        self, plan: Plan, calls: Sequence[BucketCall], verdicts: Sequence[Verdict]
    ) -> tuple[bool, Sequence[BucketCall], Sequence[Verdict]]:
        allowed = True
        for verdict in verdicts:
            allowed = allowed and verdict.allowed
        for step, call, verdict in zip(plan.steps, calls, verdicts, strict=True):
            if verdict.allowed and not allowed and not call.charge_denied:
                continue
            self._totals.add(step.name, verdict.allowed, call.cost, verdict.degraded)
            if call.sharing is not Sharing.WHOLE:
                self._key_totals.add(call.key, verdict.allowed, call.cost, verdict.degraded)
            if call.sharing is Sharing.ADAPTIVE and is_interesting(call, verdict):
                self._demand.add(call.key, call.cost)
                if not self._offering:
                    self._offering = True
                    self._scheduler.later(OFFER_EVERY_US, self._offer, self._life)
        return allowed, calls, verdicts

    # ---- beside the checks

    def _later(self, act: Callable[[], None]) -> None:
        """``act`` one way later, if this process still lives then; when it is frozen, when it goes on."""
        life = self._life

        def run() -> None:
            if life != self._life:
                return
            if self.frozen:
                self._scheduler.later(self.frozen_until_us - self._scheduler.now_us, run)
            else:
                act()

        self._scheduler.later(self.law.draw(self._random), run)

    def _is_over(self, life: int, again: Callable[[int], None]) -> bool:
        """Whether the process that planned this has ended; a frozen one does it when it goes on."""
        if life == self._life and self.frozen:
            self._scheduler.later(self.frozen_until_us - self._scheduler.now_us, again, life)
            return True
        return life != self._life

    def _touch_all(self, life: int) -> None:
        if self._is_over(life, self._touch_all):
            return
        beat = NodeBeat(
            self.name,
            self._incarnation,
            "",
            self._rules_version,
            self.base_version,
            self._totals.snapshot(1000),
            self._key_totals.snapshot(KEYS_TOLD),
            library=self.library,
        )
        for shard in self._redis.shards:
            self._scheduler.later(self.law.draw(self._random), self._touch, shard, beat, life)
        self._scheduler.later(self._touch_us, self._touch_all, life)

    def _touch(self, shard: Shard, beat: NodeBeat, life: int) -> None:
        copy = self._primary(shard)
        if copy is not None:
            reply = self._point(copy).touch(copy.now_us(), beat)
            if life == self._life:
                self._later(lambda: self._hear(copy, reply))

    def _hear(self, copy: Copy, reply: TouchReply) -> None:
        now_us = self.now_us()
        self._nodes_seen.note(now_us, reply.nodes)
        self._nodes_on_disk = self._nodes_seen.most()
        self._fallback.hear_consent(copy.name, reply.consent_left_us, now_us)
        if reply.base_version > self.base_version and not self._learning_bases:
            self._learning_bases = True
            self._scheduler.later(self.disk_us, self._stored, reply.base_version, dict(reply.bases), self._life)
        if reply.rules_version > self._rules_version and self.library in copy.points:
            version, content = self._point(copy).fetch_rules(copy.now_us())
            if version > self._rules_version:
                self._rules_version, self._rules_on_disk = version, (version, content)
                self._domains = self._with_regions(_domains(content, self._redis.region))
                self._use_rules()

    def _with_regions(self, domains: Mapping[str, DomainRules]) -> dict[str, DomainRules]:
        """As many regions as there ever were: one that was taken out may still use its base for a while."""
        for name, rules in domains.items():
            self._regions_most[name] = max(rules.regions, self._regions_most.get(name, 1))
        return {name: replace(rules, regions=self._regions_most[name]) for name, rules in domains.items()}

    def _stored(self, version: int, bases: Mapping[str, int], life: int) -> None:
        self._on_disk = (version, bases)
        if life == self._life:
            self._learning_bases = False
            self.base_version, self.bases = version, bases
            self._use_rules()

    def _offer(self, life: int) -> None:
        if self._is_over(life, self._offer):
            return
        copy = next(
            (copy for shard in self._redis.shards if (copy := self._primary(shard)) is not None),
            None,
        )
        if copy is not None:
            self._point(copy).offer(copy.now_us(), self._demand.take(OFFER_KEYS_MOST))
        self._offering = bool(self._demand)
        if self._offering:
            self._scheduler.later(OFFER_EVERY_US, self._offer, life)

    def _lease(self) -> None:
        leases = self.leases
        if leases.due:
            for ask in leases.asks():
                self._scheduler.later(self.law.draw(self._random), self._lease_call, ask, self.now_us(), self._life)
        if leases.busy and not self._sweeping:
            self._sweeping = True
            self._scheduler.later(SWEEP_EVERY_US, self._sweep, self._life)

    def _lease_call(self, ask: Ask, asked_us: int, life: int) -> None:
        copy = self._primary(self._redis.shard_of(ask.call.key))
        if copy is None:
            if life == self._life:
                self.leases.failed(ask, self.now_us())
            return
        lease = self._point(copy).lease(copy.now_us(), ask.call, ask.want, ask.returned)
        self.leased(ask.call.key, lease.tokens)
        if life == self._life:
            self._later(lambda: self._granted(ask, lease, asked_us))

    def _granted(self, ask: Ask, lease: TokenLease, asked_us: int) -> None:
        now_us = self.now_us()
        self.leases.granted(ask, lease, asked_us, now_us)
        if ask.call.sharing is Sharing.ADAPTIVE:
            self._fallback.remember(ask.call.key, lease, asked_us, now_us)
        self._lease()

    def _sweep(self, life: int) -> None:
        if self._is_over(life, self._sweep):
            return
        self._sweeping = False
        self.leases.sweep(self.now_us())
        self._lease()

    def _pay(self, life: int) -> None:
        if self._is_over(life, self._pay):
            return
        for call in self._fallback.owed(self.now_us() // 1000, 200):
            copy = self._primary(self._redis.shard_of(call.key))
            if copy is None:
                self._fallback.postpone(call)
            else:
                self._point(copy).check(copy.now_us(), [replace(call)])
                self._fallback.paid(call)
        self._paying = self._fallback.owes
        if self._paying:
            self._scheduler.later(PAY_EVERY_US, self._pay, life)


_COMPILED: dict[tuple[bytes, str], dict[str, DomainRules]] = {}
_COMPILED_MOST = 100


def _domains(content: bytes, region: str) -> dict[str, DomainRules]:
    """The rules as a node of ``region`` uses them; the same for every node, so kept."""
    known = _COMPILED.get((content, region))
    if known is None:
        if len(_COMPILED) >= _COMPILED_MOST:
            _COMPILED.clear()
        sets: Mapping[str, KnownSet] = read_blob(content, {}).sets
        known = _COMPILED[content, region] = {
            name: DomainRules(
                entry.version,
                entry.rule_set,
                compile_rules(entry.rule_set),
                max(1, len(entry.rule_set.regions)),
                entry.rule_set.largest_share(region),
                region,
            )
            for name, entry in sets.items()
        }
    return known
