"""Who serves which slot of a Redis Cluster, out of what its servers say (CLUSTER NODES).  Pure.

Servers disagree during a failover or a slot move.  A primary's claim to slots carries its configuration epoch,
and the cluster itself settles disputes by the higher epoch; so does :func:`merge`.
"""

from __future__ import annotations

from binascii import crc_hqx
from collections.abc import Iterable
from dataclasses import dataclass

SLOTS = 16384

_UNUSABLE = frozenset(("noaddr", "handshake"))


def hash_slot_of(tag: str) -> int:
    """The slot of every key with this hash tag."""
    return crc_hqx(tag.encode(), 0) % SLOTS


@dataclass(frozen=True, slots=True)
class NodeLine:
    """One line of CLUSTER NODES.  ``slots``: half-open ranges."""

    address: str
    myself: bool
    primary: bool
    failing: bool
    epoch: int
    slots: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Topology:
    """``owners[slot]`` is the address that serves it, "" when nobody does.

    ``primaries``: those that own slots.  ``servers``: every address that any view names.
    """

    owners: tuple[str, ...]
    primaries: tuple[str, ...]
    servers: frozenset[str]
    claims: tuple[tuple[str, tuple[tuple[int, int], ...]], ...]


NOTHING_KNOWN = Topology(("",) * SLOTS, (), frozenset(), ())


def parse_nodes(text: str, asked: str) -> list[NodeLine]:
    """The lines of a reply of CLUSTER NODES by the server at ``asked`` (whose host stands in for an empty one)."""
    own_host = asked.rpartition(":")[0]
    found = []
    for line in text.splitlines():
        fields = line.split(" ")
        if len(fields) < 8:
            continue
        flags = frozenset(fields[2].split(","))
        if flags & _UNUSABLE:
            continue
        host, _, port = fields[1].partition("@")[0].rpartition(":")
        found.append(
            NodeLine(
                address=f"{host or own_host}:{port}",
                myself="myself" in flags,
                primary="master" in flags,
                failing="fail" in flags,
                epoch=int(fields[6]),
                slots=tuple(_ranges(fields[8:])),
            )
        )
    return found


def _ranges(fields: Iterable[str]) -> Iterable[tuple[int, int]]:
    for item in fields:
        if item and not item.startswith("["):  # [slot->-id] and [slot-<-id]: a move under way, not a claim
            first, _, last = item.partition("-")
            yield int(first), int(last or first) + 1


def merge(views: Iterable[Iterable[NodeLine]]) -> Topology:
    """One topology out of several servers' views."""
    claims: dict[str, NodeLine] = {}
    servers: set[str] = set()
    for view in views:
        for line in view:
            servers.add(line.address)
            if not line.primary:
                continue
            known = claims.get(line.address)
            # At the same epoch a server knows its own slots best.
            if known is None or (line.epoch, line.myself) > (known.epoch, known.myself):
                claims[line.address] = line
    owners = [""] * SLOTS
    ordered = sorted(claims.values(), key=lambda line: (line.epoch, line.address))
    for line in ordered:
        for first, end in line.slots:
            owners[first:end] = [line.address] * (end - first)
    in_charge = set(owners) - {""}
    return Topology(
        owners=tuple(owners),
        primaries=tuple(sorted(in_charge)),
        servers=frozenset(servers),
        claims=tuple((line.address, line.slots) for line in ordered if line.address in in_charge),
    )


def primaries_in(views: Iterable[Iterable[NodeLine]]) -> frozenset[str]:
    """Every address that any view takes for a primary that serves: with slots, or alive without any yet.

    One that failed and has lost its slots is not named; one that is cut off and still claims slots in its own
    view is.
    """
    return frozenset(
        line.address for view in views for line in view if line.primary and (line.slots or not line.failing)
    )
