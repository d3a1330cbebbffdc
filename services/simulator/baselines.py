"""Other ways to split a limit over regions, as small models under the same requests.  Pure.

They are models of the idea, not of any product: what they cost and where they fail follows from when a region
hears of the others.  Each knows its regions by place; ``step`` comes before the requests of a tick.

- :class:`StaticSplit`: a bucket for each region's base, and nothing is said.
- :class:`RefreshedLeases`: a server leases capacity to regions by their wants (max-min); a region asks again every
  five seconds, and holds its lease until it ends or is renewed.  Cut off, it falls to its base when the lease ends.
- :class:`DropRatio`: every second a centre tells all regions which part of their requests to drop.
- :class:`SharedCounters`: each region counts what all have spent, as far as it has heard, ten times a second.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Generic, TypeVar

from global_sync.allocation.fair_share import fair_share
from regional_limiter.model.share import SHARE_UNITS, region_capacity

SECOND = 1_000_000
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Limit:
    """``rate`` tokens a second, ``capacity`` at once; regions by place: one-way delay to the hub, base share."""

    rate: float
    capacity: int
    delays_us: Sequence[int]
    bases: Sequence[int]

    @property
    def regions(self) -> int:
        return len(self.delays_us)


@dataclass(slots=True)
class Bucket:
    """A token bucket in floats: models need no exactness."""

    rate: float
    capacity: float
    level: float
    at_us: int = 0

    def take(self, now_us: int, cost: int = 1) -> bool:
        self.level = min(self.capacity, self.level + self.rate * (now_us - self.at_us) / SECOND)
        self.at_us = now_us
        if self.level < cost:
            return False
        self.level -= cost
        return True

    def resize(self, now_us: int, rate: float, capacity: float) -> None:
        self.level = min(capacity, self.level + self.rate * (now_us - self.at_us) / SECOND)
        self.rate, self.capacity, self.at_us = rate, capacity, now_us


class Ideal:
    """One bucket that every region reaches without delay: what the limit allows at best."""

    name = "no distance at all"

    def __init__(self, limit: Limit) -> None:
        self._bucket = Bucket(limit.rate, limit.capacity, limit.capacity)

    def step(self, now_us: int) -> None:
        """Nothing happens by itself."""

    def check(self, place: int, now_us: int, cost: int = 1) -> bool:
        return self._bucket.take(now_us, cost)


class StaticSplit:
    """Each region has its base, always."""

    name = "static split"
    messages = 0

    def __init__(self, limit: Limit) -> None:
        self._buckets = [_bucket_of(limit, base) for base in limit.bases]

    def step(self, now_us: int) -> None:
        """Nothing happens by itself."""

    def cut(self, place: int, is_cut: bool) -> None:
        """Nothing is said, so nothing is missed."""

    def check(self, place: int, now_us: int, cost: int = 1) -> bool:
        return self._buckets[place].take(now_us, cost)


def _bucket_of(limit: Limit, share: int) -> Bucket:
    capacity = region_capacity(limit.capacity, share, limit.regions)
    return Bucket(limit.rate * share / SHARE_UNITS, capacity, capacity)


class _Post(Generic[_T]):
    """What is on its way between regions and the centre: (when it arrives, whose it is, what it says)."""

    def __init__(self) -> None:
        self.cut: set[int] = set()
        self.messages = 0
        self._mail: deque[tuple[int, int, _T]] = deque()

    def send(self, arrives_us: int, place: int, what: _T) -> None:
        self.messages += 1
        if place not in self.cut:
            self._mail.append((arrives_us, place, what))

    def arrived(self, now_us: int) -> list[tuple[int, _T]]:
        due = [(place, what) for at_us, place, what in self._mail if at_us <= now_us and place not in self.cut]
        self._mail = deque(item for item in self._mail if item[0] > now_us)
        return due


class RefreshedLeases:
    """Leases of capacity that regions ask for again every ``refresh_us``."""

    name = "refreshed leases"

    def __init__(self, limit: Limit, refresh_us: int = 5 * SECOND, lease_us: int = 20 * SECOND) -> None:
        self._limit = limit
        self._refresh_us, self._lease_us = refresh_us, lease_us
        self._buckets = [_bucket_of(limit, base) for base in limit.bases]
        self._offered = [0] * limit.regions
        self._asks_us = [refresh_us * place // limit.regions for place in range(limit.regions)]
        self._asked_us = [0] * limit.regions
        self._ends_us = [0] * limit.regions
        self._at_server: list[tuple[int, int, int]] = [(0, base, 0) for base in limit.bases]  # want, has, until
        self._to_server, self._to_region = _Post[int](), _Post[int]()

    @property
    def messages(self) -> int:
        return self._to_server.messages + self._to_region.messages

    def cut(self, place: int, is_cut: bool) -> None:
        for post in (self._to_server, self._to_region):
            (post.cut.add if is_cut else post.cut.discard)(place)

    def step(self, now_us: int) -> None:
        limit = self._limit
        for place in range(limit.regions):
            if now_us >= self._asks_us[place]:
                since_s = max(1, now_us - self._asked_us[place]) / SECOND
                want = round(SHARE_UNITS * self._offered[place] / since_s / limit.rate)
                self._offered[place], self._asked_us[place] = 0, now_us
                self._asks_us[place] += self._refresh_us
                self._to_server.send(now_us + limit.delays_us[place], place, want)
            if self._ends_us[place] and now_us >= self._ends_us[place]:
                self._ends_us[place] = 0
                self._hold(place, now_us, limit.bases[place])
        for place, want in self._to_server.arrived(now_us):
            self._to_region.send(now_us + limit.delays_us[place], place, self._lease(place, now_us, want))
        for place, share in self._to_region.arrived(now_us):
            self._ends_us[place] = now_us + self._lease_us - limit.delays_us[place]
            self._hold(place, now_us, share)

    def _lease(self, place: int, now_us: int, want: int) -> int:
        """What is due by max-min, as far as the others' leases leave it."""
        self._at_server[place] = (want, *self._at_server[place][1:])
        wants = {str(p): max(1, known[0]) for p, known in enumerate(self._at_server)}
        weights = {str(p): max(1, base) for p, base in enumerate(self._limit.bases)}
        due = fair_share(SHARE_UNITS, wants, weights, peaks={})[str(place)]
        others = sum(known[1] for p, known in enumerate(self._at_server) if p != place)
        share = max(0, min(due, SHARE_UNITS - others))
        self._at_server[place] = (want, share, now_us + self._lease_us)
        return share

    def _hold(self, place: int, now_us: int, share: int) -> None:
        rate = self._limit.rate * share / SHARE_UNITS
        self._buckets[place].resize(now_us, rate, region_capacity(self._limit.capacity, share, self._limit.regions))

    def check(self, place: int, now_us: int, cost: int = 1) -> bool:
        self._offered[place] += cost
        return self._buckets[place].take(now_us, cost)


