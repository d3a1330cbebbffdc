"""Gateways that come, go, reconnect and hear late never let through more than the limit together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.quota.desk import IDLE_MS, BucketId, Desk, Told
from services.quota.division import filling, part_of
from services.quota.ledger import DENY, PICO, Grant, Ledger, Limit
from tests.unit.quota.gateways import Gateway

TTL_MS, LATE_MS = 15_000, 5000
BUCKET: BucketId = ("edge", (("user", "ann"),))
KEY = "rl:{t}:edge/rule:ann"


def per_s(tokens: float) -> int:
    return int(tokens * PICO / 1000)


def desk(parts_least: int = 1, **more: int) -> Desk:
    return Desk(ttl_ms=TTL_MS, late_ms=LATE_MS, parts_least=parts_least, **more)


def reported(
    one: Desk, stream: int, limit: Limit | None, now_ms: int, *, used: bool = True, bucket: BucketId = BUCKET
) -> list[Told]:
    """What is said when ``stream`` reports its bucket."""
    assert one.report(stream, bucket, used, now_ms)
    told = one.mean(stream, bucket, KEY if limit else None, limit, now_ms)
    return told + one.turn([KEY], now_ms)


@pytest.mark.parametrize(
    ("limit", "parts", "right"),
    [
        (Limit(100, per_s(10)), 1, Grant(75, 9, 1)),
        (Limit(100, per_s(10)), 3, Grant(25, 3, 1)),
        (Limit(2, per_s(1)), 1, Grant(1, 9, 10)),
        (Limit(1, per_s(1)), 1, Grant(1, 9, 10)),
        (Limit(1, per_s(1)), 2, DENY),
        (Limit(0, 0), 1, DENY),
        (Limit(4, per_s(1 / 3600)), 1, Grant(3, 1000, 4000017)),
        (Limit(2**40, per_s(2**31)), 1, Grant(2**32 - 1, 9 * 2**31 // 10, 1)),
    ],
)
def test_a_part_in_whole_tokens_and_whole_seconds(limit: Limit, parts: int, right: Grant) -> None:
    assert part_of(limit, parts) == right


@given(tokens=st.integers(1, 2**40), rate=st.integers(0, 2**32 * PICO))
def test_what_is_told_is_never_faster_and_hardly_slower(tokens: int, rate: int) -> None:
    told = filling(tokens, rate)
    assert told.rate <= rate + 1
    if told != DENY and told.fill < 2**32 - 1 and told.every_s > 1:
        assert told.rate * 1001 >= rate * 1000


def test_the_first_gets_all_but_what_is_kept_and_two_share() -> None:
    limit, one = Limit(100, per_s(10)), desk()
    assert reported(one, 1, limit, 0) == [Told(1, BUCKET, Grant(75, 9, 1))]
    # The second makes the first smaller at once, but waits until the first's old part has surely ended.
    assert reported(one, 2, limit, 1000) == [Told(1, BUCKET, Grant(25, 9, 2))]
    told: dict[int, Grant | None] = {}
    for now_ms in range(2000, 22_000, 1000):
        for stream in (1, 2):
            told |= {said.stream: said.grant for said in reported(one, stream, limit, now_ms)}
        if now_ms < LATE_MS + TTL_MS:
            assert 2 not in told
    grant = told[2]
    assert grant is not None
    assert (grant.fill, grant.every_s) == (9, 2)


def test_parts_made_for_several_make_nobody_wait() -> None:
    limit, one = Limit(100, per_s(10)), desk(parts_least=2)
    assert reported(one, 1, limit, 0) == [Told(1, BUCKET, Grant(37, 9, 2))]
    assert reported(one, 2, limit, 1000) == [Told(2, BUCKET, Grant(37, 9, 2))]


def test_nothing_is_granted_before_the_desk_opens() -> None:
    one = desk(opens_ms=20_000)
    assert reported(one, 1, Limit(100, per_s(10)), 19_999) == []
    assert reported(one, 1, Limit(100, per_s(10)), 20_000) != []


@pytest.mark.parametrize(
    ("limit", "right"),
    [
        (Limit(10, per_s(1)), Grant(8, 9, 10)),
        (Limit(1000, per_s(100)), Grant(750, 90, 1)),
        (Limit(0, 0), DENY),
    ],
)
def test_a_changed_rule_is_told_at_once(limit: Limit, right: Grant) -> None:
    one = desk()
    reported(one, 1, Limit(100, per_s(10)), 0)
    one.mean(1, BUCKET, KEY, limit, 1000)
    assert one.turn([KEY], 1000) == [Told(1, BUCKET, right)]


def test_a_rule_that_can_be_pushed_no_longer_takes_its_quota_back() -> None:
    one = desk()
    reported(one, 1, Limit(100, per_s(10)), 0)
    assert one.mean(1, BUCKET, None, None, 1000) == [Told(1, BUCKET, None)]
    assert one.turn([KEY], 1000) == []


def test_what_goes_on_is_sent_again_in_time_and_is_the_same() -> None:
    limit, one = Limit(100, per_s(10)), desk()
    reported(one, 1, limit, 0)
    sent = [now_ms for now_ms in range(100, 30_000, 100) if reported(one, 1, limit, now_ms)]
    assert sent == [5000, 10_000, 15_000, 20_000, 25_000]


def test_what_is_sent_again_too_late_is_paid_for_since_the_gateway_may_begin_anew() -> None:
    limit, one = Limit(100, per_s(10)), desk()
    reported(one, 1, limit, 0)
    assert reported(one, 1, limit, TTL_MS - LATE_MS - 1) == [Told(1, BUCKET, Grant(75, 9, 1))]
    again_ms = 2 * (TTL_MS - LATE_MS)
    assert reported(one, 1, limit, again_ms) == [Told(1, BUCKET, Grant(25, 9, 1))]


def test_what_is_not_used_ends_before_it_is_taken_back_so_that_it_can_begin_anew_at_once() -> None:
    limit, one = Limit(100, per_s(10)), desk()
    reported(one, 1, limit, 0)
    sent: dict[int, Grant | None] = {}
    for now_ms in range(1000, IDLE_MS + TTL_MS + 1000, 1000):
        for said in reported(one, 1, limit, now_ms, used=False):
            sent[now_ms] = said.grant
    taken_back_ms = max(sent)
    assert sent.pop(taken_back_ms) is None
    assert max(sent) + TTL_MS + LATE_MS == taken_back_ms == IDLE_MS + TTL_MS
    assert None not in sent.values()
    assert one.buckets == []
    assert reported(one, 1, limit, taken_back_ms + 1) == [Told(1, BUCKET, Grant(25, 9, 1))]


def test_tables_are_bounded_and_empty_again() -> None:
    one = desk(held_most=2, ledgers_most=1)
    limit = Limit(4, per_s(1))
    others: list[BucketId] = [("edge", (("user", name),)) for name in ("bob", "cy")]
    reported(one, 1, limit, 0)
    assert one.report(1, others[0], True, 0)
    one.mean(1, others[0], "another", limit, 0)
    assert one.key_of(1, others[0]) is None
    assert not one.report(1, others[1], True, 0)
    assert one.dropped == 2
    one.leave(1)
    for now_ms in range(0, 60_000, 1000):
        one.turn(one.keys, now_ms)
    assert (one.keys, one.buckets) == ([], [])


def test_ids_that_mean_one_bucket_share_it() -> None:
    limit, one = Limit(100, per_s(10)), desk(parts_least=2)
    other: BucketId = ("edge", (("user", "ann"), ("path", "/")))
    told = reported(one, 1, limit, 0) + reported(one, 1, limit, 0, bucket=other)
    assert [said.grant for said in told] == [Grant(37, 9, 2)] * 2


def test_a_grant_that_is_not_saved_for_is_a_fault() -> None:
    ledger = Ledger(Limit(10, per_s(1)), 0, TTL_MS, LATE_MS)
    ledger.grant(1, Grant(6, 1, 2), 0)
    with pytest.raises(AssertionError):
        ledger.grant(2, Grant(6, 1, 2), 0)


@dataclass
class World:
    """Gateways on streams; what is sent arrives some time later, in order; a stream may be cut and come again."""

    one: Desk
    gateways: list[Gateway]
    streams: dict[int, int] = field(default_factory=dict)
    on_the_way: list[tuple[int, int, Told]] = field(default_factory=list)
    now_ms: int = 0
    numbers: int = 0

    def connect(self, gateway: int) -> None:
        if gateway not in self.streams.values():
            self.numbers += 1
            self.streams[self.numbers] = gateway

    def cut(self, gateway: int) -> None:
        for stream in [stream for stream, at in self.streams.items() if at == gateway]:
            del self.streams[stream]
            self.one.leave(stream)

    def send(self, told: list[Told], late_ms: int) -> None:
        for one in told:
            if one.stream in self.streams:
                self.on_the_way.append((self.now_ms + late_ms, self.streams[one.stream], one))

    def arrive(self) -> None:
        blocked: set[int] = set()
        left = []
        for due_ms, gateway, told in self.on_the_way:
            if due_ms > self.now_ms or gateway in blocked:
                left.append((due_ms, gateway, told))
                blocked.add(gateway)
            elif told.grant is None:
                self.gateways[gateway] = Gateway(TTL_MS, at_ms=self.now_ms)
            else:
                self.gateways[gateway].told(told.grant, self.now_ms)
        self.on_the_way = left


GATEWAYS = 3
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["nothing", "nothing", "come or go", "leave and come back"]),
        st.integers(0, GATEWAYS - 1),
        st.sampled_from([0, 1, 3, 6, 12, 21]),
        st.sampled_from([0, 500, LATE_MS]),
        st.sampled_from(["all", "one", "none"]),
    ),
    min_size=4,
    max_size=30,
)
"""What happens to a gateway, after how many seconds, how late it hears of it, and who is asked for all it has."""

Step = tuple[str, int, int, int, str]


def play(world: World, steps: list[Step], limit_at: Callable[[int], Limit], larger: Limit) -> int:
    """All gateways together keep to one bucket of ``larger`` that is charged for all that passes; how much did."""
    whole, passed = larger.capacity * PICO, 0
    for place, (what, gateway, seconds, late_ms, spends) in enumerate(steps):
        if what != "nothing":
            was_there = gateway in world.streams.values()
            world.cut(gateway)
            if not was_there or what == "leave and come back":
                world.connect(gateway)
        for _ in range(1 + seconds):
            for stream in list(world.streams):
                world.send(reported(world.one, stream, limit_at(place), world.now_ms), late_ms)
            world.send(world.one.turn(world.one.keys, world.now_ms), late_ms)
            world.arrive()
            for number, one in enumerate(world.gateways):
                if spends == "all" or (spends == "one" and number == gateway):
                    spent = one.spend(100, world.now_ms)
                    whole, passed = whole - spent * PICO, passed + spent
            assert whole >= 0
            world.now_ms += 1000
            whole = min(larger.capacity * PICO, whole + larger.rate * 1000)
    return passed


def world_of(parts_least: int = 1) -> World:
    world = World(desk(parts_least), [Gateway(TTL_MS) for _ in range(GATEWAYS)])
    world.connect(0)
    return world


@settings(max_examples=300, deadline=None)
@given(
    steps=STEPS,
    capacity=st.integers(1, 60),
    rate=st.sampled_from([0.01, 0.3, 1.0, 7.0]),
    parts_least=st.integers(1, 3),
)
def test_together_they_never_let_through_more_than_the_limit(
    steps: list[Step], capacity: int, rate: float, parts_least: int
) -> None:
    limit = Limit(capacity, per_s(rate))
    play(world_of(parts_least), steps, lambda _: limit, limit)


@settings(max_examples=200, deadline=None)
@given(
    steps=STEPS,
    limits=st.lists(st.tuples(st.integers(0, 60), st.sampled_from([0.0, 0.3, 7.0])), min_size=2, max_size=2),
)
def test_while_a_rule_changes_the_larger_of_both_is_kept_to(
    steps: list[Step], limits: list[tuple[int, float]]
) -> None:
    before, after = (Limit(capacity, per_s(rate)) for capacity, rate in limits)
    larger = Limit(max(before.capacity, after.capacity), max(before.rate, after.rate))
    play(world_of(), steps, lambda place: before if place < len(steps) // 2 else after, larger)


def test_gateways_that_stay_get_nine_tenths_of_the_rate() -> None:
    """The bound is not kept by letting nothing through."""
    limit = Limit(40, per_s(10))
    steps: list[Step] = [("come or go", 1, 60, 0, "all"), ("nothing", 1, 100, 0, "all")]
    assert play(world_of(), steps, lambda _: limit, limit) >= 0.8 * 10 * 160
