"""The accepted rules of every domain, as a state machine over proposals in log order.  Pure.

Whoever leads comes to the same outcomes, since an outcome depends on nothing but the accepted state and the
next proposal.  A proposal names the version that it was made from and loses if that is no longer the newest:
two operators never overwrite each other.  A version is the offset of the accepted proposal plus one, so
versions only grow.

The state of a domain is written to a compacted topic in parts, each with (epoch, offset).  Readers
(:class:`RulesFold`) take the highest that is complete, so a part that a late predecessor wrote over a newer one
only makes them wait until the leader has written it again (:meth:`Rulebook.stale_domain`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from regional_limiter.model.errors import Fault, InvalidRules
from regional_limiter.rules import parse_document, with_rule, without_rule

VERSION = 1
PART_CHARACTERS = 350_000
"""The text is ASCII, and a character takes two bytes at most once it is a JSON string: 700 kB a part."""
PARTS_MOST = 64
_INCOMPLETE_KEPT = 4

PUT_RULE, DELETE_RULE, PUT_SET, UNREADABLE = "put_rule", "delete_rule", "put_set", "unreadable"


# ---- what is said


class Proposal(msgspec.Struct, frozen=True, kw_only=True):
    """A change that somebody wants.  ``made_from``: the version of the rule (or set) that it was made from;
    0: must not exist; None: whatever is there.  ``regions``: weights for a domain that has no set yet."""

    v: int = VERSION
    id: str
    domain: str
    kind: str
    rule_id: str | None = None
    rule: dict[str, Any] | None = None
    document: dict[str, Any] | None = None
    regions: dict[str, int] | None = None
    made_from: int | None = None
    author: str = ""
    reason: str = ""
    at_ms: int = 0


class History(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the proposal at ``offset``.  May repeat: the offset tells."""

    v: int = VERSION
    offset: int
    id: str
    domain: str
    kind: str
    rule_id: str | None = None
    accepted: bool
    version: int
    faults: list[dict[str, str]] = []
    conflict: bool = False
    author: str = ""
    reason: str = ""
    at_ms: int = 0
    epoch: int = 0


class _Part(msgspec.Struct, frozen=True, kw_only=True):
    v: int
    domain: str
    epoch: int
    offset: int
    version: int
    part: int
    parts: int
    blob: str


class _Blob(msgspec.Struct, kw_only=True):
    document: dict[str, Any]
    rule_versions: dict[str, int]
    version: int
    bases_version: int = 0


@dataclass(frozen=True, slots=True)
class DomainState:
    """One domain's accepted set.  ``version``: of the newest accepted change; ``bases_version``: of the newest
    that changed the bases; ``epoch``: of the leader that wrote it."""

    domain: str
    document: Mapping[str, Any]
    rule_versions: Mapping[str, int]
    version: int
    bases_version: int
    epoch: int = 0

    @property
    def offset(self) -> int:
        return self.version - 1


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


# ---- bytes


def encode_proposal(proposal: Proposal) -> bytes:
    return msgspec.json.encode(proposal)


def decode_proposal(value: bytes) -> Proposal:
    """The proposal; one that cannot be read is of kind ``unreadable`` and will be refused like a wrong one."""
    try:
        proposal = msgspec.json.decode(value, type=Proposal)
    except msgspec.DecodeError as error:
        return Proposal(id="", domain="", kind=UNREADABLE, reason=str(error)[:200])
    if proposal.v != VERSION:
        return Proposal(id=proposal.id, domain=proposal.domain, kind=UNREADABLE, reason=f"version {proposal.v}")
    return proposal


def encode_history(outcome: Outcome, epoch: int, at_ms: int) -> tuple[bytes, bytes]:
    """(key, value) of the history topic."""
    proposal = outcome.proposal
    entry = History(
        offset=outcome.offset,
        id=proposal.id,
        domain=proposal.domain,
        kind=proposal.kind,
        rule_id=proposal.rule_id,
        accepted=outcome.accepted,
        version=outcome.version,
        faults=[{"place": fault.place, "problem": fault.problem} for fault in outcome.faults],
        conflict=outcome.conflict,
        author=proposal.author,
        reason=proposal.reason,
        at_ms=at_ms,
        epoch=epoch,
    )
    return f"{proposal.domain}/{proposal.rule_id or ''}".encode(), msgspec.json.encode(entry)


def decode_history(value: bytes) -> History:
    """Raises ValueError."""
    try:
        return msgspec.json.decode(value, type=History)
    except msgspec.DecodeError as error:
        raise ValueError(f"no history entry: {error}") from error


