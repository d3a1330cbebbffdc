"""A change of what operators decide, from its proposal to its outcome, and what it does to a document.  Pure.

A proposal names the version that it was made from.  The leader decides it in log order; the outcome is kept for
ever, with the change itself, so that whoever reads the history can build every version again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from regional_limiter.model.errors import Fault
from regional_limiter.rules import with_rule, without_rule
from regional_limiter.rules.ends import without_ended_overrides

VERSION = 1
CHANGE_BYTES_MOST = 900_000
"""Of a proposal.  With what the outcome adds to it, it must still be one record (a million bytes)."""
FAULTS_TOLD_MOST = 100

PUT_RULE, DELETE_RULE, PUT_SET, UNREADABLE = "put_rule", "delete_rule", "put_set", "unreadable"
DELETE_DOMAIN = "delete_domain"
PUT_OVERRIDE, DELETE_OVERRIDE, END_OVERRIDES = "put_override", "delete_override", "end_overrides"
PUT_SUBJECTS, DELETE_SUBJECTS = "put_subjects", "delete_subjects"
STORE_SUBJECTS, FORGET_SUBJECTS = "store_subjects", "forget_subjects"
PUT_TOKEN, REVOKE_TOKEN = "put_token", "revoke_token"
PUT_REGIONS, REGION_DESTROYED = "put_regions", "region_destroyed"

_NEEDS: Mapping[str, tuple[str, ...]] = {
    PUT_RULE: ("domain", "rule_id", "rule"),
    DELETE_RULE: ("domain", "rule_id"),
    PUT_SET: ("domain", "document"),
    DELETE_DOMAIN: ("domain",),
    PUT_OVERRIDE: ("domain", "override"),
    DELETE_OVERRIDE: ("domain", "override"),
    END_OVERRIDES: ("domain", "ended_by_ms"),
    PUT_SUBJECTS: ("domain", "subjects"),
    DELETE_SUBJECTS: ("domain", "subjects"),
    STORE_SUBJECTS: ("domain", "subjects"),
    FORGET_SUBJECTS: ("domain", "subjects"),
    PUT_TOKEN: ("token",),
    REVOKE_TOKEN: ("token",),
    PUT_REGIONS: ("domain", "regions"),
    REGION_DESTROYED: ("region",),
}
"""The fields that a change of each kind must have."""

ACCESS_KINDS = (PUT_TOKEN, REVOKE_TOKEN)
"""Changes of who may: they belong to no domain, and nodes never see them."""
DOMAINLESS_KINDS = (*ACCESS_KINDS, REGION_DESTROYED)
STORED_KINDS = (STORE_SUBJECTS, FORGET_SUBJECTS)
"""Changes of what is known of clients beside a domain's set: they lead to no version of the set."""


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """What somebody wants.

    ``made_from``: the version of the rule (or set) that it was made from; 0: must not exist; None: whatever is
    there.  ``regions``: weights of a domain: those to come (``put_regions``), or for one that has no set yet.
    ``region``: the one that is destroyed (``region_destroyed``).  ``restores``: the version that a ``put_set``
    goes back to.  ``ended_by_ms``: of ``end_overrides``, which end those that end by then.  ``author``: who;
    ``origin``: from where; ``reason``: why.
    """

    v: int = VERSION
    id: str
    domain: str
    kind: str
    rule_id: str | None = None
    rule: dict[str, Any] | None = None
    document: dict[str, Any] | None = None
    override: dict[str, Any] | None = None
    subjects: list[dict[str, Any]] | None = None
    token: dict[str, Any] | None = None
    ended_by_ms: int | None = None
    regions: dict[str, int] | None = None
    region: str | None = None
    restores: int | None = None
    made_from: int | None = None
    author: str = ""
    origin: str = ""
    reason: str = ""
    at_ms: int = 0


class Proposal(Change, frozen=True, kw_only=True):
    """A change that is proposed; ``at_ms``: when, by its author's clock."""


class History(Change, frozen=True, kw_only=True):
    """What became of the proposal at ``offset``; ``at_ms``: when that was decided.  May repeat: the offset tells.

    ``version``: the one that it led to, or that it met when refused.
    """

    offset: int
    accepted: bool
    version: int
    faults: list[dict[str, str]] = []
    conflict: bool = False
    epoch: int = 0


def rule_of(entry: History) -> str | None:
    """The rule that a change is about, also by an override of it."""
    rule = entry.rule_id or (entry.override or {}).get("rule")
    return rule if isinstance(rule, str) else None


class ChangeRefused(Exception):
    """``conflict``: somebody was first."""

    def __init__(self, faults: list[Fault], *, conflict: bool = False) -> None:
        super().__init__("refused")
        self.faults = faults
        self.conflict = conflict


# ---- bytes


def encode_proposal(proposal: Proposal) -> bytes:
    return msgspec.json.encode(proposal)


def decode_proposal(value: bytes) -> Proposal:
    """The proposal; one that cannot be read is of kind ``unreadable`` and will be refused like a wrong one."""
    if len(value) > CHANGE_BYTES_MOST:
        reason = f"of {len(value):,} bytes; a change may have {CHANGE_BYTES_MOST:,}"
        return Proposal(id="", domain="", kind=UNREADABLE, reason=reason)
    try:
        proposal = msgspec.json.decode(value, type=Proposal)
    except msgspec.DecodeError as error:
        return Proposal(id="", domain="", kind=UNREADABLE, reason=str(error)[:200])
    if proposal.v != VERSION:
        return Proposal(id=proposal.id, domain=proposal.domain, kind=UNREADABLE, reason=f"version {proposal.v}")
    return proposal


