"""Subjects that a set has stored in each region instead of naming them: the setting, and what one may say."""

from __future__ import annotations

from collections.abc import Mapping

from regional_limiter.model.errors import Fault
from regional_limiter.model.rule import StoredSubjects
from regional_limiter.rules.faults import Faults
from regional_limiter.rules.fields import below, check_fields, read_attributes, read_mapping, read_text
from regional_limiter.rules.grammar import (
    ATTRIBUTE,
    SUBJECT_ATTRIBUTES_MOST,
    SUBJECT_BYTES_MOST,
    SUBJECT_KEEP_MS_MOST,
    TEXT_BYTES_MOST,
)
from regional_limiter.rules.quantities import read_span_ms

FIELDS = ("keep",)
_OF_THE_CHECK = ("client_key", "resource")
_FEW, _SHORT = 8, 100
"""Attributes, and characters of each: together below what one may say."""


def read_stored_subjects(faults: Faults, value: object) -> StoredSubjects | None:
    """``true``, or how long a node keeps what it has looked up; ``false``: none are stored."""
    place = "stored_subjects"
    if isinstance(value, bool):
        return StoredSubjects() if value else None
    if not isinstance(value, dict):
        faults.add(place, "must be true, false, or a mapping such as {keep: 60s}")
        return None
    fields = read_mapping(faults, place, value)
    check_fields(faults, place, fields, FIELDS)
    if "keep" not in fields:
        return StoredSubjects()
    keep_ms = read_span_ms(faults, below(place, "keep"), fields["keep"], SUBJECT_KEEP_MS_MOST)
    return StoredSubjects(keep_ms)


def faults_of_subject(subject: object, *, put: bool) -> list[Fault]:
    """What is wrong with one of them, by places such as ``.set.tier``."""
    if put and _is_surely_right(subject):
        return []
    faults = Faults()
    fields = read_mapping(faults, "", subject)
    check_fields(faults, "", fields, ("client_key", "set") if put else ("client_key",))
    read_text(faults, "client_key", fields.get("client_key"), empty=False)
    if put:
        attributes = read_attributes(faults, "set", fields.get("set"))
        for name in _OF_THE_CHECK:
            if name in attributes:
                faults.add(f"set.{name}", "is what the check says, and cannot be known of a client")
        if len(attributes) > SUBJECT_ATTRIBUTES_MOST:
            faults.add("set", f"at most {SUBJECT_ATTRIBUTES_MOST} attributes, not {len(attributes)}")
        size = sum(len(name) + len(text.encode("utf-8", "replace")) for name, text in attributes.items())
        if size > SUBJECT_BYTES_MOST:
            faults.add("set", f"at most {SUBJECT_BYTES_MOST:,} bytes in all, not {size:,}")
    found = faults.error().faults if faults.count else ()
    return [
        Fault(f".{fault.place}" if fault.place not in ("", "document") else "", fault.problem) for fault in found
    ]


def _is_surely_right(subject: object) -> bool:
    """What nearly all of a million are, found out quickly."""
    if type(subject) is not dict or len(subject) != 2:
        return False
    key, said = subject.get("client_key"), subject.get("set")
    if type(key) is not str or not key.isascii() or not 0 < len(key) <= TEXT_BYTES_MOST or type(said) is not dict:
        return False
    return 0 < len(said) <= _FEW and all(
        type(text) is str
        and text.isascii()
        and len(text) <= _SHORT
        and type(name) is str
        and ATTRIBUTE.fullmatch(name) is not None
        and name not in _OF_THE_CHECK
        for name, text in said.items()
    )


def attributes_of(said: object) -> Mapping[str, str] | None:
    """What the store says is known of a client; None for what this version cannot read."""
    if isinstance(said, dict) and all(
        isinstance(name, str) and isinstance(text, str) for name, text in said.items()
    ):
        return said
    return None