def encode_state(book: Rulebook, domain: str, epoch: int) -> list[tuple[bytes, bytes]]:
    """(key, value) of every part of a domain's accepted state, to be written in this order."""
    state = book.states()[domain]
    blob = msgspec.json.encode(
        _Blob(
            document=dict(state.document),
            rule_versions=dict(state.rule_versions),
            version=state.version,
            bases_version=state.bases_version,
        )
    )
    text = _ascii(blob.decode())
    slices = [text[at : at + PART_CHARACTERS] for at in range(0, len(text), PART_CHARACTERS)]
    parts: list[tuple[bytes, bytes]] = []
    for number, piece in enumerate(slices):
        part = _Part(
            v=VERSION,
            domain=domain,
            epoch=epoch,
            offset=state.offset,
            version=state.version,
            part=number,
            parts=len(slices),
            blob=piece,
        )
        parts.append((f"{domain}#{number}".encode(), msgspec.json.encode(part)))
    return parts


def _ascii(text: str) -> str:
    """The same JSON with every other character escaped."""
    if text.isascii():
        return text
    return "".join(c if c < "\x80" else _escaped(c) for c in text)


def _escaped(character: str) -> str:
    units = character.encode("utf-16-be")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))


# ---- the reader's side


@dataclass(slots=True)
class _Incomplete:
    parts: int
    pieces: dict[int, str] = field(default_factory=dict)


class RulesFold:
    """Reads the topic of accepted state in any order of parts, repeats and leftovers included.

    ``next_message``: where the reading goes on, kept here for the reader.
    """

    def __init__(self) -> None:
        self.next_message = 0
        self.malformed = 0
        self._states: dict[str, DomainState] = {}
        self._incomplete: dict[str, dict[tuple[int, int], _Incomplete]] = {}

    def states(self) -> dict[str, DomainState]:
        """The highest complete state of each domain."""
        return dict(self._states)

    def take(self, value: bytes) -> bool:
        """Take one message; True when a domain's state became newer.  What cannot be read is counted."""
        part = _decode_part(value)
        if part is None:
            self.malformed += 1
            return False
        order = (part.epoch, part.offset)
        known = self._states.get(part.domain)
        if known is not None and order <= (known.epoch, known.offset):
            return False
        waiting = self._incomplete.setdefault(part.domain, {})
        one = waiting.setdefault(order, _Incomplete(part.parts))
        one.pieces[part.part] = part.blob
        if len(one.pieces) < one.parts:
            while len(waiting) > _INCOMPLETE_KEPT:
                del waiting[min(waiting)]
            return False
        return self._complete(part, one)

    def _complete(self, part: _Part, one: _Incomplete) -> bool:
        waiting = self._incomplete[part.domain]
        order = (part.epoch, part.offset)
        try:
            text = "".join(one.pieces[number] for number in range(one.parts))
            blob = msgspec.json.decode(text.encode(), type=_Blob)
        except (msgspec.DecodeError, KeyError):
            self.malformed += 1
            del waiting[order]
            return False
        self._states[part.domain] = DomainState(
            part.domain, blob.document, blob.rule_versions, blob.version, blob.bases_version, part.epoch
        )
        self._incomplete[part.domain] = {later: parts for later, parts in waiting.items() if later > order}
        return True


def _decode_part(value: bytes) -> _Part | None:
    try:
        part = msgspec.json.decode(value, type=_Part)
    except msgspec.DecodeError:
        return None
    readable = part.v == VERSION and 0 <= part.part < part.parts <= PARTS_MOST
    return part if readable else None


# ---- the leader's side


class _Refused(Exception):
    def __init__(self, faults: list[Fault], *, conflict: bool = False) -> None:
        super().__init__("refused")
        self.faults = faults
        self.conflict = conflict


