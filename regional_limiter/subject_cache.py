"""What a node has looked up of clients, bounded; also that nothing is known of them.  Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from regional_limiter.rules.stored_subjects import attributes_of

CLIENTS_MOST = 50_000
CHARACTERS_MOST = 16_000_000
SETS_MOST = 10_000
"""Different sets of attributes: most clients share theirs with many."""
NOTHING: Mapping[str, str] = {}


@dataclass(slots=True)
class Looked:
    """``attributes``: what is known of the client.  ``at_us``: when that was so, on the node's steady clock."""

    attributes: Mapping[str, str]
    at_us: int


class SubjectCache:
    """By domain and client key; the one that was looked up longest ago goes first."""

    def __init__(self, clients_most: int = CLIENTS_MOST, characters_most: int = CHARACTERS_MOST) -> None:
        self._clients_most = clients_most
        self._characters_most = characters_most
        self._characters = 0
        self._looked: dict[tuple[str, str], Looked] = {}
        self._sets: dict[bytes, Mapping[str, str]] = {}

    def __len__(self) -> int:
        return len(self._looked)

    def get(self, domain: str, client_key: str) -> Looked | None:
        return self._looked.get((domain, client_key))

    def put(self, domain: str, client_key: str, attributes: bytes, at_us: int) -> Looked:
        """``attributes``: as JSON, empty for nothing.  Raises ValueError for what this version cannot read."""
        place = domain, client_key
        looked = Looked(self._set_of(attributes), at_us)
        if self._looked.pop(place, None) is None:
            self._characters += len(client_key)
        self._looked[place] = looked
        while len(self._looked) > self._clients_most or self._characters > self._characters_most:
            oldest = next(iter(self._looked))
            del self._looked[oldest]
            self._characters -= len(oldest[1])
        return looked

    def clear(self) -> None:
        self._looked, self._sets, self._characters = {}, {}, 0

    def _set_of(self, attributes: bytes) -> Mapping[str, str]:
        """The same object for the same attributes."""
        if not attributes:
            return NOTHING
        known = self._sets.get(attributes)
        if known is None:
            known = attributes_of(msgspec.json.decode(attributes))
            if known is None:
                raise ValueError("attributes of a subject must be text by text")
            if len(self._sets) >= SETS_MOST:
                self._sets = {}
            self._sets[attributes] = known
        return known
