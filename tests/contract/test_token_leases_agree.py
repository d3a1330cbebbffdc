"""Leases in Python and in Lua: the same random walk of takes, returns, checks, refunds, shares, rules and clocks.

Replies, stored bytes and expiries must be equal after every step, and what a bucket holds and what is out of it
must never be more than its capacity.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from regional_limiter.algorithms.bucket_state import unpack
from regional_limiter.model.decision import ShareKind
from regional_limiter.model.enforcement import BASE, Write
from regional_limiter.model.rule import Algorithm, Rate
from regional_limiter.model.share import ProtocolTimes, region_capacity
from regional_limiter.store.base import BucketCall, ReturnedLease, Sharing, TokenLease
from tests.contract.points import PythonPoint, RedisPoint, walk_through
from tests.contract.redis_server import RedisServer

START_US = 20_000 * 86_400_000_000
TIMES = ProtocolTimes.scaled(0.1)
STEPS = 5000
REGIONS = 2
RATES = ((1, 100), (10, 1), (1, 6000), (7, 30), (1, 86_400), (1000, 1), (3, 1000), (1, 1))


class Walk:
    """One bucket by region, one by a moving share; nodes that hold leases of them in good and bad order."""

    def __init__(self, seed: int, points: tuple[PythonPoint, RedisPoint]) -> None:
        self.random = Random(seed)
        self.points = points
        self.now_us = START_US
        self.calls = [
            BucketCall("rl:{tag}:default/whole:a", Algorithm.TOKEN_BUCKET, 1000, Rate(1, 1), None, 1),
            BucketCall(
                "rl:{tag}:default/lent:a",
                Algorithm.TOKEN_BUCKET,
                1000,
                Rate(1, 1),
                None,
                1,
                sharing=Sharing.ADAPTIVE,
                regions=REGIONS,
                domain="default",
                base_version=1,
                base=5000,
            ),
        ]
        self.held: list[list[ReturnedLease]] = [[], []]
        self.version, self.instance = 0, ""
        self.counted: dict[str, int] = {}
        self.written: dict[str, tuple[bytes, int]] = {}
        self.steps = (
            (30, self.check),
            (30, self.take),
            (12, self.give_back),
            (3, self.forged),
            (6, self.refund),
            (12, self.write),
            (2, self.rule),
        )

    def count(self, what: str) -> None:
        self.counted[what] = self.counted.get(what, 0) + 1

    def both(self, name: str, *arguments: object) -> object:
        ours, theirs = (getattr(point, name)(self.now_us, *arguments) for point in self.points)
        assert theirs == ours, f"{name} {arguments}"
        return ours

    def step(self) -> None:
        random = self.random
        self.now_us += random.choice((0, 0, 300, 900, 1000, 5000, 13_000, 49_000, 70_123, 99_000))
        if random.random() < 0.01:
            self.now_us += random.choice((150_000, 3_000_000, -1, -1_500_000, -20_000_000, -50_000_000))
            self.count("clock step")
        self.points[0].purge(self.now_us)
        weights, actions = zip(*self.steps, strict=True)
        random.choices(actions, weights)[0]()
        ours, theirs = (point.states(self.now_us) for point in self.points)
        assert theirs == ours
        for key, (state, _) in ours.items():
            self.fits(key, state)

    def fits(self, key: str, state: bytes) -> None:
        """Level and out are never more than the capacity, unless the capacity fell below what was out already."""
        bucket = unpack(state, self.now_us // 1000)
        assert bucket is not None
        if self.written.get(key, (b"", 0))[0] != state:
            self.written[key] = (state, next(call.regions for call in self.calls if call.key == key))
        out = sum(tokens for edge_ms, tokens in bucket.out if edge_ms > bucket.time_ms)
        top = region_capacity(bucket.capacity, bucket.share, self.written[key][1])
        assert bucket.level <= max(0, top - out) * bucket.period_ms * 10_000
        if len(bucket.out) == 2:
            self.count("two edges")

    def pick(self) -> tuple[int, BucketCall]:
        place = self.random.choice((0, 1))
        return place, self.calls[place]

    def check(self) -> None:
        _, call = self.pick()
        cost = self.random.choice((0, 1, 1, 1, 5, 40, call.capacity // 10, call.capacity // 2, call.capacity))
        self.both("check", [replace(call, cost=cost)])

    def refund(self) -> None:
        _, call = self.pick()
        self.both("refund", [replace(call, cost=self.random.choice((1, 5, 100, call.capacity)))])

    def take(self) -> None:
        place, call = self.pick()
        random = self.random
        returned = [self.held[place].pop() for _ in range(min(len(self.held[place]), random.choice((0, 0, 1, 2))))]
        before = self.both("check", [replace(call, cost=0)])[0].remaining  # type: ignore[index]
        lease = self.both("lease", call, random.choice((0, 1, 8, 20, 100, 5000, 10**9)), returned)
        assert isinstance(lease, TokenLease)
        assert lease.credited <= sum(one.unspent for one in returned)
        if lease.credited:
            self.count("credited")
        if lease.tokens:
            self.count(f"taken from {call.sharing.name}")
            assert lease.share_kind in (ShareKind.WHOLE, ShareKind.LEASE)
            assert 0 < lease.ends_in_us <= (500_000 if call.sharing is Sharing.WHOLE else 100_000)
            assert (
                before is None or lease.tokens <= (before + lease.credited) // 10 or call.refill != Rate(1, 86_400)
            )
            unspent = random.choice((0, lease.tokens // 2, lease.tokens))
            self.held[place].append(ReturnedLease(lease.edge_ms, lease.tokens, unspent))

    def give_back(self) -> None:
        place, call = self.pick()
        held = self.held[place]
        if held:
            lease = self.both("lease", call, 0, [held.pop(self.random.randrange(len(held)))])
            self.count("late" if not lease.credited else "credited")  # type: ignore[attr-defined]

    def forged(self) -> None:
        """What no bucket ever gave, at edges that it may know."""
        _, call = self.pick()
        now_ms = self.now_us // 1000
        every_ms = self.random.choice((50, 250))
        edge_ms = (now_ms // every_ms + self.random.choice((0, 1, 2, 3))) * every_ms
        tokens = self.random.choice((0, 1, 10**12))
        self.both("lease", call, 0, [ReturnedLease(edge_ms, tokens, self.random.choice((0, tokens)))])

    def write(self) -> None:
        random = self.random
        self.version += 1
        write = Write(
            nonce=f"n{random.randrange(10**6)}",
            instance=self.instance,
            session=1 + self.version // 400,
            version=self.version,
            until_us=self.now_us + random.choice((30_000, 400_000, 2_000_000, 2_000_000)),
            extend=random.random() < 0.4,
            leases={self.calls[1].key: random.choice((BASE, 0, 500, 3000, 7000, 9000, 9000, 10_000))},
            all_known=True,
            base_version=1,
            bases={"default": 5000},
        )
        self.instance = self.both("write", write).instance  # type: ignore[attr-defined]

    def rule(self) -> None:
        place, call = self.pick()
        self.count("rule change")
        self.calls[place] = replace(
            call,
            capacity=self.random.choice((0, 20, 99, 100, 400, 1000, 1000, 1000, 70_000, 20_000_000)),
            refill=Rate(*self.random.choice(RATES)),
            charge_denied=self.random.random() < 0.1,
        )
        if place == 0 and self.random.random() < 0.3:
            static = self.random.random() < 0.5
            self.calls[0] = replace(
                self.calls[0],
                sharing=Sharing.STATIC if static else Sharing.WHOLE,
                regions=REGIONS if static else 1,
                base=5000 if static else 10_000,
            )


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.timeout(120)
def test_the_same_walk_gives_the_same_leases_states_and_expiries(server: RedisServer, seed: int) -> None:
    walk = Walk(seed, (PythonPoint(TIMES), RedisPoint(server, TIMES)))
    walk_through(walk, STEPS, seed)
    for what in ("taken from WHOLE", "taken from ADAPTIVE", "credited", "late", "two edges"):
        assert walk.counted.get(what, 0) >= 20, walk.counted
