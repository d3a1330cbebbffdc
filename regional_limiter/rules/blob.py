"""The rules blob that travels from a region's agent to its nodes, and lies on the disk of both.  Pure.

``{"version": highest of its sets, "sets": {domain: {"version": …, "document": …}}}``, as JSON.

Each domain is taken or refused by itself: one that is wrong keeps the set that was in force, and no other one
back.  A refused domain stays named, so that nobody takes a domain whose rules cannot be read for one without rules.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from regional_limiter.model.errors import InvalidRules
from regional_limiter.model.rule import RuleSet
from regional_limiter.rules.parse import parse_document


@dataclass(frozen=True, slots=True)
class Source:
    """A domain's set as it travels: not parsed, and perhaps wrong."""

    version: int
    document: object


@dataclass(frozen=True, slots=True)
class KnownSet:
    """A domain's set that has been parsed."""

    version: int
    rule_set: RuleSet

    @property
    def source(self) -> Source:
        return Source(self.version, self.rule_set.source)


@dataclass(frozen=True, slots=True)
class Blob:
    """What a blob holds, after reading.

    ``sets``: what is in force with it, by domain: its own set, or where that is refused the one known before.
    ``refused``: domain -> why its set was not taken.  ``in_force``: as a blob again, in which a refused domain has
    the set known before, or without one the refused source, so that whoever reads it refuses the domain again.
    """

    version: int
    sets: Mapping[str, KnownSet]
    refused: Mapping[str, str]
    in_force: Mapping[str, Source]


def encode_blob(version: int, sources: Mapping[str, Source]) -> bytes:
    sets = {name: {"version": source.version, "document": source.document} for name, source in sources.items()}
    return msgspec.json.encode({"version": version, "sets": sets})


def read_blob(blob: bytes, known: Mapping[str, KnownSet]) -> Blob:
    """Parse every set whose version is another than the one ``known``.  Raises ValueError when it is no blob."""
    try:
        content = msgspec.json.decode(blob)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"not a rules blob: {error}") from None
    version = content.get("version") if isinstance(content, dict) else None
    entries = content.get("sets") if isinstance(content, dict) else None
    if type(version) is not int or not isinstance(entries, dict):
        raise ValueError("not a rules blob: it needs an integer version, and sets by domain")
    sets: dict[str, KnownSet] = {}
    refused: dict[str, str] = {}
    in_force: dict[str, Source] = {}
    for domain, entry in entries.items():
        before = known.get(domain)
        try:
            taken = _take(domain, entry, before)
        except (InvalidRules, ValueError) as error:
            refused[domain] = str(error)
            if before is None:
                in_force[domain] = _as_it_came(entry)
                continue
            taken = before
        sets[domain] = taken
        in_force[domain] = taken.source
    return Blob(version, sets, refused, in_force)


def _take(domain: str, entry: object, known: KnownSet | None) -> KnownSet:
    if not isinstance(entry, dict) or type(version := entry.get("version")) is not int or "document" not in entry:
        raise ValueError("a set needs an integer version, and a document")
    if known is not None and known.version == version:
        return known
    rule_set = parse_document(entry["document"])
    if rule_set.domain != domain:
        raise ValueError(f"the set says domain {rule_set.domain}")
    return KnownSet(version, rule_set)


def _as_it_came(entry: object) -> Source:
    """A refused set, such that it is refused again."""
    if isinstance(entry, dict) and type(version := entry.get("version")) is int:
        return Source(version, entry.get("document"))
    return Source(-1, None)
