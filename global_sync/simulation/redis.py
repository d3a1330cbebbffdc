"""One region's Redis: shards of two copies, each an enforcement point with buckets and a clock of its own.

A copy is the store's own :class:`MemoryPoint`.  Buckets are replicated with a lag, and a promotion loses the last
of them; the variable of the function library is not replicated at all.  :class:`RegionStore` is what the region's
agents see of it: calls that take time, get lost, or come when another copy is primary.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import TypeVar
from zlib import crc32

from global_sync.simulation.clock import Clock
from global_sync.simulation.links import Law
from global_sync.simulation.process import Process
from global_sync.simulation.scheduler import Scheduler
from regional_limiter.model.enforcement import Enforcement, Write, WriteReply
from regional_limiter.model.errors import StoreUnavailable
from regional_limiter.model.escrow import WindowNews
from regional_limiter.model.keys import tag_of
from regional_limiter.model.share import ProtocolTimes
from regional_limiter.store.base import Collected, WindowsReply
from regional_limiter.store.bucket_table import BucketTable, Held
from regional_limiter.store.memory import MemoryPoint

LIBRARY = "new"
OLD_LIBRARY = "old"
"""The version of the function library before: during an upgrade some nodes still call it."""
CALL_DEADLINE_US = 500_000

_T = TypeVar("_T")
_Undo = tuple[int, str, Held | None]


class ReplicatedTable(BucketTable):
    """Remembers what it overwrote lately, so that a replica can be what it was ``lag_us`` ago."""

    def __init__(self, now_us: Callable[[], int], lag_us: int) -> None:
        super().__init__()
        self._now_us = now_us
        self._lag_us = lag_us
        self._undo: deque[_Undo] = deque()

    def put(self, key: str, group: str, state: bytes, ttl_ms: int, now_ms: int, left: int = 0) -> None:
        now_us = self._now_us()
        undo = self._undo
        while undo and undo[0][0] <= now_us - self._lag_us:
            undo.popleft()
        undo.append((now_us, key, self._held.get(key)))
        super().put(key, group, state, ttl_ms, now_ms, left)

    def as_replicated(self) -> dict[str, Held]:
        """The buckets as they were one lag ago."""
        held = dict(self._held)
        for at_us, key, before in reversed(self._undo):
            if at_us <= self._now_us() - self._lag_us:
                break
            if before is None:
                held.pop(key, None)
            else:
                held[key] = before
        return held

    def become(self, held: dict[str, Held]) -> None:
        self.clear()
        self._undo.clear()
        for key, (state, expires_ms, group, left) in held.items():
            super().put(key, group, state, expires_ms, 0, left)


class Copy:
    """One Redis process.  ``points``: by version of the function library; they share the buckets."""

    def __init__(
        self,
        name: str,
        times: ProtocolTimes,
        clock: Clock,
        scheduler: Scheduler,
        lag_us: int,
        enforcement: type[Enforcement] = Enforcement,
        libraries: Iterable[str] = (LIBRARY,),
    ) -> None:
        self.name = name
        self.clock = clock
        self._scheduler = scheduler
        self.buckets = ReplicatedTable(lambda: scheduler.now_us, lag_us)
        self.points: dict[str, MemoryPoint] = {}
        for library in libraries:
            point = self.points[library] = MemoryPoint(times)
            point.enforcement = enforcement(times)
            point.buckets = self.buckets
        self.lock: tuple[str, int] = ("", 0)
        self.stopped_until_us = 0

    @property
    def point(self) -> MemoryPoint:
        """That of the newest library."""
        return self.points[LIBRARY]

    def lose(self, *, buckets: bool = False) -> None:
        """The process restarted (with ``buckets``), or its libraries were loaded anew."""
        for point in self.points.values():
            point.lose(buckets=buckets)

    def enter(self) -> None:
        """Something calls every point."""
        for point in self.points.values():
            point.enforcement.enter(self.now_us())

    def now_us(self) -> int:
        """Its own clock."""
        return self.clock.read(self._scheduler.now_us)

    def at_us(self, after_us: int) -> int:
        """What its clock will show after so much true time."""
        return self.clock.read(self._scheduler.now_us + after_us)

    @property
    def stopped(self) -> bool:
        return self._scheduler.now_us < self.stopped_until_us


class Shard:
    """``primary``: the number of the copy that serves.  ``old_primary``: one that some nodes still reach."""

    def __init__(self, copies: Sequence[Copy]) -> None:
        self.copies = list(copies)
        self.primary = 0
        self.old_primary: Copy | None = None
        self.changes_us: deque[int] = deque(maxlen=8)

    @property
    def copy(self) -> Copy:
        return self.copies[self.primary]

    def promote(self) -> None:
        """The other copy becomes primary, with the buckets as they had been replicated."""
        held = self.copy.buckets.as_replicated()
        self.primary = 1 - self.primary
        self.copy.buckets.become(held)


class RegionRedis:
    """The shards of one region."""

    def __init__(self, region: str, shards: Iterable[Shard]) -> None:
        self.region = region
        self.shards = list(shards)

    def points(self) -> dict[str, Copy]:
        """Every point of every primary, by its name."""
        return {
            f"{shard.copy.name}/{library}": shard.copy for shard in self.shards for library in shard.copy.points
        }

    def shard_of(self, key: str) -> Shard:
        return self.shards[crc32(tag_of(key).encode()) % len(self.shards)]

    def primary_at(self, point: str) -> Copy | None:
        """Who answers there; replicas refuse, so None."""
        return self.points().get(point)


class RegionStore:
    """``AgentStore`` for one process of the region.  ``law``: one way between process and Redis."""

    def __init__(
        self, redis: RegionRedis, process: Process, scheduler: Scheduler, random: Random, law: Law
    ) -> None:
        self._redis = redis
        self._process = process
        self._scheduler = scheduler
        self._random = random
        self.law = law
        self.is_cut = False
        self.wrote: Callable[[], None] = lambda: None
        """Called after every write to a point."""

    @property
    def version(self) -> str:
        return LIBRARY

    async def _call(self, find: Callable[[], Copy | None], act: Callable[[Copy], _T]) -> _T:
        """``act`` on the copy that ``find`` gives when the call arrives; a stopped one does it when it goes on."""
        if not self._process.alive:
            raise StoreUnavailable("closed", may_have_run=False)
        answer: asyncio.Future[_T] = asyncio.get_running_loop().create_future()

        def arrive() -> None:
            copy = find()
            if self.is_cut or copy is None:
                return
            if copy.stopped:
                self._scheduler.later(copy.stopped_until_us - self._scheduler.now_us, arrive)
                return
            result = act(copy)
            if not self._is_lost():
                self._scheduler.later(self.law.draw(self._random), told, result)

        def told(result: _T) -> None:
            if not answer.done() and self._process.alive:
                answer.set_result(result)

        if not self._is_lost():
            self._scheduler.later(self.law.draw(self._random), arrive)
        try:
            async with asyncio.timeout(CALL_DEADLINE_US / 1e6):
                return await answer
        except TimeoutError as error:
            raise StoreUnavailable("no answer within the deadline") from error

    def _is_lost(self) -> bool:
        return self.law.loss > 0 and self._random.random() < self.law.loss

    async def _at(self, point: str, act: Callable[[MemoryPoint, int], _T]) -> _T:
        library = point.partition("/")[2]

        def find() -> Copy | None:
            return self._redis.primary_at(point)

        return await self._call(find, lambda copy: act(copy.points[library], copy.now_us()))

    async def list_points(self) -> frozenset[str]:
        def points(_: Copy) -> frozenset[str]:
            return frozenset(self._redis.points())

        return await self._call(lambda: self._redis.shards[0].copy, points)

    async def write(self, point: str, write: Write) -> WriteReply:
        def act(at: MemoryPoint, now_us: int) -> WriteReply:
            reply = at.write(now_us, write)
            self.wrote()
            return reply

        return await self._at(point, act)

    async def collect(self, point: str) -> Collected:
        return await self._at(point, lambda at, now_us: at.collect(now_us))

    async def windows(self, point: str, news: WindowNews) -> WindowsReply:
        return await self._at(point, lambda at, now_us: at.windows(now_us, news))

    async def publish_rules(self, point: str, version: int, blob: bytes) -> None:
        await self._at(point, lambda at, now_us: at.publish_rules(now_us, version, blob))

    async def drop_library(self, point: str) -> None:
        library = point.partition("/")[2]
        if library == LIBRARY:
            raise ValueError(f"{point} is of this process's own version")
        copies = [copy for shard in self._redis.shards for copy in shard.copies]

        def drop(copy: Copy) -> None:
            for other in copies:  # what is deleted on a primary is deleted on its replica
                if other is copy or other.name.rpartition("-")[0] == copy.name.rpartition("-")[0]:
                    other.points.pop(library, None)

        await self._call(lambda: self._redis.primary_at(point), drop)

    async def hold_lock(self, owner: str, ttl_ms: int) -> bool:
        """A key of the first shard; a promotion forgets it, as a replica may not have it yet."""

        def hold(copy: Copy) -> bool:
            holder, until_us = copy.lock
            if holder != owner and copy.now_us() < until_us:
                return False
            copy.lock = (owner, copy.now_us() + ttl_ms * 1000)
            return True

        return await self._call(lambda: self._redis.shards[0].copy, hold)

    async def release_lock(self, owner: str) -> None:
        def release(copy: Copy) -> None:
            if copy.lock[0] == owner:
                copy.lock = ("", 0)

        await self._call(lambda: self._redis.shards[0].copy, release)

    async def close(self) -> None:
        """Nothing to close."""
