"""How many checks of batches are at the store at any time, and in which order."""

from __future__ import annotations

from regional_limiter.model.decision import Answer, Check
from regional_limiter.model.errors import InvalidCheck
from services.check_api.batches import Batches, Outcomes
from tests.unit.check_api.fakes import ALLOWED, FakeLimiter
from tests.unit.check_api.test_fast_http import WaitingLimiter


def checks(*keys: str) -> list[Check | Exception]:
    return [Check("default", {"client_key": key, "resource": "r"}) for key in keys]


def keys_of(limiter: FakeLimiter) -> list[str]:
    return [check.attributes["client_key"] for check in limiter.checks]


def test_a_batch_that_fits_goes_out_at_once_and_is_answered_whole_in_order() -> None:
    limiter, told = WaitingLimiter(), list[Outcomes]()
    assert Batches(limiter.submit).submit(checks("a", "b", "c"), told.append)
    assert keys_of(limiter) == ["a", "b", "c"]
    for place in (2, 1, 0):
        assert told == []
        limiter.release(place)
    [outcomes] = told
    assert [outcome.rule for outcome in outcomes if isinstance(outcome, Answer)] == ["r-a", "r-b", "r-c"]


def test_all_batches_together_have_a_bound_and_refill_it_by_halves() -> None:
    limiter, told = WaitingLimiter(), list[Outcomes]()
    batches = Batches(limiter.submit, at_once=4)
    batches.submit(checks("a1", "a2", "a3", "a4", "a5", "a6"), told.append)
    batches.submit(checks("b1", "b2"), told.append)
    assert keys_of(limiter) == ["a1", "a2", "a3", "a4"]
    limiter.release()
    assert len(limiter.checks) == 4
    limiter.release()
    assert keys_of(limiter)[4:] == ["a5", "a6"]
    while limiter.waiting:
        limiter.release()
        assert len(limiter.waiting) <= 4
    assert keys_of(limiter)[6:] == ["b1", "b2"]
    assert [len(outcomes) for outcomes in told] == [6, 2]


def test_batches_beyond_those_that_may_wait_are_not_taken() -> None:
    limiter, told = WaitingLimiter(), list[Outcomes]()
    batches = Batches(limiter.submit, at_once=1, waiting_most=1)
    assert batches.submit(checks("a", "b"), told.append)
    assert not batches.submit(checks("c"), told.append)
    limiter.release()
    assert keys_of(limiter) == ["a", "b"]
    assert batches.submit(checks("d"), told.append)


def test_a_thousand_answers_that_come_at_once_are_no_deep_stack_and_leave_room_behind() -> None:
    told: list[Outcomes] = []
    batches = Batches(FakeLimiter().submit, at_once=1)
    for _ in range(3):
        assert batches.submit(checks(*["k"] * 5000), told.append)
    assert [list(outcomes) == [ALLOWED] * 5000 for outcomes in told] == [True] * 3


def test_what_is_wrong_stays_in_its_place_and_is_never_asked() -> None:
    told: list[Outcomes] = []
    refused = ValueError("wrong")
    limiter = FakeLimiter()
    items = [*checks("a"), refused, *checks("b")]
    Batches(limiter.submit).submit(items, told.append)
    assert told == [[ALLOWED, refused, ALLOWED]]
    limiter.answer = InvalidCheck("attributes", "fewer")
    Batches(limiter.submit).submit(checks("a"), told.append)
    assert isinstance(told[1][0], InvalidCheck)
    Batches(limiter.submit).submit([], told.append)
    assert told[2] == []
