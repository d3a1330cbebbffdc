"""All regions together admit at most C + R x t while shares move and nodes spend leased tokens; or it is seen."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random

import pytest

from regional_limiter.model.enforcement import Write
from regional_limiter.model.rule import Algorithm, Rate
from regional_limiter.model.share import TOKEN_LEASE_US_MOST, ProtocolTimes, floor_of
from regional_limiter.store.base import BucketCall, ReturnedLease, Sharing, TokenLease
from regional_limiter.store.memory import MemoryPoint
from tests.unit.test_share_bound import worst_span

REGIONS = 3
BASE_SHARE = 3333
LEAST = floor_of(BASE_SHARE) + 1
KEY = "rl:{t}:default/global:u"
START_US = 20_000 * 86_400_000_000


@dataclass
class Region:
    """One region's point, its nodes' leases, and what the agent may acknowledge of it."""

    call: BucketCall
    rests: bool = True
    share: int = BASE_SHARE
    version: int = 0
    point: MemoryPoint = field(default_factory=lambda: MemoryPoint(ProtocolTimes()))
    held: list[tuple[TokenLease, int, int]] = field(default_factory=list)  # lease, unspent, ends
    unrested: list[tuple[int, int]] = field(default_factory=list)  # the share before, until when it counts

    def write(self, now_us: int, share: int) -> None:
        for _ in range(1 if self.version else 2):  # the first one only names the variable
            self.version += 1
            instance = self.point.enforcement.instance
            write = Write(
                "n", instance, 1, self.version, now_us + 10**9, True, {KEY: share}, True, 1, {"default": BASE_SHARE}
            )
            reply = self.point.write(now_us, write)
        if reply.resting and self.rests:
            self.unrested.append((self.share, now_us + TOKEN_LEASE_US_MOST))
        self.share = share

    def counted(self, now_us: int) -> int:
        self.unrested = [item for item in self.unrested if item[1] > now_us]
        return max(self.share, *(share for share, _ in self.unrested), 0)

    def check(self, now_us: int, cost: int) -> bool:
        return self.point.check(now_us, [replace(self.call, cost=cost)])[0].allowed

    def lease(self, now_us: int, want: int, *returned: ReturnedLease) -> int:
        lease = self.point.lease(now_us, self.call, want, returned)
        if lease.tokens:
            self.held.append((lease, lease.tokens, now_us + lease.ends_in_us))
        return lease.tokens

    def spend(self, now_us: int, most: int) -> int:
        """Of the newest lease; 0 when there is none."""
        self.held = [held for held in self.held if now_us < held[2]]
        if not self.held:
            return 0
        lease, unspent, ends_us = self.held.pop()
        cost = min(most, unspent)
        if unspent > cost:
            self.held.append((lease, unspent - cost, ends_us))
        return cost


def regions_of(capacity: int, rate: Rate, rests: bool = True) -> list[Region]:
    call = BucketCall(
        KEY,
        Algorithm.TOKEN_BUCKET,
        capacity,
        rate,
        None,
        1,
        sharing=Sharing.ADAPTIVE,
        regions=REGIONS,
        domain="default",
        base_version=1,
        base=BASE_SHARE,
    )
    regions = [Region(call, rests) for _ in range(REGIONS)]
    for region in regions:
        region.write(START_US, BASE_SHARE)
    return regions


@pytest.mark.parametrize("seed", range(12))
def test_moving_shares_and_leases_never_admit_more_than_the_limit(seed: int) -> None:
    random = Random(seed)
    capacity, rate = random.choice(
        ((1000, Rate(100, 1)), (1000, Rate(10, 1)), (900, Rate(1, 1)), (60_000, Rate(1, 1)))
    )
    regions, now_us = regions_of(capacity, rate), START_US
    admitted: list[tuple[int, int]] = []
    leased = 0
    while now_us < START_US + 10_000_000:
        now_us += random.choice((0, 100, 1000, 5000, 20_000, 90_000))
        for region in regions:
            region.point.enforcement.enter(now_us)
        region, chance, now_ms = random.choice(regions), random.random(), now_us // 1000
        if chance < 0.15:
            free = 10_000 - sum(one.counted(now_us) for one in regions)
            falls = free == 0 or random.random() < 0.5
            region.write(now_us, random.randint(LEAST, region.share) if falls else region.share + free)
        elif chance < 0.4:
            returned = [region.held.pop()] if region.held and random.random() < 0.7 else []
            back = [ReturnedLease(lease.edge_ms, lease.tokens, unspent) for lease, unspent, _ in returned]
            leased += region.lease(now_us, random.choice((0, 20, 10_000)), *back)
        elif chance < 0.45:
            region.held.clear()  # its nodes died
        elif chance < 0.8:
            admitted.append((now_ms, region.spend(now_us, random.choice((1, 10, 10_000)))))
        else:
            for cost in random.choice(
                ((1,), (1,) * 20, (50, 50, 50), (capacity // 3, capacity // 9, capacity // 27))
            ):
                admitted += [(now_ms, cost)] * region.check(now_us, cost)
    assert worst_span([item for item in admitted if item[1]], capacity, rate) <= 0
    assert leased > 0


@pytest.mark.parametrize("rests", [True, False])
def test_a_share_that_moved_before_its_leases_ended_would_be_spent_twice(rests: bool) -> None:
    """A fast bucket: the other region's is full again long before the first one's nodes have spent their tokens."""
    capacity, rate = 1000, Rate(100, 1)
    first, second, third = regions_of(capacity, rate, rests)
    now_us = START_US
    for region in (second, third):
        region.write(now_us, LEAST)
    first.write(now_us, 10_000 - 2 * LEAST)
    now_us += 300_000
    for region in (first, second, third):
        region.point.enforcement.enter(now_us)
    assert first.lease(now_us, 10_000) > 90
    first.write(now_us, LEAST)
    admitted = []
    for at_us in range(now_us, now_us + 300_000, 10_000):
        for region in (first, second, third):
            region.point.enforcement.enter(at_us)
        if second.share == LEAST and first.counted(at_us) == LEAST:
            second.write(at_us, 10_000 - 2 * LEAST)
        if at_us == now_us + 90_000:
            admitted.append((at_us // 1000, first.spend(at_us, 10_000)))
            for cost in (980, 900, 500, 100, 50, 20, 10, 5, 1):
                admitted += [(at_us // 1000, cost)] * second.check(at_us, cost)
    assert (worst_span(admitted, capacity, rate) > 0) is not rests
    assert second.share > 9000
