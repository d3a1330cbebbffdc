"""The accepted rules as this process has read them, and what a change of them would lead to."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from global_sync.changes import PUT_OVERRIDE, PUT_RULE, PUT_SUBJECTS, Proposal, changed_document
from global_sync.rule_states import RulesFold
from global_sync.transport.base import Message
from regional_limiter.model.errors import Fault, InvalidRules
from regional_limiter.model.rule import Rule, RuleSet
from regional_limiter.rules import describe, parse_document

_SUBJECT = re.compile(r"subjects\[(\d+)\]", re.ASCII)


@dataclass(frozen=True, slots=True)
class LoadedSet:
    """One domain's accepted set: the document as written, the set it means, and the version of each rule."""

    domain: str
    version: int
    document: Mapping[str, Any]
    rule_set: RuleSet
    rule_versions: Mapping[str, int]
    _places: dict[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_places", {rule.id: at for at, rule in enumerate(self.rule_set.rules)})

    def place_of(self, rule_id: str) -> int | None:
        return self._places.get(rule_id)

    def meant(self, rule_id: str) -> Rule | None:
        """What the rule means; None: there is none of that name."""
        place = self.place_of(rule_id)
        return None if place is None else self.rule_set.rules[place]

    def rule(self, rule_id: str) -> dict[str, Any] | None:
        """The rule as the API shows it: what is held, what its author wrote, and its version."""
        meant = self.meant(rule_id)
        return None if meant is None else self._shown(meant)

    def _shown(self, rule: Rule) -> dict[str, Any]:
        return {
            "id": rule.id,
            "domain": self.domain,
            "version": self.rule_versions.get(rule.id, self.version),
            "loaded": describe(rule, self.rule_set),
            "source": dict(rule.source),
        }

    def rules(self, begin: int = 0, most: int | None = None) -> list[dict[str, Any]]:
        """``most`` of the rules from the place ``begin`` on; None: all."""
        end = None if most is None else begin + most
        return [self._shown(rule) for rule in self.rule_set.rules[begin:end]]


class Book:
    """Folds ``rl.rules``.  ``default_regions`` are the deployment's, for a domain that has no set yet."""

    def __init__(self, default_regions: Sequence[str]) -> None:
        self._fold = RulesFold()
        self._default_regions = list(default_regions)
        self._sets: dict[str, LoadedSet] = {}
        self._changed = asyncio.Event()
        self._tried: dict[str, int] = {}
        self._deleted: dict[str, int] = {}
        self.not_understood: dict[str, str] = {}
        """Domain -> why its newest set, written by a newer version of this software perhaps, is not shown here."""

    async def take(self, message: Message) -> None:
        """Each domain by itself: one that is not understood keeps no other back.  Parsed in a thread: ten thousand
        rules take seconds.  Raises ValueError for a set that is not understood; what was known of it stays.
        """
        if not self._fold.take(message.value):
            return
        states = self._fold.states()
        problems = []
        for state in [state for state in states.values() if self._tried.get(state.domain) != state.version]:
            self._tried[state.domain] = state.version
            if state.deleted:
                self.not_understood.pop(state.domain, None)
                self._sets.pop(state.domain, None)
                self._deleted[state.domain] = state.version
                continue
            try:
                rule_set = await asyncio.to_thread(parse_document, state.document)
            except InvalidRules as error:
                self.not_understood[state.domain] = f"version {state.version}: {error}"
                problems.append(f"accepted rules of {state.domain} are not understood here: {error}")
                continue
            self.not_understood.pop(state.domain, None)
            self._deleted.pop(state.domain, None)
            self._sets[state.domain] = LoadedSet(
                state.domain, state.version, state.document, rule_set, state.rule_versions
            )
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
        if problems:
            raise ValueError("; ".join(problems))

    def sets(self) -> Mapping[str, LoadedSet]:
        return self._sets

    def get(self, domain: str) -> LoadedSet | None:
        return self._sets.get(domain)

    async def gone(self, domain: str, version: int, timeout_s: float) -> bool:
        """Whether it is read within the time that this version, or a later one, has deleted the domain."""
        try:
            async with asyncio.timeout(timeout_s):
                while self._deleted.get(domain, 0) < version:
                    await self._changed.wait()
        except TimeoutError:
            return False
        return True

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
        return max([0, *(known.version for known in self._sets.values()), *self._deleted.values()])

    def default_regions(self) -> dict[str, int]:
        return dict.fromkeys(self._default_regions, 1)

    # ---- what a change would lead to

    def after(self, domain: str, kind: str, fields: Mapping[str, Any]) -> RuleSet:
        """The set that a change (its fields as of a Proposal) leads to.

        Raises ChangeRefused, and InvalidRules; of one rule or override the places are those within it, of
        subjects those among the ones of the change.
        """
        known = self._sets.get(domain)
        change = Proposal(id="", domain=domain, kind=kind, **fields)
        document = changed_document(known.document if known is not None else None, change)
        try:
            return parse_document(document)
        except InvalidRules as error:
            if kind == PUT_SUBJECTS:
                places = {id(subject): place for place, subject in enumerate(change.subjects or [])}
                faults = [_of_those_given(fault, document["subjects"], places) for fault in error.faults]
                raise InvalidRules(faults) from None
            if kind == PUT_RULE:
                rules = document["rules"]
                place = next(at for at, rule in enumerate(rules) if rule.get("id") == change.rule_id)
                within, what = f"rules[{place}]", "rule"
            elif kind == PUT_OVERRIDE:
                within, what = f"overrides[{document['overrides'].index(change.override)}]", "override"
            else:
                raise
            raise InvalidRules([_within(fault, within, what) for fault in error.faults]) from None


def _of_those_given(fault: Fault, subjects: Sequence[object], places: Mapping[int, int]) -> Fault:
    """A fault of a subject, by its place in the change and not in the set.  ``places``: by the identity of it."""
    found = _SUBJECT.match(fault.place)
    place = places.get(id(subjects[int(found[1])])) if found else None
    if found is None or place is None:
        return fault
    return Fault(f"subjects[{place}]{fault.place[found.end() :]}", fault.problem)


def _within(fault: Fault, place: str, what: str) -> Fault:
    """``what``: how to call the whole of it."""
    if not fault.place.startswith(place):
        return fault
    return Fault(fault.place.removeprefix(place).removeprefix(".") or what, fault.problem)
