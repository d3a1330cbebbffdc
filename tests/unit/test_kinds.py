"""What holds of every kind: in range, denied for free, bounded, with an end, and gone when it is full."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regional_limiter.algorithms.calendar import window_at
from regional_limiter.algorithms.registry import functions_of
from regional_limiter.model.rule import Algorithm, CalendarUnit, CalendarWindow, Rate
from regional_limiter.model.share import ProtocolTimes
from regional_limiter.store.base import BucketCall, Sharing
from regional_limiter.store.memory import MemoryPoint

KEY = "rl:{t}:default/r:u"
START_MS = 20_000 * 86_400_000
HOURLY = CalendarWindow(CalendarUnit.HOUR, "Asia/Kathmandu")
DAILY = CalendarWindow(CalendarUnit.DAY, "Europe/Berlin")
CALLS = {
    "token_bucket": BucketCall(KEY, Algorithm.TOKEN_BUCKET, 10, Rate(3, 1000), None, 1),
    "gcra": BucketCall(KEY, Algorithm.GCRA, 10, Rate(3, 1000), None, 1),
    "leaky_bucket": BucketCall(KEY, Algorithm.LEAKY_BUCKET, 10, Rate(3, 1000), None, 1),
    "queue": BucketCall(KEY, Algorithm.LEAKY_BUCKET, 10, Rate(3, 1000), None, 1, queue=True),
    "fixed_window": BucketCall(KEY, Algorithm.FIXED_WINDOW, 10, None, 60_000, 1),
    "hour": BucketCall(KEY, Algorithm.FIXED_WINDOW, 10, None, None, 1, calendar=HOURLY),
    "day": BucketCall(KEY, Algorithm.FIXED_WINDOW, 10, None, None, 1, calendar=DAILY),
    "sliding_window_counter": BucketCall(KEY, Algorithm.SLIDING_WINDOW_COUNTER, 10, None, 60_000, 1),
    "sliding_window_log": BucketCall(KEY, Algorithm.SLIDING_WINDOW_LOG, 10, None, 60_000, 1),
}
STATIC = {"sharing": Sharing.STATIC, "regions": 3, "base": 3333, "domain": "default"}
ACTIONS = st.lists(
    st.tuples(
        st.sampled_from([0, 1, 333, 700, 20_000, 59_999, 3_599_999, 86_399_999]),
        st.sampled_from(["check"] * 5 + ["peek", "refund"]),
        st.integers(1, 12),
    ),
    max_size=30,
)
Actions = Sequence[tuple[int, str, int]]

every_kind = pytest.mark.parametrize("kind", CALLS)


def point_at(after: Actions, call: BucketCall) -> tuple[MemoryPoint, int, list[tuple[int, int]]]:
    """A point after these actions, the time, and what it allowed: (when, cost)."""
    point, now_ms, allowed = MemoryPoint(ProtocolTimes()), START_MS, []
    for after_ms, action, cost in after:
        now_ms += after_ms
        asked = replace(call, cost=0 if action == "peek" else cost)
        if action == "refund":
            point.refund(now_ms * 1000, [asked])
            continue
        (verdict,) = point.check(now_ms * 1000, [asked])
        assert 0 <= verdict.remaining <= call.part
        assert verdict.reset_after_ms >= 0
        assert (verdict.retry_after_ms == 0) == verdict.allowed
        if verdict.allowed and asked.cost:
            allowed.append((now_ms, cost))
        assert all(expires_ms > now_ms for expires_ms in held(point, now_ms).values())
    return point, now_ms, allowed


def held(point: MemoryPoint, now_ms: int) -> dict[str, int]:
    point.purge(now_ms * 1000)
    return point.buckets.expires()


@every_kind
@given(actions=ACTIONS, cost=st.integers(1, 12), static=st.booleans())
def test_a_denied_check_or_a_peek_changes_nothing(kind: str, actions: Actions, cost: int, static: bool) -> None:
    call = replace(CALLS[kind], **(STATIC if static else {}))  # type: ignore[arg-type]
    point, now_ms, _ = point_at(actions, call)
    for asked in (replace(call, cost=0), replace(call, cost=cost)):
        before = dict(held(point, now_ms)), point.check(now_ms * 1000, [replace(call, cost=0)])
        (verdict,) = point.check(now_ms * 1000, [asked])
        if not verdict.allowed or asked.cost == 0:
            assert (held(point, now_ms), point.check(now_ms * 1000, [replace(call, cost=0)])) == before


@every_kind
@given(actions=ACTIONS, static=st.booleans())
def test_the_wait_that_is_named_is_the_least_that_helps(kind: str, actions: Actions, static: bool) -> None:
    call = replace(CALLS[kind], **(STATIC if static else {}))  # type: ignore[arg-type]
    point, now_ms, _ = point_at(actions, call)
    for cost in range(1, call.part + 1):
        asked = replace(call, cost=cost)
        (verdict,) = point.check(now_ms * 1000, [asked])
        if not verdict.allowed:
            assert verdict.retry_after_ms
            outcome = [
                functions_of(asked).decide(
                    point.buckets.get(functions_of(asked).storage_key(asked, at_ms), "", at_ms),
                    asked,
                    point._share(at_ms * 1000, asked),
                    at_ms,
                )
                for at_ms in (now_ms + verdict.retry_after_ms - 1, now_ms + verdict.retry_after_ms)
            ]
            assert [one.allowed for one in outcome] == [False, True]
            return


@every_kind
@given(actions=ACTIONS, static=st.booleans())
def test_no_window_and_no_stretch_of_time_lets_more_through_than_its_bound(
    kind: str, actions: Actions, static: bool
) -> None:
    call = replace(CALLS[kind], **(STATIC if static else {}))  # type: ignore[arg-type]
    _, _, allowed = point_at([action for action in actions if action[1] != "refund"], call)
    if call.refill is None:
        by_window: dict[int, int] = {}
        for at_ms, cost in allowed:
            start_ms = at_ms // 60_000 * 60_000 if call.calendar is None else window_at(call.calendar, at_ms)[0]
            by_window[start_ms] = by_window.get(start_ms, 0) + cost
        assert all(total <= call.part for total in by_window.values())
        return
    units_per_ms, unit = call.refill.tokens * call.base, call.refill.period_ms * 10_000
    for first in range(len(allowed)):
        total = 0
        for at_ms, cost in allowed[first:]:
            total += cost
            assert total * unit <= call.part * unit + (at_ms - allowed[first][0]) * units_per_ms


@every_kind
@given(actions=ACTIONS)
def test_nothing_is_kept_when_it_is_full_again_or_over(kind: str, actions: Actions) -> None:
    call = CALLS[kind]
    point, now_ms, _ = point_at(actions, call)
    (verdict,) = point.check(now_ms * 1000, [replace(call, cost=0)])
    full_ms = now_ms + verdict.reset_after_ms
    tolerance_ms = 0 if call.refill else 2000
    assert not held(point, full_ms + max(tolerance_ms, 1))
    (verdict,) = point.check(full_ms * 1000, [replace(call, cost=0)])
    assert verdict.remaining == call.capacity


@every_kind
def test_a_request_is_charged_once_and_given_back_once(kind: str) -> None:
    point, call, now_us = MemoryPoint(ProtocolTimes()), CALLS[kind], START_MS * 1000
    first, again = (point.check(now_us, [replace(call, cost=4)], "r")[0] for _ in range(2))
    assert again == replace(first, replayed=True, turn=1)
    assert point.check(now_us, [replace(call, cost=0)])[0].remaining == 6
    for _ in range(2):
        point.refund(now_us, [replace(call, cost=9)], "r")
        assert point.check(now_us, [replace(call, cost=0)])[0].remaining == 10


@every_kind
def test_a_rule_that_charges_denials_charges_them(kind: str) -> None:
    point, call, now_us = MemoryPoint(ProtocolTimes()), replace(CALLS[kind], charge_denied=True), START_MS * 1000
    point.check(now_us, [replace(call, cost=8)])
    (verdict,) = point.check(now_us, [replace(call, cost=4)])
    assert (verdict.allowed, verdict.remaining) == (False, 0)
    assert not point.check(now_us, [call])[0].allowed
