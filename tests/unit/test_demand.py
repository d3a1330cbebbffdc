"""What a region says it wants: fast when demand moves, quiet when it does not, and nothing for ever."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from random import Random

from global_sync.allocation.demand import DemandEstimator
from global_sync.protocol.messages import Want
from regional_limiter.model.rule import Rate

MS = 1000
SECOND = 1_000_000


class Region:
    """A rule of 1,000 tokens a second, collected every 50 ms give or take."""

    def __init__(self, share: int = 3333, *, lease: bool = False, rate: tuple[int, int] = (1000, 1000)) -> None:
        self.share, self.lease = share, lease
        self.rate: Rate | None = Rate(*rate)
        self.estimator = DemandEstimator(lambda _: self.rate, lambda _: (self.share, self.lease), max_keys=100)
        self.now = 5 * SECOND
        self.random = Random(1)
        self.said: list[tuple[int, Want]] = []
        self.owed = 0.0

    def run(self, us: int, per_second: float | Callable[[int], float], *, jitter: bool = True) -> list[Want]:
        start, before = self.now, len(self.said)
        while self.now < start + us:
            step = self.random.randint(30, 90) * MS if jitter else 50 * MS
            self.now += step
            rate = per_second(self.now - start) if callable(per_second) else per_second
            self.owed += rate * step / SECOND
            if int(self.owed):
                self.estimator.offer("k", int(self.owed), self.now)
                self.owed -= int(self.owed)
            for want in self.estimator.tick(self.now).values():
                self.said.append((self.now, want))
        return [want for _, want in self.said[before:]]


def test_a_jump_of_demand_is_said_within_a_fifth_of_a_second() -> None:
    region = Region()
    region.run(200 * MS, 1500)
    assert region.said
    first_at, _ = region.said[0]
    assert first_at - 5 * SECOND <= 100 * MS
    assert 13_500 <= region.said[-1][1].want <= 20_000


def test_steady_demand_settles_on_the_right_number_and_then_falls_silent() -> None:
    region = Region(lease=True)
    region.run(4 * SECOND, 600)
    assert abs(region.said[-1][1].want - 6000) <= 0.05 * 6000
    assert len(region.run(4 * SECOND, 600)) <= 2


def test_late_collections_do_not_look_like_a_change_of_demand() -> None:
    region = Region(lease=True)
    region.run(3 * SECOND, 800)
    region.now += 700 * MS  # a pause of the process; the demand went on
    region.estimator.offer("k", 560, region.now)
    said = region.estimator.tick(region.now)
    assert all(abs(want.want - 8000) < 800 for want in said.values())


def test_when_demand_ends_the_want_is_said_to_be_nothing_and_the_key_is_forgotten() -> None:
    region = Region(lease=True)
    region.run(2 * SECOND, 900)
    assert region.estimator.current()
    region.run(4 * SECOND, 0)
    assert region.said[-1][1].want == 0
    assert not region.estimator.current()
    assert len(region.estimator) == 1  # a lease is held: the key is still interesting
    region.lease = False
    region.run(200 * MS, 0)
    assert len(region.estimator) == 0


def test_a_slow_trickle_ends_too() -> None:
    region = Region(lease=True, rate=(5, 1000), share=5000)
    region.run(5 * SECOND, 4)
    region.run(8 * SECOND, 0)
    assert region.said[-1][1].want == 0


def test_a_key_with_few_requests_does_not_report_every_tick() -> None:
    region = Region(lease=True, rate=(10, 1000), share=9000)
    region.run(3 * SECOND, 8)
    said = region.run(10 * SECOND, 8)
    assert len(said) < 60
    assert all(2000 <= want.want <= 20_000 for want in said)


def test_demand_far_below_the_share_is_not_worth_a_word() -> None:
    region = Region(share=5000)
    assert region.run(3 * SECOND, 20) == []


def test_demand_beyond_twice_the_limit_is_clamped() -> None:
    region = Region()
    region.run(SECOND, 50_000)
    assert region.said[-1][1] == Want(20_000, 20_000)


def test_one_large_cost_leaves_a_peak_behind() -> None:
    # Capacity 20, 100/s: ten tokens at once are little for a second, and more than a third of the bucket.
    region = Region(rate=(100, 1000))
    region.estimator.offer("k", 10, region.now + 50 * MS)
    region.now += 50 * MS
    want = region.estimator.tick(region.now)["k"]
    assert want.want > 10_000
    region.run(7 * SECOND, 0)
    assert region.said[-1][1].want == 0
    assert region.said[-1][1].peak > 9000


def test_reports_of_one_key_are_at_least_50_ms_apart_and_of_jumps_20() -> None:
    region = Region()
    region.run(2 * SECOND, lambda at: 3000 if at // (100 * MS) % 2 else 100)
    for (earlier, before), (later, want) in pairwise(region.said):
        jumps = abs(want.want - before.want) > 0.5 * before.want
        assert later - earlier >= (20 if jumps else 50) * MS


def test_a_fall_is_known_within_two_steps_and_not_taken_for_more_than_it_is() -> None:
    region = Region()
    region.run(2 * SECOND, 1200)
    region.run(150 * MS, 40)
    needed = region.estimator.needed("k")
    assert needed is not None
    assert 300 <= needed <= 800
    region.run(2 * SECOND, 40)
    assert 380 <= region.said[-1][1].want <= 420


def test_a_key_that_begins_with_a_known_rate_keeps_it_until_something_is_offered() -> None:
    estimator = DemandEstimator(lambda _: Rate(1000, 1000), lambda _: (1999, True))
    estimator.begin_at("k", 100.0, SECOND)
    assert "k" in estimator
    for step in range(1, 6):
        estimator.tick(SECOND + step * 50 * MS)
    needed = estimator.needed("k")
    assert needed is not None
    assert 1000 < needed < 1100
    assert estimator.say("k", SECOND + 300 * MS) == Want(1000, 1000)
    assert estimator.needed("never heard of") is None


def test_a_rule_that_is_gone_leaves_no_want_behind() -> None:
    region = Region()
    region.run(SECOND, 900)
    region.rate = None
    assert region.run(1200 * MS, 0)[-1] == Want(0, 0)
    assert len(region.estimator) == 0


def test_the_table_is_bounded_and_quiet_keys_make_room() -> None:
    estimator = DemandEstimator(lambda _: Rate(1000, 1000), lambda _: (3333, False), max_keys=10)
    now = SECOND
    for n in range(20):
        estimator.offer(f"busy{n}", 500, now)
    assert (len(estimator), estimator.refused) == (10, 10)
    for _ in range(100):
        now += 50 * MS
        estimator.tick(now)
    estimator.offer("another", 5, now)
    assert len(estimator) == 1


def test_with_thousands_of_keys_each_has_its_turn_and_its_right_rate() -> None:
    estimator = DemandEstimator(lambda _: Rate(1000, 1000), lambda _: (5000, True))
    now = SECOND
    for _ in range(60):
        now += 50 * MS
        for n in range(3000):
            estimator.offer(f"k{n}", 20, now)
        assert len(estimator.tick(now)) <= 1600
    assert all(abs(estimator.want(f"k{n}").want - 4000) < 300 for n in range(3000))


def test_nothing_offered_is_nothing_said() -> None:
    region = Region()
    assert region.estimator.tick(SECOND) == {}
    region.estimator.offer("k", 5, SECOND)
    region.estimator.drop("k")
    assert region.estimator.want("k") == Want(0, 0)
    assert region.estimator.tick(2 * SECOND) == {}
