"""What a region's agent knows of each enforcement point, and of the listings that name them.  Pure.

**Resting.**  Nodes may spend tokens that they leased under a share until ``token_lease_us`` after it has ended.  So
where a point says that such tokens may be about, a key settles only once the write that lowered it has *rested*:
once that long has passed since the agent heard that it was accepted.  Other keys settle at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from regional_limiter.model.enforcement import WriteReply
from regional_limiter.model.share import ProtocolTimes

LeaderTime = tuple[int, int]
"""(epoch, leader_us)."""

NEVER: LeaderTime = (0, 0)
_WRITES_KEPT = 40
_WAITING_MOST = 16


class SentWrite(NamedTuple):
    """What a write carried, to be credited when its reply says it was accepted."""

    session: int
    extends: LeaderTime | None
    stamps: dict[str, int]
    base_version: int
    until_us: int


class Rest(NamedTuple):
    """A write that has to rest, to be handed back when that long has passed."""

    agent_id: str
    point: str
    version: int


@dataclass(slots=True)
class Resting:
    """A key of which leased tokens may be about.

    ``settled``: the stamp that may be told of until what is ``waiting``, (version of the write, stamp), has rested.
    """

    settled: int
    waiting: list[tuple[int, int]]


@dataclass(slots=True)
class Point:
    """One point as its replies show it.

    ``time_us`` and ``until_us`` are readings of the point's own clock.  ``put``: key -> stamp of the state that
    the point has accepted in this instance and session.  ``extended``: its consent was extended after this
    leader time had been read.  ``settles``: a write was accepted when the instance was older than the settling
    age, so nothing accepted here can come undone by a failover there and back.  ``pending``: keys to write.
    """

    instance: str = ""
    time_us: int = 0
    until_us: int = 0
    until_put_us: int = 0
    consent_end_us: int = 0
    extended: LeaderTime = NEVER
    base_version: int = 0
    settles: bool = False
    put: dict[str, int] = field(default_factory=dict)
    pending: dict[str, None] = field(default_factory=dict)
    sent: dict[int, SentWrite] = field(default_factory=dict)
    resting: dict[str, Resting] = field(default_factory=dict)

    def at_rest(self) -> bool:
        """Neither session nor consent is alive here, as far as is known: the point is at its base."""
        return self.time_us >= self.until_us and self.time_us >= self.consent_end_us

    def another_instance(self, reply: WriteReply) -> None:
        """The variable is a new one: nothing that was written before is there."""
        self.instance, self.time_us = reply.instance, reply.time_us
        self.until_us = self.until_put_us = self.consent_end_us = 0
        self.extended, self.base_version, self.settles = NEVER, 0, False
        self.put, self.sent = {}, {}
        self.resting = {}  # before it settles anything, what the one before it leased is over

    def new_session(self) -> None:
        self.base_version = 0  # to be said again in the write that ends the old session's leases
        self.until_us = self.until_put_us = 0
        self.put, self.pending, self.sent = {}, {}, {}
        self.resting = {}  # the old session is counted until what was leased under it is surely over

    def remember(self, version: int, write: SentWrite) -> None:
        self.sent[version] = write
        while len(self.sent) > _WRITES_KEPT:
            del self.sent[next(iter(self.sent))]

    def accepted(self, sent: SentWrite, reply: WriteReply, times: ProtocolTimes) -> None:
        """Credit what the accepted write carried."""
        for key, stamp in sent.stamps.items():
            self._note_rest(key, stamp, reply)
            self.put[key] = max(stamp, self.put.get(key, 0))
        self.base_version = max(self.base_version, sent.base_version)
        self.until_put_us = max(self.until_put_us, sent.until_us)
        if sent.extends is not None:
            self.extended = max(self.extended, sent.extends)
            self.consent_end_us = max(self.consent_end_us, reply.time_us + times.consent_us)
        self.settles = self.settles or reply.age_us >= times.settle_age_us

    def _note_rest(self, key: str, stamp: int, reply: WriteReply) -> None:
        resting = self.resting.get(key)
        if key in reply.resting:
            if resting is None:
                resting = self.resting[key] = Resting(self.put.get(key, 0), [])
            resting.waiting.append((reply.version, stamp))
            if len(resting.waiting) > _WAITING_MOST:
                del resting.waiting[1]
        elif resting is not None and all(version < reply.version for version, _ in resting.waiting):
            del self.resting[key]  # it holds again what tokens were leased under

    def rested(self, version: int) -> list[str]:
        """Writes up to ``version`` have rested; the keys of which something more may be settled."""
        changed = []
        for key, resting in list(self.resting.items()):
            done = [stamp for number, stamp in resting.waiting if number <= version]
            if done:
                changed.append(key)
                resting.settled = max(resting.settled, *done)
                resting.waiting = [item for item in resting.waiting if item[0] > version]
                if not resting.waiting:
                    del self.resting[key]
        return changed

    def settled_extension(self) -> LeaderTime:
        return self.extended if self.settles else NEVER

    def settled_base_version(self) -> int:
        return self.base_version if self.settles else 0

    def settled_stamp(self, key: str) -> int:
        if not self.settles:
            return 0
        resting = self.resting.get(key)
        return self.put.get(key, 0) if resting is None else resting.settled

    def forget(self, key: str) -> None:
        self.put.pop(key, None)
        self.pending.pop(key, None)
        self.resting.pop(key, None)


@dataclass(frozen=True, slots=True)
class ListingStart:
    """What had been read when a listing began: only that much can be settled with it.

    A point that the listing does not name appeared after it began, so it was written with at least this.
    """

    stamp: int
    leader_time: LeaderTime
    base_version: int


@dataclass(frozen=True, slots=True)
class Listing:
    start: ListingStart
    points: frozenset[str]
    nodes_base_version: int | None
