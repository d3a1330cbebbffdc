"""What counts of what is known of clients: that of the set, and above it what is stored."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from regional_limiter.model.rule import Subject
from services.accepted_rules import LoadedSet
from services.control_api.knowledge import Hub


@dataclass(frozen=True, slots=True)
class Known:
    """``stands_in``: ``stored``, ``set`` or both.  ``version``: of the change that stored it; None: the set's."""

    attributes: Mapping[str, str]
    stands_in: Sequence[str]
    version: int | None


def is_stored(hub: Hub, domain: str) -> bool:
    known = hub.book.get(domain)
    return known is not None and known.rule_set.stored_subjects is not None


def client_of(subject: Subject) -> str | None:
    """The client of a set's subject that is found by its key alone."""
    return subject.where["client_key"] if list(subject.where) == ["client_key"] else None


def named_by(known: LoadedSet | None, client_keys: Collection[str]) -> dict[str, Mapping[str, str]]:
    """What the set says of those of the clients that it names by their keys."""
    if known is None:
        return {}
    wanted = frozenset(client_keys)
    return {
        client: one.attributes
        for one in known.rule_set.subjects
        if (client := client_of(one)) is not None and client in wanted
    }


async def stored_of(hub: Hub, domain: str, client_keys: Sequence[str]) -> dict[str, dict[str, Any]]:
    """What is stored of clients, and counts; empty where the set does not say that any is."""
    if not client_keys or not is_stored(hub, domain):
        return {}
    return await asyncio.to_thread(hub.subjects.index.of, domain, client_keys)


async def known_of(hub: Hub, domain: str, client_keys: Sequence[str]) -> dict[str, Known]:
    """What counts of clients, by key; of the others nothing is known."""
    stored = await stored_of(hub, domain, client_keys)
    return merged(named_by(hub.book.get(domain), client_keys), stored)


def merged(named: Mapping[str, Mapping[str, str]], stored: Mapping[str, Mapping[str, Any]]) -> dict[str, Known]:
    """Attribute by attribute, what is stored wins: so nodes complete checks."""
    found = {key: Known(dict(said), ["set"], None) for key, said in named.items() if key not in stored}
    for key, one in stored.items():
        stands_in = ["stored", "set"] if key in named else ["stored"]
        found[key] = Known({**named.get(key, {}), **one["set"]}, stands_in, one["version"])
    return found


def count_named(known: Mapping[str, Known]) -> int:
    """How many of them the set names."""
    return sum("set" in one.stands_in for one in known.values())


def effect_on(known: Mapping[str, Known], said: Mapping[str, Mapping[str, str] | None]) -> dict[str, int]:
    """How many clients a change makes known, knows otherwise, and forgets.  ``said``: None for whom it forgets."""
    appear = sum(now is not None and key not in known for key, now in said.items())
    vanish = sum(now is None and key in known for key, now in said.items())
    change = sum(now is not None and key in known and known[key].attributes != now for key, now in said.items())
    return {"appear": appear, "change": change, "vanish": vanish}
