"""The accepted state of every domain as a compacted topic carries it: in parts, each with (epoch, offset).  Pure.

Readers (:class:`RulesFold`) take the highest that is complete, so a part that a late predecessor wrote over a newer
one only makes them wait until the leader has written it again (:meth:`Rulebook.stale_domain`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

VERSION = 1
PART_CHARACTERS = 350_000
"""The text is ASCII, and a character takes two bytes at most once it is a JSON string: 700 kB a part."""
PARTS_MOST = 64
_INCOMPLETE_KEPT = 4


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
    deleted: bool = False


@dataclass(frozen=True, slots=True)
class DomainState:
    """One domain's accepted set.  ``version``: of the newest accepted change; ``bases_version``: of the newest
    that changed the bases; ``epoch``: of the leader that wrote it.  ``deleted``: the domain is as if it had never
    had rules, but for its bases."""

    domain: str
    document: Mapping[str, Any]
    rule_versions: Mapping[str, int]
    version: int
    bases_version: int
    epoch: int = 0
    deleted: bool = False

    @property
    def offset(self) -> int:
        return self.version - 1


def encode_parts(state: DomainState, epoch: int) -> list[tuple[bytes, bytes]]:
    """(key, value) of every part of a domain's accepted state, to be written in this order."""
    blob = msgspec.json.encode(
        _Blob(
            document=dict(state.document),
            rule_versions=dict(state.rule_versions),
            version=state.version,
            bases_version=state.bases_version,
            deleted=state.deleted,
        )
    )
    text = _ascii(blob.decode())
    slices = [text[at : at + PART_CHARACTERS] for at in range(0, len(text), PART_CHARACTERS)]
    parts: list[tuple[bytes, bytes]] = []
    for number, piece in enumerate(slices):
        part = _Part(
            v=VERSION,
            domain=state.domain,
            epoch=epoch,
            offset=state.offset,
            version=state.version,
            part=number,
            parts=len(slices),
            blob=piece,
        )
        parts.append((f"{state.domain}#{number}".encode(), msgspec.json.encode(part)))
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
        part = decode_part(value)
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
            part.domain,
            blob.document,
            blob.rule_versions,
            blob.version,
            blob.bases_version,
            part.epoch,
            blob.deleted,
        )
        self._incomplete[part.domain] = {later: parts for later, parts in waiting.items() if later > order}
        return True


def decode_part(value: bytes) -> _Part | None:
    try:
        part = msgspec.json.decode(value, type=_Part)
    except msgspec.DecodeError:
        return None
    readable = part.v == VERSION and 0 <= part.part < part.parts <= PARTS_MOST
    return part if readable else None
