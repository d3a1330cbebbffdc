"""The accepted rules as this process has read them, and what a change of them would lead to."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from global_sync.rule_states import RulesFold
from global_sync.transport.base import Message
from regional_limiter.model.errors import Fault, InvalidRules
from regional_limiter.model.rule import RuleSet
from regional_limiter.rules import describe, parse_document, with_rule, without_rule


@dataclass(frozen=True, slots=True)
class LoadedSet:
    """One domain's accepted set: the document as written, the set it means, and the version of each rule."""

    domain: str
    version: int
    document: Mapping[str, Any]
    rule_set: RuleSet
    rule_versions: Mapping[str, int]

    def place_of(self, rule_id: str) -> int | None:
        return next((at for at, rule in enumerate(self.rule_set.rules) if rule.id == rule_id), None)

    def rule(self, rule_id: str) -> dict[str, Any] | None:
        """The rule as the API shows it: what is held, what its author wrote, and its version."""
        place = self.place_of(rule_id)
        if place is None:
            return None
        rule = self.rule_set.rules[place]
        return {
            "id": rule_id,
            "domain": self.domain,
            "version": self.rule_versions.get(rule_id, self.version),
            "loaded": describe(rule, self.rule_set),
            "source": dict(rule.source),
        }

    def rules(self) -> list[dict[str, Any]]:
        return [shown for rule in self.rule_set.rules if (shown := self.rule(rule.id)) is not None]


class Book:
    """Folds ``rl.rules``.  ``default_regions`` are the deployment's, for a domain that has no set yet."""

    def __init__(self, default_regions: Sequence[str]) -> None:
        self._fold = RulesFold()
        self._default_regions = list(default_regions)
        self._sets: dict[str, LoadedSet] = {}
        self._changed = asyncio.Event()
        self.refused = 0

    def take(self, message: Message) -> None:
        if not self._fold.take(message.value):
            return
        for domain, state in self._fold.states().items():
            known = self._sets.get(domain)
            if known is not None and known.version == state.version:
                continue
            try:
                rule_set = parse_document(state.document)
            except InvalidRules as error:  # written by a newer version of this software, say
                self.refused += 1
                raise ValueError(f"accepted rules of {domain} are not readable here: {error}") from error
            self._sets[domain] = LoadedSet(domain, state.version, state.document, rule_set, state.rule_versions)
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def sets(self) -> Mapping[str, LoadedSet]:
        return self._sets

    def get(self, domain: str) -> LoadedSet | None:
        return self._sets.get(domain)

    async def reached(self, domain: str, version: int, timeout_s: float) -> LoadedSet | None:
        """The domain's set once it is at least of this version, None if that is not read in time."""
        try:
            async with asyncio.timeout(timeout_s):
                while (known := self._sets.get(domain)) is None or known.version < version:
                    await self._changed.wait()
                return known
        except TimeoutError:
            return None

    def newest(self) -> int:
        """The highest version over all domains: what nodes call the version of their rules; 0 without rules."""
        return max((known.version for known in self._sets.values()), default=0)

    def default_regions(self) -> dict[str, int]:
        return dict.fromkeys(self._default_regions, 1)

    # ---- what a change would lead to

    def document(self, domain: str) -> dict[str, Any]:
        """The accepted document, or the empty one that a new domain begins with."""
        known = self._sets.get(domain)
        if known is not None:
            return dict(known.document)
        return {"domain": domain, "regions": self.default_regions(), "rules": []}

    def with_rule(self, domain: str, rule_id: str, source: Mapping[str, Any]) -> RuleSet:
        """The set with this rule.  Raises InvalidRules, the places being those within the rule."""
        document = self.document(domain)
        rules = document.get("rules")
        ids = [rule.get("id") for rule in rules] if isinstance(rules, list) else []
        place = ids.index(rule_id) if rule_id in ids else len(ids)
        try:
            return parse_document(with_rule(document, rule_id, dict(source)))
        except InvalidRules as error:
            raise InvalidRules([_within_rule(fault, place) for fault in error.faults]) from None

    def without_rule(self, domain: str, rule_id: str) -> RuleSet:
        return parse_document(without_rule(self.document(domain), rule_id))


def _within_rule(fault: Fault, place: int) -> Fault:
    inside = fault.place.removeprefix(f"rules[{place}]").removeprefix(".")
    return Fault(inside or "rule", fault.problem)
