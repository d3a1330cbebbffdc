"""A rule set over the requests of a log: the algorithms that nodes run, on the log's own clock.  Pure.

It decides as one region that sees every request, whose store never fails: a global rule is the whole limit, as all
regions together hold it, and no time passes between a check and its answer.

A node makes a plan for each identity and resource.  Here what rules match is kept by the values that matching looks
at, and a bucket is found by the values of its key, since a log has more of both together than any table could hold.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from hashlib import blake2b
from typing import NamedTuple

from regional_limiter.algorithms.outcome import Ending, Outcome
from regional_limiter.algorithms.registry import fixed_share, functions_of
from regional_limiter.model.decision import COST_MOST
from regional_limiter.model.errors import InvalidCheck
from regional_limiter.model.rule import CANARY_PARTS, Algorithm, MeasuredCost, Mode, Rule, RuleSet
from regional_limiter.model.value import value
from regional_limiter.plan import measured_cost, replaced_by
from regional_limiter.rules import compile_rules
from regional_limiter.rules.normal import normalised
from regional_limiter.store.base import BucketCall
from regional_limiter.store.bucket_table import BucketTable

BUCKETS_MOST = 200_000
_MATCHES_MOST = 50_000

NOT_REHEARSED = {Algorithm.CONCURRENCY: "a log does not say when a slot would have been released"}

Identity = tuple[str | None, ...]
"""The values of a rule's key; None: the check does not have the attribute."""


class Met(NamedTuple):
    """A rule that a check met.  ``place``: in the set.  ``identity``: the values of its key.

    ``denied``: by it; a shadow rule would have, a soft one let it pass.
    """

    place: int
    identity: Identity
    denied: bool


@value
class Decided:
    """``met``: the rules that only count, those that limit, then shadows, each in the order of the set."""

    allowed: bool
    met: list[Met]


def name_of(identity: Identity) -> str:
    """A text that no other identity of the same rule has."""
    if len(identity) == 1:
        return "!" if identity[0] is None else "=" + identity[0]
    return "/".join(["!" if text is None else f"{len(text)}={text}" for text in identity])


def call_of(rule: Rule) -> BucketCall:
    """A check of cost 1 under the whole limit of ``rule``, of a bucket whose name is told beside it."""
    return BucketCall(
        key="",
        algorithm=rule.algorithm,
        capacity=rule.capacity,
        refill=rule.refill,
        window_ms=rule.window_ms,
        cost=1,
        charge_denied=rule.charge_denied,
        queue=rule.queue,
        calendar=rule.calendar,
        lease_ms=rule.lease_ms,
    )


class _Limit:
    """A rule as it is in force for some keys: how its bucket is found, and what is asked of it."""

    __slots__ = (
        "added",
        "call",
        "canary",
        "decide",
        "forms",
        "key",
        "measure",
        "mode",
        "parts",
        "place",
        "prefix",
        "rule",
        "share",
        "storage_key",
    )

    def __init__(self, rule: Rule, place: int) -> None:
        self.rule = rule
        self.place = place
        self.mode = rule.mode
        canary = rule.canary
        self.canary = _Limit(canary.in_force, place) if canary is not None else None
        self.parts = canary.parts if canary is not None else 0
        self.key = rule.key
        forms = dict(rule.normalise)
        self.forms = tuple(forms.get(name, ()) for name in rule.key) if forms else ()
        self.measure = rule.cost if isinstance(rule.cost, MeasuredCost) else None
        self.added = rule.cost if isinstance(rule.cost, int) else 0
        self.prefix = f"{place}:"
        self.call = call_of(rule)
        functions = functions_of(self.call)
        self.decide, self.storage_key = functions.decide, functions.storage_key
        self.share = fixed_share(self.call)

    def identity(self, attributes: Mapping[str, str], known: Mapping[str, str]) -> Identity:
        values = tuple([attributes[name] if name in attributes else known.get(name) for name in self.key])
        if not self.forms:
            return values
        return tuple(
            text if text is None or not forms else normalised(text, forms)
            for text, forms in zip(values, self.forms, strict=True)
        )

    def for_key(self, identity: Identity) -> _Limit:
        """The version that this key meets: as many keys as in a deployment meet the canary, but not the same."""
        if self.canary is None:
            return self
        digest = blake2b(name_of(identity).encode(), digest_size=4, person=b"rehearsal").digest()
        return self.canary if int.from_bytes(digest) % CANARY_PARTS < self.parts else self

    def asking(self, cost: int, attributes: Mapping[str, str], known: Mapping[str, str]) -> BucketCall:
        """Raises InvalidCheck."""
        if cost:
            if self.measure is not None:
                cost = measured_cost(self.rule, self.measure, {**known, **attributes})
            else:
                cost += self.added
            if cost > COST_MOST:
                raise InvalidCheck("cost", f"at most {COST_MOST} with what rule {self.rule.id} adds")
        if cost != self.call.cost:
            self.call = replace(self.call, cost=cost)
        return self.call


class _Matched(NamedTuple):
    """``known``: the attributes that subjects and defaults add.  ``blocked``: the rule that denies this key."""

    known: Mapping[str, str]
    limits: tuple[_Limit, ...]
    unlimited: tuple[_Limit, ...]
    blocked: _Limit | None


