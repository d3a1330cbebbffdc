"""What must hold in the simulated world at every moment, seen from outside: no process can look like this.

V1  on every key the shares in force sum to at most 10,000; a share under which a node may still spend leased tokens
    counts as in force
V2  the leader of the newest valid MARK counts at least what is in force
V4  nobody else leads in a leader's epoch
V6  left alone from now on, the shares never sum above 10,000 later (looked at where each consent ends)
and no process has found an invariant of its own broken (its evidence is empty).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from global_sync.protocol.leader import LeaderSide
from global_sync.protocol.ledger import domain_of
from global_sync.simulation.node import Node
from global_sync.simulation.redis import Copy, RegionRedis
from regional_limiter.model.enforcement import Enforcement
from regional_limiter.model.share import SHARE_UNITS, floor_name

if TYPE_CHECKING:
    from global_sync.simulation.world import World


@dataclass(frozen=True, slots=True)
class Broken:
    """An invariant that did not hold: which, when (true time), on which key, and the numbers."""

    invariant: str
    at_us: int
    key: str
    found: str


def in_force(redis: RegionRedis, nodes: Sequence[Node], key: str) -> int:
    """The most that any call by any node would use of ``key`` in this region now."""
    points = ((copy, point) for copy in redis.points().values() for point in copy.points.values())
    return max(_at_point(copy, point.enforcement, nodes, key) for copy, point in points)


def _at_point(copy: Copy, enforcement: Enforcement, nodes: Sequence[Node], key: str) -> int:
    now_us = copy.now_us()
    return max(enforcement.peek_share(now_us, key, *own) for own in _bases(enforcement, now_us, nodes, key))


def _bases(enforcement: Enforcement, now_us: int, nodes: Sequence[Node], key: str) -> set[tuple[int, int]]:
    """What a call may use as base and floor: each node's, or the variable's where those are of a newer version."""
    domain = domain_of(key)
    version, *own = enforcement.peek_base(now_us, domain) or (-1, 0, 0)
    known, floor = (own[0], own[1]), floor_name(domain)
    return {
        (node.bases.get(domain, 0), node.bases.get(floor, 0)) if node.base_version > version else known
        for node in nodes
    } or {known}


def leased(nodes: Iterable[Node], key: str) -> int:
    """The largest share under which a node holds tokens that it may still spend."""
    shares = (share for node in nodes if (share := node.leases.share_of(key, node.now_us())) is not None)
    return max(shares, default=0)


def later(redis: RegionRedis, nodes: Sequence[Node], key: str, after_us: int) -> int:
    """``in_force`` when that much true time has passed, with nodes that go on calling and nothing else."""
    shares = []
    for copy in redis.points().values():
        now_us, then_us = copy.now_us(), copy.at_us(after_us)
        for point in copy.points.values():
            bases = _bases(point.enforcement, now_us, nodes, key)
            shares.append(max(point.enforcement.foresee_share(now_us, then_us, key, *own) for own in bases))
    return max(shares)


class Judge:
    """Looks at a world whenever it is told to.  Keeps the first violation of each invariant."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.broken: dict[str, Broken] = {}
        self.looks = 0

    def look(self, foresee: bool = True) -> None:
        """``foresee`` False: nothing has happened since the last look but that time passed."""
        world = self._world
        self.looks += 1
        for key in world.keys:
            held = {
                name: max(in_force(region.redis, region.nodes, key), leased(region.nodes, key))
                for name, region in world.regions.items()
            }
            if sum(held.values()) > SHARE_UNITS:
                self.say("V1", key, held)
            for leader in world.newest_leaders():
                for name, share in held.items():
                    self._counted(leader.side, leader.process.now_us(), key, name, share)
            if foresee:
                self._foresee(key)
        epochs = [one.side.epoch for one in world.candidates() if one.side.active]
        if len(set(epochs)) < len(epochs):
            self.say("V4", "", epochs)
        for name, evidence in world.evidence():
            if evidence.total:
                self.say("own", name, list(evidence.last)[:2])
        if world.failures:
            self.say("failure", "", world.failures[0])

    def _counted(self, side: LeaderSide, now_us: int, key: str, region: str, share: int) -> None:
        count = side.count(key, region, now_us)
        if share > count:
            self.say("V2", key, (region, share, count))

    def _foresee(self, key: str) -> None:
        world = self._world
        ends = set()
        for region in world.regions.values():
            for copy in region.redis.points().values():
                for point in copy.points.values():
                    end_us = point.enforcement.peek_consent_end(copy.now_us())
                    if end_us is not None and end_us > copy.now_us():
                        ends.add(copy.clock.true_duration(end_us - copy.now_us()) + 2)
        for after_us in ends:
            held = {
                name: later(region.redis, region.nodes, key, after_us) for name, region in world.regions.items()
            }
            if sum(held.values()) > SHARE_UNITS:
                self.say("V6", key, (after_us, held))

    def say(self, invariant: str, key: str, found: object) -> None:
        if invariant not in self.broken:
            self.broken[invariant] = Broken(invariant, self._world.now_us, key, str(found))
