"""What a region's agent knows of each enforcement point, and of the listings that name them.  Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from regional_limiter.model.enforcement import WriteReply
from regional_limiter.model.share import ProtocolTimes

LeaderTime = tuple[int, int]
"""(epoch, leader_us)."""

NEVER: LeaderTime = (0, 0)
_WRITES_KEPT = 40


class SentWrite(NamedTuple):
    """What a write carried, to be credited when its reply says it was accepted."""

    session: int
    extends: LeaderTime | None
    stamps: dict[str, int]
    base_version: int
    until_us: int


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

    def at_rest(self) -> bool:
        """Neither session nor consent is alive here, as far as is known: the point is at its base."""
        return self.time_us >= self.until_us and self.time_us >= self.consent_end_us

    def another_instance(self, reply: WriteReply) -> None:
        """The variable is a new one: nothing that was written before is there."""
        self.instance, self.time_us = reply.instance, reply.time_us
        self.until_us = self.until_put_us = self.consent_end_us = 0
        self.extended, self.base_version, self.settles = NEVER, 0, False
        self.put = {}
        self.sent = {}

    def new_session(self) -> None:
        self.base_version = 0  # to be said again in the write that ends the old session's leases
        self.until_us = self.until_put_us = 0
        self.put, self.pending, self.sent = {}, {}, {}

    def remember(self, version: int, write: SentWrite) -> None:
        self.sent[version] = write
        while len(self.sent) > _WRITES_KEPT:
            del self.sent[next(iter(self.sent))]

    def accepted(self, sent: SentWrite, reply: WriteReply, times: ProtocolTimes) -> None:
        """Credit what the accepted write carried."""
        for key, stamp in sent.stamps.items():
            self.put[key] = max(stamp, self.put.get(key, 0))
        self.base_version = max(self.base_version, sent.base_version)
        self.until_put_us = max(self.until_put_us, sent.until_us)
        if sent.extends is not None:
            self.extended = max(self.extended, sent.extends)
            self.consent_end_us = max(self.consent_end_us, reply.time_us + times.consent_us)
        self.settles = self.settles or reply.age_us >= times.settle_age_us

    def settled_extension(self) -> LeaderTime:
        return self.extended if self.settles else NEVER

    def settled_base_version(self) -> int:
        return self.base_version if self.settles else 0

    def settled_stamp(self, key: str) -> int:
        return self.put.get(key, 0) if self.settles else 0


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
