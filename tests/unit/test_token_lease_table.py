"""A node's table of token leases: who earns one, how it is renewed, and that nothing is ever spent twice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest

from regional_limiter.algorithms.token_lease import TOKENS_LEAST
from regional_limiter.model.decision import Reason, ShareKind, Verdict
from regional_limiter.model.rule import Algorithm, Rate
from regional_limiter.model.share import ProtocolTimes
from regional_limiter.store.base import BucketCall, ReturnedLease, Sharing, TokenLease
from regional_limiter.store.memory import MemoryPoint
from regional_limiter.token_lease_table import IDLE_US, RENEW_BEFORE_US, WINDOW_US, Ask, TokenLeaseTable
from tests.unit.test_share_bound import worst_span

MS = 1000


def call(key: str = "a", cost: int = 1, **more: object) -> BucketCall:
    return BucketCall(
        f"rl:{{t}}:default/r:{key}",
        Algorithm.TOKEN_BUCKET,
        10_000,
        Rate(1, 1),
        None,
        cost,
        **more,  # type: ignore[arg-type]
    )


def allow(remaining: int = 5000, share: int = 10_000, kind: ShareKind = ShareKind.WHOLE) -> Verdict:
    return Verdict(True, Reason.OK, remaining, 0, 700, share, kind)


DENY = Verdict(False, Reason.LIMITED, 0, 3, 700)


def lease(tokens: int, ends_in_us: int = 400 * MS, credited: int = 0, **more: object) -> TokenLease:
    fields: dict[str, object] = {
        "remaining": 5000,
        "reset_after_ms": 700,
        "share": 10_000,
        "share_kind": ShareKind.WHOLE,
        "session_left_us": 0,
        "consent_left_us": 0,
        **more,
    }
    return TokenLease(tokens, 123_500 if tokens else 0, ends_in_us, credited, **fields)  # type: ignore[arg-type]


def noted(table: TokenLeaseTable, checks: int, now_us: int = 0, every_us: int = 100, **more: object) -> list[Ask]:
    for number in range(checks):
        table.note(call(**more), allow(), now_us + number * every_us)  # type: ignore[arg-type]
    return table.asks()


def holding(tokens: int = 100, ends_in_us: int = 400 * MS) -> TokenLeaseTable:
    """A table that has been given a lease at 0."""
    table = TokenLeaseTable()
    (ask,) = noted(table, 20, every_us=0)
    table.granted(ask, lease(tokens, ends_in_us), 0, 0)
    return table


def spend(table: TokenLeaseTable, now_us: int, cost: int = 1, key: str = "a") -> bool:
    return table.spend([call(key, cost)], now_us) is not None


# ---- who earns one


def test_twenty_checks_in_a_tenth_of_a_second_earn_what_they_cost() -> None:
    table = TokenLeaseTable()
    assert noted(table, 19, cost=3) == []
    assert [(ask.want, ask.returned) for ask in noted(table, 1, 50 * MS, cost=3)] == [(60, ())]
    assert noted(table, 20, 60 * MS) == []  # it is being asked for


def test_slower_keys_never_earn_one() -> None:
    table = TokenLeaseTable()
    for now_ms in range(0, 3000, 6):
        table.note(call(), allow(), now_ms * MS)
    assert not table.due


@pytest.mark.parametrize(
    ("asked", "verdict"),
    [
        (call(sharing=Sharing.ADAPTIVE), allow(share=5000, kind=ShareKind.BASE)),
        (call(sharing=Sharing.ADAPTIVE), allow(share=100, kind=ShareKind.FLOOR)),
        (call(sharing=Sharing.ADAPTIVE, regions=2), allow(share=90, kind=ShareKind.LEASE)),
        (call(cost=100), allow(remaining=100 * 10 * TOKENS_LEAST - 1)),  # few checks: more calls than it saves
        (call(), DENY),
    ],
)
def test_who_earns_none(asked: BucketCall, verdict: Verdict) -> None:
    table = TokenLeaseTable()
    for _ in range(50):
        table.note(asked, verdict, 0)
    assert not table.due


def test_a_key_that_was_given_nothing_is_not_asked_for_again_at_once() -> None:
    table = TokenLeaseTable()
    (ask,) = noted(table, 20, every_us=0)
    table.granted(ask, lease(0), 0, 1 * MS)
    assert noted(table, 80, 2 * MS, every_us=MS) == []
    assert len(noted(table, 30, 110 * MS)) == 1


def test_tables_are_bounded() -> None:
    table = TokenLeaseTable(leases_most=2, keys_most=3)
    for key in "abcdefgh":
        for _ in range(20):
            table.note(call(key), allow(), 0)
    assert [ask.call.key[-1] for ask in table.asks()] == ["a", "b"]
    assert len(table._window) == 3


# ---- spending


def test_checks_are_decided_here_until_it_is_spent_and_say_what_is_left() -> None:
    table = holding(100)
    verdicts = table.spend([call(cost=30)], 10 * MS)
    assert verdicts == [Verdict(True, Reason.OK, 5070, 0, 690)]
    assert not spend(table, 10 * MS, cost=71)
    assert table.counts().out == 70


def test_a_share_is_told_with_the_times_that_are_left_of_it() -> None:
    table = TokenLeaseTable()
    shared = call(sharing=Sharing.ADAPTIVE, regions=2)
    for _ in range(20):
        table.note(shared, allow(share=9000, kind=ShareKind.LEASE), 0)
    (ask,) = table.asks()
    left = {"session_left_us": 90 * MS, "consent_left_us": 200 * MS, "share": 9000, "share_kind": ShareKind.LEASE}
    table.granted(ask, lease(50, 80 * MS, **left), 0, 2 * MS)
    (verdict,) = table.spend([shared], 30 * MS) or ()
    assert (verdict.share, verdict.share_kind) == (9000, ShareKind.LEASE)
    assert (verdict.session_left_us, verdict.consent_left_us) == (60 * MS, 170 * MS)


def test_several_rules_are_decided_here_only_if_every_bucket_has_a_lease_that_holds_enough() -> None:
    table = holding(100)
    both = [call("a", 5), call("b", 5)]
    assert table.spend(both, 0) is None
    for _ in range(20):
        table.note(call("b"), allow(), 0)
    (ask,) = table.asks()
    table.granted(ask, lease(8), 0, 0)
    assert table.spend([call("a", 9), call("b", 9)], 0) is None
    assert table.counts().out == 108
    assert table.spend(both, 0) is not None
    assert table.counts().out == 98


def test_its_life_is_counted_from_before_the_call_was_sent() -> None:
    table = TokenLeaseTable()
    (ask,) = noted(table, 20, every_us=0)
    table.granted(ask, lease(100, 50 * MS), 10 * MS, 30 * MS)
    assert spend(table, 44 * MS)
    late = TokenLeaseTable()
    (ask,) = noted(late, 20, every_us=0)
    late.granted(ask, lease(100, 50 * MS), 0, 50 * MS)
    assert not spend(late, 50 * MS)
    assert late.counts().lost == 100


def test_what_is_held_of_a_key_and_for_how_long_can_be_told() -> None:
    table = holding(100, 50 * MS)
    assert table.held("other", 0) == (0, 0)
    [key] = table.holds
    assert table.held(key, 20 * MS) == (100, 30 * MS)
    assert table.held(key, 50 * MS) == (0, 0)


def test_the_last_instant_of_its_life_is_not_spent_in() -> None:
    for late_us, spent in ((-1, True), (0, False)):  # as if nobody had swept
        assert spend(holding(100, 50 * MS), 50 * MS + late_us) is spent


# ---- renewing and bringing back


def test_below_a_fifth_it_is_brought_back_and_one_of_the_present_pace_is_asked_for() -> None:
    table = holding(100)
    for number in range(81):
        assert spend(table, number * MS // 2)
    (ask,) = table.asks()
    assert ask.returned == (ReturnedLease(123_500, 100, 19),)
    assert ask.want == 203  # 81 in 40 ms
    assert not spend(table, 41 * MS)
    table.granted(ask, lease(203, credited=19), 41 * MS, 42 * MS)
    assert spend(table, 43 * MS)
    counts = table.counts()
    assert (counts.out, counts.taken, counts.returned, counts.lost) == (202, 303, 19, 0)


def test_one_burst_is_not_taken_for_a_rate() -> None:
    table = holding(100)
    assert spend(table, 1, cost=100)
    assert [ask.want for ask in table.asks()] == [500]


def test_before_its_end_it_is_renewed_if_it_is_used_and_else_only_brought_back() -> None:
    for spent, want in ((60, 16), (49, 0)):
        table = holding(100)
        assert spend(table, 300 * MS, cost=spent)
        table.sweep(400 * MS - RENEW_BEFORE_US - 1)
        assert not table.due
        table.sweep(400 * MS - RENEW_BEFORE_US)
        assert [(ask.want, ask.returned[0].unspent) for ask in table.asks()] == [(want, 100 - spent)]


def test_a_short_life_is_no_sign_of_a_key_that_has_cooled_down() -> None:
    table = holding(100, 50 * MS)
    assert spend(table, 30 * MS, cost=30)
    table.sweep(35 * MS)
    assert [(ask.want, ask.returned[0].unspent) for ask in table.asks()] == [(86, 70)]


def test_an_idle_lease_goes_back() -> None:
    table = holding(100)
    assert spend(table, 10 * MS)
    table.sweep(20 * MS)
    table.sweep(20 * MS + IDLE_US - 1)
    assert not table.due
    table.sweep(20 * MS + IDLE_US)
    assert [(ask.want, ask.returned[0].unspent) for ask in table.asks()] == [(0, 99)]
    assert table.busy
    table.granted(Ask(call(), 0, (), 0), lease(0, credited=0), 0, 0)
    assert not table.busy


def test_a_denial_of_the_store_brings_the_lease_back_for_whoever_asks_again() -> None:
    table = holding(100)
    table.note(call(cost=500), DENY, 10 * MS)
    assert [(ask.want, ask.returned[0].unspent) for ask in table.asks()] == [(0, 100)]


def test_when_the_node_stops_everything_goes_back() -> None:
    table = holding(100)
    assert [ask.returned for ask in table.bring_all_back()] == [(ReturnedLease(123_500, 100, 100),)]
    assert not table.holds


def test_what_no_answer_came_for_is_never_spent() -> None:
    table = holding(100)
    assert spend(table, 0, cost=90)
    (ask,) = table.asks()
    table.failed(ask, 20 * MS)
    assert not spend(table, 20 * MS)
    assert table.counts().lost == 10
    assert noted(table, 50, 21 * MS, every_us=1) == []
    assert len(noted(table, 50, 21 * MS + WINDOW_US, every_us=1)) == 1


def test_a_rule_change_ends_every_lease_also_those_that_are_under_way() -> None:
    table = holding(100)
    for _ in range(20):
        table.note(call("b"), allow(), 0)
    (ask,) = table.asks()
    table.clear()
    table.granted(ask, lease(50), 0, 1)
    assert not table.holds
    assert not table.busy
    assert table.counts().lost == 150


# ---- with a bucket behind it


@pytest.mark.parametrize("seed", range(12))
def test_nodes_on_one_bucket_never_admit_more_than_its_bound_and_seldom_ask(seed: int) -> None:
    """Real tables over a real bucket, with delays, lost calls and nodes that die, on one clock."""
    random = Random(seed)
    capacity, rate = random.choice(((1000, Rate(1, 1)), (2000, Rate(3, 1)), (400, Rate(1, 5))))
    point = MemoryPoint(ProtocolTimes())
    asked = replace(call(), capacity=capacity, refill=rate)
    tables = [TokenLeaseTable() for _ in range(random.choice((1, 3)))]
    under_way: list[tuple[int, int, Ask, int, TokenLease | None]] = []
    load = random.choice((0.3, 0.9, 2.0)) * rate.tokens / rate.period_ms
    admitted: list[tuple[int, int]] = []
    calls = local = 0
    start_us = 20_000 * 86_400_000_000
    for now_ms in range(6000):
        now_us = start_us + now_ms * MS
        for place, table in enumerate(tables):
            if random.random() < 0.0005:
                table = tables[place] = TokenLeaseTable()  # kill -9, and a new one
                under_way = [one for one in under_way if one[1] != place]
            due = [one for one in under_way if one[1] == place and one[0] <= now_ms]
            for one in due:
                under_way.remove(one)
                _, _, ask, sent_us, reply = one
                if reply is None:
                    table.failed(ask, now_us)
                else:
                    table.granted(ask, reply, sent_us, now_us)
            if now_ms % 10 == 0:
                table.sweep(now_us)
            for _ in range(int(load / len(tables) + random.random())):
                if table.spend([asked], now_us) is not None:
                    local += 1
                    admitted.append((now_ms, 1))
                else:
                    calls += 1
                    (verdict,) = point.check(now_us, [asked])
                    table.note(asked, verdict, now_us)
                    admitted += [(now_ms, 1)] * verdict.allowed
            for ask in table.asks():
                calls += 1
                taken = point.lease(now_us, ask.call, ask.want, ask.returned)
                lost = random.random() < 0.02
                under_way.append((now_ms + random.choice((1, 2, 8)), place, ask, now_us, None if lost else taken))
    assert worst_span(admitted, capacity, rate) <= 0
    if load * 1000 > 300 * len(tables) and load < rate.tokens / rate.period_ms:
        assert calls < 0.15 * (calls + local), (calls, local)


def test_tokens_are_not_stranded_when_the_load_moves_to_another_node() -> None:
    point = MemoryPoint(ProtocolTimes())
    asked = replace(call(), capacity=100, refill=Rate(1, 86_400_000))
    idle, busy = TokenLeaseTable(), TokenLeaseTable()
    now_us = 20_000 * 86_400_000_000
    for _ in range(20):
        idle.note(asked, allow(100), now_us)
    _grant(point, idle, now_us)
    assert idle.counts().out == 10
    got = 0
    for _ in range(10):
        now_us += 10 * MS
        idle.sweep(now_us)
        _grant(point, idle, now_us)
        for _ in range(15):
            (verdict,) = point.check(now_us, [asked])
            got += verdict.allowed
            busy.note(asked, verdict, now_us)
    assert got == 100


def _grant(point: MemoryPoint, table: TokenLeaseTable, now_us: int) -> None:
    asks: Sequence[Ask] = table.asks()
    for ask in asks:
        table.granted(ask, point.lease(now_us, ask.call, ask.want, ask.returned), now_us, now_us)