class Rulebook:
    """Accepts and refuses.  ``next_offset``: of the next proposal to decide."""

    def __init__(self) -> None:
        self.next_offset = 0
        self._states: dict[str, DomainState] = {}
        self._bases: dict[str, dict[str, int]] = {}
        self._unreadable: set[str] = set()

    @classmethod
    def restore(cls, fold: RulesFold) -> Rulebook:
        """The book as the accepted state has it; proposals are decided again from after its newest one."""
        book = cls()
        for domain, state in fold.states().items():
            book._states[domain] = state
            book.next_offset = max(book.next_offset, state.version)
            try:
                book._bases[domain] = dict(parse_document(dict(state.document)).bases)
            except InvalidRules:
                book._unreadable.add(domain)
        return book

    def states(self) -> Mapping[str, DomainState]:
        return self._states

    def configuration(self) -> tuple[int, Mapping[str, Mapping[str, int]]]:
        """(version, domain -> region -> base): the version is that of the newest change of any domain's bases.

        (0, {}) while there are no rules, or a set that this version of the software cannot read.
        """
        if self._unreadable:
            return 0, {}
        version = max((state.bases_version for state in self._states.values()), default=0)
        return version, {domain: dict(bases) for domain, bases in self._bases.items()}

    def decide(self, proposal: Proposal, offset: int) -> Outcome:
        """The outcome of the proposal at ``offset``.  Offsets only go forward; raises ValueError if not."""
        if offset < self.next_offset:
            raise ValueError(f"proposal {offset} has been decided, {self.next_offset} is next")
        self.next_offset = offset + 1
        known = self._states.get(proposal.domain)
        try:
            document = self._changed(proposal, known)
            self._accept(proposal.domain, document, known, offset + 1)
        except _Refused as refused:
            met = self._version_met(proposal, known)
            return Outcome(proposal, offset, False, met, refused.conflict, tuple(refused.faults))
        except InvalidRules as invalid:
            return Outcome(
                proposal, offset, False, self._version_met(proposal, known), faults=tuple(invalid.faults)
            )
        return Outcome(proposal, offset, True, offset + 1)

    def stale_domain(self, value: bytes, epoch: int) -> str | None:
        """The domain whose state must be written again, since a late predecessor wrote over it."""
        part = _decode_part(value)
        if part is None or part.epoch >= epoch or part.domain not in self._states:
            return None
        return part.domain

    # ---- one proposal

    @staticmethod
    def _version_met(proposal: Proposal, known: DomainState | None) -> int:
        if known is None:
            return 0
        if proposal.kind == PUT_SET or proposal.rule_id is None:
            return known.version
        return known.rule_versions.get(proposal.rule_id, 0)

    def _changed(self, proposal: Proposal, known: DomainState | None) -> dict[str, Any]:
        """The document that the proposal leads to, or _Refused."""
        _check_form(proposal)
        met = self._version_met(proposal, known)
        if proposal.made_from is not None and proposal.made_from != met:
            problem = f"was made from version {proposal.made_from}, but {met} is the newest"
            raise _Refused([Fault("made_from", problem)], conflict=True)
        if proposal.kind == PUT_SET:
            return {"domain": proposal.domain, **(proposal.document or {})}
        rule_id = proposal.rule_id or ""
        if known is None:
            document: dict[str, Any] = {"domain": proposal.domain, "rules": []}
            regions = proposal.regions or self._usual_regions()
            if regions:
                document["regions"] = regions
        else:
            document = dict(known.document)
        if proposal.kind == PUT_RULE:
            return with_rule(document, rule_id, proposal.rule)
        if met == 0:
            raise _Refused([Fault("rule_id", f"there is no rule {rule_id!r}")])
        return without_rule(document, rule_id)

    def _usual_regions(self) -> Any:
        """What a new domain starts with when its proposal does not say: as the first domain that has regions."""
        return next(
            (self._states[name].document.get("regions") for name in sorted(self._bases) if self._bases[name]), None
        )

    def _accept(self, domain: str, document: dict[str, Any], known: DomainState | None, version: int) -> None:
        rule_set = parse_document(document)
        if rule_set.domain != domain:
            raise _Refused([Fault("domain", f"is {rule_set.domain!r}, but the change is of {domain!r}")])
        before = _rules_by_id(known.document) if known else {}
        versions_before = known.rule_versions if known else {}
        rule_versions = {
            rule.id: versions_before[rule.id]
            if rule.id in versions_before and before.get(rule.id) == dict(rule.source)
            else version
            for rule in rule_set.rules
        }
        bases = dict(rule_set.bases)
        # A domain's first set counts as a change, also when it names no regions.
        same_bases = known is not None and self._bases.get(domain) == bases and domain not in self._unreadable
        bases_version = known.bases_version if known and same_bases else version
        self._states[domain] = DomainState(domain, document, rule_versions, version, bases_version)
        self._bases[domain] = bases
        self._unreadable.discard(domain)


def _check_form(proposal: Proposal) -> None:
    faults: list[Fault] = []
    if proposal.kind not in (PUT_RULE, DELETE_RULE, PUT_SET):
        raise _Refused([Fault("kind", f"{proposal.kind} {proposal.reason}".strip())])
    if not proposal.domain:
        faults.append(Fault("domain", "is missing"))
    if proposal.kind == PUT_SET and proposal.document is None:
        faults.append(Fault("document", "is missing"))
    if proposal.kind != PUT_SET and not proposal.rule_id:
        faults.append(Fault("rule_id", "is missing"))
    if proposal.kind == PUT_RULE and proposal.rule is None:
        faults.append(Fault("rule", "is missing"))
    if faults:
        raise _Refused(faults)


def _rules_by_id(document: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    rules = document.get("rules", [])
    if not isinstance(rules, list):
        return {}
    return {str(rule.get("id")): rule for rule in rules if isinstance(rule, dict)}
