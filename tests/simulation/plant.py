"""What the protocol's machines run against: Redis copies with drifting clocks, shards, nodes with disks.

Nothing here decides anything.  Time is a true time that no machine sees; each copy shows its own clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

from global_sync.protocol.ledger import domain_of
from global_sync.simulation.clock import Clock
from regional_limiter.model.decision import ShareKind
from regional_limiter.model.enforcement import Enforcement, Write, WriteReply
from regional_limiter.model.share import SHARE_UNITS, ProtocolTimes, domain_of_floor, floor_name, floor_of

MILLION = 1_000_000
Own = tuple[int, int]
"""A region's base and named floor."""
NOTHING: Own = (0, 0)


def ticks(patience: int = 1400, lease_life: int = 0) -> ProtocolTimes:
    """Small numbers, the protocol's ratios, a large drift.  ``lease_life`` 0: nodes lease no tokens."""
    return ProtocolTimes(
        session_us=1000,
        patience_us=patience,
        gap_us=60,
        beat_us=50,
        report_us=25,
        write_us=15,
        drift_ppm=4000,
        token_lease_us=lease_life,
    )


@dataclass
class Node:
    """A check node's disk: the bases that it has stored, and their version."""

    version: int = 0
    bases: Mapping[str, int] = field(default_factory=dict)
    _owned: tuple[Mapping[str, int], list[tuple[str, Own]]] = field(default_factory=lambda: ({}, []))

    def own(self, domain: str) -> Own:
        return self.bases.get(domain, 0), self.bases.get(floor_name(domain), 0)

    def owned(self) -> list[tuple[str, Own]]:
        """Each domain with its base and floor."""
        if self._owned[0] is not self.bases:
            self._owned = self.bases, _owned(self.bases)
        return self._owned[1]


class _Row(NamedTuple):
    """Shares of ``keys``, as long as the nodes' versions sum to this and the clock, which may be set back, shows
    ``begin`` or later, and less than ``end``."""

    keys: Sequence[str]
    versions: int
    begin: int
    end: int
    shares: list[int]


