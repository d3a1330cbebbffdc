"""Python is the specification and Lua what runs: sliding windows and concurrency, by the same random sequence.

A walk of its own for each kind, since each has its own places where the two could part: entries that were not
trimmed, windows that change their length, clocks that step back over them, leases that end.  Answers, what is
stored and when it ends must be equal after every step; what must hold of every answer is looked at on the way.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from regional_limiter.model.decision import Reason, Verdict
from regional_limiter.model.rule import Algorithm
from regional_limiter.model.share import SHARE_UNITS, ProtocolTimes
from regional_limiter.store.base import BucketCall, Sharing
from tests.contract.points import PythonPoint, RedisPoint, RequestIds, told, walk_through
from tests.contract.redis_server import RedisServer

START_US = 20_000 * 86_400_000_000
STEPS = 2500
SEEDS = (1, 2, 3, 4)
STEPS_BACK_MS = (1, 700, 1999, 2000, 2001, 20_000, 50_000, 3_600_000)
YEAR_MS = 366 * 86_400_000

COUNTER, LOG, CONCURRENCY = (
    Algorithm.SLIDING_WINDOW_COUNTER,
    Algorithm.SLIDING_WINDOW_LOG,
    Algorithm.CONCURRENCY,
)


class Walk:
    """Two keys of one rule of one kind, whole or split by shares that change, and a fixed window beside it."""

    def __init__(self, algorithm: Algorithm, seed: int, points: tuple[PythonPoint, RedisPoint]) -> None:
        self.random = Random(f"{algorithm} {seed}")
        self.ids = RequestIds(self.random)
        self.algorithm = algorithm
        self.points = points
        self.now_us = START_US + self.random.randrange(10**9)
        self.sharing = Sharing.STATIC if seed % 2 else Sharing.WHOLE
        self.numbers: dict[str, int] = {}
        self.charge_denied = False
        self.base = 5000
        self.change_rule()

    def change_rule(self) -> None:
        random = self.random
        small = (0, 1, 2, 3, 5, 8, 20)
        large = {COUNTER: (1000, 10**6, 9 * 10**11), LOG: (150, 300), CONCURRENCY: (60, 130)}[self.algorithm]
        self.numbers = {"capacity": random.choice((*small, *large))}
        if self.algorithm is CONCURRENCY:
            self.numbers["lease_ms"] = random.choice((1000, 3000, 30_000))
        else:
            # A year tries the products; a window shorter than the steps of time tries what is long over.
            self.numbers["window_ms"] = random.choice((1000, 1000, 3000, 7001, 60_000, YEAR_MS))
        self.charge_denied = random.random() < 0.2

    def call(self, cost: int | None = None) -> BucketCall:
        random = self.random
        capacity = self.numbers["capacity"]
        if cost is None:
            few = random.choice((0, 1, 1, 1, 1, 1, 2, 3))
            cost = random.choice((few, few, few, few, few, capacity // 2, capacity, capacity + 1, 2**31 - 1))
        return BucketCall(
            key=f"rl:{{tag}}:default/rule:{random.choice('aab')}",
            algorithm=self.algorithm,
            capacity=capacity,
            refill=None,
            window_ms=self.numbers.get("window_ms"),
            cost=min(cost, 2**31 - 1),
            charge_denied=self.charge_denied,
            sharing=self.sharing,
            regions=2 if self.sharing is Sharing.STATIC else 1,
            base=self.base if self.sharing is Sharing.STATIC else SHARE_UNITS,
            lease_ms=self.numbers.get("lease_ms"),
            holder=f"holder {random.randrange(300 if capacity > 50 else 12)}",
        )

    def both(self, name: str, *arguments: object) -> object:
        ours, theirs = (told(point, name, self.now_us, *arguments) for point in self.points)
        assert theirs == ours, f"{name} {arguments}"
        return ours

    def step(self) -> None:
        random = self.random
        self.pass_time()
        self.points[0].purge(self.now_us)
        turn = random.random()
        if turn < 0.02:
            self.change_rule()
        elif turn < 0.03:
            self.base = random.choice((0, 1, 2000, 3333, 5000, 10_000))
        elif turn < 0.12:
            self.both("refund", [self.call()], self.ids.of_refund(), self.random.choice((None, 0, 1, 2)))
        elif turn < 0.2 and self.algorithm is CONCURRENCY:
            self.both("renew", [self.call()])
        elif turn < 0.25 and self.algorithm is CONCURRENCY:
            self.both("release", [self.call(1)], random.choice("xyz"))
        else:
            self.check()
            self.points[0].purge(self.now_us)  # a check may have let time pass
        ours, theirs = (point.states(self.now_us) for point in self.points)
        assert theirs == ours
        assert all(ends_ms > self.now_us // 1000 for _, ends_ms in ours.values())

    def pass_time(self) -> None:
        random = self.random
        self.now_us += random.choice((0, 0, 0, 300, 900, 5000, 20_000, 70_000, 170_123))
        if random.random() < 0.01:
            self.now_us += random.choice((1_000_000, 3_000_000, 30_000_000, 70_000_000, 200_000_000))
        elif random.random() < 0.01:
            self.now_us -= 1000 * random.choice(STEPS_BACK_MS)

    def check(self) -> None:
        calls = [self.call()]
        if self.random.random() < 0.1:
            beside = BucketCall("rl:{tag}:default/site:a", Algorithm.FIXED_WINDOW, 6, None, 3000, 1)
            calls.append(beside)
        if self.random.random() < 0.1:
            calls = [replace(call, charge_denied=True, was_allowed=True) for call in calls]
        # As many at once as leave more than one call trims.
        for _ in range(self.random.choice((1, 1, 1, 2, 6, 40) if self.numbers["capacity"] > 20 else (1, 1, 3))):
            verdicts = self.both("check", calls, self.ids.of_check(calls))
            if isinstance(verdicts, list):
                self.look(calls[0], verdicts[0])
            if self.random.random() < 0.7:
                self.now_us += 1000

    def look(self, call: BucketCall, verdict: Verdict) -> None:
        if verdict.replayed:
            return
        assert 0 <= verdict.remaining <= call.part
        assert verdict.allowed == (verdict.reason is Reason.OK)
        assert (verdict.retry_after_ms == 0) == verdict.allowed
        assert (verdict.retry_after_ms is None) == (not verdict.allowed and verdict.reason is not Reason.LIMITED)
        assert verdict.reset_after_ms >= 0


class Directed:
    """One key of one rule at both points, step by step."""

    def __init__(self, server: RedisServer, call: BucketCall) -> None:
        times = ProtocolTimes()
        self.call = call
        self.walk = Walk(call.algorithm, 0, (PythonPoint(times), RedisPoint(server, times)))

    def check(self, passed_ms: int, holder: str = "h") -> tuple[int, int]:
        """What remains, and how many bytes are stored."""
        walk = self.walk
        walk.now_us += passed_ms * 1000
        walk.points[0].purge(walk.now_us)
        verdicts = walk.both("check", [replace(self.call, holder=holder)])
        ours, theirs = (point.states(walk.now_us) for point in walk.points)
        assert theirs == ours
        assert isinstance(verdicts, list)
        ((state, _),) = ours.values()
        return verdicts[0].remaining, len(state)


def test_a_long_log_is_trimmed_alike(server: RedisServer) -> None:
    """What the random walk never meets: more entries that are over than one charge drops, and one that is not."""
    log = Directed(server, BucketCall("rl:{tag}:default/rule:a", LOG, 350, None, 3000, 1))
    for number in range(340):
        assert log.check(1)[0] == 349 - number
    assert log.check(2500)[0] == 9
    remaining, sizes = zip(*(log.check(passed_ms) for passed_ms in (490, 3, 3, 3, 3, 3)), strict=True)
    assert remaining == (338, 340, 342, 344, 344, 343)
    assert [size // 12 - 1 for size in sizes] == [242, 143, 44, 6, 6, 7]


def test_a_crowd_of_slots_is_trimmed_alike(server: RedisServer) -> None:
    slots = Directed(server, BucketCall("rl:{tag}:default/rule:a", CONCURRENCY, 300, None, None, 1, lease_ms=3000))
    for number in range(250):
        assert slots.check(1, f"dead {number}")[0] == 299 - number
    assert slots.check(2700, "keeper")[0] == 49
    remaining, sizes = zip(*(slots.check(300, f"new {number}") for number in range(4)), strict=True)
    assert remaining == (298, 297, 296, 295)
    assert [(size - 6) // 19 for size in sizes] == [152, 53, 4, 5]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("algorithm", [COUNTER, LOG, CONCURRENCY])
def test_the_same_sequence_gives_the_same_answers_states_and_expiries(
    server: RedisServer, algorithm: Algorithm, seed: int
) -> None:
    times = ProtocolTimes()
    walk = Walk(algorithm, seed, (PythonPoint(times), RedisPoint(server, times)))
    walk_through(walk, STEPS, seed)
