"""Checks of an adaptive window rule against the plant's copies: what is admitted, by the end of its window.

A shard's copies share its counts (what a promotion loses of them is another matter), unless a test drops them.
"""

from __future__ import annotations

from collections import Counter

from regional_limiter.model.escrow import WindowNews
from regional_limiter.model.rule import Algorithm
from regional_limiter.store.base import BucketCall, Sharing, WindowsReply
from regional_limiter.store.bucket_table import BucketTable
from regional_limiter.store.memory import MemoryPoint

from .plant import Copy, Node, Plant, Shard, ticks

LIMIT = 103
"""Over three regions: a hundred tokens in proportion to the shares, and one for each region."""
REGIONS = 3


class Till:
    """Where all regions spend.  ``admitted``: (key, end of the window in ms) -> tokens."""

    def __init__(self, window_ms: int = 4, limit: int = LIMIT) -> None:
        self.window_ms = window_ms
        self.limit = limit
        self.admitted: Counter[tuple[str, int]] = Counter()
        self._counts: dict[int, BucketTable] = {}
        self._points: dict[int, MemoryPoint] = {}

    def point(self, shard: Shard) -> MemoryPoint:
        """The primary, with the shard's counts."""
        copy = shard.copy
        point = self._points.get(id(copy))
        if point is None:
            point = self._points[id(copy)] = MemoryPoint(ticks())
            point.enforcement = copy._enforcement
        point.buckets = self._counts.setdefault(id(shard), BucketTable())
        return point

    def lose_counts(self, shard: Shard) -> None:
        self._counts.pop(id(shard), None)

    def spend(self, true: int, plant: Plant, number: int, key: str, cost: int = 1) -> bool:
        """One check at that shard, by the region's first node."""
        shard = plant.shards[number]
        node = plant.nodes[0] if plant.nodes else Node()
        shard.copy.touch(true, node)
        now = shard.copy.clock.read(true)
        call = BucketCall(
            key,
            Algorithm.FIXED_WINDOW,
            self.limit,
            None,
            self.window_ms,
            cost,
            sharing=Sharing.ADAPTIVE,
            regions=REGIONS,
            domain="shop",
            base_version=node.version,
            base=node.bases.get("shop", 0),
        )
        (verdict,) = self.point(shard).check(now, [call])
        if verdict.allowed:
            self.admitted[key, now // 1000 + verdict.reset_after_ms] += cost
        return verdict.allowed

    def spend_all(self, true: int, plant: Plant, key: str, number: int = 0) -> int:
        spent = 0
        while self.spend(true, plant, number, key):
            spent += 1
        return spent

    def tell(self, true: int, shard: Shard, news: WindowNews) -> WindowsReply:
        """A write of the agent that arrives at whoever is primary."""
        copy = shard.copy
        copy.touch(true)
        return self.point(shard).windows(copy.clock.read(true), news)

    def window_at(self, true: int, copy: Copy) -> tuple[int, int]:
        """(number, end in ms) of the window that the copy's clock shows."""
        number = copy.clock.read(true) // (1000 * self.window_ms)
        return number, (number + 1) * self.window_ms

    def excess(self) -> dict[tuple[str, int], int]:
        return {window: spent for window, spent in self.admitted.items() if spent > self.limit}