class Copy:
    """One Redis copy: the enforcement point, and beside it an independent record of the bases known there."""

    def __init__(self, times: ProtocolTimes, clock: Clock, enforcement: type[Enforcement] = Enforcement) -> None:
        self.clock = clock
        self._life = times.token_lease_us
        self._leased: dict[
            str, list[tuple[int, int]]
        ] = {}  # key -> (share, true time until which tokens are spent)
        self._gap = 10**12 if getattr(enforcement, "gap_ignored", False) else times.gap_us
        self._enforcement = enforcement(times)
        self._last: int | None = None
        self._known: dict[str, tuple[int, Own]] = {}
        self._vector: tuple[int, Mapping[str, int]] = (0, {})
        self._row: _Row | None = None
        self._foreseen: tuple[Sequence[str], int, dict[int, list[int]]] = ((), 0, {})
        self.changes = 0
        """Grows with everything that shares depend on, but for the time."""

    def _has_changed(self) -> None:
        self.changes += 1
        self._row, self._foreseen = None, ((), 0, {})

    def _stale(self, now: int) -> bool:
        return self._last is None or now < self._last or now > self._last + self._gap

    def _enter(self, now: int) -> None:
        if self._stale(now):
            self._known, self._vector = {}, (0, {})
            self._has_changed()
        self._last = now

    def _learn(self, version: int, owned: list[tuple[str, Own]]) -> None:
        for domain, own in owned:
            if version > self._known.get(domain, (-1, NOTHING))[0]:
                self._known[domain] = (version, own)
                self._has_changed()

    def touch(self, true: int, node: Node | None = None) -> None:
        """A node calls: it brings its bases, and stores those that the agent has written if they are newer."""
        now = self.clock.read(true)
        self._enter(now)
        self._enforcement.enter(now)
        self._lease(true, now)
        if node is None:
            return
        self._learn(node.version, node.owned())
        for domain, own in node.owned():
            self._enforcement.know_base(now, domain, node.version, *own)
        if self._vector[0] > node.version:
            node.version, node.bases = self._vector

    def write(self, true: int, write: Write) -> WriteReply:
        now = self.clock.read(true)
        self._enter(now)
        if self._life:
            self._enforcement.enter(now)
            self._lease(true, now)
        reply = self._enforcement.write(now, write)
        self._has_changed()
        if reply.accepted:
            self._learn(write.base_version, _owned(write.bases))
            if write.base_version > self._vector[0]:
                self._vector = (write.base_version, dict(write.bases))
        return reply

    def _lease(self, true: int, now: int) -> None:
        """Nodes lease tokens of whatever they may, to the last instant before it changes."""
        variable, enforcement = self._enforcement._variable, self._enforcement
        if not self._life or variable is None or now >= variable.until:
            return
        ends = true + min(self._life, variable.until - now)
        for key in variable.leases:
            domain = domain_of(key)
            share = enforcement.share(now, key, domain)
            if share.kind is not ShareKind.LEASE or share.share <= share.floor:
                continue
            if enforcement.may_be_leased(now, key):
                enforcement.note_lease(key, domain, share.share)
                held = [one for one in self._leased.get(key, []) if one[1] > true and one[0] != share.share]
                self._leased[key] = [*held, (share.share, ends)]

    def leased(self, true: int, key: str) -> int:
        """The largest share under which tokens were leased here that may still be spent."""
        return max((share for share, ends in self._leased.get(key, ()) if ends > true), default=0)

    def lose(self) -> None:
        """The process restarts: the variable is gone."""
        self._enforcement.lose()
        self._has_changed()
        self._last, self._known, self._vector = None, {}, (0, {})

    def age_of_last_call(self, true: int) -> int:
        return 0 if self._last is None else self.clock.read(true) - self._last

    def share(self, true: int, key: str, nodes: list[Node]) -> int:
        """The most that a call by any of the nodes would use now."""
        return self._shares(true, self.clock.read(true), [key], nodes)[0]

    def shares(self, true: int, keys: Sequence[str], nodes: list[Node]) -> list[int]:
        """``share`` of several keys; what cannot have changed since it was last asked for is remembered."""
        now, row, versions = self.clock.read(true), self._row, sum([node.version for node in nodes])
        if (
            row is not None
            and row.keys is keys
            and row.versions == versions
            and row.begin <= now < row.end
            and not self._stale(now)
        ):
            return row.shares
        shares, variable = self._shares(true, now, keys, nodes), self._enforcement._variable
        if not self._stale(now):
            ends = [end for end in (variable.until, variable.consent) if end > now] if variable else []
            self._row = _Row(keys, versions, now, min(ends, default=now + MILLION), shares)
        return shares

    def _shares(self, true: int, now: int, keys: Sequence[str], nodes: list[Node]) -> list[int]:
        if self._stale(now):
            return [max((floor_of(*node.own(domain_of(key))) for node in nodes), default=0) for key in keys]
        return self._most(now, now, keys, nodes)

    def _most(self, now: int, then: int, keys: Sequence[str], nodes: list[Node]) -> list[int]:
        """By the bases that are known now, what a call would use ``then``."""
        bases: dict[str, set[Own]] = {}
        shares = []
        for key in keys:
            domain = domain_of(key)
            owned = bases.get(domain)
            if owned is None:
                owned = bases[domain] = self._bases(domain, nodes)
            shares.append(max([self._enforcement.foresee_share(now, then, key, *own) for own in owned]))
        return shares

    def ask(self, true: int, key: str) -> int:
        """The share that a call goes by which brings no bases of its own."""
        now = self.clock.read(true)
        self._enter(now)
        self._enforcement.enter(now)
        return self._enforcement.share(now, key, domain_of(key)).share

    def shares_later(self, true: int, after: int, keys: Sequence[str], nodes: list[Node]) -> list[int]:
        """The same ``after`` from now, if nodes go on calling and nothing else happens."""
        now = self.clock.read(true)
        then = now + after * (MILLION + self.clock.ppm) // MILLION
        variable = self._enforcement._variable
        if not self._stale(now) and variable is not None:
            versions = sum([node.version for node in nodes])
            if self._foreseen[0] is not keys or self._foreseen[1] != versions:
                self._foreseen = keys, versions, {}
            # Nothing turns but at these ends, so one look after each says it of all the time until the next.
            ended = max([end for end in (variable.until, variable.consent) if end <= then], default=0)
            foreseen = self._foreseen[2]
            if ended not in foreseen:
                foreseen[ended] = self._most(now, then, keys, nodes)
            return foreseen[ended]
        born_again = then > now + self._enforcement._consent_us + 2
        return [
            max(
                (own[0] if born_again else floor_of(*own) for own in self._bases(domain_of(key), nodes, lost=True)),
                default=0,
            )
            for key in keys
        ]

    def consent_left(self, true: int) -> int | None:
        """True time until the consent here is surely over; None without one."""
        now, variable = self.clock.read(true), self._enforcement._variable
        if self._stale(now) or variable is None or variable.consent <= now:
            return None
        return -(-(variable.consent - now) * MILLION // (MILLION + self.clock.ppm)) + 2

    @property
    def variable(self) -> object:
        """The raw variable, for schedules that look inside."""
        return self._enforcement._variable

    def _bases(self, domain: str, nodes: list[Node], lost: bool = False) -> set[Own]:
        version, own = (-1, NOTHING) if lost else self._known.get(domain, (-1, NOTHING))
        newer = {node.own(domain) for node in nodes if node.version > version}
        if not lost:
            newer.add(own)
        return newer


def _owned(bases: Mapping[str, int]) -> list[tuple[str, Own]]:
    """Each domain with its base and floor."""
    return [
        (name, (base, bases.get(floor_name(name), 0)))
        for name, base in bases.items()
        if domain_of_floor(name) is None
    ]


@dataclass
class Shard:
    copies: list[Copy]
    primary: int = 0
    failovers: list[int] = field(default_factory=list)

    @property
    def copy(self) -> Copy:
        return self.copies[self.primary]


@dataclass
class Plant:
    """One region's Redis and nodes."""

    name: str
    shards: list[Shard]
    nodes: list[Node]

    def points(self) -> dict[str, Copy]:
        return {f"{s}/{shard.primary}": shard.copy for s, shard in enumerate(self.shards)}

    def at(self, point: str, misrouted: bool = False) -> Copy | None:
        """The primary that answers at this address; None if it is no primary (replicas refuse).

        ``misrouted``: whoever is primary of that shard takes the call.
        """
        number, _, copy = point.partition("/")
        if int(number) >= len(self.shards):
            return None
        shard = self.shards[int(number)]
        return shard.copy if misrouted or shard.primary == int(copy) else None

    def fingerprint(self) -> tuple[int, ...]:
        """Equal as long as nothing has changed that shares depend on, but for the time."""
        shards = (number for shard in self.shards for number in (shard.primary, shard.copy.changes))
        return (*shards, *(node.version for node in self.nodes))

    def touch(self, true: int) -> None:
        for shard in self.shards:
            for node in self.nodes or [None]:
                shard.copy.touch(true, node)

    def share(self, true: int, key: str) -> int:
        """The largest share in force at any primary: wherever the key's slot is, or moves to."""
        return max(shard.copy.share(true, key, self.nodes) for shard in self.shards)

    def shares(self, true: int, keys: Sequence[str]) -> list[int]:
        """``share`` of each key, or a larger one under which some node still holds tokens."""
        by_shard = [shard.copy.shares(true, keys, self.nodes) for shard in self.shards]
        copies = [copy for shard in self.shards for copy in shard.copies if copy._leased]
        by_shard += [[copy.leased(true, key) for key in keys] for copy in copies]
        return by_shard[0] if len(by_shard) == 1 else [max(shares) for shares in zip(*by_shard, strict=True)]

    def shares_later(self, true: int, after: int, keys: Sequence[str]) -> list[int]:
        by_shard = [shard.copy.shares_later(true, after, keys, self.nodes) for shard in self.shards]
        return by_shard[0] if len(by_shard) == 1 else [max(shares) for shares in zip(*by_shard, strict=True)]

    def nodes_base_version(self) -> int:
        return min((node.version for node in self.nodes), default=MILLION)


class Destroyed(Plant):
    """Nothing is left of the region."""

    def __init__(self, name: str) -> None:
        super().__init__(name, [], [])

    def shares(self, true: int, keys: Sequence[str]) -> list[int]:
        return [0 for _ in keys]

    def share(self, true: int, key: str) -> int:
        return 0

    def shares_later(self, true: int, after: int, keys: Sequence[str]) -> list[int]:
        return [0 for _ in keys]


def make_plant(
    name: str,
    times: ProtocolTimes,
    random: Random,
    shards: int,
    nodes: int,
    enforcement: type[Enforcement] = Enforcement,
    ppm: int | None = None,
) -> Plant:
    def copy() -> Copy:
        rate = random.choice([-4000, 4000, random.randint(-4000, 4000)]) if ppm is None else ppm
        return Copy(times, Clock(random.randint(5000, 20000), rate), enforcement)

    return Plant(name, [Shard([copy(), copy()]) for _ in range(shards)], [Node() for _ in range(nodes)])


__all__ = ["SHARE_UNITS", "Clock", "Copy", "Node", "Plant", "Shard", "make_plant", "ticks"]
