"""What a check asks of the store: which rules it meets, in which buckets, in how many calls.  Pure.

The same attributes lead to the same plan until rules or bases change, so plans are kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b

from regional_limiter import engine
from regional_limiter.algorithms.registry import ALGORITHMS
from regional_limiter.model.decision import MAX_COST, MAX_VALUE_BYTES, Check
from regional_limiter.model.errors import InvalidCheck, RulesUnavailable
from regional_limiter.model.keys import bucket_key
from regional_limiter.model.rule import Distribution, Rule, RuleSet, Scope
from regional_limiter.model.share import SHARE_UNITS, left_over
from regional_limiter.rules import Matcher
from regional_limiter.store.base import BucketCall, Sharing

ATTRIBUTES_MOST = 64
PLAN_BYTES = 400
"""About what a plan takes, and each step of it, beside its texts."""

REQUEST_ID_BYTES_MOST = 128


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
    """The attributes that matter to this set: others change nothing in a plan."""

    def __post_init__(self) -> None:
        names = {condition.attribute for rule in self.rule_set.rules for condition in rule.match}
        names.update(name for rule in self.rule_set.rules for name in rule.key)
        # Defaults and what is known of a subject only matter as what rules match, or as keys.
        names.update(name for subject in self.rule_set.subjects for name in subject.where)
        object.__setattr__(self, "names", frozenset(names))


class Step:
    """One rule that a check meets, and the bucket that it meets it in."""

    __slots__ = ("_call", "_domain", "_has_holders", "key", "key_hash", "name", "rule", "sharing")

    def __init__(self, rule: Rule, domain: DomainRules, key: str, key_hash: bytes) -> None:
        self.rule = rule
        self.key = key
        self.key_hash = key_hash
        self.name = f"{rule.domain}/{rule.id}"
        self.sharing = _sharing(rule)
        self._domain = domain
        self._has_holders = ALGORITHMS[rule.algorithm].holder
        self._call: BucketCall | None = None

    def call(self, cost: int, base_version: int, base: int, holder: str = "") -> BucketCall:
        """The call for ``cost``; the last one is kept, since most checks cost the same.

        ``holder``: who takes or gives back, if the rule's kind has holders.
        """
        call = self._call
        if not self._has_holders:
            holder = ""
        if call is None or call.cost != cost or call.holder != holder:
            rule, domain = self.rule, self._domain
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
                largest_share=domain.largest_share if adaptive else SHARE_UNITS,
                domain=rule.domain,
                base_version=base_version if shared else 0,
                base=base if shared else SHARE_UNITS,
                extra=self._extra(base),
                queue=rule.queue,
                calendar=rule.calendar,
                lease_ms=rule.lease_ms,
                holder=holder,
            )
        return call

    def _extra(self, base: int) -> int:
        """What rounding left over of a static limit in whole units, while the bases are those of the rules."""
        domain = self._domain
        bases = domain.rule_set.bases
        settled = domain.regions == len(bases) and base == bases.get(domain.region)
        if self.sharing is not Sharing.STATIC or ALGORITHMS[self.rule.algorithm].adaptive or not settled:
            return 0
        return left_over(self.rule.capacity, bases, domain.region)


def _sharing(rule: Rule) -> Sharing:
    if rule.scope is Scope.REGION:
        return Sharing.WHOLE
    return Sharing.ADAPTIVE if rule.distribution is Distribution.ADAPTIVE else Sharing.STATIC


class Plan:
    """The steps of a check in the order of the set, and their places grouped by call.

    ``generation``: which rules and bases it was made from; see :attr:`Planner.generation`.
    """

    __slots__ = ("_base", "_base_version", "generation", "groups", "steps")

    def __init__(self, steps: tuple[Step, ...], base_version: int, base: int, generation: int) -> None:
        self.steps = steps
        self.generation = generation
        self.groups = engine.groups([step.key for step in steps]) if steps else []
        self._base_version = base_version
        self._base = base

    def calls(self, cost: int, holder: str = "") -> list[BucketCall]:
        """``holder``: who takes or gives back, for rules of a kind that has holders."""
        return [step.call(cost, self._base_version, self._base, holder) for step in self.steps]


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
        self.generation = 0
        """Grows with every change of rules or bases: a plan of another generation is out of date."""

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
        self.generation += 1

    def plan(self, check: Check) -> Plan:
        """Raises RulesUnavailable when the domain has rules, none of which could be taken."""
        domain = self._domains.get(check.domain)
        if domain is None:
            return self._make(check)
        attributes = check.attributes
        if not domain.names.issuperset(attributes):
            attributes = {name: value for name, value in attributes.items() if name in domain.names}
        identity = (check.domain, frozenset(attributes.items()))
        plan = self._plans.get(identity)
        if plan is None:
            plan = self._make(check)
            texts = sum(len(name) + len(value) for name, value in attributes.items())
            size = 4 * texts + PLAN_BYTES * (1 + len(plan.steps))
            if len(self._plans) >= self._plans_most or self._bytes + size > self._bytes_most:
                self._plans, self._bytes = {}, 0
            self._plans[identity] = plan
            self._bytes += size
        return plan

    def _make(self, check: Check) -> Plan:
        domain = self._domains.get(check.domain)
        if domain is None and check.domain in self._refused:
            raise RulesUnavailable(check.domain, self._refused[check.domain])
        steps: list[Step] = []
        if domain is not None:
            attributes = domain.matcher.complete(check.attributes)
            for rule in domain.matcher.match(attributes):
                key = bucket_key(rule, attributes, self._secret)
                key_hash = blake2b(key.encode(), digest_size=8, key=self._secret[:64]).digest()
                steps.append(Step(rule, domain, key, key_hash))
        return Plan(tuple(steps), self._base_version, self._bases.get(check.domain, 0), self.generation)


def validate(check: Check) -> None:
    """The bounds of a check.  Raises InvalidCheck naming the field."""
    cost = check.cost
    if type(cost) is not int or not 0 <= cost <= MAX_COST:
        raise InvalidCheck("cost", f"an integer from 0 to {MAX_COST}")
    if len(check.attributes) > ATTRIBUTES_MOST:
        raise InvalidCheck("attributes", f"at most {ATTRIBUTES_MOST} attributes")
    for name, value in check.attributes.items():
        if not (_fits(value, MAX_VALUE_BYTES) and _fits(name, MAX_VALUE_BYTES)):
            raise InvalidCheck(name[:MAX_VALUE_BYTES], f"at most {MAX_VALUE_BYTES} bytes of UTF-8")
    if check.request_id is not None and not (check.request_id and _fits(check.request_id, REQUEST_ID_BYTES_MOST)):
        raise InvalidCheck("request_id", f"1 to {REQUEST_ID_BYTES_MOST} bytes of UTF-8")


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
