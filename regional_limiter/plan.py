"""What a check asks of the store: which rules it meets, in which buckets, in how many calls.  Pure.

The same attributes lead to the same plan until rules or bases change, so plans are kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from hashlib import blake2b
from itertools import count
from math import ceil
from typing import Any, NamedTuple

from regional_limiter import engine
from regional_limiter.algorithms.registry import ALGORITHMS
from regional_limiter.algorithms.token_lease import may_lease
from regional_limiter.model.decision import (
    COST_MOST,
    VALUE_BYTES_MOST,
    Answer,
    Check,
    Reason,
    RuleVerdict,
    Verdict,
)
from regional_limiter.model.errors import InvalidCheck, RulesUnavailable
from regional_limiter.model.home import Elsewhere
from regional_limiter.model.keys import bucket_key, tag_of
from regional_limiter.model.rule import Distribution, MeasuredCost, Mode, Priority, Rule, RuleSet, Scope
from regional_limiter.model.share import SHARE_UNITS, WINDOW_POOL, floor_name, left_over, window_static
from regional_limiter.rules import Matcher, grammar
from regional_limiter.rules.judged import Judged, judged
from regional_limiter.rules.normal import normalised
from regional_limiter.rules.values import number_of
from regional_limiter.store.base import Allowed, BucketCall, Sharing

ATTRIBUTES_MOST = 64
PLAN_BYTES = 1000
"""About what a plan takes with what was asked by it last, and each step of it, beside its texts."""

ID_BYTES_MOST = 128
"""Of a request's id, and of a lease's."""
DOMAIN_EXPECTED = grammar.NAME_EXPECTED

_GENERATIONS = count()
_OK = Reason.OK


class OwnPart(NamedTuple):
    """What a region has of a domain when nobody says anything, as of ``version``.  ``floor``: what the set names as
    never lent of it; 0: the usual part."""

    version: int
    base: int
    floor: int


@dataclass(frozen=True, slots=True)
class DomainRules:
    """One domain, compiled for ``region``."""

    version: int
    rule_set: RuleSet
    matcher: Matcher
    regions: int
    largest_share: int
    region: str = ""
    names: frozenset[str] = field(init=False)
    """The attributes that matter to a plan.  One that only measures a cost does not: it is read for each check."""

    def __post_init__(self) -> None:
        names = {condition.attribute for rule in self.rule_set.rules for condition in rule.match}
        names.update(name for rule in self.rule_set.rules for name in rule.key)
        # Defaults and what is known of a subject only matter as what rules match, or as keys.
        names.update(name for subject in self.rule_set.subjects for name in subject.where)
        object.__setattr__(self, "names", frozenset(names))

    def home(self, rule: Rule, attributes: Mapping[str, str], key_hash: bytes) -> Elsewhere | None:
        """Which region has the one bucket of such a check, this one or another; None: each has its own."""
        homes = rule.homes
        if homes is None or not self.region:
            return None
        home = homes.of(attributes, key_hash, self.rule_set.bases)
        return Elsewhere(home, self.rule_set.addresses.get(home, ""), homes.allows_unreachable)


class Step:
    """One rule that a check meets, as it is for its key, and the bucket that it meets it in.

    ``home``: the region that has the one bucket of the key; "": each has its own.  ``elsewhere``: set where that is
    another region.
    ``measured``: the cost that the rule reads off the check's attributes; None where it goes by the check's cost.
    """

    __slots__ = (
        "_added",
        "_call",
        "_domain",
        "_home",
        "_measured",
        "elsewhere",
        "has_holders",
        "home",
        "is_canary",
        "key",
        "key_hash",
        "name",
        "rule",
        "sharing",
    )

    def __init__(
        self,
        rule: Rule,
        domain: DomainRules,
        key: str,
        key_hash: bytes,
        measured: int | None = None,
        *,
        is_canary: bool = False,
        home: Elsewhere | None = None,
    ) -> None:
        self.rule = rule
        self._home = home
        self.home = "" if home is None else home.region
        self.elsewhere = None if self.home == domain.region else home
        self.is_canary = is_canary
        self._measured = measured
        self._added = rule.cost if isinstance(rule.cost, int) else 0
        self.key = key
        self.key_hash = key_hash
        self.name = f"{rule.domain}/{rule.id}"
        self.sharing = _sharing(rule)
        self._domain = domain
        self.has_holders = ALGORITHMS[rule.algorithm].holder
        self._call: BucketCall | None = None

    def call(self, cost: int, own: OwnPart, holder: str = "") -> BucketCall:
        """The call for ``cost``; the last one is kept, since most checks cost the same.

        ``holder``: who takes or gives back, if the rule's kind has holders.
        """
        call = self._call
        if not self.has_holders:
            holder = ""
        if call is None or call.cost != cost or call.holder != holder:
            rule, domain = self.rule, self._domain
            base = own.base
            shared, adaptive = self.sharing is not Sharing.WHOLE, self.sharing is Sharing.ADAPTIVE
            call = self._call = BucketCall(
                key=self.key,
                algorithm=rule.algorithm,
                capacity=rule.capacity,
                refill=rule.refill,
                window_ms=rule.window_ms,
                cost=cost,
                charge_denied=rule.charge_denied,
                sharing=self.sharing,
                regions=domain.regions if shared else 1,
                largest_share=self._largest_share(base) if adaptive else SHARE_UNITS,
                domain=rule.domain,
                base_version=own.version if shared else 0,
                base=base if shared else SHARE_UNITS,
                floor=own.floor if adaptive else 0,
                extra=self._extra(base),
                queue=rule.queue,
                calendar=rule.calendar,
                lease_ms=rule.lease_ms,
                holder=holder,
                split=rule.split,
                elsewhere=self.elsewhere,
            )
        return call

    def measured(self, attributes: Mapping[str, str]) -> Step:
        """The same step at the cost that its rule reads off ``attributes``.  Raises InvalidCheck naming one."""
        cost = self.rule.cost
        if isinstance(cost, int):
            return self
        measured = measured_cost(self.rule, cost, attributes)
        return Step(
            self.rule,
            self._domain,
            self.key,
            self.key_hash,
            measured,
            is_canary=self.is_canary,
            home=self._home,
        )

    def cost_of(self, cost: int) -> int:
        """What the rule charges for a check of ``cost``; 0 peeks at every rule.  Raises InvalidCheck."""
        if cost == 0:
            return 0
        if self._measured is not None:
            return self._measured
        if cost + self._added > COST_MOST:
            raise InvalidCheck("cost", f"at most {COST_MOST} with the {self._added} that rule {self.rule.id} adds")
        return cost + self._added

    @property
    def costs_as_asked(self) -> bool:
        """Whether the rule charges what the check says, neither more nor less."""
        return self._added == 0 and self._measured is None

    def _largest_share(self, base: int) -> int:
        if ALGORITHMS[self.rule.algorithm].window_of is not None:
            return window_static(base) + WINDOW_POOL
        return self._domain.largest_share

    def _extra(self, base: int) -> int:
        """What rounding left over of a static limit in whole units, while the bases are those of the rules."""
        domain = self._domain
        bases = domain.rule_set.bases
        settled = domain.regions == len(bases) and base == bases.get(domain.region)
        if self.sharing is not Sharing.STATIC or self.rule.refill is not None or not settled:
            return 0
        return left_over(self.rule.capacity, bases, domain.region)


def _sharing(rule: Rule) -> Sharing:
    if rule.scope is Scope.REGION or rule.distribution is Distribution.HOME:
        return Sharing.WHOLE
    return Sharing.ADAPTIVE if rule.distribution is Distribution.ADAPTIVE else Sharing.STATIC


class Asking:
    """What is asked of the store for ``cost``, and all that is known of it beforehand.

    ``prepared``: by group, as the store prepares it.  ``may_lease``: token leases may decide it.  ``alone``: one
    rule decides, and what it denies may be remembered.  ``is_plain``: the verdicts of one call of the store are
    all that there is to it.  ``generation``: of its plan.  ``counted``: rule, key and cost of each call; ``noted``:
    how often they were allowed and are not counted yet.  ``told`` is what whoever tells the answers keeps with it.
    """

    __slots__ = (
        "alone",
        "calls",
        "cost",
        "counted",
        "generation",
        "is_plain",
        "may_lease",
        "noted",
        "plan",
        "prepared",
        "told",
    )

    def __init__(
        self, plan: Plan, cost: int, calls: list[BucketCall], prepared: list[Any], request_id: str | None
    ) -> None:
        self.told: Any = None
        self.noted = 0
        self.plan = plan
        self.generation = plan.generation
        self.cost = cost
        self.calls = calls
        self.prepared = prepared
        charges = cost > 0 and request_id is None and bool(calls)
        # Never for a request that may come again: its answer is the store's to remember.
        self.may_lease = charges and all(call.cost > 0 and may_lease(call) for call in calls)
        # Of several rules, each has to say how long its own wait is.
        self.alone = charges and len(calls) == 1
        self.is_plain = charges and len(prepared) == 1 and plan.is_plain
        self.counted = [(step.name, call.key, call.cost) for step, call in zip(plan.steps, calls, strict=True)]


def answer_in_full(allowed: Allowed) -> Answer:
    """What ``allowed`` says, as any other answer is said."""
    plan: Plan = allowed.asking.plan
    if len(allowed.left) == 1:  # what combine() would say, without looking for the tightest
        (left,), (reset_after_ms,), (step,) = allowed.left, allowed.reset_after_ms, plan.steps
        rule = step.rule
        told = (
            RuleVerdict(
                rule.id,
                rule.capacity,
                Verdict(True, _OK, left, 0, reset_after_ms),
                rule.window_ms,
                step.key_hash,
                rule.headers,
            ),
        )
        return Answer(True, _OK, rule.capacity, left, 0, reset_after_ms, rule.id, False, told)
    return plan.combined(
        [
            Verdict(True, _OK, left, 0, reset_after_ms)
            for left, reset_after_ms in zip(allowed.left, allowed.reset_after_ms, strict=True)
        ]
    )


class Plan:
    """The steps of a check in the order of the set, and their places grouped by call.

    ``steps``: of the rules that limit.  ``unlimited``: of those that only count.  ``blocked``: the step whose rule
    denies this key outright; nothing else is asked or charged then.  ``generation``: which rules and bases it was
    made from; see :attr:`Planner.generation`.  ``is_adaptive``: a rule of it is.  ``has_holders``: a rule of it
    asks who takes.  ``asking``: what was asked by it last, since most checks cost the same; not if it ages or names
    who asks (``may_be_asked_again``).  ``may_be_shed``: all rules that it meets are of low priority, those without
    a limit too.  ``shadows``: the steps of rules that only count what they would do; they are among no others.
    ``has_variants``: a rule of it is soft, or met in its canary.  ``is_plain``: none of all this,
    and all of its rules are of region scope.
    """

    __slots__ = (
        "_as_asked",
        "_part",
        "asking",
        "blocked",
        "generation",
        "groups",
        "has_holders",
        "has_variants",
        "is_adaptive",
        "is_plain",
        "may_be_asked_again",
        "may_be_shed",
        "measures",
        "met",
        "shadows",
        "steps",
        "unlimited",
    )

    def __init__(self, met: Sequence[Step], own: OwnPart, generation: int) -> None:
        """``met``: the steps of all matching rules that no other of them replaces."""
        self.met = met
        self.measures = any(isinstance(step.rule.cost, MeasuredCost) for step in met)
        shadows = tuple(step for step in met if step.rule.mode is Mode.SHADOW)
        if shadows:
            met = [step for step in met if step.rule.mode is not Mode.SHADOW]
        self.blocked = next((step for step in met if step.rule.blocked), None)
        limiting = [step for step in met if not step.rule.unlimited] if self.blocked is None else []
        self.steps = steps = tuple(limiting)
        self.shadows = shadows if self.blocked is None else ()
        self.has_variants = any(step.rule.mode is Mode.SOFT or step.is_canary for step in steps)
        self.unlimited = tuple(step for step in met if step.rule.unlimited) if self.blocked is None else ()
        self._as_asked = all(step.costs_as_asked for step in steps)
        self.generation = generation
        self.is_adaptive = any(step.sharing is Sharing.ADAPTIVE for step in steps)
        self.asking: Asking | None = None
        self.has_holders = any(step.has_holders for step in steps)
        more = self.has_holders or self.has_variants
        more = more or any(step.sharing is not Sharing.WHOLE or step.elsewhere is not None for step in steps)
        self.is_plain = bool(steps) and not (more or self.shadows or self.unlimited)
        self.may_be_asked_again = not (self.has_holders or any(step.rule.calendar for step in steps))
        self.may_be_shed = all(step.rule.priority is Priority.LOW for step in met)
        self.groups = _groups(steps) if steps else []
        self._part = own

    def measured(self, attributes: Mapping[str, str]) -> Plan:
        """The same plan at the costs that its rules read off ``attributes``.  Raises InvalidCheck naming one."""
        met = []
        for step in self.met:
            try:
                met.append(step.measured(attributes))
            except InvalidCheck:
                if step.rule.mode is not Mode.SHADOW:  # which touches no answer: it does not see this check
                    raise
        return Plan(met, self._part, self.generation)

    @property
    def made_from(self) -> OwnPart:
        return self._part

    def calls(self, cost: int, holder: str = "") -> list[BucketCall]:
        """A call for each step.  ``holder``: who takes or gives back, for rules of a kind that has holders.

        Raises InvalidCheck when a rule makes the cost too large.
        """
        own = self._part
        if self._as_asked:
            return [step.call(cost, own, holder) for step in self.steps]
        return [step.call(step.cost_of(cost), own, holder) for step in self.steps]

    def call_of(self, step: Step, cost: int) -> BucketCall:
        """The call for one of the ``shadows``.  Raises InvalidCheck when it makes the cost too large."""
        return step.call(step.cost_of(cost), self._part)

    def with_holders(self, calls: Sequence[BucketCall]) -> list[list[BucketCall]]:
        """Those of ``calls`` whose rules ask who takes, by group; groups without one are left out."""
        groups = [[calls[place] for place in group if self.steps[place].has_holders] for group in self.groups]
        return [group for group in groups if group]

    def request_id_of(self, group: Sequence[int], request_id: str | None) -> str | None:
        """Under which id the store is asked about ``group``: it keeps one answer a tag, which may have several.

        A home's are named by each other alone, so that each region names them alike; the region's own come after.
        """
        if request_id is None or len(self.groups) == 1:
            return request_id
        first = self.steps[group[0]]
        tag, home = tag_of(first.key), first.home
        others = [(self.steps[other[0]], other[0] < group[0]) for other in self.groups]
        earlier = sum(
            tag_of(step.key) == tag and (is_before if step.home == home else not home) for step, is_before in others
        )
        return f"{request_id}\0{earlier}" if earlier else request_id

    def combined(self, verdicts: Sequence[Verdict]) -> Answer:
        """The answer out of the verdicts of its steps."""
        told = []
        for step, verdict in zip(self.steps, verdicts, strict=True):
            rule = step.rule
            told.append(RuleVerdict(rule.id, rule.capacity, verdict, rule.window_ms, step.key_hash, rule.headers))
        return engine.combine(told)

    def answer_without_store(self) -> Answer:
        """What a check is answered that meets no rule that limits."""
        if self.blocked is not None:
            return engine.blocked(self.blocked.rule.id)
        return engine.unlimited(self.unlimited[0].rule.id) if self.unlimited else engine.NO_RULE


def replaced_by(rules: Iterable[Rule]) -> set[str]:
    """The ids of the rules that do not apply beside ``rules``.  A shadow rule replaces nothing."""
    return {name for rule in rules if rule.replaces and rule.mode is not Mode.SHADOW for name in rule.replaces}


def _groups(steps: Sequence[Step]) -> list[list[int]]:
    """The places of the steps by call.

    A soft rule is asked alone, since its denial must not spare the others.  A home is asked about its buckets
    alone, by its own nodes too: a request that comes again elsewhere asks it the same.
    """
    keys = [step.key for step in steps]
    if len(steps) == 1:
        return engine.groups(keys)
    soft = [[place] for place, step in enumerate(steps) if step.rule.mode is Mode.SOFT]
    by_home: dict[str, list[int]] = {}
    for place, step in enumerate(steps):
        if step.rule.mode is not Mode.SOFT:
            by_home.setdefault(step.home, []).append(place)
    return [
        [places[at] for at in group]
        for places in by_home.values()
        for group in engine.groups([keys[place] for place in places])
    ] + soft


class Planner:
    """Makes plans and keeps the last ``plans_most`` or so, in about ``bytes_most`` at most."""

    def __init__(self, secret: bytes, plans_most: int = 20_000, bytes_most: int = 64_000_000) -> None:
        self._bytes_most = bytes_most
        self._bytes = 0
        self._secret = secret
        self._plans_most = plans_most
        self._plans: dict[tuple[str, frozenset[tuple[str, str]]], Plan] = {}
        self._domains: Mapping[str, DomainRules] = {}
        self._refused: Mapping[str, str] = {}
        self._base_version = 0
        self._bases: Mapping[str, int] = {}
        self.generation = next(_GENERATIONS)
        """Another with every change of rules or bases, and no other planner's: a plan of another generation is out
        of date, or somebody else's."""

    def use(
        self,
        domains: Mapping[str, DomainRules],
        refused: Mapping[str, str],
        base_version: int,
        bases: Mapping[str, int],
    ) -> None:
        """Plan by these rules and bases from now on (a domain without a base has base 0).

        ``refused``: domain -> why its newest set was not taken.
        """
        self._refused = refused
        self._domains, self._base_version, self._bases = domains, base_version, bases
        self._plans, self._bytes = {}, 0
        self.generation = next(_GENERATIONS)

    @property
    def filled(self) -> tuple[int, int]:
        """Entries, and how many there may be."""
        return len(self._plans), self._plans_most

    def plan(self, check: Check) -> Plan:
        """Raises InvalidCheck, and RulesUnavailable when the domain has rules, none of which could be taken."""
        cost = check.cost
        named = check.request_id is not None or check.lease_id is not None
        if type(cost) is not int or not 0 <= cost <= COST_MOST or named:
            validate_charge(check)
        domain = self._domains.get(check.domain)
        if domain is None:
            validate_identity(check)
            return self._make(check)
        attributes = check.attributes
        if not domain.names.issuperset(attributes):
            validate_identity(check)
            attributes = {name: value for name, value in attributes.items() if name in domain.names}
        identity = (check.domain, frozenset(attributes.items()))
        plan = self._plans.get(identity)
        if plan is None:
            # Of texts that are a known plan's it is known that they are valid.
            validate_identity(check)
            plan = self._make(check)
            texts = sum(len(name) + len(value) for name, value in attributes.items())
            size = 4 * texts + PLAN_BYTES * (1 + len(plan.steps))
            if len(self._plans) >= self._plans_most or self._bytes + size > self._bytes_most:
                self._plans, self._bytes = {}, 0
            self._plans[identity] = plan
            self._bytes += size
        return plan.measured(domain.matcher.complete(check.attributes)) if plan.measures else plan

    def judged(self, check: Check) -> tuple[dict[str, str], list[Judged]]:
        """The check's attributes as rules see them, and why each rule of its domain applies or does not.

        Raises as :meth:`plan` does.
        """
        self.plan(check)
        domain = self._domains.get(check.domain)
        if domain is None:
            return dict(check.attributes), []
        attributes = domain.matcher.complete(check.attributes)
        return attributes, judged(domain.matcher, attributes)

    def knows(self, domain: str) -> bool:
        """Whether ``domain`` has rules in force here."""
        return domain in self._domains

    def plan_by(self, rule: Rule, check: Check) -> Plan:
        """The plan of a check that ``rule`` alone limits, if the domain has rules at all.  Raises InvalidCheck."""
        validate_charge(check)
        validate_identity(check)
        domain = self._domains.get(check.domain)
        steps = [self._step(rule, domain, check.attributes)] if domain is not None else []
        return Plan(steps, self._own_part(check.domain), self.generation)

    def _own_part(self, domain: str) -> OwnPart:
        bases = self._bases
        return OwnPart(self._base_version, bases.get(domain, 0), bases.get(floor_name(domain), 0))

    def _step(self, rule: Rule, domain: DomainRules, attributes: Mapping[str, str]) -> Step:
        key = bucket_key(rule, attributes, self._secret)
        key_hash = blake2b(key.encode(), digest_size=8, key=self._secret[:64]).digest()
        canary, home = rule.canary, domain.home(rule, attributes, key_hash)
        if canary is not None and canary.meets(key_hash):
            return Step(canary.in_force, domain, key, key_hash, is_canary=True, home=home)
        return Step(rule, domain, key, key_hash, home=home)

    def _make(self, check: Check) -> Plan:
        domain = self._domains.get(check.domain)
        if domain is None and check.domain in self._refused:
            raise RulesUnavailable(check.domain, self._refused[check.domain])
        steps: list[Step] = []
        if domain is not None:
            attributes = domain.matcher.complete(check.attributes)
            matches = domain.matcher.match(attributes)
            replaced = replaced_by(match.rule for match in matches)
            steps = [
                self._step(match.rule, domain, match.attributes)
                for match in matches
                if match.rule.id not in replaced
            ]
        return Plan(steps, self._own_part(check.domain), self.generation)


