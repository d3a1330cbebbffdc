"""The models beside do what their words say, also where they are better than ours or break the limit."""

from __future__ import annotations

from services.simulator.baselines import (
    DropRatio,
    Ideal,
    Limit,
    Model,
    RefreshedLeases,
    SharedCounters,
    StaticSplit,
)

MS, SECOND = 1_000, 1_000_000
LIMIT = Limit(100.0, 20, [10 * MS, 50 * MS], [5000, 5000])


def admitted(model: Model | Ideal, rates: list[int], seconds: int, start_s: int = 0) -> list[int]:
    passed, carry = [0, 0], [0.0, 0.0]
    for tick in range(seconds * 100):
        now_us = start_s * SECOND + tick * 10 * MS
        model.step(now_us)
        for place, rate in enumerate(rates):
            carry[place] += rate / 100
            while carry[place] >= 1:
                carry[place] -= 1
                passed[place] += model.check(place, now_us)
    return passed


def test_one_bucket_allows_the_limit_wherever_it_is_asked_for() -> None:
    assert 1000 <= sum(admitted(Ideal(LIMIT), [300, 0], 10)) <= 1021


def test_a_static_split_leaves_to_others_what_nobody_asks_for() -> None:
    assert 500 <= admitted(StaticSplit(LIMIT), [300, 0], 10)[0] <= 511


def test_refreshed_leases_follow_within_some_refreshes_and_fall_to_the_base_when_cut_off() -> None:
    model = RefreshedLeases(LIMIT)
    admitted(model, [300, 5], 20)
    assert admitted(model, [300, 5], 10, start_s=20)[0] >= 900
    model.cut(0, True)
    admitted(model, [300, 5], 25, start_s=30)
    assert admitted(model, [300, 5], 10, start_s=55)[0] <= 520


def test_a_drop_ratio_admits_about_the_limit_once_it_is_known_and_any_number_before() -> None:
    model = DropRatio(LIMIT)
    assert admitted(model, [1000, 1000], 1)[0] >= 900
    later = sum(admitted(model, [1000, 1000], 20, start_s=1))
    assert 1800 <= later <= 2300


def test_shared_counters_hold_the_limit_while_they_hear_of_each_other_and_double_it_when_cut_off() -> None:
    model = SharedCounters(LIMIT)
    assert 900 <= sum(admitted(model, [300, 300], 10)) <= 1100
    model.cut(0, True)
    assert sum(admitted(model, [300, 300], 10, start_s=10)) >= 1900


def test_what_was_sent_while_the_link_was_cut_never_arrives() -> None:
    model = DropRatio(LIMIT)
    model.cut(0, True)
    model.cut(1, True)
    assert sum(admitted(model, [300, 300], 5)) == 3000
