"""GCRA decides as a token bucket, whatever happens to its clock, its rule and its share, and is smaller."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from regional_limiter.algorithms.bucket_state import DIVISORS_OF_A_DAY, Bucket, pack, pack_as_number, unpack
from regional_limiter.algorithms.outcome import Ending
from regional_limiter.algorithms.registry import fixed_share, functions_of
from regional_limiter.algorithms.token_bucket import fits_exactly
from regional_limiter.model.decision import ShareKind, Verdict
from regional_limiter.model.enforcement import ShareInForce
from regional_limiter.model.rule import Algorithm, Rate
from regional_limiter.store.base import BucketCall, Sharing

START_MS = 20_000 * 86_400_000
LARGEST_NUMBER = 2**63 - 1
PLAIN = BucketCall("rl:{t}:d/r:u", Algorithm.GCRA, 20, Rate(1, 100), None, 1)

RATES = st.builds(Rate, st.integers(1, 2000), st.sampled_from([1, 7, 100, 600, 1000, 3600, 60_000, 86_400_000]))
STEPS = st.lists(
    st.tuples(
        st.sampled_from([0, 1, 37, 999, 12_345, 3_600_000, -1, -1500, -2001, -90_000]),
        st.sampled_from(["check"] * 6 + ["refund", "limit", "rate", "share", "moved"]),
        st.integers(0, 30),
    ),
    max_size=40,
)
Steps = Sequence[tuple[int, str, int]]


class Walk:
    """One bucket of a kind through a sequence: the states that Redis would hold, and what was answered."""

    def __init__(self, call: BucketCall) -> None:
        self.call = call
        self.now_ms = START_MS
        self.stored: tuple[bytes, int] | None = None
        self.answers: list[Verdict] = []
        self.moving = ShareInForce(6000, ShareKind.LEASE, (START_MS - 50) * 1000, 9000, 0, 0, 0)

    def take(self, after_ms: int, what: str, number: int, rates: Sequence[Rate]) -> None:
        self.now_ms += after_ms
        if what == "limit":
            self.call = replace(self.call, capacity=(number % 7) * (number + 1))
        elif what == "rate":
            rate = rates[number % len(rates)]
            self.call = replace(self.call, refill=rate if fits_exactly(1000, rate) else self.call.refill)
        elif what == "share":
            self.call = replace(self.call, base=(10_000, 3333, 0)[number % 3])
        elif what == "moved":
            now_us, then = self.now_ms * 1000, self.moving
            share = 10_000 * number // 30
            self.moving = ShareInForce(share, ShareKind.LEASE, now_us, then.share, then.since_us, 0, 0)
        else:
            self.act(what, replace(self.call, cost=number, charge_denied=number == 29))

    def act(self, what: str, call: BucketCall) -> None:
        if self.stored is not None and self.now_ms >= self.stored[1]:
            self.stored = None
        state = self.stored[0] if self.stored is not None else None
        share = self.moving if call.sharing is Sharing.ADAPTIVE else fixed_share(call)
        functions = functions_of(call)
        ending: Ending | None
        if what == "refund":
            ending = functions.give_back(state, call, share, self.now_ms)
        else:
            outcome = functions.decide(state, call, share, self.now_ms)
            ending = outcome.charged if outcome.allowed or outcome.costs_denied else outcome.left
        if ending is not None:
            self.answers.append(ending.verdict)
            if ending.state is not None:
                assert ending.ttl_ms > 0
                self.stored = ending.state, self.now_ms + ending.ttl_ms


@given(st.sampled_from(Sharing), st.lists(RATES, min_size=1, max_size=3), STEPS)
@example(
    Sharing.WHOLE, [Rate(1, 100)], [(0, "check", 20), (-1, "check", 1), (-2001, "check", 1), (100, "check", 1)]
)
def test_every_answer_and_expiry_is_a_token_buckets(sharing: Sharing, rates: list[Rate], steps: Steps) -> None:
    shared = {} if sharing is Sharing.WHOLE else {"regions": 3, "base": 3333, "domain": "d"}
    call = replace(PLAIN, sharing=sharing, **shared)  # type: ignore[arg-type]
    ours, expected = Walk(call), Walk(replace(call, algorithm=Algorithm.TOKEN_BUCKET))
    for step in steps:
        ours.take(*step, rates)
        expected.take(*step, rates)
        assert ours.answers == expected.answers
        assert (ours.stored and ours.stored[1]) == (expected.stored and expected.stored[1])
        if ours.stored is not None:
            assert len(ours.stored[0]) <= max(19, len((expected.stored or ours.stored)[0]))


BUCKETS = st.builds(
    Bucket,
    st.integers(START_MS - 10**8, START_MS + 10**8),
    st.integers(-(2**40), 2**20).map(lambda tokens: tokens * 10_000),
    st.just(0),
    st.sampled_from(DIVISORS_OF_A_DAY),
).filter(lambda bucket: bucket.level <= 0)


@given(BUCKETS)
def test_a_bucket_as_a_number_is_read_as_it_was_and_fits_a_pointer(bucket: Bucket) -> None:
    number = pack_as_number(bucket)
    if number is None:
        assert -bucket.level // 10_000 * len(DIVISORS_OF_A_DAY) > LARGEST_NUMBER // 10**9 - len(DIVISORS_OF_A_DAY)
    else:
        assert number == b"%d" % int(number)  # Redis keeps only such digits in the pointer
        assert int(number) <= LARGEST_NUMBER
        assert unpack(number, START_MS) == bucket


@pytest.mark.parametrize(
    "bucket",
    [
        Bucket(START_MS, 0, 20, 7),
        Bucket(START_MS, 0, 20, 100, share=5000),
        Bucket(START_MS, 0, 20, 100, rebased_ms=START_MS),
        Bucket(START_MS, 5, 20, 100),
        Bucket(START_MS, 0, 10**9, 100),
    ],
)
def test_what_is_no_number_is_kept_as_a_token_bucket_keeps_it(bucket: Bucket) -> None:
    assert pack_as_number(bucket) is None
    assert unpack(pack(bucket), START_MS) == bucket


def test_a_rule_that_becomes_a_token_bucket_or_a_leaky_one_reads_what_was_used() -> None:
    whole = fixed_share(PLAIN)
    state = functions_of(PLAIN).decide(None, replace(PLAIN, cost=15), whole, START_MS).charged.state
    for kind in (Algorithm.TOKEN_BUCKET, Algorithm.LEAKY_BUCKET, Algorithm.GCRA):
        call = replace(PLAIN, algorithm=kind, cost=0)
        assert functions_of(call).decide(state, call, whole, START_MS).left.verdict.remaining == 5