def measured_cost(rule: Rule, cost: MeasuredCost, attributes: Mapping[str, str]) -> int:
    """What ``rule`` reads off ``attributes``, whatever the check says.  Raises InvalidCheck naming one."""
    text = attributes.get(cost.attribute)
    if text is None:
        return cost.at_least
    number = number_of(normalised(text, dict(rule.normalise).get(cost.attribute, ())))
    if number is None or not 0 <= number <= COST_MOST * cost.per:
        expected = f"a number from 0 to {COST_MOST * cost.per}, by which rule {rule.id} measures its cost"
        raise InvalidCheck(cost.attribute, expected)
    return max(cost.at_least, ceil(Fraction(number) / cost.per))


@lru_cache(maxsize=1024)
def is_domain(name: str) -> bool:
    """Whether a rule set could have this name.  One that none could is a mistake, not a domain without rules."""
    return grammar.NAME.fullmatch(name) is not None


def validate_charge(check: Check) -> None:
    """The bounds of what a check asks for.  Raises InvalidCheck naming the field."""
    cost = check.cost
    if type(cost) is not int or not 0 <= cost <= COST_MOST:
        raise InvalidCheck("cost", f"an integer from 0 to {COST_MOST}")
    for name, given in (("request_id", check.request_id), ("lease_id", check.lease_id)):
        if given is not None and not (given and _fits(given, ID_BYTES_MOST)):
            raise InvalidCheck(name, f"1 to {ID_BYTES_MOST} bytes of UTF-8")


def validate_identity(check: Check) -> None:
    """The bounds of whom a check is about.  Raises InvalidCheck naming the field."""
    if not is_domain(check.domain):
        raise InvalidCheck("domain", DOMAIN_EXPECTED)
    if len(check.attributes) > ATTRIBUTES_MOST:
        raise InvalidCheck("attributes", f"at most {ATTRIBUTES_MOST} attributes")
    for name, value in check.attributes.items():
        if not (_fits(value, VALUE_BYTES_MOST) and _fits(name, VALUE_BYTES_MOST)):
            raise InvalidCheck(name[:VALUE_BYTES_MOST], f"at most {VALUE_BYTES_MOST} bytes of UTF-8")


def _fits(text: str, bytes_most: int) -> bool:
    # Nearly every text is ASCII, whose length in bytes is known without encoding it.
    if len(text) > bytes_most:
        return False
    if text.isascii():
        return True
    try:
        return len(text.encode()) <= bytes_most
    except UnicodeEncodeError:  # half a surrogate pair
        return False
