"""What a node may allow while the store is away."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regional_limiter.algorithms.bucket_state import Bucket, pack, unpack
from regional_limiter.algorithms.token_bucket import fits_exactly
from regional_limiter.fallback import Fallback, Unanswered, _part_numbers
from regional_limiter.model.decision import Reason, ShareKind, Verdict
from regional_limiter.model.rule import Algorithm, CalendarUnit, CalendarWindow, OnStoreFailure, Rate
from regional_limiter.model.share import region_capacity
from regional_limiter.store.base import BucketCall, Sharing

LOCAL, OPEN, CLOSED = OnStoreFailure.LOCAL, OnStoreFailure.OPEN, OnStoreFailure.CLOSED
SECOND_US = 1_000_000
A_SECOND = Rate(1, 1000)


def bucket(capacity: int = 10, cost: int = 1, key: str = "k", rate: Rate = A_SECOND, **more: Any) -> BucketCall:
    return BucketCall(f"rl:{{t}}:default/r:{key}", Algorithm.TOKEN_BUCKET, capacity, rate, None, cost, **more)


def window(limit: int, cost: int = 1, *, algorithm: Algorithm = Algorithm.FIXED_WINDOW, **more: Any) -> BucketCall:
    return BucketCall("rl:{t}:default/w:k", algorithm, limit, None, 60_000, cost, **more)


def shared(capacity: int = 100, base: int = 5000, **more: Any) -> BucketCall:
    return bucket(
        capacity, sharing=Sharing.ADAPTIVE, regions=2, largest_share=9900, domain="default", base=base, **more
    )


def ask(
    fallback: Fallback,
    call: BucketCall,
    *,
    at_s: float = 0,
    nodes: int = 1,
    charge: bool = True,
    mode: OnStoreFailure = LOCAL,
    owing: bool = False,
) -> Verdict:
    asked = [Unanswered(call, mode, owing)]
    return fallback.decide(
        asked, now_ms=int(at_s * 1000), now_us=int(at_s * SECOND_US), nodes=nodes, charge=charge
    )[0]


def allowed_of(fallback: Fallback, call: BucketCall, checks: int, **more: Any) -> int:
    return sum(ask(fallback, call, **more).allowed for _ in range(checks))


def told(share: int, kind: ShareKind, session_s: float, consent_s: float) -> Verdict:
    left = (int(session_s * SECOND_US), int(consent_s * SECOND_US))
    return Verdict(True, Reason.OK, 1, 0, 0, share, kind, *left)


def test_a_region_rule_is_divided_by_the_nodes() -> None:
    assert allowed_of(Fallback(), bucket(10), 20) == 10
    assert allowed_of(Fallback(), bucket(10), 20, nodes=3) == 3


def test_it_refills_at_the_divided_rate() -> None:
    fallback = Fallback()
    assert allowed_of(fallback, bucket(10, rate=Rate(2, 1000)), 20, nodes=2) == 5
    assert allowed_of(fallback, bucket(10, rate=Rate(2, 1000)), 20, nodes=2, at_s=3) == 3


def test_a_window_is_divided_likewise_and_starts_anew() -> None:
    fallback = Fallback()
    assert allowed_of(fallback, window(10), 20, nodes=2) == 5
    assert allowed_of(fallback, window(10), 20, nodes=2, at_s=59.999) == 0
    assert allowed_of(fallback, window(10), 20, nodes=2, at_s=60) == 5


def test_a_window_of_a_calendar_is_divided_and_starts_anew_with_the_calendars() -> None:
    call = replace(window(10), window_ms=None, calendar=CalendarWindow(CalendarUnit.MONTH, "Europe/Berlin"))
    fallback = Fallback()
    assert allowed_of(fallback, call, 20, nodes=2) == 5
    month_s = 31 * 86_400 - 3600  # 1970-01-31T23:00:00Z is February in Berlin
    assert allowed_of(fallback, call, 20, nodes=2, at_s=month_s - 1) == 0
    assert allowed_of(fallback, call, 20, nodes=2, at_s=month_s) == 5


def test_the_part_of_a_static_window_has_what_rounding_left_over() -> None:
    call = window(30, sharing=Sharing.STATIC, regions=3, base=3333, domain="default")
    assert allowed_of(Fallback(), call, 100) == 9
    assert allowed_of(Fallback(), replace(call, extra=1), 100) == 10


@pytest.mark.parametrize("kind", [Algorithm.GCRA, Algorithm.LEAKY_BUCKET])
def test_kinds_that_decide_as_a_token_bucket_do_so_here(kind: Algorithm) -> None:
    fallback, call = Fallback(), replace(bucket(10), algorithm=kind)
    assert allowed_of(fallback, call, 20, nodes=3, owing=True) == 3
    assert allowed_of(fallback, call, 20, nodes=3, at_s=6, owing=True) == 2
    assert owed(fallback, 6) == [(3, True)]
    assert allowed_of(fallback, replace(shared(key="l"), algorithm=kind), 100) == region_capacity(100, 5000, 2)


def test_a_nodes_part_of_a_queue_has_turns_at_its_part_of_the_rate() -> None:
    fallback, call = Fallback(), replace(bucket(10), algorithm=Algorithm.LEAKY_BUCKET, queue=True)
    assert [ask(fallback, call, nodes=2).wait_ms for _ in range(6)] == [0, 2000, 4000, 6000, 8000, 0]


def test_what_a_month_is_owed_is_not_charged_to_the_next() -> None:
    call = replace(window(10, 4), window_ms=None, calendar=CalendarWindow(CalendarUnit.MONTH))
    fallback = Fallback()
    ask(fallback, call, owing=True)
    assert owed(fallback, 31 * 86_400 - 1) == [(4, True)]
    assert owed(fallback, 31 * 86_400) == []


def test_a_global_rule_is_worth_the_base_of_the_region() -> None:
    assert allowed_of(Fallback(), shared(), 100) == region_capacity(100, 5000, 2)


def test_a_static_rule_is_worth_its_base_too() -> None:
    call = replace(shared(), sharing=Sharing.STATIC)
    assert allowed_of(Fallback(), call, 100) == region_capacity(100, 5000, 2)


def test_a_share_above_the_base_is_not_used() -> None:
    fallback = Fallback()
    fallback.remember(shared().key, told(9000, ShareKind.LEASE, 20, 30), 0, 0)
    assert allowed_of(fallback, shared(), 100) == region_capacity(100, 5000, 2)


def test_a_lease_below_the_base_is_obeyed_while_the_session_lives_then_the_floor_then_the_base() -> None:
    slow = Rate(1, 86_400_000)
    for at_s, share, kind in (
        (19.9, 1000, ShareKind.LEASE),
        (20.0, 100, ShareKind.FLOOR),
        (29.9, 100, ShareKind.FLOOR),
        (30.0, 5000, ShareKind.BASE),
    ):
        fallback = Fallback()
        fallback.remember(shared().key, told(1000, ShareKind.LEASE, 20, 30), 0, 0)
        assert allowed_of(fallback, shared(rate=slow), 100, at_s=at_s) == region_capacity(100, share, 2), at_s
        assert ask(fallback, shared(rate=slow), at_s=at_s).share_kind is kind


def test_a_right_is_timed_from_before_the_call_and_a_promise_from_after_it() -> None:
    fallback = Fallback()
    fallback.remember(shared().key, told(1000, ShareKind.LEASE, 1, 2), 0, SECOND_US)
    assert ask(fallback, shared(), at_s=1).share_kind is ShareKind.FLOOR
    assert ask(fallback, shared(), at_s=2.5).share_kind is ShareKind.FLOOR
    assert ask(fallback, shared(), at_s=3).share_kind is ShareKind.BASE


def test_without_a_base_nothing_of_a_global_rule_is_allowed() -> None:
    verdict = ask(Fallback(), shared(base=0))
    assert (verdict.allowed, verdict.reason, verdict.retry_after_ms) == (False, Reason.LIMITED, 1000)


@pytest.mark.parametrize("mode", list(OnStoreFailure))
def test_a_limit_of_zero_denies_in_every_mode(mode: OnStoreFailure) -> None:
    for call in (bucket(0), window(0)):
        verdict = ask(Fallback(), call, mode=mode)
        assert (verdict.allowed, verdict.reason, verdict.retry_after_ms) == (False, Reason.ZERO_LIMIT, None)


@pytest.mark.parametrize("mode", list(OnStoreFailure))
def test_a_cost_above_the_whole_limit_exceeds_it_in_every_mode(mode: OnStoreFailure) -> None:
    verdict = ask(Fallback(), bucket(10, 11), mode=mode)
    assert (verdict.allowed, verdict.reason, verdict.retry_after_ms) == (False, Reason.EXCEEDS_CAPACITY, None)


def test_a_cost_above_this_nodes_part_alone_is_limited_and_charges_nothing() -> None:
    fallback = Fallback()
    verdict = ask(fallback, bucket(10, 8), nodes=2)
    assert (verdict.allowed, verdict.reason, verdict.retry_after_ms) == (False, Reason.LIMITED, 1000)
    assert allowed_of(fallback, bucket(10), 10, nodes=2) == 5


def test_every_verdict_is_degraded() -> None:
    for mode in OnStoreFailure:
        assert ask(Fallback(), bucket(), mode=mode).degraded
    assert ask(Fallback(), bucket(0)).degraded


def test_several_rules_are_charged_all_or_none() -> None:
    fallback = Fallback()
    calls = [
        Unanswered(bucket(10, key="a"), LOCAL, False),
        Unanswered(bucket(1, key="b"), LOCAL, False),
        Unanswered(bucket(key="c"), OPEN, False),
    ]
    first, second = (fallback.decide(calls, now_ms=0, now_us=0, nodes=1, charge=True) for _ in range(2))
    assert [verdict.allowed for verdict in first] == [True, True, True]
    assert [verdict.allowed for verdict in second] == [True, False, True]
    assert ask(fallback, bucket(10, 0, key="a")).remaining == 9


def test_a_closed_rule_beside_a_local_one_leaves_it_uncharged() -> None:
    fallback = Fallback()
    calls = [Unanswered(bucket(10), LOCAL, False), Unanswered(bucket(key="c"), CLOSED, False)]
    fallback.decide(calls, now_ms=0, now_us=0, nodes=1, charge=True)
    assert ask(fallback, bucket(10, 0)).remaining == 10


def test_nothing_is_charged_when_the_store_has_denied_another_rule() -> None:
    fallback = Fallback()
    assert ask(fallback, bucket(1), charge=False).allowed
    assert ask(fallback, bucket(1)).allowed


def test_a_share_that_falls_keeps_what_was_used() -> None:
    fallback = Fallback()
    slow = Rate(1, 86_400_000)
    assert allowed_of(fallback, shared(rate=slow), 40) == 40
    fallback.remember(shared().key, told(1000, ShareKind.LEASE, 20, 30), 0, 0)
    assert allowed_of(fallback, shared(rate=slow), 40) == 0


def test_a_full_table_forgets_no_bucket_that_limits() -> None:
    fallback = Fallback(keys_most=10)
    slow = Rate(1, 86_400_000)
    for i in range(10):
        assert ask(fallback, bucket(1, key=str(i), rate=slow)).allowed
    # Newcomers share one coarse bucket, and those that were there stay denied.
    assert sum(ask(fallback, bucket(1, key=str(i), rate=slow)).allowed for i in range(10, 50)) == 1
    assert not any(ask(fallback, bucket(1, key=str(i), rate=slow)).allowed for i in range(10))
    assert len(fallback) <= 11


def test_a_full_table_drops_what_is_full_again_first() -> None:
    fallback = Fallback(keys_most=10)
    for i in range(10):
        ask(fallback, bucket(1, key=str(i)))
    assert all(ask(fallback, bucket(1, key=str(i)), at_s=5).allowed for i in range(10, 20))


def owed(fallback: Fallback, at_s: float = 0) -> list[tuple[int, bool]]:
    return [(call.cost, call.charge_denied) for call in fallback.owed(int(at_s * 1000), 100)]


def test_what_was_never_sent_is_owed_and_charged_whatever_the_bucket_holds() -> None:
    fallback = Fallback()
    for _ in range(3):
        ask(fallback, bucket(10, 2), owing=True)
    assert owed(fallback) == [(6, True)]


def test_what_may_have_run_is_not_owed() -> None:
    fallback = Fallback()
    ask(fallback, bucket(10, 2), owing=True)
    ask(fallback, bucket(10, 3))
    assert owed(fallback) == [(2, True)]


def test_a_denial_is_not_owed() -> None:
    fallback = Fallback()
    assert allowed_of(fallback, bucket(3), 10, owing=True) == 3
    assert owed(fallback) == [(3, True)]


def test_what_has_refilled_in_the_silence_is_no_longer_owed() -> None:
    fallback = Fallback()
    assert allowed_of(fallback, bucket(10), 10, owing=True) == 10
    assert allowed_of(fallback, bucket(10), 2, at_s=4, owing=True) == 2
    assert owed(fallback, 4) == [(8, True)]
    assert owed(fallback, 9) == [(8, True)], "since then the store's own bucket has refilled"


def test_a_store_that_stalls_again_and_again_adds_no_fresh_bucket_each_time() -> None:
    """A tenth of a second in every second, for a minute: the node refills for six seconds of it."""
    fallback, call = Fallback(), bucket(10)
    allowed = 0
    for second in range(60):
        since_us = second * SECOND_US
        for tenth in range(10):
            now_us = since_us + tenth * 10_000
            asked = [Unanswered(call, LOCAL, False, "a:1", since_us)]
            allowed += fallback.decide(asked, now_ms=now_us // 1000, now_us=now_us, nodes=1, charge=True)[0].allowed
    assert 10 + 5 <= allowed <= 10 + 6


def test_a_bucket_is_full_again_when_it_has_not_been_used_for_long() -> None:
    fallback = Fallback()
    assert allowed_of(fallback, bucket(10), 20) == 10
    asked = [Unanswered(bucket(10), LOCAL, False, "a:1", 90 * SECOND_US)]
    again = [
        fallback.decide(asked, now_ms=90_000, now_us=90 * SECOND_US, nodes=1, charge=True)[0].allowed
        for _ in range(20)
    ]
    assert sum(again) == 10


def test_what_belongs_to_a_window_that_is_over_is_no_longer_owed() -> None:
    fallback = Fallback()
    ask(fallback, window(10, 4), owing=True)
    assert owed(fallback, 59) == [(4, True)]
    assert owed(fallback, 60) == []


def test_what_is_allowed_while_the_debt_is_being_paid_stays_owed() -> None:
    fallback = Fallback()
    ask(fallback, bucket(10, 2), owing=True)
    paying = fallback.owed(0, 100)[0]
    ask(fallback, bucket(10, 3), owing=True)
    fallback.paid(paying)
    assert owed(fallback) == [(3, True)]


@pytest.mark.parametrize("kind", [Algorithm.SLIDING_WINDOW_COUNTER, Algorithm.SLIDING_WINDOW_LOG])
def test_a_sliding_window_is_divided_and_owed_likewise(kind: Algorithm) -> None:
    fallback, call = Fallback(), window(10, algorithm=kind)
    assert allowed_of(fallback, call, 20, nodes=2, owing=True) == 5
    assert owed(fallback, at_s=30) == [(5, True)]
    assert allowed_of(fallback, call, 20, nodes=2, at_s=59.999) == 0
    assert owed(fallback, at_s=120) == []
    assert allowed_of(fallback, call, 20, nodes=2, at_s=120) == 5


def slots(limit: int, holder: str, cost: int = 1, **more: Any) -> BucketCall:
    return BucketCall(
        "rl:{t}:default/s:k", Algorithm.CONCURRENCY, limit, None, None, cost, lease_ms=30_000, holder=holder, **more
    )


def test_slots_are_divided_and_come_back_by_release_or_by_lease() -> None:
    fallback = Fallback()
    assert [ask(fallback, slots(4, holder), nodes=2).allowed for holder in "abc"] == [True, True, False]
    assert ask(fallback, slots(4, "a"), nodes=2, at_s=10).allowed
    fallback.release(slots(4, "b"), 10_000)
    fallback.release(slots(4, "b"), 10_000)
    assert [ask(fallback, slots(4, holder), nodes=2, at_s=10).allowed for holder in "cd"] == [True, False]
    assert ask(fallback, slots(4, "d"), nodes=2, at_s=40).allowed


def test_slots_are_owed_holder_by_holder_as_long_as_they_are_held() -> None:
    fallback = Fallback()
    for holder, cost in (("a", 1), ("b", 2), ("c", 1), ("a", 1)):
        assert ask(fallback, slots(9, holder, cost), owing=True, at_s=5 if holder == "c" else 0).allowed
    assert [(call.holder, call.cost) for call in fallback.owed(6000, 10)] == [("a", 1), ("b", 2), ("c", 1)]
    fallback.release(slots(9, "b"), 6000)
    fallback.paid(slots(9, "c"))
    assert [(call.holder, call.cost) for call in fallback.owed(6000, 10)] == [("a", 1)]
    assert fallback.owed(30_000, 10) == []
    assert not fallback.owes


def test_a_debt_that_cannot_be_paid_lets_others_go_first() -> None:
    fallback = Fallback()
    for key in "ab":
        ask(fallback, bucket(10, key=key), owing=True)
    first = fallback.owed(0, 1)[0]
    fallback.postpone(first)
    assert fallback.owed(0, 1)[0].key != first.key
    assert len(fallback.owed(0, 2)) == 2


@given(
    capacity=st.integers(1, 2**40),
    tokens=st.integers(1, 10**6),
    period_ms=st.integers(1, 2_600_000_000),
    regions=st.integers(1, 8),
    share=st.integers(1, 10_000),
    nodes=st.integers(1, 64),
)
def test_a_part_is_exact_or_a_little_less_but_never_more(
    capacity: int, tokens: int, period_ms: int, regions: int, share: int, nodes: int
) -> None:
    refill = Rate(tokens, period_ms)
    if not fits_exactly(capacity, refill):
        return
    part = _part_numbers(region_capacity(capacity, share, regions), refill, share, nodes)
    if part is None:
        return
    mine, rate = part
    assert rate is not None
    exact = Fraction(tokens * share, period_ms * 10_000 * nodes)
    assert mine * nodes <= region_capacity(capacity, share, regions)
    assert rate.period_ms < 2**40
    for level in (mine * rate.period_ms * 10_000, -mine * rate.period_ms * 10_000):
        held = Bucket(0, level, mine, rate.period_ms)
        assert unpack(pack(held), 0) == held
    longest = Fraction(1, 2**40 - 1)
    assert Fraction(rate.tokens, rate.period_ms) <= max(exact, longest)
    ask(Fallback(), bucket(mine, 1, rate=rate))


def lent_out(fallback: Fallback, *, now_us: int, key: str = "k") -> int:
    """The share that an adaptive key without its store gets."""
    call = adaptive_call(key)
    return fallback.decide(
        [Unanswered(call, OnStoreFailure.LOCAL, owing=False)], now_ms=1, now_us=now_us, nodes=1, charge=False
    )[0].share


def adaptive_call(key: str) -> BucketCall:
    return BucketCall(
        key, Algorithm.TOKEN_BUCKET, 1000, Rate(1, 1), None, 1,
        sharing=Sharing.ADAPTIVE, regions=3, domain="d", base_version=1, base=3333,
    )  # fmt: skip


def test_a_base_that_may_be_lent_out_is_not_given_to_a_key_of_which_nothing_fresh_is_known() -> None:
    fallback = Fallback(consent_us=30, gap_us=2, started_us=0)
    assert lent_out(fallback, now_us=29) == 66  # just started: there may be a consent
    assert lent_out(fallback, now_us=30) == 3333
    fallback.hear_consent("a:1", 1, answered_us=100)  # by a touch: the region is bound, and may be bound anew
    assert lent_out(fallback, now_us=131) == 66
    assert lent_out(fallback, now_us=132) == 3333


def test_a_share_heard_long_before_the_store_fell_silent_is_not_relied_on() -> None:
    verdict = Verdict(True, Reason.OK, 9, 0, 0, 3000, ShareKind.LEASE, session_left_us=20, consent_left_us=30)
    fresh, stale = (Fallback(consent_us=30, gap_us=2, started_us=-100) for _ in range(2))
    for fallback in (fresh, stale):
        fallback.remember("k", verdict, asked_us=100, answered_us=100)
    assert lent_out(fresh, now_us=102) == 3000
    assert lent_out(fresh, now_us=115) == 3000  # silent since: nothing was written there
    assert lent_out(stale, now_us=110) == 66


def test_a_silent_server_is_bound_no_longer_than_its_last_word_whatever_the_others_say() -> None:
    fallback, call = Fallback(consent_us=30, gap_us=2, started_us=-100), adaptive_call("k")

    def share(server: str, now_us: int) -> int:
        asked = [Unanswered(call, LOCAL, False, server, 110)]
        return fallback.decide(asked, now_ms=1, now_us=now_us, nodes=1, charge=False)[0].share

    fallback.hear_consent("dead:1", 1, answered_us=100)
    for at_us in range(100, 200, 10):
        fallback.hear_consent("alive:1", 1, answered_us=at_us)
    assert share("dead:1", 131) == 66
    assert share("dead:1", 132) == 3333
    assert share("alive:1", 150) == 66
    assert share("", 150) == 66, "who was asked is not known: the strictest"
