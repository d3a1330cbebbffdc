"""The packed bucket: small, and exact over the whole range that a rule may have."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from regional_limiter.algorithms.bucket_state import Bucket, converted, pack, unpack
from regional_limiter.model.share import LARGEST_EXACT_INTEGER

NOW_MS = 1_796_000_000_000
NUMBERS = st.tuples(st.integers(0, 2**45), st.integers(1, 2**39)).filter(
    lambda pair: 2 * pair[0] * pair[1] * 10_000 < LARGEST_EXACT_INTEGER
)


@st.composite
def buckets(draw: st.DrawFn) -> Bucket:
    capacity, period_ms = draw(NUMBERS)
    most = capacity * period_ms * 10_000
    return Bucket(
        time_ms=NOW_MS + draw(st.integers(-(2**38), 2**38)),
        level=draw(
            st.integers(-most, most) | st.integers(-capacity, capacity).map(lambda n: n * period_ms * 10_000)
        ),
        capacity=capacity,
        period_ms=period_ms,
        share=draw(st.integers(0, 10_000) | st.just(10_000)),
        rebased_ms=draw(st.none() | st.integers(NOW_MS - 2**38, NOW_MS + 2**38)),
    )


@given(buckets())
def test_what_is_packed_is_what_is_read(bucket: Bucket) -> None:
    assert unpack(pack(bucket), NOW_MS) == bucket


def test_usual_buckets_take_at_most_twelve_bytes() -> None:
    for capacity, period_ms, level in (
        (20, 100, 20 * 100),
        (100, 600, 31_234),
        (1000, 100, -99_999),
        (60, 1000, 59_999),
    ):
        assert len(pack(Bucket(NOW_MS, level * 10_000, capacity, period_ms))) <= 12


def test_a_state_of_another_version_is_not_guessed_at() -> None:
    packed = pack(Bucket(NOW_MS, 0, 20, 100))
    assert unpack(bytes((packed[0] & 63,)) + packed[1:], NOW_MS) is None
    assert unpack(packed + b"x", NOW_MS) is None


@given(buckets(), NUMBERS, st.integers(1, 5))
def test_another_rule_forgives_nothing_that_was_used(
    bucket: Bucket, numbers: tuple[int, int], regions: int
) -> None:
    capacity, period_ms = numbers
    after = converted(bucket, capacity, period_ms, regions)
    assert -capacity * period_ms * 10_000 <= after.level
    back = converted(after, bucket.capacity, bucket.period_ms, regions)
    if after.level > -capacity * period_ms * 10_000:  # not cut off at the bottom
        assert back.level <= bucket.level


def test_the_fraction_of_a_token_survives_another_rate() -> None:
    half = Bucket(NOW_MS, 500 * 10_000, 10, 1000)
    assert converted(half, 10, 2000, 1).level == 1000 * 10_000
