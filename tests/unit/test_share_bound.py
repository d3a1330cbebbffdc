"""All regions together admit at most C + R x t while shares move, and the test that says so can see an excess."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from regional_limiter.algorithms.token_bucket import decide
from regional_limiter.model.enforcement import Enforcement, ShareInForce, Write
from regional_limiter.model.rule import Algorithm, Rate
from regional_limiter.model.share import ProtocolTimes, floor_of
from regional_limiter.store.base import BucketCall, Sharing

REGIONS = 3
BASE_SHARE = 3333
KEY = "rl:{t}:default/global:u"
SECONDS = 10
SEEDS = range(8)


class Region:
    """One region's point and its one bucket (Redis forgets it when it is full again)."""

    def __init__(self, now_us: int, capacity: int, rate: Rate, naive: bool) -> None:
        self.enforcement = Enforcement(ProtocolTimes())
        self.naive = naive
        self.call = BucketCall(
            KEY,
            Algorithm.TOKEN_BUCKET,
            capacity,
            rate,
            None,
            cost=1,
            sharing=Sharing.ADAPTIVE,
            regions=REGIONS,
            domain="default",
            base_version=1,
            base=BASE_SHARE,
        )
        self.state: tuple[bytes, int] | None = None
        self.version = 0
        self.share = BASE_SHARE
        self.write(now_us, BASE_SHARE)

    def write(self, now_us: int, share: int) -> None:
        instance = self.enforcement.instance
        self.version += 1
        self.share = share
        for name in (instance,) if instance else ("", "n"):
            write = Write(
                "n", name, 1, self.version, now_us + 10**9, True, {KEY: share}, True, 1, {"default": BASE_SHARE}
            )
            self.enforcement.write(now_us, write)

    def in_force(self, now_us: int) -> ShareInForce:
        self.enforcement.enter(now_us)
        self.enforcement.know_base(now_us, "default", 1, BASE_SHARE)
        share = self.enforcement.share(now_us, KEY, "default")
        assert share.share == self.share
        # A lazy refill: today's share for the whole of the past.
        return replace(share, since_us=0, share_before=share.share, before_since_us=0) if self.naive else share

    def allows(self, now_us: int, cost: int) -> bool:
        now_ms = now_us // 1000
        state = self.state[0] if self.state and now_ms < self.state[1] else None
        outcome = decide(state, replace(self.call, cost=cost), self.in_force(now_us), now_ms)
        ending = outcome.charged if outcome.allowed else outcome.left
        if ending.state is not None:
            self.state = (ending.state, now_ms + ending.ttl_ms)
        return outcome.allowed


def excess(seed: int, naive: bool = False) -> tuple[int, int]:
    """(the most that any span admitted over C + R x t, in 1/period tokens; how much was admitted)."""
    random = Random(seed)
    capacity, rate = random.choice(((60, Rate(3, 100)), (20, Rate(1, 10)), (7, Rate(1, 700)), (900, Rate(9, 10))))
    now_us = 10**12 + random.randrange(1000)
    regions = [Region(now_us, capacity, rate, naive) for _ in range(REGIONS)]
    load = [random.choice((0, 0.2, 1, 3)) for _ in regions]
    pace_us, moves = random.choice(((25_000, 0.08), (170_000, 0.6)))
    admitted: list[tuple[int, int]] = []
    end_us = now_us + SECONDS * 1_000_000
    while now_us < end_us:
        now_us += min(900_000, round(random.expovariate(1 / pace_us)))
        for region in regions:
            region.enforcement.enter(now_us)
        if random.random() < 0.02:
            load = [random.choice((0, 0, 0.2, 1, 3)) for _ in regions]
        if random.random() < moves:
            region, free = random.choice(regions), 10_000 - sum(region.share for region in regions)
            shrinks = free == 0 or random.random() < 0.5
            lower = random.randrange(floor_of(BASE_SHARE), region.share + 1)
            region.write(now_us, lower if shrinks else region.share + random.randrange(free + 1))
        asking = random.choices(regions, [weight + 0.01 for weight in load])[0]
        for cost in random.choice(((), (1,), (1, 1), (1,) * 10, (1,) * 40, (5, 3, 20, 1))):
            admitted += [(now_us // 1000, cost)] * asking.allows(now_us, cost)
    return worst_span(admitted, capacity, rate), sum(cost for _, cost in admitted)


def worst_span(admitted: list[tuple[int, int]], capacity: int, rate: Rate) -> int:
    worst, lowest, used = -(10**18), 10**18, 0
    for at_ms, cost in admitted:
        lowest = min(lowest, used - rate.tokens * at_ms)
        used += cost * rate.period_ms
        worst = max(worst, used - rate.tokens * at_ms - lowest - capacity * rate.period_ms)
    return worst


@pytest.mark.parametrize("seed", SEEDS)
def test_moving_shares_never_admit_more_than_the_limit(seed: int) -> None:
    over, admitted = excess(seed)
    assert over <= 0
    assert admitted > 0


@pytest.mark.parametrize("naive", [False, True])
def test_a_share_that_grows_earns_nothing_for_the_past(naive: bool) -> None:
    """Everybody spends everything for a second, then one gets nearly all: a naive refill is seen at once."""
    capacity, rate = 60, Rate(3, 100)
    now_us = 10**12
    regions = [Region(now_us, capacity, rate, naive) for _ in range(REGIONS)]
    admitted: list[tuple[int, int]] = []
    now_us += 500_000  # a base that is in force for a while
    for region in regions:
        admitted += [(now_us // 1000, 1) for _ in range(capacity) if region.allows(now_us, 1)]
    now_us += 900_000
    for region in regions[1:]:
        admitted += [(now_us // 1000, 1) for _ in range(capacity) if region.allows(now_us, 1)]
        region.write(now_us, floor_of(BASE_SHARE))
    regions[0].write(now_us, 10_000 - 2 * floor_of(BASE_SHARE))
    now_us += 1000
    admitted += [(now_us // 1000, 1) for _ in range(capacity) if regions[0].allows(now_us, 1)]
    assert (worst_span(admitted, capacity, rate) > 0) is naive