class Replay:
    """``rule_set``, of which nothing has been used yet.

    ``buckets_most``: how many keys it remembers at once.  ``asked``: is told each rule as it is in force, when it
    was asked in ms, the key's name, and the cost.
    """

    def __init__(
        self,
        rule_set: RuleSet,
        buckets_most: int = BUCKETS_MOST,
        asked: Callable[[Rule, int, str, int], None] | None = None,
    ) -> None:
        self.rule_set = rule_set
        self._asked = asked
        self.buckets = BucketTable(buckets_most)
        self.not_rehearsed = {
            rule.id: NOT_REHEARSED[rule.algorithm]
            for rule in rule_set.rules
            if rule.algorithm in NOT_REHEARSED and not rule.unlimited
        }
        self._matcher = compile_rules(rule_set)
        self._places = {rule.id: place for place, rule in enumerate(rule_set.rules)}
        self._limits: dict[int, _Limit] = {}
        self._look_at = _matching_names(rule_set)
        self._matched: dict[tuple[str | None, ...], _Matched] = {}

    @property
    def names(self) -> set[str]:
        """The attributes that the set asks for."""
        rules = self.rule_set.rules
        names = set(self._look_at)
        names.update(name for rule in rules for name in rule.key)
        names.update(rule.cost.attribute for rule in rules if isinstance(rule.cost, MeasuredCost))
        return names

    def decide(self, now_ms: int, attributes: Mapping[str, str], cost: int = 1) -> Decided:
        """One check at ``now_ms`` of the log.  Raises InvalidCheck, as a node would answer 422."""
        values = tuple([attributes.get(name) for name in self._look_at])
        matched = self._matched.get(values)
        if matched is None:
            matched = self._match(values, attributes)
        known = matched.known
        if matched.blocked is not None:
            limit = matched.blocked
            return Decided(False, [Met(limit.place, limit.identity(attributes, known), True)])
        met = [Met(limit.place, limit.identity(attributes, known), False) for limit in matched.unlimited]
        shadows = []
        asked = []
        allowed = True
        for always in matched.limits:
            identity = always.identity(attributes, known)
            limit = always if always.canary is None else always.for_key(identity)
            if limit.mode is Mode.SHADOW:
                shadows.append((limit, identity))
                continue
            key, group, outcome = self._ask(limit, identity, limit.asking(cost, attributes, known), now_ms)
            asked.append((key, group, outcome, limit.mode))
            allowed = allowed and (outcome.allowed or limit.mode is Mode.SOFT)
            met.append(Met(limit.place, identity, not outcome.allowed))
        for key, group, outcome, mode in asked:
            # All are charged or none; a soft rule that lets pass what it has no room for is not.
            charged = (allowed and (outcome.allowed or mode is not Mode.SOFT)) or outcome.costs_denied
            self._store(key, group, outcome.charged if charged else outcome.left, now_ms)
        if allowed and cost:  # a shadow rule sees no other checks
            for limit, identity in shadows:
                try:
                    call = limit.asking(cost, attributes, known)
                except InvalidCheck:
                    continue
                key, group, outcome = self._ask(limit, identity, call, now_ms)
                self._store(key, group, outcome.charged if outcome.allowed else outcome.left, now_ms)
                met.append(Met(limit.place, identity, not outcome.allowed))
        return Decided(allowed, met)

    def _ask(self, limit: _Limit, identity: Identity, call: BucketCall, now_ms: int) -> tuple[str, str, Outcome]:
        group = limit.prefix + limit.storage_key(call, now_ms)
        name = name_of(identity)
        if self._asked is not None:
            self._asked(limit.rule, now_ms, name, call.cost)
        key = group + name
        return key, group, limit.decide(self.buckets.get(key, group, now_ms), call, limit.share, now_ms)

    def _store(self, key: str, group: str, ending: Ending, now_ms: int) -> None:
        if ending.state is not None:
            self.buckets.put(key, group, ending.state, ending.ttl_ms, now_ms)

    def _match(self, values: tuple[str | None, ...], attributes: Mapping[str, str]) -> _Matched:
        complete = self._matcher.complete(attributes)
        known = {name: text for name, text in complete.items() if name not in attributes}
        blocked = None
        limits, unlimited = [], []
        matches = self._matcher.match(complete)
        replaced = replaced_by(match.rule for match in matches)
        for match in matches:
            rule = match.rule
            if rule.id in replaced:
                continue
            limit = self._limit(rule)
            if rule.blocked and blocked is None and rule.mode is not Mode.SHADOW:
                blocked = limit
            if rule.unlimited:
                unlimited.append(limit)
            elif rule.id not in self.not_rehearsed:
                limits.append(limit)
        if len(self._matched) >= _MATCHES_MOST:
            self._matched.clear()
        matched = self._matched[values] = _Matched(known, tuple(limits), tuple(unlimited), blocked)
        return matched

    def _limit(self, rule: Rule) -> _Limit:
        """One for each rule and override: rules in force live as long as the set."""
        limit = self._limits.get(id(rule))
        if limit is None:
            limit = self._limits[id(rule)] = _Limit(rule, self._places[rule.id])
        return limit


def _matching_names(rule_set: RuleSet) -> tuple[str, ...]:
    """The attributes that decide which rules apply, and as what: by a condition, a subject, or an override."""
    names = {condition.attribute for rule in rule_set.rules for condition in rule.match}
    names.update(name for subject in rule_set.subjects for name in subject.where)
    names.update(name for rule in rule_set.rules if rule.id in rule_set.overrides for name in rule.key)
    return tuple(sorted(names))
