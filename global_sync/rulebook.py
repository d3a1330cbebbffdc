"""The accepted rules of every domain, as a state machine over proposals in log order.  Pure.

Whoever leads comes to the same outcomes, since an outcome depends on nothing but the accepted state and the
next proposal.  A proposal names the version that it was made from and loses if that is no longer the newest:
two operators never overwrite each other.  A version is the offset of the accepted proposal plus one, so
versions only grow.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from global_sync.changes import (
    DELETE_DOMAIN,
    DELETE_RULE,
    DOMAINLESS_KINDS,
    FAULTS_TOLD_MOST,
    PUT_REGIONS,
    PUT_RULE,
    PUT_SET,
    STORE_SUBJECTS,
    STORED_KINDS,
    ChangeRefused,
    History,
    Proposal,
    changed_document,
    check_form,
    history_of,
)
from global_sync.rule_states import DomainState, RulesFold, decode_part, encode_parts
from global_sync.subject_records import encode_records, faults_of
from regional_limiter.model.errors import Fault, InvalidRules
from regional_limiter.model.share import floor_name
from regional_limiter.rules import parse_document
from regional_limiter.rules.ends import next_end_ms


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a proposal.  ``version``: the one that it led to, or that it met when refused."""

    proposal: Proposal
    offset: int
    accepted: bool
    version: int
    conflict: bool = False
    faults: tuple[Fault, ...] = ()

    @property
    def domain(self) -> str:
        return self.proposal.domain

    def history(self, epoch: int, at_ms: int) -> History:
        """Its entry in the history, decided at ``at_ms`` by the leader of ``epoch``."""
        told = self.faults[:FAULTS_TOLD_MOST]
        return history_of(
            self.proposal,
            offset=self.offset,
            accepted=self.accepted,
            version=self.version,
            faults=[{"place": fault.place, "problem": fault.problem} for fault in told],
            conflict=self.conflict,
            at_ms=at_ms,
            epoch=epoch,
        )


def encode_state(book: Rulebook, domain: str, epoch: int) -> list[tuple[bytes, bytes]]:
    """(key, value) of every part of a domain's accepted state, to be written in this order."""
    return encode_parts(book.states()[domain], epoch)


def stored_records(outcome: Outcome) -> tuple[list[bytes], list[bytes]]:
    """(keys, values) for the topic of subjects: what an accepted change of stored subjects comes to."""
    proposal = outcome.proposal
    put = proposal.kind == STORE_SUBJECTS
    return encode_records(proposal.domain, proposal.subjects or [], outcome.version, put=put)


