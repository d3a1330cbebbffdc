"""Calls that name a window: by the store's clock, also when they are kept, and when ours is off."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from regional_limiter.model.errors import OtherWindows, StoreUnavailable
from regional_limiter.model.rule import Algorithm, CalendarUnit, CalendarWindow, Rate
from regional_limiter.model.share import ProtocolTimes
from regional_limiter.store import redis_cluster
from regional_limiter.store.base import BucketCall
from regional_limiter.store.redis_cluster import ASKED_AGAIN_MOST, RedisClusterStore

MINUTE_MS = 60_000
START_MS = 28_000_000 * MINUTE_MS
BY_LENGTH: dict[str, Any] = {"algorithm": Algorithm.FIXED_WINDOW, "window_ms": MINUTE_MS}
HOURLY: dict[str, Any] = {"algorithm": Algorithm.FIXED_WINDOW, "calendar": CalendarWindow(CalendarUnit.HOUR)}


def call_of(**fields: Any) -> BucketCall:
    usual = {"capacity": 9, "refill": None, "window_ms": None, "cost": 1}
    return BucketCall("rl:{t}:d/r:u", **{**usual, **fields})


class Told:
    """A store whose calls go nowhere: which windows they named; each is told the next time of ``says``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ms = START_MS
        self.store = RedisClusterStore(["127.0.0.1:1"], ProtocolTimes())
        self.named: list[int] = []
        self.outcomes: list[object] = []
        self.says: list[int] = []
        monkeypatch.setattr(redis_cluster, "time_ns", lambda: self.now_ms * 1_000_000)
        monkeypatch.setattr(self.store.cluster, "submit", self._submit)
        monkeypatch.setattr(self.store.cluster, "call", self._call)

    def _answer(self, command: bytes) -> object:
        self.named.append(int(command.split(b"rl:{t}:d/r:u:")[1].partition(b"\r\n")[0]))
        return OtherWindows(self.says.pop(0)) if self.says else []

    def _submit(self, command: bytes, hash_slot: int, kind: object, done: Callable[[Any], None]) -> None:
        done(self._answer(command))

    async def _call(self, command: bytes, **_: object) -> object:
        answer = self._answer(command)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def ask(self, prepared: redis_cluster.Prepared, *, plainly: bool = False) -> None:
        (self.store.submit_plainly if plainly else self.store.submit)(prepared, self.outcomes.append)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    return Told(monkeypatch)


@pytest.mark.parametrize("plainly", [False, True])
@pytest.mark.parametrize(("fields", "long_ms"), [(BY_LENGTH, MINUTE_MS), (HOURLY, 60 * MINUTE_MS)])
def test_a_check_that_is_kept_names_the_window_it_is_sent_in(
    told: Told, fields: dict[str, Any], long_ms: int, plainly: bool
) -> None:
    prepared = told.store.prepare([call_of(**fields)], None)
    begin_ms = START_MS - START_MS % long_ms
    for now_ms in (begin_ms, begin_ms + long_ms - 1, begin_ms + long_ms, begin_ms + 9 * long_ms, begin_ms):
        told.now_ms = now_ms
        told.ask(prepared, plainly=plainly)
    numbers = [window if fields is HOURLY else window * MINUTE_MS for window in told.named]
    assert numbers == [begin_ms + place * long_ms for place in (0, 0, 1, 9, 0)]
    assert told.outcomes == [[]] * 5


def test_what_names_no_window_is_written_once(told: Told) -> None:
    prepared = told.store.prepare([call_of(algorithm=Algorithm.TOKEN_BUCKET, refill=Rate(1, 1000))], None)
    command = prepared.command
    told.now_ms += 10**9
    assert not prepared.calls
    assert b"rl:{t}:d/r:u\r\n" in command


def test_at_an_edge_the_check_goes_out_again_by_the_time_that_was_told(told: Told) -> None:
    told.now_ms, told.says = START_MS + 1, [START_MS - 1, START_MS]  # which passes the edge on the second way
    told.ask(told.store.prepare([call_of(**BY_LENGTH)], None))
    window = START_MS // MINUTE_MS
    assert told.named == [window, window - 1, window]
    assert told.outcomes == [[]]


def test_a_store_that_never_agrees_is_not_asked_for_ever(told: Told) -> None:
    told.says = [START_MS + number * MINUTE_MS for number in range(9)]
    told.ask(told.store.prepare([call_of(**BY_LENGTH)], None))
    (outcome,) = told.outcomes
    assert isinstance(outcome, StoreUnavailable)
    assert not outcome.may_have_run
    assert len(told.named) == 1 + ASKED_AGAIN_MOST


@pytest.mark.parametrize(("off_ms", "again"), [(10 * MINUTE_MS, 0), (-10 * MINUTE_MS, 0), (-2, 1)])
def test_a_clock_that_is_off_costs_a_second_way_once_and_an_edge_says_nothing_of_clocks(
    told: Told, off_ms: int, again: int
) -> None:
    store_ms = START_MS + 1
    told.now_ms = store_ms + off_ms
    told.says = [store_ms]
    told.ask(told.store.prepare([call_of(**BY_LENGTH)], None))
    told.ask(told.store.prepare([call_of(**BY_LENGTH)], "r"))
    window = START_MS // MINUTE_MS
    assert told.named == [(store_ms + off_ms) // MINUTE_MS, window, window - again]


async def test_a_refund_goes_out_again_too(told: Told) -> None:
    told.says = [START_MS - 1, START_MS]
    await told.store.refund([call_of(**BY_LENGTH)])
    window = START_MS // MINUTE_MS
    assert told.named == [window, window - 1, window]
    told.says = [START_MS] * 9
    with pytest.raises(OtherWindows):
        await told.store.refund([call_of(**BY_LENGTH)])
