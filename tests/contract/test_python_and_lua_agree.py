"""Python is the specification and Lua what runs: the same random sequence of everything, the same everything.

Replies, shares with their history, stored bytes and expiries must be equal after every step.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from regional_limiter.algorithms.calendar import edges_around
from regional_limiter.algorithms.registry import ALGORITHMS
from regional_limiter.algorithms.token_bucket import fits_exactly
from regional_limiter.model.enforcement import BASE, Write
from regional_limiter.model.rule import Algorithm, CalendarUnit, CalendarWindow, Rate
from regional_limiter.model.share import ProtocolTimes, floor_name
from regional_limiter.store.base import BucketCall, NodeBeat, RuleTotals, Sharing
from tests.contract.points import PythonPoint, RedisPoint, RequestIds, told, walk_through
from tests.contract.redis_server import RedisServer

START_US = 20_000 * 86_400_000_000
TIMES = ProtocolTimes.scaled(0.1)
STEPS_A_KIND = 10_000
SEEDS = (1, 2, 3, 4)
DAY_MS = 86_400_000
BUCKETS = (Algorithm.TOKEN_BUCKET, Algorithm.GCRA, Algorithm.LEAKY_BUCKET)
ZONES = ("UTC", "Europe/Berlin", "America/St_Johns", "Australia/Lord_Howe", "Africa/Cairo")


class Rules:
    """The numbers of one random rule, which change now and then."""

    def __init__(self, name: str, sharing: Sharing, algorithm: Algorithm) -> None:
        self.name = name
        self.sharing = sharing
        self.algorithm = algorithm
        self.numbers: dict[str, object] = {}

    def change(self, random: Random) -> None:
        capacity = random.choice((0, 1, 3, 5, 20, 60, 1000, 70_000, 20_000_000))
        rate = Rate(*random.choice(((1, 100), (10, 1), (1, 6000), (7, 30), (1, 86_400), (1000, 1), (3, 1000))))
        if not fits_exactly(capacity, rate):  # such a rule is refused when it is loaded
            rate = Rate(1, 6000)
        self.numbers = {
            "capacity": capacity,
            "regions": 1 if self.sharing is Sharing.WHOLE else random.choice((2, 3, 5)),
            "largest_share": random.choice((10_000, 9_900, 7_000)) if self.sharing else 10_000,
            "charge_denied": random.random() < 0.2,
        }
        if self.algorithm in BUCKETS:
            self.numbers["refill"] = rate
        elif self.algorithm is Algorithm.CONCURRENCY:
            self.numbers["lease_ms"] = random.choice((1000, 30_000))
        elif self.algorithm is not Algorithm.FIXED_WINDOW or random.random() < 0.5:
            self.numbers["window_ms"] = random.choice((1000, 3000, 60_000))
        else:
            self.numbers["calendar"] = CalendarWindow(random.choice(tuple(CalendarUnit)), random.choice(ZONES))
        if self.algorithm is Algorithm.LEAKY_BUCKET:
            self.numbers["queue"] = random.random() < 0.7
        if self.sharing is Sharing.STATIC and self.algorithm not in BUCKETS:
            self.numbers["extra"] = random.choice((0, 0, 1))

    def call(self, random: Random, base: tuple[int, int, int]) -> BucketCall:
        capacity = self.numbers["capacity"]
        assert isinstance(capacity, int)
        few = random.choice((0, 1, 1, 1, 1, 2, 3, 10))
        cost = random.choice((few, few, few, few, capacity // 2, capacity, capacity + 1, 2**31 - 1))
        fields: dict[str, object] = {"refill": None, "window_ms": None, **self.numbers}
        return BucketCall(
            key=f"rl:{{tag}}:default/{self.name}:{random.choice('ab')}",
            algorithm=self.algorithm,
            cost=cost,
            sharing=self.sharing,
            domain=random.choice(("default", "default", "default", "other")),
            base_version=base[0],
            base=base[1],
            floor=base[2],
            holder=random.choice("uvwxyz") if self.algorithm is Algorithm.CONCURRENCY else "",
            **fields,  # type: ignore[arg-type]
        )


class World:
    """Draws one step after another, mostly of ``kind``, and takes it at both points."""

    def __init__(self, kind: Algorithm, seed: int, points: tuple[PythonPoint, RedisPoint]) -> None:
        self.random = Random(seed)
        self.ids = RequestIds(self.random)
        self.points = points
        self.now_us = START_US
        moving = kind if ALGORITHMS[kind].adaptive else Algorithm.TOKEN_BUCKET
        other = self.random.choice([other for other in ALGORITHMS if other is not kind])
        self.rules = [
            Rules("whole", Sharing.WHOLE, kind),
            Rules("static", Sharing.STATIC, kind),
            Rules("lent", Sharing.ADAPTIVE, moving),
            Rules("other", Sharing.WHOLE, other),
        ]
        for rule in self.rules:
            rule.change(self.random)
        self.base = (0, 0, 0)
        self.session, self.version, self.until_us = 1, 0, 0
        self.instance = ""
        self.silent_until_us = 0
        self.steps = (
            (60, self.check),
            (8, self.refund),
            (14, self.write),
            (2, self.node),
            (2, self.agent),
            (2, self.new_base),
            (5, self.new_numbers),
            (1, self.loss),
        )

    def both(self, name: str, *arguments: object) -> object:
        ours, theirs = (told(point, name, self.now_us, *arguments) for point in self.points)
        assert theirs == ours, f"{name} {arguments}"
        return ours

    def step(self) -> None:
        random = self.random
        self.now_us += random.choice((0, 0, 300, 900, 5000, 20_000, 70_000, 70_123, 99_000))
        if random.random() < 0.01:
            self.now_us += random.choice((150_000, 3_000_000, 70_000_000, -1, -1_500_000, -20_000_000, -50_000_000))
        if random.random() < 0.01:
            self.to_an_edge()
        self.points[0].purge(self.now_us)
        weights, actions = zip(*self.steps, strict=True)
        random.choices(actions, weights)[0]()
        self.both("share", f"rl:{{tag}}:default/lent:{random.choice('abc')}", "default")
        ours, theirs = (point.states(self.now_us) for point in self.points)
        assert theirs == ours

    def to_an_edge(self) -> None:
        """Shortly before a window of some calendar ends, with a caller whose clock may be far off."""
        calendars = [calendar for rule in self.rules if (calendar := rule.numbers.get("calendar")) is not None]
        if calendars:
            calendar = self.random.choice(calendars)
            assert isinstance(calendar, CalendarWindow)
            before_us = self.random.randrange(100_000)
            self.now_us = edges_around(calendar, self.now_us // 1000)[2] * 1000 - before_us
        self.points[1].skew_ms = self.random.choice((0, 0, 1000, -1000, 3 * DAY_MS, -3 * DAY_MS, -800 * DAY_MS))

    def calls(self) -> list[BucketCall]:
        some = self.random.sample(self.rules, self.random.choice((1, 1, 1, 2, 3)))
        return [rule.call(self.random, self.base) for rule in some]

    def check(self) -> None:
        calls = self.calls()
        if self.random.random() < 0.1:
            calls = [replace(call, charge_denied=True, was_allowed=True) for call in calls]
        for _ in range(self.random.choice((1, 1, 4))):
            self.both("check", calls, self.ids.of_check(calls))

    def refund(self) -> None:
        self.both("refund", self.calls(), self.ids.of_refund(), self.random.choice((None, 0, 1, 2)))

    def write(self) -> None:
        random = self.random
        if self.now_us < self.silent_until_us:
            return
        if random.random() < 0.08:  # long enough for a session and its consent to end
            self.silent_until_us = self.now_us + random.choice((500_000, 3_400_000))
        if random.random() < 0.1:
            self.new_base()
        self.version += random.choice((1, 1, 1, 1, 0))
        if random.random() < 0.05:
            self.session += 1
        if random.random() < 0.6:
            self.until_us = self.now_us + random.choice((50_000, 400_000, 2_000_000, 3_300_000))
        keys = random.sample(("a", "b"), random.choice((0, 1, 2)))
        values = (BASE, 0, 30, 500, 3000, 7000, 10_000)
        write = Write(
            nonce=f"n{random.randrange(10**6)}",
            instance=self.instance,
            session=random.choice((self.session,) * 20 + (0, self.session - 1)),
            version=self.version,
            until_us=self.until_us,
            extend=random.random() < 0.4,
            leases={f"rl:{{tag}}:default/lent:{key}": random.choice(values) for key in keys},
            all_known=random.random() < 0.5,
            base_version=self.base[0] - (random.random() < 0.1),
            bases=self.bases() if random.random() < 0.5 else {},
        )
        reply = self.both("write", write)
        if random.random() < 0.95:
            self.instance = reply.instance  # type: ignore[attr-defined]

    def new_base(self) -> None:
        self.base = (
            self.base[0] + self.random.choice((0, 1, 1)),
            self.random.choice((0, 20, 2000, 3333, 5000, 10_000)),
            self.random.choice((0, 0, 30, 500, 2500, 10_000)),
        )

    def bases(self) -> dict[str, int]:
        """As an agent writes them: one domain with a floor that its set names, and one without."""
        floor = {floor_name("default"): self.base[2]} if self.base[2] else {}
        return {"third": 5, **floor, "default": self.base[1]}

    def new_numbers(self) -> None:
        self.random.choice(self.rules).change(self.random)

    def node(self) -> None:
        totals = {"default/whole": RuleTotals(self.random.randrange(2**40), 1, 2, 3, 4)}
        beat = NodeBeat(self.random.choice("mn"), "i", "127.0.0.1:1", 3, self.base[0], totals)
        self.both("touch", beat)
        self.both("offer", {f"k{self.random.randrange(9)}": self.random.randrange(2**31) for _ in range(3)})
        self.both("fetch_rules")

    def agent(self) -> None:
        self.both("publish_rules", self.random.randrange(50), b"\x00\xff blob")
        ours, theirs = (point.collect(self.now_us) for point in self.points)
        assert theirs.demand == ours.demand
        assert theirs.rules_version == ours.rules_version
        assert sorted(theirs.beats, key=str) == sorted(ours.beats, key=str)

    def loss(self) -> None:
        if self.random.random() < 0.2:
            for point in self.points:
                point.lose()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", ALGORITHMS)
def test_the_same_sequence_gives_the_same_replies_states_and_expiries(
    server: RedisServer, kind: Algorithm, seed: int
) -> None:
    world = World(kind, seed, (PythonPoint(TIMES), RedisPoint(server, TIMES)))
    walk_through(world, STEPS_A_KIND // len(SEEDS), f"{seed} of {kind}")


def test_a_session_that_outlives_the_consent_and_a_write_after_both_agree_too(server: RedisServer) -> None:
    """What the random walk seldom meets: it would have to be silent for so long in one life of the variable."""
    world = World(Algorithm.TOKEN_BUCKET, 3, (PythonPoint(TIMES), RedisPoint(server, TIMES)))
    key, domain = "rl:{tag}:default/lent:a", "default"

    def told(version: int, until_us: int) -> None:
        world.both("write", Write("n", "n", 1, version, until_us, False, {key: 7000}, True, 2, {domain: 3000}))

    def pass_time(duration_us: int) -> set[tuple[int, ...]]:
        end_us, seen = world.now_us + duration_us, set()
        while world.now_us < end_us:
            world.now_us += 90_000
            share = world.both("share", key, domain)
            assert isinstance(share, tuple)
            seen.add((share[0], share[3]))
        return seen

    told(1, 0)  # names the variable and teaches the base
    until_us = world.now_us + TIMES.consent_us + 500_000
    told(2, until_us)
    assert pass_time(TIMES.consent_us + 1_000_000) == {(7000, 60), (3000, 7000)}
    told(3, START_US + 1_000_000)  # over, and before the consent was
    assert pass_time(500_000) == {(3000, 7000)}
    told(4, world.now_us + 200_000)
    assert pass_time(500_000) == {(7000, 3000), (3000, 7000)}