class Rulebook:
    """Accepts and refuses.  ``next_offset``: of the next proposal to decide."""

    def __init__(self) -> None:
        self.next_offset = 0
        self._states: dict[str, DomainState] = {}
        self._bases: dict[str, dict[str, int]] = {}
        self._floors: dict[str, dict[str, int]] = {}
        self._unreadable: set[str] = set()
        self._ends: dict[str, int] = {}

    @classmethod
    def restore(cls, fold: RulesFold) -> Rulebook:
        """The book as the accepted state has it; proposals are decided again from after its newest one."""
        book = cls()
        for domain, state in fold.states().items():
            book._states[domain] = state
            book.next_offset = max(book.next_offset, state.version)
            try:
                rule_set = parse_document(dict(state.document))
                book._bases[domain], book._floors[domain] = dict(rule_set.bases), dict(rule_set.floors)
            except InvalidRules:
                book._unreadable.add(domain)
            book._note_end(domain)
        return book

    def states(self) -> Mapping[str, DomainState]:
        return self._states

    def configuration(self) -> tuple[int, Mapping[str, Mapping[str, int]]]:
        """(version, domain -> region -> base): the version is that of the newest change of any domain's bases.

        Floors that a set names are among them, under ``floor_name``.

        (0, {}) while there are no rules, or a set that this version of the software cannot read.
        """
        if self._unreadable:
            return 0, {}
        version = max((state.bases_version for state in self._states.values()), default=0)
        floors = {floor_name(domain): dict(floors) for domain, floors in self._floors.items() if floors}
        return version, {domain: dict(bases) for domain, bases in self._bases.items()} | floors

    def decide(self, proposal: Proposal, offset: int) -> Outcome:
        """The outcome of the proposal at ``offset``.  Offsets only go forward; raises ValueError if not."""
        if offset < self.next_offset:
            raise ValueError(f"proposal {offset} has been decided, {self.next_offset} is next")
        self.next_offset = offset + 1
        known = self._states.get(proposal.domain)
        try:
            check_form(proposal)
            if proposal.kind in STORED_KINDS:
                self._check_stored(proposal, known)
            elif proposal.kind not in DOMAINLESS_KINDS:
                proposal = self._with_regions(proposal, known)
                document = self._changed(proposal, known)
                stays_deleted = proposal.kind == PUT_REGIONS and known is not None and known.deleted
                deleted = proposal.kind == DELETE_DOMAIN or stays_deleted
                self._accept(proposal.domain, document, known, offset + 1, deleted=deleted)
        except ChangeRefused as refused:
            met = self._version_met(proposal, known)
            return Outcome(proposal, offset, False, met, refused.conflict, tuple(refused.faults))
        except InvalidRules as invalid:
            met = self._version_met(proposal, known)
            return Outcome(proposal, offset, False, met, faults=tuple(invalid.faults))
        return Outcome(proposal, offset, True, offset + 1)

    def ended(self, now_ms: int) -> list[str]:
        """The domains that have overrides whose end has come."""
        return [domain for domain, end_ms in self._ends.items() if end_ms <= now_ms]

    def stale_domain(self, value: bytes, epoch: int) -> str | None:
        """The domain whose state must be written again, since a late predecessor wrote over it."""
        part = decode_part(value)
        if part is None or part.epoch >= epoch or part.domain not in self._states:
            return None
        return part.domain

    # ---- one proposal

    def _check_stored(self, proposal: Proposal, known: DomainState | None) -> None:
        """Raises ChangeRefused.  Nothing here is made from a version: of two changes the later one counts."""
        if known is None or not known.document.get("stored_subjects"):
            problem = f"of domain {proposal.domain} are not stored: its set would have to say stored_subjects: true"
            raise ChangeRefused([Fault("subjects", problem)])
        faults = faults_of(proposal.subjects or [], put=proposal.kind == STORE_SUBJECTS)
        if faults:
            raise ChangeRefused(faults)

    @staticmethod
    def _version_met(proposal: Proposal, known: DomainState | None) -> int:
        """Of what the proposal changes: a rule, or else the set."""
        if known is None or known.deleted:
            return 0
        if proposal.kind in (PUT_RULE, DELETE_RULE) and proposal.rule_id is not None:
            return known.rule_versions.get(proposal.rule_id, 0)
        return known.version

    def _changed(self, proposal: Proposal, known: DomainState | None) -> dict[str, Any]:
        """The document that the proposal leads to, or ChangeRefused."""
        met = self._version_met(proposal, known)
        if proposal.made_from is not None and proposal.made_from != met:
            problem = f"was made from version {proposal.made_from}, but {met} is the newest"
            raise ChangeRefused([Fault("made_from", problem)], conflict=True)
        if proposal.kind == DELETE_DOMAIN and known is not None and known.deleted:
            raise ChangeRefused([Fault("domain", f"there is no domain {proposal.domain} any more")])
        return changed_document(known.document if known else None, proposal)

    def _with_regions(self, proposal: Proposal, known: DomainState | None) -> Proposal:
        """The first rule of a domain says in the history which regions came with it."""
        if known is not None or proposal.kind == PUT_SET or proposal.regions:
            return proposal
        return msgspec.structs.replace(proposal, regions=self._usual_regions())

    def _usual_regions(self) -> dict[str, int] | None:
        """What a new domain starts with when its proposal does not say: as the first domain that has regions."""
        usual = next(
            (self._states[name].document.get("regions") for name in sorted(self._bases) if self._bases[name]), None
        )
        return dict.fromkeys(usual, 1) if isinstance(usual, list) else usual

    def _accept(
        self, domain: str, document: dict[str, Any], known: DomainState | None, version: int, *, deleted: bool
    ) -> None:
        rule_set = parse_document(document)
        if rule_set.domain != domain:
            raise ChangeRefused([Fault("domain", f"is {rule_set.domain!r}, but the change is of {domain!r}")])
        before = _rules_by_id(known.document) if known else {}
        versions_before = known.rule_versions if known else {}
        rule_versions = {
            rule.id: versions_before[rule.id]
            if rule.id in versions_before and before.get(rule.id) == dict(rule.source)
            else version
            for rule in rule_set.rules
        }
        bases, floors = dict(rule_set.bases), dict(rule_set.floors)
        # A domain's first set counts as a change, also when it names no regions.
        same = self._bases.get(domain) == bases and self._floors.get(domain) == floors
        same_bases = known is not None and same and domain not in self._unreadable
        bases_version = known.bases_version if known and same_bases else version
        self._states[domain] = DomainState(domain, document, rule_versions, version, bases_version, deleted=deleted)
        self._bases[domain], self._floors[domain] = bases, floors
        self._unreadable.discard(domain)
        self._note_end(domain)

    def _note_end(self, domain: str) -> None:
        end_ms = next_end_ms(self._states[domain].document.get("overrides"))
        self._ends.pop(domain, None)
        if end_ms is not None:
            self._ends[domain] = end_ms


def _rules_by_id(document: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    rules = document.get("rules", [])
    if not isinstance(rules, list):
        return {}
    return {str(rule.get("id")): rule for rule in rules if isinstance(rule, dict)}