class DropRatio:
    """The centre adds up what is asked for and tells every region which part of it to drop."""

    name = "drop ratio"

    def __init__(self, limit: Limit, every_us: int = SECOND) -> None:
        self._limit, self._every_us = limit, every_us
        self._next_us = 0
        self._offered = [0] * limit.regions
        self._rates = [0.0] * limit.regions
        self._drop = [0.0] * limit.regions
        self._random = Random(1)
        self._to_centre, self._to_region = _Post[float](), _Post[float]()

    @property
    def messages(self) -> int:
        return self._to_centre.messages + self._to_region.messages

    def cut(self, place: int, is_cut: bool) -> None:
        for post in (self._to_centre, self._to_region):
            (post.cut.add if is_cut else post.cut.discard)(place)

    def step(self, now_us: int) -> None:
        limit = self._limit
        if now_us >= self._next_us:
            self._next_us = now_us + self._every_us
            for place, count in enumerate(self._offered):
                self._to_centre.send(now_us + limit.delays_us[place], place, count * SECOND / self._every_us)
            self._offered = [0] * limit.regions
        for place, rate in self._to_centre.arrived(now_us):
            self._rates[place] = rate
            total = sum(self._rates)
            ratio = max(0.0, 1 - limit.rate / total) if total else 0.0
            self._to_region.send(now_us + limit.delays_us[place], place, ratio)
        for place, drop in self._to_region.arrived(now_us):
            self._drop[place] = drop

    def check(self, place: int, now_us: int, cost: int = 1) -> bool:
        self._offered[place] += cost
        return self._random.random() >= self._drop[place]


class SharedCounters:
    """Each region has a bucket of the whole limit, and takes from it also what it hears that others have spent."""

    name = "shared counters"

    def __init__(self, limit: Limit, every_us: int = SECOND // 10) -> None:
        self._limit, self._every_us = limit, every_us
        self._next_us = 0
        self._buckets = [Bucket(limit.rate, limit.capacity, limit.capacity) for _ in range(limit.regions)]
        self._spent = [0] * limit.regions
        self._heard = [[0] * limit.regions for _ in range(limit.regions)]
        self._posts = [_Post[int]() for _ in range(limit.regions)]
        self._cut: set[int] = set()

    @property
    def messages(self) -> int:
        return sum(post.messages for post in self._posts)

    def cut(self, place: int, is_cut: bool) -> None:
        (self._cut.add if is_cut else self._cut.discard)(place)

    def step(self, now_us: int) -> None:
        delays = self._limit.delays_us
        if now_us >= self._next_us:
            self._next_us = now_us + self._every_us
            for one in range(self._limit.regions):
                for other in range(self._limit.regions):
                    if one != other and not {one, other} & self._cut:
                        self._posts[other].send(now_us + delays[one] + delays[other], one, self._spent[one])
        for place, post in enumerate(self._posts):
            for one, spent in post.arrived(now_us):
                news = spent - self._heard[place][one]
                if news > 0:
                    self._heard[place][one] = spent
                    bucket = self._buckets[place]
                    bucket.level = max(-bucket.capacity, bucket.level - news)

    def check(self, place: int, now_us: int, cost: int = 1) -> bool:
        if not self._buckets[place].take(now_us, cost):
            return False
        self._spent[place] += cost
        return True


Model = StaticSplit | RefreshedLeases | DropRatio | SharedCounters
MODELS: tuple[type[Model], ...] = (StaticSplit, RefreshedLeases, DropRatio, SharedCounters)