def history_of(proposal: Proposal, **outcome: Any) -> History:
    """The history entry of a proposal with its ``outcome`` (the fields that a History adds, and ``at_ms``)."""
    said = {name: getattr(proposal, name) for name in Change.__struct_fields__}
    return History(**{**said, **outcome})


def encode_history(entry: History) -> tuple[bytes, bytes]:
    """(key, value) of the history topic."""
    return f"{entry.domain}/{entry.rule_id or ''}".encode(), msgspec.json.encode(entry)


def decode_history(value: bytes) -> History:
    """Raises ValueError."""
    try:
        return msgspec.json.decode(value, type=History)
    except msgspec.DecodeError as error:
        raise ValueError(f"no history entry: {error}") from error


# ---- what it does


def check_form(change: Change) -> None:
    """Raises ChangeRefused when the change lacks what its kind needs."""
    if change.kind not in _NEEDS:
        raise ChangeRefused([Fault("kind", f"{change.kind} {change.reason}".strip())])
    faults = [Fault(name, "is missing") for name in _NEEDS[change.kind] if getattr(change, name) in (None, "")]
    if faults:
        raise ChangeRefused(faults)


def changed_document(known: Mapping[str, Any] | None, change: Change) -> dict[str, Any]:
    """The document that an accepted change leads to.  ``known``: the one before; None: the domain had none.

    Raises ChangeRefused, or InvalidRules for what is no rule; whether the whole is right is not looked at.
    """
    if change.kind == PUT_SET:
        return {"domain": change.domain, **(change.document or {})}
    if change.kind == DELETE_DOMAIN:
        return _emptied(change.domain, known)
    if known is None:
        document: dict[str, Any] = {"domain": change.domain, "rules": []}
        if change.regions:
            document["regions"] = change.regions
    else:
        document = dict(known)
    if change.kind == PUT_REGIONS:
        return _with_regions(known, change)
    if change.kind == PUT_RULE:
        return with_rule(document, change.rule_id or "", change.rule)
    if change.kind == DELETE_RULE:
        return _without_rule(document, change.rule_id or "")
    if change.kind == END_OVERRIDES:
        return _without_ended(document, change.ended_by_ms or 0)
    if change.kind in (PUT_SUBJECTS, DELETE_SUBJECTS):
        return _with_subjects(document, change.subjects or [], put=change.kind == PUT_SUBJECTS)
    return _with_override(document, change.override or {}, put=change.kind == PUT_OVERRIDE)


def _with_regions(known: Mapping[str, Any] | None, change: Change) -> dict[str, Any]:
    if known is None:
        raise ChangeRefused([Fault("domain", f"there are no rules of {change.domain}")])
    return {**known, "regions": change.regions}


def _emptied(domain: str, known: Mapping[str, Any] | None) -> dict[str, Any]:
    """Without rules.  Its regions stay: among them its shares are divided, should it come again."""
    if known is None:
        raise ChangeRefused([Fault("domain", f"there is no domain {domain}")])
    regions = {"regions": known["regions"]} if "regions" in known else {}
    return {"domain": domain, **regions, "rules": []}


def _without_rule(document: dict[str, Any], rule_id: str) -> dict[str, Any]:
    rules = document.get("rules", [])
    if not any(isinstance(rule, dict) and rule.get("id") == rule_id for rule in rules):
        raise ChangeRefused([Fault("rule_id", f"there is no rule {rule_id}")])
    return without_rule(document, rule_id)


def _without_ended(document: dict[str, Any], by_ms: int) -> dict[str, Any]:
    left = without_ended_overrides(document.get("overrides", []), by_ms)
    if left == document.get("overrides", []):
        raise ChangeRefused([Fault("ended_by_ms", "no override ends by then")])
    return {**document, "overrides": left}


def _with_override(document: dict[str, Any], override: dict[str, Any], *, put: bool) -> dict[str, Any]:
    """The document with (or without) the override of that rule and key, whatever else it says."""
    known = document.get("overrides", [])
    others = [one for one in known if not _same_key(one, override)]
    if put:
        places = [place for place, one in enumerate(known) if _same_key(one, override)]
        others.insert(places[0] if places else len(others), override)
    elif len(others) == len(known):
        raise ChangeRefused([Fault("override", "there is none of this rule and key")])
    return {**document, "overrides": others}


def _with_subjects(document: dict[str, Any], subjects: list[dict[str, Any]], *, put: bool) -> dict[str, Any]:
    """The document with (or without) these subjects, each in the place of the one that is found by the same.

    Of those to be taken out, some may not be there any more; that none is refuses the change.
    """
    known = {_found_by(one): one for one in document.get("subjects", []) if isinstance(one, dict)}
    if put:
        known |= {_found_by(one): one for one in subjects}
        return {**document, "subjects": list(known.values())}
    gone = {_found_by(one) for one in subjects}
    if subjects and known.keys().isdisjoint(gone):
        raise ChangeRefused([Fault("subjects", f"there is no subject {_shown(subjects[0])}")])
    return {**document, "subjects": [one for found_by, one in known.items() if found_by not in gone]}


def _found_by(subject: Mapping[str, Any]) -> frozenset[tuple[str, str]]:
    return frozenset((str(name), str(value)) for name, value in subject.items() if name != "set")


def _shown(subject: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}"[:100] for name, value in subject.items() if name != "set")


def _same_key(one: Any, other: Mapping[str, Any]) -> bool:
    return isinstance(one, dict) and (one.get("rule"), one.get("key", {})) == (
        other.get("rule"),
        other.get("key", {}),
    )
