"""What a node allowed without the store, and how it is charged afterwards: once, and no more than is still used."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from time import time_ns
from typing import Any
from zlib import crc32

import pytest

from regional_limiter.fallback import Fallback, Unanswered
from regional_limiter.limiter import Limiter
from regional_limiter.model.decision import Reason, Verdict
from regional_limiter.model.errors import OtherRequest, StoreUnavailable
from regional_limiter.model.rule import Algorithm, OnStoreFailure, Rate
from regional_limiter.model.share import ProtocolTimes
from regional_limiter.store.base import BucketCall
from regional_limiter.store.memory import MemoryStore
from regional_limiter.sub_buckets import sub_key
from tests.unit.limiter_store import PromptStore, allow, blob_of, check, rule, running

LOCAL, OPEN = OnStoreFailure.LOCAL, OnStoreFailure.OPEN
SLOW = Rate(1, 3_600_000)


def bucket(capacity: int = 10, cost: int = 1, key: str = "k", rate: Rate = SLOW) -> BucketCall:
    return BucketCall(f"rl:{{t}}:default/r:{key}", Algorithm.TOKEN_BUCKET, capacity, rate, None, cost)


def window(limit: int, cost: int = 1) -> BucketCall:
    return BucketCall("rl:{t}:default/w:k", Algorithm.FIXED_WINDOW, limit, None, 60_000, cost)


def ask(fallback: Fallback, *calls: BucketCall, at_s: float = 0, mode: OnStoreFailure = LOCAL, **more: Any) -> bool:
    asked = [Unanswered(call, mode, True, **more) for call in calls]
    verdicts = fallback.decide(asked, now_ms=int(at_s * 1000), now_us=int(at_s * 1_000_000), nodes=1, charge=True)
    return all(verdict.allowed for verdict in verdicts)


def sums(fallback: Fallback, at_s: float = 0) -> list[int]:
    return [call.cost for call in fallback.owed(int(at_s * 1000), 100)]


def requests(fallback: Fallback, at_s: float = 0) -> list[tuple[str, list[int]]]:
    due = fallback.debts.requests(int(at_s * 1000), 100)
    return [(owed.request, [call.cost for call in owed.calls]) for owed in due]


# ---- on_store_failure: open


def test_what_an_open_rule_let_through_is_owed_up_to_the_capacity() -> None:
    fallback = Fallback()
    assert all(ask(fallback, bucket(10, 2), mode=OPEN) for _ in range(3))
    assert sums(fallback) == [6]
    assert all(ask(fallback, bucket(10, 2), mode=OPEN) for _ in range(30))
    assert sums(fallback) == [10]
    assert all(ask(fallback, window(5), mode=OPEN) for _ in range(9))
    assert sums(fallback) == [10, 5]
    assert sums(fallback, 60) == [10], "its window is over"


def test_what_an_open_bucket_has_refilled_in_the_silence_is_not_owed() -> None:
    fallback = Fallback()
    for at_s in range(20):  # at half its rate
        assert ask(fallback, bucket(10, rate=Rate(2, 1000)), at_s=at_s, mode=OPEN)
    assert sums(fallback, 19) == [1]


def test_an_open_rule_beside_one_that_denied_is_owed_nothing() -> None:
    fallback = Fallback()
    opened = Unanswered(bucket(10, key="a"), OPEN, True)
    denied = Unanswered(bucket(1, 2, key="b"), LOCAL, True)
    fallback.decide([opened, denied], now_ms=0, now_us=0, nodes=1, charge=True)
    assert not fallback.owes


# ---- requests with an id


def test_a_request_is_owed_with_all_that_its_call_asks_for() -> None:
    fallback = Fallback()
    assert ask(fallback, bucket(10, 2, "a"), bucket(10, 3, "b"), request="r1")
    assert ask(fallback, bucket(10, 2, "a"), bucket(10, 3, "b"), request="r1"), "it came again"
    assert ask(fallback, bucket(10, 1, "a"), request="r2")
    assert requests(fallback) == [("r2", [1]), ("r1", [2, 3])]
    assert sums(fallback) == []


def test_of_requests_whose_bucket_has_refilled_the_newest_are_owed() -> None:
    fallback = Fallback()
    for second in range(12):
        assert ask(fallback, bucket(10, rate=Rate(1, 2000)), request=f"r{second}", at_s=second)
    # 12 were used and 5.5 earned; a begun token counts as used.
    assert [request for request, _ in requests(fallback, 11)] == [f"r{second}" for second in range(11, 4, -1)]
    assert len(fallback.debts._requests) == 7, "the others are forgotten"


def test_requests_and_checks_without_an_id_share_what_is_still_used() -> None:
    fallback = Fallback()
    call = bucket(10, 2, rate=Rate(1, 1000))
    assert ask(fallback, call)
    assert ask(fallback, call, request="r1")
    assert ask(fallback, replace(call, cost=1), at_s=3, request="r2")  # 5 used, 3 earned
    assert requests(fallback, 3) == [("r2", [1]), ("r1", [2])]
    for owed in fallback.debts.requests(3000, 100):
        fallback.debts.settled(owed)
    assert sums(fallback, 3) == []
    assert not fallback.owes
    assert fallback.debts._charged == {}


def test_a_call_that_may_have_run_is_not_charged_when_the_store_would_not_know_it_any_more() -> None:
    fallback = Fallback()
    assert ask(fallback, bucket(10), request="sent", may_have_run=True)
    assert ask(fallback, bucket(10), request="never sent")
    assert [request for request, _ in requests(fallback, 49.9)] == ["never sent", "sent"]
    assert [request for request, _ in requests(fallback, 50)] == ["never sent"]
    assert fallback.debts.dropped == 1


def test_a_request_that_comes_again_does_not_hide_that_its_first_call_may_have_run() -> None:
    fallback = Fallback()
    assert ask(fallback, bucket(), request="X", may_have_run=True)
    assert ask(fallback, bucket(), at_s=30, request="X", may_have_run=False)
    assert requests(fallback, 40) == [("X", [1])]
    assert requests(fallback, 65) == [], "the store may have known it until 60 s after the first"


def test_debts_that_find_no_room_are_counted() -> None:
    fallback = Fallback(keys_most=2)
    for number in range(5):
        ask(fallback, bucket(10, key=str(number)))
        ask(fallback, bucket(10, key=str(number)), request=str(number))
    assert (len(sums(fallback)), len(requests(fallback))) == (2, 2)
    assert fallback.debts.dropped == 6


# ---- a limiter, and a store that goes and comes


@asynccontextmanager
async def node(directory: Path, *rules: dict[str, Any]) -> AsyncIterator[tuple[MemoryStore, Limiter]]:
    store = MemoryStore(lambda: time_ns() // 1000, ProtocolTimes())
    async with running(store, directory, blob_of(*rules)) as limiter:
        yield store, limiter


async def paid(limiter: Limiter) -> None:
    """Now, which the node does every half second."""
    limiter._payments.stopping.set()
    paying = limiter._payments.task
    assert paying is not None
    await paying
    limiter._payments.stopping.clear()


async def left(limiter: Limiter) -> list[int]:
    return [told.verdict.remaining for told in (await limiter.peek(check())).verdicts]


async def test_a_request_that_was_decided_locally_is_charged_once_and_answered_again(tmp_path: Path) -> None:
    numbers = {"capacity": 20, "refill": "1/h"}
    async with node(tmp_path, rule("a", **numbers), rule("b", **numbers)) as (store, limiter):
        store.cut("memory:1/1")
        for number in range(3):
            answer = await limiter.check(check(cost=2, request_id=f"r{number}"))
            assert (answer.allowed, answer.degraded) == (True, True)
        store.heal("memory:1/1")
        again = await limiter.check(check(cost=2, request_id="r0"))  # before it is charged
        assert (again.allowed, again.degraded, await left(limiter)) == (True, False, [18, 18])
        await paid(limiter)
        assert await left(limiter) == [14, 14]
        later = await limiter.check(check(cost=2, request_id="r1"))  # after
        assert (later.allowed, later.verdicts[0].verdict.replayed) == (True, True)
        assert await left(limiter) == [14, 14]
        assert not limiter._fallback.owes


@pytest.mark.parametrize("split", [1, 4])
async def test_a_request_that_is_charged_to_an_empty_bucket_is_known_as_allowed(tmp_path: Path, split: int) -> None:
    numbers = rule("a", capacity=20, refill="1/h", split=split)
    async with node(tmp_path, numbers) as (store, limiter):
        store.cut("memory:1/1")
        assert (await limiter.check(check(cost=2, request_id="r"))).allowed
        store.heal("memory:1/1")
        for _ in range(4):  # others spend everything before it is charged
            assert (await limiter.check(check(cost=5))).allowed
        await paid(limiter)
        again = await limiter.check(check(cost=2, request_id="r"))
        assert (again.allowed, again.verdicts[0].verdict.replayed) == (True, True)
        assert not (await limiter.check(check(request_id="another"))).allowed
        # What it took is missing: it is given back before anything is left again.
        await limiter.refund(check(cost=2, request_id="r"))
        await limiter.refund(check(cost=1))
        assert await left(limiter) == [1]


async def test_what_an_open_rule_let_through_is_charged(tmp_path: Path) -> None:
    opened = rule("a", capacity=20, refill="1/h", on_store_failure="open")
    async with node(tmp_path, opened) as (store, limiter):
        store.cut("memory:1/1")
        for number in range(8):
            assert (await limiter.check(check(cost=2, request_id=f"r{number}" if number % 2 else None))).allowed
        store.heal("memory:1/1")
        await paid(limiter)
        assert await left(limiter) == [4]


async def test_a_split_request_is_charged_in_one_place(tmp_path: Path) -> None:
    async with node(tmp_path, rule("a", capacity=20, refill="1/h", split=4)) as (store, limiter):
        store.cut("memory:1/1")
        assert (await limiter.check(check(cost=3, request_id="r"))).allowed
        assert (await limiter.check(check(cost=5))).allowed
        too_much = await limiter.check(check(cost=6))  # for any sub-bucket
        assert too_much.reason is Reason.EXCEEDS_CAPACITY
        store.heal("memory:1/1")
        await paid(limiter)
        assert await left(limiter) == [12]
        assert (await limiter.check(check(cost=3, request_id="r"))).verdicts[0].verdict.replayed


class OneSilent(PromptStore):
    """All sub-buckets allow but one, whose shard is silent."""

    silent = ""

    def told(self, calls: Sequence[BucketCall]) -> list[Verdict] | Exception:
        if calls[0].key == self.silent:
            return StoreUnavailable("disconnected", may_have_run=False)
        return super().told(calls)


async def test_of_a_split_key_a_node_allows_by_itself_no_more_than_the_silent_part(tmp_path: Path) -> None:
    store = OneSilent(default=allow(5))
    async with running(store, tmp_path, blob_of(rule("a", capacity=20, refill="1/h", split=4))) as limiter:
        (call,) = limiter._planner.plan(check()).calls(1)
        store.silent = sub_key(call.key, 4, 2)
        ids = [name for name in map(str, range(100)) if crc32(name.encode()) % 4 == 2][:7]
        answers = [await limiter.check(check(request_id=name)) for name in ids]
        assert [answer.allowed for answer in answers] == [True] * 5 + [False] * 2
        assert all(answer.degraded for answer in answers)
        assert not (await limiter.check(check())).degraded, "without an id any other will do"
        owed = limiter._fallback.debts.requests(time_ns() // 1_000_000, 100)
        assert {one.key for debt in owed for one in debt.calls} == {store.silent}


async def test_a_debt_that_cannot_be_settled_yet_is_kept_and_one_that_never_can_is_not(tmp_path: Path) -> None:
    store = PromptStore(default=StoreUnavailable("disconnected", may_have_run=False))
    async with running(store, tmp_path, blob_of(rule("a", refill="1/h"))) as limiter:
        await limiter.check(check(request_id="r"))
        await paid(limiter)
        assert limiter._fallback.owes
        await limiter.check(check(request_id="r"))
        told: list[BaseException] = [OtherRequest()]

        async def another_one(calls: Any, request_id: str) -> None:
            raise told.pop()

        limiter._calls.settle = another_one  # type: ignore[method-assign]
        await paid(limiter)
        assert not limiter._fallback.owes
        store.default = allow()
