"""Tokens that are out count until they are back or their life is over, whatever becomes of their holder.

The simulation has several nodes that lease from one bucket, spend when they like, return or die, on one clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random

import pytest

from regional_limiter.algorithms.bucket_state import Bucket, pack, pack_as_number, unpack
from regional_limiter.algorithms.registry import fixed_share
from regional_limiter.algorithms.token_bucket import decide, give_back, look
from regional_limiter.algorithms.token_lease import CAPACITY_LEAST, Leased, lease
from regional_limiter.algorithms.tokens_out import given, reached_ms, taken_back
from regional_limiter.model.decision import ShareKind
from regional_limiter.model.enforcement import ShareInForce
from regional_limiter.model.rule import Algorithm, Rate
from regional_limiter.store.base import BucketCall, ReturnedLease, Sharing, TokenLease
from tests.unit.test_share_bound import worst_span

START_MS = 20_000 * 86_400_000  # an edge of both kinds
KEY = "rl:{t}:default/r:u"


def call(capacity: int = 1000, rate: tuple[int, int] = (1, 1), cost: int = 1, **more: object) -> BucketCall:
    return BucketCall(KEY, Algorithm.TOKEN_BUCKET, capacity, Rate(*rate), None, cost, **more)  # type: ignore[arg-type]


ADAPTIVE = call(sharing=Sharing.ADAPTIVE, regions=2, domain="default", base_version=1, base=5000)


def by_lease(
    share: int, session_left_us: int = 10_000_000, since_us: int = 0, before: int | None = None
) -> ShareInForce:
    kind = ShareKind.LEASE if session_left_us else ShareKind.BASE
    return ShareInForce(share, kind, since_us, share if before is None else before, 0, session_left_us, 0)


@dataclass
class Store:
    """One bucket, at a time that the test moves (ms after START_MS)."""

    call: BucketCall = field(default_factory=call)
    share: ShareInForce | None = None
    state: bytes | None = None
    expires_ms: int = 0

    def _held(self, at_ms: int) -> tuple[bytes | None, ShareInForce, int]:
        state = self.state if START_MS + at_ms < self.expires_ms else None
        return state, self.share or fixed_share(self.call), START_MS + at_ms

    def _keep(self, state: bytes | None, ttl_ms: int, at_ms: int) -> None:
        if state is not None:
            self.state, self.expires_ms = state, START_MS + at_ms + ttl_ms

    def check(self, at_ms: int, cost: int) -> bool:
        state, share, now_ms = self._held(at_ms)
        outcome = decide(state, replace(self.call, cost=cost), share, now_ms)
        ending = outcome.charged if outcome.allowed else outcome.left
        self._keep(ending.state, ending.ttl_ms, at_ms)
        return outcome.allowed

    def refund(self, at_ms: int, cost: int) -> None:
        state, share, now_ms = self._held(at_ms)
        if ending := give_back(state, replace(self.call, cost=cost), share, now_ms):
            self._keep(ending.state, ending.ttl_ms, at_ms)

    def lease(self, at_ms: int, want: int, *returned: ReturnedLease) -> TokenLease:
        state, share, now_ms = self._held(at_ms)
        leased: Leased = lease(state, self.call, share, now_ms * 1000, want, returned)
        self._keep(leased.state, leased.ttl_ms, at_ms)
        return leased.lease

    def left(self, at_ms: int) -> int:
        state, share, now_ms = self._held(at_ms)
        return decide(state, replace(self.call, cost=0), share, now_ms).left.verdict.remaining

    def reset(self, at_ms: int) -> int:
        state, share, now_ms = self._held(at_ms)
        return decide(state, replace(self.call, cost=0), share, now_ms).left.verdict.reset_after_ms

    def bucket(self, at_ms: int) -> Bucket:
        state, share, now_ms = self._held(at_ms)
        return look(state, self.call, share, now_ms).bucket

    def level_and_out(self, at_ms: int) -> tuple[int, int]:
        """(level, level and out together) in units."""
        bucket = self.bucket(at_ms)
        unit = bucket.period_ms * 10_000
        return bucket.level, max(0, bucket.level) + unit * sum(tokens for _, tokens in bucket.out)


def back(given_: TokenLease, unspent: int) -> ReturnedLease:
    return ReturnedLease(given_.edge_ms, given_.tokens, unspent)


# ---- what is given


def test_a_tenth_of_the_level_at_most_and_until_the_second_edge_from_now() -> None:
    store = Store()
    first = store.lease(10, 1000)
    assert (first.tokens, first.edge_ms - START_MS, first.ends_in_us) == (100, 500, 490_000)
    assert store.left(10) == 900
    later = store.lease(260, 30)
    assert (later.tokens, later.edge_ms - START_MS, later.ends_in_us) == (30, 750, 490_000)


def test_a_lease_never_lives_past_the_session_nor_longer_than_two_steps_of_edges() -> None:
    store = Store(replace(ADAPTIVE, capacity=1000), by_lease(9000))
    assert store.lease(0, 50).ends_in_us == 100_000
    assert store.lease(49, 50).ends_in_us == 51_000
    store.share = by_lease(9000, session_left_us=7_000)
    assert store.lease(60, 50).ends_in_us == 7_000


@pytest.mark.parametrize(
    ("asked", "share"),
    [
        (replace(ADAPTIVE, sharing=Sharing.STATIC), None),
        (ADAPTIVE, by_lease(9000, session_left_us=0)),
        (ADAPTIVE, ShareInForce(200, ShareKind.FLOOR, 0, 200, 0, 0, 9)),
        (ADAPTIVE, by_lease(900)),  # its part of the capacity is below CAPACITY_LEAST
        (call(CAPACITY_LEAST - 1), None),
        (call(charge_denied=True), None),
        (call(0), None),
    ],
)
def test_what_is_never_leased(asked: BucketCall, share: ShareInForce | None) -> None:
    store = Store(asked, share)
    assert store.lease(0, 100).tokens == 0
    assert store.state is None


def test_a_bucket_that_holds_little_gives_nothing_rather_than_a_few() -> None:
    store = Store()
    assert store.check(0, 930)
    assert store.lease(0, 100).tokens == 0
    assert store.lease(10, 100).tokens == 8


# ---- what comes back


def test_what_comes_back_in_time_is_in_the_bucket_at_once_for_whoever_needs_it() -> None:
    """No stranded tokens: one node holds leases that it does not need, another needs the last of them."""
    store = Store(call(100, (1, 86_400_000)))
    held = [store.lease(0, 10) for _ in range(2)]
    assert [lease.tokens for lease in held] == [10, 9]
    assert not store.check(1, 100)
    assert store.check(1, 81)
    assert not store.check(2, 1)
    assert store.lease(3, 0, *(back(lease, lease.tokens) for lease in held)).credited == 19
    assert store.check(4, 19)


def test_a_lease_that_is_back_no_longer_holds_back_the_refill() -> None:
    store = Store(call(1000, (10, 1)))
    taken = store.lease(0, 100)
    assert store.left(100) == 900
    store.lease(100, 0, back(taken, 40))
    assert store.left(100) == 940
    assert store.left(105) == 990


def test_what_comes_back_late_is_spent() -> None:
    store = Store(call(1000, (1, 86_400_000)))
    taken = store.lease(0, 100)
    assert store.lease(500, 0, back(taken, 100)).credited == 0
    assert store.left(500) == 900


def test_a_lease_comes_back_once() -> None:
    store = Store(call(1000, (1, 86_400_000)))
    taken = store.lease(0, 100)
    replies = [store.lease(1, 0, back(taken, 60)).credited for _ in range(2)]
    assert replies == [60, 0]
    assert store.left(1) == 960


def test_a_bucket_that_was_lost_meanwhile_takes_nothing_back() -> None:
    store = Store()
    taken = store.lease(0, 100)
    store.state = None
    assert store.lease(1, 0, back(taken, 100)).credited == 0
    assert store.state is None


# ---- what is out holds back the refill, piece by piece


def test_gubernator_208_a_holder_that_dies_holds_back_its_lease_for_its_life() -> None:
    store = Store(call(1000, (1, 1)))
    store.lease(100, 100)  # until 500
    assert (store.left(499), store.left(500), store.left(550), store.left(600)) == (900, 900, 950, 1000)
    assert store.reset(100) == 500
    assert store.expires_ms == START_MS + 600


def test_a_wait_goes_through_the_edges() -> None:
    store = Store(call(1000, (1, 1)))
    store.lease(100, 100)  # until 500
    store.lease(300, 60)  # until 750
    assert store.left(300) == 840
    state, share, now_ms = store._held(300)
    waits = {}
    for cost in (841, 900, 939, 940, 941, 1000):
        verdict = decide(state, replace(store.call, cost=cost), share, now_ms).left.verdict
        waits[cost] = verdict.retry_after_ms
    # 840 until 500 (the rest is out), then to 940 at 600, stands until 750, and is full at 810.
    assert waits == {841: 201, 900: 260, 939: 299, 940: 300, 941: 451, 1000: 510}


def test_an_edge_passes_whether_or_not_anybody_looks() -> None:
    often, seldom = Store(call(1000, (3, 7))), Store(call(1000, (3, 7)))
    for store in (often, seldom):
        store.check(0, 200)
        store.lease(0, 70)
        store.lease(260, 50)
    for at_ms in range(300, 1500, 13):
        often.refund(at_ms, 0)
        assert often.bucket(at_ms).level == seldom.bucket(at_ms).level, at_ms


def test_a_share_that_shrinks_while_tokens_are_out_clips_what_is_left_of_it() -> None:
    store = Store(replace(ADAPTIVE, capacity=1002), by_lease(8000))
    store.state, store.expires_ms = pack(Bucket(START_MS, 800 * 10_000, 1002, 1, 8000)), START_MS + 10**6
    store.lease(0, 80)
    assert store.left(0) == 720
    store.share = by_lease(1000, since_us=START_MS * 1000 + 20_000, before=8000)
    assert [store.left(at_ms) for at_ms in (20, 99, 100, 150, 199)] == [21, 21, 21, 26, 30]


def test_a_capacity_below_what_is_out_leaves_an_empty_bucket_until_its_life_is_over() -> None:
    store = Store(call(10_000, (1, 1)))
    store.lease(0, 1000)  # until 500
    store.check(0, 8900)
    store.call = call(200, (1, 1))
    assert [store.left(at_ms) for at_ms in (1, 200, 499)] == [0, 0, 0]
    assert [store.bucket(at_ms).level // 10_000 for at_ms in (1, 200, 500, 600)] == [-199, 0, 0, 100]


# ---- the state


def test_the_state_with_leases_out_comes_back_as_it_was() -> None:
    for out in ((), ((START_MS + 250, 7),), ((START_MS - 250, 2**40), (START_MS + 250, 1))):
        for rebased_ms in (None, START_MS - 5):
            bucket = Bucket(START_MS, -77, 5000, 1000, 4321, rebased_ms, out)
            assert unpack(pack(bucket), START_MS) == bucket


def test_a_state_with_leases_out_is_told_from_a_number_that_begins_alike() -> None:
    """Both begin with a byte from 0x30 to 0x39 when the capacity is large and the rest small."""
    bucket = Bucket(START_MS, 5, 20_000_000, 1, out=((START_MS + 250, 7),))
    assert pack(bucket)[:1].isdigit()
    assert unpack(pack(bucket), START_MS) == bucket
    assert pack_as_number(bucket) is None
    number = pack_as_number(replace(bucket, level=50_000, out=()))
    assert number is not None
    assert number.isdigit()
    assert unpack(number, START_MS) is not None


def test_a_third_edge_is_counted_with_the_latest() -> None:
    out = given(given(given((), 100, 1), 300, 2), 200, 4)
    assert out == ((100, 1), (300, 6))
    assert taken_back(out, 200, 4) is None
    assert taken_back(out, 300, 6) == ((100, 1),)
    assert taken_back(out, 300, 7) is None
    assert taken_back(out, 100, 0) is None


def test_when_a_level_is_reached_agrees_with_looking_at_every_millisecond() -> None:
    random = Random(5)
    for _ in range(500):
        top, unit, per_ms = random.randrange(50, 200), random.choice((1, 3)), random.randrange(1, 9)
        out = given(
            given((), random.randrange(1, 40), random.randrange(30)),
            random.randrange(1, 60),
            random.randrange(1, 30),
        )
        store_level = random.randrange(-20, top + 1 - min(top, unit * sum(tokens for _, tokens in out)))
        target = random.randrange(store_level + 1, top + 1) if store_level < top else top
        if target <= store_level:
            continue
        level, at_ms = store_level, 0
        while level < target:
            cap = max(0, top - unit * sum(tokens for edge_ms, tokens in out if edge_ms > at_ms))
            level, at_ms = min(cap, level + per_ms), at_ms + 1
        assert reached_ms(store_level, 0, target, per_ms, top, unit, out) == at_ms


def test_a_clock_that_goes_back_far_takes_what_is_out_along() -> None:
    store = Store(call(1000, (1, 1)))
    store.lease(0, 100)  # until 500
    assert store.check(-60_000, 1)
    assert (store.left(-59_500 - 1), store.left(-59_500 + 50)) == (900, 950)


# ---- many nodes, one bucket


@pytest.mark.parametrize("seed", range(40))
def test_no_span_admits_more_than_its_bound_whatever_the_holders_do(seed: int) -> None:
    random = Random(seed)
    capacity, rate = random.choice(
        ((200, (1, 10)), (1000, (1, 1)), (300, (2, 1)), (4000, (1, 86_400_000)), (5000, (7, 3)))
    )
    store, top = Store(call(capacity, rate)), capacity * rate[1] * 10_000
    holds: list[tuple[TokenLease, int, int] | None] = [None] * random.choice((2, 3, 8))  # lease, unspent, ends
    lost: list[ReturnedLease] = []
    admitted: list[tuple[int, int]] = []
    at_ms = 0
    first = store.lease(0, 1000)
    holds[0], leased = (first, first.tokens, first.ends_in_us // 1000), first.tokens
    greed, load = random.choice((0.5, 0.9)), random.choice((0.1, 0.3, 1))
    while at_ms < 20_000:
        at_ms += random.choice((0, 0, 1, 1, 2, 5, 40, random.choice((3, 3, 3, 200, 2000))))
        node, chance = random.randrange(len(holds)), random.random()
        held = holds[node]
        if held and at_ms >= held[2]:
            lost.append(back(held[0], held[1]))
            held = holds[node] = None
        _, before = store.level_and_out(at_ms)
        assert before <= top
        if chance < 0.25:
            returned = [back(held[0], held[1])] if held else []
            reply = store.lease(at_ms, random.choice((0, 20, 100, 1000)), *returned)
            assert reply.credited == sum(one.unspent for one in returned)
            assert store.level_and_out(at_ms)[1] <= before
            holds[node] = None
            if reply.tokens and random.random() < 0.95:  # else the answer is lost: never spent
                holds[node] = (reply, reply.tokens, at_ms + reply.ends_in_us // 1000)
                leased += reply.tokens
        elif chance < 0.3:
            holds[node] = None  # kill -9
        elif chance < 0.35 and lost:
            assert store.lease(at_ms, 0, lost.pop()).credited == 0
            assert store.level_and_out(at_ms)[1] == before
        elif chance < 0.4:
            cost = random.choice((1, 5, 90))
            if admitted and admitted[-1][0] == at_ms and admitted[-1][1] > 0:
                cost = min(cost, admitted[-1][1])
                admitted.append((at_ms, -cost))
                store.refund(at_ms, cost)
        elif held and random.random() < greed:
            cost = min(held[1], random.choice((1, 1, 1, 7, 10_000)))
            holds[node] = (held[0], held[1] - cost, held[2])
            admitted.append((at_ms, cost))
        elif random.random() < load:
            for cost in random.choice(((1,), (1, 1), (1,) * 20, (50,), (capacity // 2,))):
                admitted += [(at_ms, cost)] * store.check(at_ms, cost)
    assert worst_span([item for item in admitted if item[1]], capacity, Rate(*rate)) <= 0
    assert leased > 0


def test_the_property_sees_leases_that_do_not_count() -> None:
    """A bucket that forgets what is out refills for a second time."""
    store = Store(call(1000, (10, 1)))
    taken = store.lease(0, 100)
    store.state = pack(replace(store.bucket(0), out=()))
    admitted = [(99, taken.tokens), (99, 1000 * store.check(99, 1000))]
    assert worst_span(admitted, 1000, Rate(10, 1)) > 0
