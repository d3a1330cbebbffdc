"""What is known of clients, kept in the region's store instead of every node's memory: how it lies there.  Pure.

A client is a key of its own, in one of ``GROUPS`` groups; a group shares a hash tag, so it moves, is lost, and is
written as one.  Beside its clients a group keeps its place, which each write moves in the same call: how far the
topic of subjects has been read into it (0 and more); or, while it is being filled, a negative number, which no
other filling has.  Nodes take a group for filled only by the first.  One above the topic's end is of another topic,
and the group is filled anew.  Who takes a group for being where it is not, writes nothing: so what was lost between
two writes is noticed by the second.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, runtime_checkable
from zlib import crc32

from regional_limiter.model.errors import StoreUnavailable

GROUPS: Final = 256
CLIENTS_A_WRITE: Final = 100
"""A call that writes more would hold up the checks of its shard."""
FORGOTTEN_MS: Final = 600_000
"""How long it is remembered that nothing is known of a client any more: what comes late must not say otherwise."""


@dataclass(frozen=True, slots=True)
class SubjectWrite:
    """``version``: of the change that said so.  ``attributes``: as JSON, empty when nothing is known any more."""

    domain: str
    client_key: str
    version: int
    attributes: bytes


@dataclass(frozen=True, slots=True)
class SubjectFound:
    """``attributes``: as JSON, empty when nothing is known.  ``is_filled``: the store has read what there is."""

    attributes: bytes
    is_filled: bool


LookedUp = Callable[[SubjectFound | StoreUnavailable], None]
"""Called once, perhaps before the question returns."""


@runtime_checkable
class SubjectLookup(Protocol):
    """What a node needs."""

    def look_up(self, domain: str, client_key: str, done: LookedUp) -> None:
        """What is known of a client; within the deadline of a check."""
        ...


@runtime_checkable
class SubjectStore(SubjectLookup, Protocol):
    """What the region's agent needs.  Raises StoreUnavailable."""

    async def subject_positions(self) -> list[int | None]:
        """By group: its place; None: it has none."""
        ...

    async def write_subjects(
        self, group: int, subjects: Sequence[SubjectWrite], moved: tuple[int | None, int]
    ) -> bool:
        """Write what is newer than what is there.  ``subjects``: of this group, at most ``CLIENTS_A_WRITE``.

        ``moved``: from which place to which this brings the group; False, and nothing is written, where it was
        not there: somebody else wrote meanwhile, or it was lost.
        """
        ...


def group_of(domain: str, client_key: str) -> int:
    """The group that a client is in, in every region and version the same."""
    return crc32(f"{domain}/{client_key}".encode()) % GROUPS


def tag_of_group(group: int) -> str:
    return f"subjects-{group}"


def position_key(group: int) -> str:
    return f"rl:s{{{tag_of_group(group)}}}"


def filling_key(group: int) -> str:
    """Where the place is while the group is being filled.  (No domain begins so.)"""
    return f"{position_key(group)}:filling"


def client_storage_key(group: int, domain: str, client_key: str) -> str:
    return f"{position_key(group)}{domain}/{client_key}"


WRITE_SCRIPT: Final = f"""
local place = redis.call('GET', KEYS[1]) or redis.call('GET', KEYS[2]) or ''
if place ~= ARGV[1] then return 0 end
if string.sub(ARGV[2], 1, 1) == '-' then
  redis.call('SET', KEYS[2], ARGV[2])
  redis.call('DEL', KEYS[1])
else
  redis.call('SET', KEYS[1], ARGV[2])
  redis.call('DEL', KEYS[2])
end
for i = 3, #KEYS do
  local version, set = ARGV[2 * i - 3], ARGV[2 * i - 2]
  local held = redis.call('GET', KEYS[i])
  if not held or tonumber(string.match(held, '^%d+')) <= tonumber(version) then
    if set == '' then
      redis.call('SET', KEYS[i], version, 'PX', {FORGOTTEN_MS})
    else
      redis.call('SET', KEYS[i], version .. ' ' .. set)
    end
  end
end
return 1
"""
"""KEYS: the group's position, its place while it is being filled, its clients.  ARGV: the places before and after
("": none), then version and JSON of each client."""


def held_attributes(held: bytes | None) -> bytes:
    """The JSON in what a client's key holds; empty when nothing is known."""
    return held.partition(b" ")[2] if held else b""


class SubjectsInMemory:
    """Fulfils :class:`SubjectStore` within one process."""

    def __init__(self) -> None:
        self._positions: dict[int, int] = {}
        self._held: dict[tuple[str, str], tuple[int, bytes]] = {}

    def lose(self) -> None:
        self._positions.clear()
        self._held.clear()

    def look_up(self, domain: str, client_key: str, done: LookedUp) -> None:
        _, attributes = self._held.get((domain, client_key), (0, b""))
        done(SubjectFound(attributes, self._positions.get(group_of(domain, client_key), -1) >= 0))

    async def subject_positions(self) -> list[int | None]:
        return [self._positions.get(group) for group in range(GROUPS)]

    async def write_subjects(
        self, group: int, subjects: Sequence[SubjectWrite], moved: tuple[int | None, int]
    ) -> bool:
        if self._positions.get(group) != moved[0]:
            return False
        self._positions[group] = moved[1]
        for one in subjects:
            place = one.domain, one.client_key
            if one.version >= self._held.get(place, (0, b""))[0]:
                self._held[place] = one.version, one.attributes
        return True
