"""Sub-buckets of a split key: where they lie, and in which order a node asks them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regional_limiter.model.decision import Reason, Verdict
from regional_limiter.model.keys import identity_of, rule_of, tag_of
from regional_limiter.model.rule import Algorithm, Rate
from regional_limiter.store.base import BucketCall
from regional_limiter.store.library import limit_of
from regional_limiter.store.topology import SLOTS, hash_slot_of
from regional_limiter.sub_buckets import SubBuckets, rate_of_part, spread, sub_call, sub_key

KEY = "rl:{AbCdEfGh}:default/r:user%3A42"


@pytest.mark.parametrize("split", [2, 3, 5, 8])
@pytest.mark.parametrize("tag", ["AbCdEfGh", "zzzzzzzz", "-_-_-_-_"])
def test_sub_buckets_lie_an_even_part_of_all_slots_apart(split: int, tag: str) -> None:
    keys = [sub_key(f"rl:{{{tag}}}:default/r:u", split, place) for place in range(split)]
    slots = [hash_slot_of(tag_of(key)) for key in keys]
    shards = {slot * split // SLOTS for slot in slots}
    apart = [(later - earlier) % SLOTS for earlier, later in zip(slots, slots[1:] + slots[:1], strict=True)]
    assert len(shards) >= split - 1  # one may lie just beyond the border of its shard
    assert all(abs(distance - SLOTS / split) <= SLOTS / (4 * split) + 1 for distance in apart)
    assert {(rule_of(key), identity_of(key)) for key in keys} == {(("default", "r"), "u")}


def test_another_split_means_other_buckets() -> None:
    keys = {sub_key(KEY, split, place) for split in (2, 3, 4, 8) for place in range(split)}
    assert len(keys) == 17


def test_a_sub_bucket_has_its_part_of_amount_and_rate() -> None:
    call = BucketCall(KEY, Algorithm.TOKEN_BUCKET, 10, Rate(3, 1000), None, 2, split=4)
    parts = [sub_call(call, place) for place in range(4)]
    assert [part.capacity for part in parts] == [3, 3, 2, 2]
    assert {(part.refill, part.split, part.cost) for part in parts} == {(Rate(3, 4000), 1, 2)}
    assert rate_of_part(Rate(10, 1000), 2) == Rate(1, 200)


def test_no_store_decides_a_split_key_as_one_bucket() -> None:
    with pytest.raises(ValueError, match="sub-buckets"):
        limit_of(BucketCall(KEY, Algorithm.TOKEN_BUCKET, 10, Rate(3, 1000), None, 2, split=4), 0)


@given(st.integers(0, 100), st.lists(st.integers(-5, 30), min_size=1, max_size=8))
def test_a_cost_is_dealt_as_far_as_there_is_room(cost: int, room: list[int]) -> None:
    dealt = spread(cost, room)
    assert sum(dealt) == min(cost, sum(max(0, free) for free in room))
    assert all(0 <= part <= max(0, free) for part, free in zip(dealt, room, strict=True))


def verdict(remaining: int, reset_after_ms: int = 1000) -> Verdict:
    return Verdict(remaining > 0, Reason.OK, remaining, 0, reset_after_ms)


def test_the_one_with_most_left_is_asked_and_of_equals_each_in_turn() -> None:
    buckets = SubBuckets(9, 3, turn=1)
    assert [buckets.best(1, (), 0) for _ in range(4)] == [1, 2, 0, 1]
    for place, left in ((0, 1), (1, 2), (2, 0)):
        buckets.saw(place, verdict(left), 0)
    assert [buckets.best(1, tried, 0) for tried in ((), (1,), (1, 0), (1, 0, 2))] == [1, 0, 2, -1]


def test_what_is_full_again_by_its_own_word_counts_as_full() -> None:
    buckets = SubBuckets(9, 3, turn=0)
    for place in range(3):
        buckets.saw(place, verdict(0, reset_after_ms=1000 * (3 - place)), 0)
    assert [buckets.left(place, 1_999_999) for place in range(3)] == [0, 0, 3]
    assert buckets.best(1, (), 1_999_999) == 2
    assert buckets.others_left(0, 2_000_000) == 6


def test_a_silent_one_is_asked_last_for_half_a_second() -> None:
    buckets = SubBuckets(9, 3, turn=0)
    buckets.silent(0, 0)
    assert [buckets.best(1, (), 1) for _ in range(3)] == [1, 1, 2]
    assert buckets.best(1, (1, 2), 1) == 0
    assert buckets.left(0, 500_000) == 3


def test_a_part_that_can_never_hold_the_cost_is_not_asked_when_another_has_denied() -> None:
    buckets = SubBuckets(10, 3, turn=0)  # 4, 3, 3
    assert buckets.best(4, (0,), 0) == -1
    assert buckets.best(3, (0,), 0) == 1
