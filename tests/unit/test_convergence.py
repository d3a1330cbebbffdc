"""Shares follow demand: the real state machines in a small world with fixed delays and a virtual clock.

Three regions, one key of 1,000 tokens a second and a capacity of 100, one enforcement point each.  Admission
is fluid: a region admits what its share has accrued.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

import pytest

from global_sync.allocation.demand import DemandEstimator
from global_sync.policy import LeaderPolicy
from global_sync.protocol import leader_state
from global_sync.protocol.leader import LeaderSide
from global_sync.protocol.messages import Record, Report, Want
from global_sync.protocol.region import RegionSide
from regional_limiter.model.enforcement import Enforcement
from regional_limiter.model.rule import Rate
from regional_limiter.model.share import ProtocolTimes, region_capacity

MS, SECOND = 1_000, 1_000_000
STEP_US = 5 * MS
LIMIT, CAPACITY = 1_000, 100
KEY = "rl:{0}:default/orders:acme"
BASES = {"us-east": 5000, "eu-west": 2500, "ap-south": 2500}
DELAYS_US = {"us-east": 5 * MS, "eu-west": 40 * MS, "ap-south": 100 * MS}

Load = Callable[[str, int], float]
"""(region, time) -> tokens a second."""


@dataclass
class Region:
    name: str
    times: ProtocolTimes
    delay_us: int
    cut: bool = False
    stuck: bool = False  # its Redis takes no writes
    inbox: deque[tuple[int, Record]] = field(default_factory=deque)
    admitted: float = 0.0
    offered: float = 0.0
    level: float = 0.0
    unsaid: float = 0.0
    reports: int = 0
    next_write_us: int = 0
    next_collect_us: int = 0
    next_report_us: int = 0

    def __post_init__(self) -> None:
        self.side = RegionSide(self.name, f"agent-{self.name}", self.times)
        self.point = Enforcement(self.times)
        self.demand = DemandEstimator(lambda _: Rate(LIMIT, 1000), self.side.held)

    def step(self, now_us: int, per_second: float) -> Report | None:
        self._admit(now_us, per_second)
        heard = False
        while self.inbox and self.inbox[0][0] <= now_us and not self.cut:
            self.side.on_record(self.inbox.popleft()[1])
            heard = True
        if heard or self.side.listing_due:
            token = self.side.listing_started()
            self.side.on_listing(token, ["p"], self.side.base_version)
        if heard or now_us >= self.next_write_us or self.side.needs_write("p"):
            self.next_write_us = now_us + self.times.write_us
            write = self.side.prepare_write("p", f"nonce{now_us}")
            if write is not None and not self.stuck:
                self.side.on_reply("p", self.point.write(now_us, write))
        if now_us >= self.next_collect_us:
            self.next_collect_us = now_us + 50 * MS
            self.demand.offer(KEY, int(self.unsaid), now_us)
            self.unsaid -= int(self.unsaid)
            for key, want in self.demand.tick(now_us).items():
                self.side.set_want(key, want)
        if self.side.news or now_us >= self.next_report_us:
            self.next_report_us = now_us + self.times.report_us
            self.reports += 1
            return self.side.report()
        return None

    def _admit(self, now_us: int, per_second: float) -> None:
        self.point.enter(now_us)
        self.offered = per_second * STEP_US / SECOND
        share = self.share(now_us)
        accrued = self.level + share * LIMIT / 10_000 * STEP_US / SECOND
        most = region_capacity(CAPACITY, share, len(BASES))
        self.level = min(accrued, most)
        self.admitted = min(self.offered, self.level)
        self.level -= self.admitted
        if self.admitted < self.offered or share != BASES[self.name] or 2 * self.level < most:
            self.unsaid += self.offered  # a key that rests at its base and is not short costs no message

    def share(self, now_us: int) -> int:
        return self.point.peek_share(now_us, KEY, self.side.bases.get("default", 0))


class World:
    def __init__(self, scale: float = 1.0) -> None:
        self.times = ProtocolTimes.scaled(scale)
        self.now = 100 * SECOND
        self.regions = {name: Region(name, self.times, delay) for name, delay in DELAYS_US.items()}
        self.log: list[Record] = []
        self.reports: deque[tuple[int, Report]] = deque()
        self.next_beat_us = self.next_policy_us = 0
        self.records = 0
        self.highest = 0
        self.leader = LeaderSide("c", [], self.times)
        self.policy = LeaderPolicy(self.times)
        self.take_over("first")
        self.append(self.leader.configure(self.now, 1, {"default": BASES}))

    def take_over(self, nonce: str) -> None:
        self.policy = LeaderPolicy(self.times)
        self.append([self.leader.take_over(self.now, nonce)])

    def append(self, records: list[Record]) -> None:
        for record in records:
            self.records += 1
            self.log.append(record)
            self.leader.on_record(self.now, record, len(self.log))
            for region in self.regions.values():
                region.inbox.append((self.now + region.delay_us, record))

    def run(self, us: int, load: Load) -> float:
        """Part of the limit that was admitted over this time."""
        end, admitted = self.now + us, 0.0
        while self.now < end:
            self.now += STEP_US
            for region in self.regions.values():
                report = region.step(self.now, load(region.name, self.now))
                if report is not None and not region.cut:
                    self.reports.append((self.now + region.delay_us, report))
                admitted += region.admitted
            self._lead()
            total = sum(region.share(self.now) for region in self.regions.values())
            self.highest = max(self.highest, total)
            assert total <= 10_000, f"shares in force sum to {total}"
        return admitted / (LIMIT * us / SECOND)

    def _lead(self) -> None:
        arrived = [one for one in self.reports if one[0] <= self.now]
        self.reports = deque(one for one in self.reports if one[0] > self.now)
        for _, report in arrived:
            self.append(self.leader.on_report(self.now, report))
        if self.now >= self.next_policy_us:
            self.next_policy_us = self.now + 20 * MS
            self.append(self.leader.done(self.now))
            self.append(self.policy.step(self.now, self.leader))
        if self.now >= self.next_beat_us:
            self.next_beat_us = self.now + self.times.beat_us
            self.append(self.leader.beat(self.now, self.policy.leave_out(self.now, self.leader)))

    def seconds(self, count: float) -> int:
        """``count`` seconds at the default times, scaled."""
        return round(count * self.times.beat_us)

    def settle(self) -> None:
        """Bases known, sessions open, consents echoed."""
        self.run(self.seconds(5), nothing)

    def shares(self) -> dict[str, int]:
        return {name: region.share(self.now) for name, region in self.regions.items()}


def nothing(_region: str, _at: int) -> float:
    return 0.0


def hot(hot_region: str, others: float = 0.0, most: float = 1500.0) -> Load:
    return lambda region, _: most if region == hot_region else others


@pytest.fixture(params=[1.0, 1 / 3], ids=["default-times", "a-third"])
def world(request: pytest.FixtureRequest) -> World:
    world = World(request.param)
    world.settle()
    assert world.shares() == BASES
    return world


@pytest.mark.parametrize("region", sorted(BASES))
def test_one_region_that_offers_more_than_the_limit_gets_nine_tenths_within_two_seconds(
    world: World, region: str
) -> None:
    world.run(2 * SECOND, hot(region))
    assert world.run(SECOND, hot(region)) >= 0.9
    assert world.shares()[region] >= 9000


def test_the_others_still_get_what_they_want(world: World) -> None:
    world.run(3 * SECOND, hot("us-east", others=100))
    assert world.run(2 * SECOND, hot("us-east", others=100)) >= 0.97
    shares = world.shares()
    assert shares["eu-west"] >= 1000
    assert shares["ap-south"] >= 1000


def test_a_region_that_keeps_within_its_base_is_not_cut_when_another_turns_hot(world: World) -> None:
    load: Load = lambda region, _: {"us-east": 2000.0, "eu-west": 200.0, "ap-south": 150.0}[region]  # noqa: E731
    world.run(2 * SECOND, lambda region, at: load(region, at) if region != "us-east" else 0.0)
    assert not list(world.leader.keys)
    admitted = dict.fromkeys(BASES, 0.0)
    for _ in range(600):
        world.run(STEP_US, load)
        for name, region in world.regions.items():
            admitted[name] += region.admitted / 3
    assert admitted["eu-west"] >= 0.97 * 200
    assert admitted["ap-south"] >= 0.97 * 150
    assert admitted["us-east"] >= 550


def test_when_load_moves_the_share_follows(world: World) -> None:
    world.run(4 * SECOND, hot("us-east"))
    world.run(2 * SECOND, hot("ap-south"))
    assert world.run(SECOND, hot("ap-south")) >= 0.9


def test_three_hot_regions_share_by_their_weights(world: World) -> None:
    assert world.run(5 * SECOND, lambda *_: 2000.0) >= 0.97
    for region, share in world.shares().items():
        assert abs(share - BASES[region]) <= 150


def test_steady_load_settles_and_moves_nothing_any_more(world: World) -> None:
    load = hot("us-east", others=150)
    world.run(6 * SECOND, load)
    beats = world.records
    world.run(world.seconds(10), load)
    assert world.records - beats <= 10 + 4


def test_a_key_that_nobody_needs_any_more_goes_back_to_base_and_is_forgotten(world: World) -> None:
    world.run(4 * SECOND, hot("us-east"))
    held = world.shares()
    world.run(world.seconds(30), nothing)
    assert world.shares() == held  # who asks again within half a minute finds what it held
    world.run(5 * SECOND + world.seconds(8), nothing)
    assert world.shares() == BASES
    assert not list(world.leader.keys)


def test_where_many_keys_have_records_one_that_nobody_needs_makes_way_within_seconds(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leader_state, "CROWDED_BYTES", 0)
    world.run(4 * SECOND, hot("us-east"))
    world.run(5 * SECOND + world.seconds(8), nothing)
    assert world.shares() == BASES
    assert not list(world.leader.keys)


def test_what_is_to_be_looked_at_again_is_queued_a_few_times_for_each_key(world: World) -> None:
    """Wants that move below every base put the moment of rest off again and again, for half a minute."""
    world.run(4 * SECOND, hot("us-east"))

    def wavering(region: str, at: int) -> float:
        part = Random(f"{region} {at // (300 * MS)}").random()
        return 40 + 400 * part if region == "us-east" else 20 + 150 * part

    most = 0
    for _ in range(20):
        world.run(SECOND, wavering)
        assert list(world.leader.keys) == [KEY]
        most = max(most, len(world.policy._retries))
    assert 0 < most <= 4


def test_a_silent_region_keeps_its_right_and_gets_its_base_back_while_the_others_go_on(world: World) -> None:
    load = hot("us-east")
    world.run(4 * SECOND, load)
    world.regions["eu-west"].cut = True
    worst = 1.0
    for _ in range(40):
        worst = min(worst, world.run(world.seconds(1), load))
    # 10,000 without the base of the silent one, of what is left when it has all it may have.
    assert world.shares()["us-east"] >= 7300
    assert world.shares()["eu-west"] == 2500
    assert worst >= 0.70


def test_after_a_cut_heals_the_base_is_lent_again(world: World) -> None:
    load = hot("us-east")
    world.run(4 * SECOND, load)
    world.regions["eu-west"].cut = True
    world.run(world.seconds(40), load)
    world.regions["eu-west"].cut = False
    world.run(world.seconds(6), load)
    assert world.run(world.seconds(2), load) >= 0.9


def test_the_hot_region_cut_off_falls_to_its_base_and_the_others_can_use_the_rest(world: World) -> None:
    world.run(4 * SECOND, hot("us-east"))
    world.regions["us-east"].cut = True
    load = hot("eu-west")
    world.run(world.seconds(40), load)
    assert world.shares()["us-east"] == 5000
    assert world.shares()["eu-west"] >= 4700


def test_a_region_whose_redis_is_stuck_lapses_alone_and_does_not_stop_the_others(world: World) -> None:
    world.run(4 * SECOND, hot("eu-west"))
    world.regions["eu-west"].stuck = True
    load = hot("us-east", others=100)
    world.run(world.seconds(40), load)
    assert world.shares()["eu-west"] == 2500
    assert world.shares()["ap-south"] >= 1000
    assert world.shares()["us-east"] >= 6300


def test_nothing_is_lost_while_a_snapshot_waits_to_be_read_back(world: World) -> None:
    world.append(world.leader.snapshot(world.now))
    world.leader._snapshot = leader_state.Issued((), world.now)
    report = world.regions["us-east"].side
    report.set_want(KEY, Want(9000, 9000))
    said = report.report()
    assert said is not None
    world.leader.on_report(world.now, said)
    assert world.policy.step(world.now, world.leader) == []
    world.leader._snapshot = None
    assert world.policy.step(world.now + 20 * MS, world.leader)


def test_a_new_leader_goes_on_where_the_old_one_was(world: World) -> None:
    load = hot("us-east")
    world.run(4 * SECOND, load)
    world.take_over("second")
    admitted = world.run(world.seconds(6), load)
    assert admitted >= 0.9
    assert world.shares()["us-east"] >= 9000


def test_two_hot_regions_one_after_the_other_leave_no_idle_share(world: World) -> None:
    def load(region: str, at: int) -> float:
        turn = ["us-east", "eu-west"][at // (5 * SECOND) % 2]
        return 1500.0 if region == turn else 50.0

    world.run(5 * SECOND, load)
    assert world.run(20 * SECOND, load) >= 0.88


def test_one_cost_that_needs_more_than_the_base_gets_the_share_for_it(world: World) -> None:
    # A tenth of a second's limit at once, tried again every second: little as a rate, half of a small bucket.
    def load(region: str, at: int) -> float:
        return 20_000.0 if region == "eu-west" and at % SECOND == 0 else 0.0

    world.run(3 * SECOND, load)
    assert world.shares()["eu-west"] >= 5300


def test_random_arrivals_neither_waste_the_limit_nor_flood_the_log(world: World) -> None:
    random = Random(7)
    rates = {"us-east": 400.0, "eu-west": 1500.0, "ap-south": 50.0}

    def load(region: str, _at: int) -> float:
        arrivals = sum(random.random() < rates[region] * STEP_US / SECOND / 20 for _ in range(20))
        return arrivals * SECOND / STEP_US

    world.run(4 * SECOND, load)
    records = world.records
    total = 0.0
    for _ in range(100):
        total += world.run(50 * MS, load) / 100
    assert total >= 0.93
    assert world.records - records <= 5 * 40
    assert abs(world.shares()["us-east"] - 4000) <= 900


def test_regions_with_few_requests_stay_served_when_another_turns_hot(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty requests a second come so irregularly that a quarter of a second says little of them."""
    monkeypatch.setattr(sys.modules[__name__], "LIMIT", 100)
    offered, admitted = dict.fromkeys(BASES, 0.0), dict.fromkeys(BASES, 0.0)
    for seed in range(8):
        world, random = World(), Random(seed)
        world.settle()
        for _ in range(4 * SECOND // STEP_US):
            arrived = {name: float(random.random() < 20 * STEP_US / SECOND) for name in BASES}
            arrived["ap-south"] = 90 * STEP_US / SECOND
            world.run(STEP_US, lambda name, _: arrived[name] * SECOND / STEP_US)  # noqa: B023 - called at once
            for name, region in world.regions.items():
                offered[name] += arrived[name]
                admitted[name] += region.admitted
    assert admitted["us-east"] >= 0.98 * offered["us-east"]
    assert admitted["eu-west"] >= 0.98 * offered["eu-west"]
