"""Tokens that applications hold: lent within the same bound as a node's, and credited to nobody else's bucket."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from regional_limiter.in_process import in_memory
from regional_limiter.lending import AGAIN_AFTER_MS, NOT_LENT_AGAIN_AFTER_MS, Brought, Lent
from regional_limiter.model.decision import Check, ShareKind
from regional_limiter.model.errors import StoreUnavailable
from regional_limiter.store.base import TokenLease
from tests.unit.limiter_store import FakeStore, blob_of, check, rule, running

PLAIN: dict[str, Any] = {"id": "hot", "match": {"resource": "hot"}, "capacity": 1000, "refill": "1/h"}
HOT = Check("default", {"client_key": "alice", "resource": "hot"})


def rules(*more: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {"rules": [{**PLAIN, **changes}, *more]}


async def remaining(limiter: Any, of: Check = HOT) -> int:
    answer = await limiter.peek(of)
    assert answer.remaining is not None
    return int(answer.remaining)


async def test_at_most_a_tenth_of_what_is_there_is_lent_and_the_unspent_comes_back() -> None:
    async with in_memory(rules()) as limiter:
        lent = await limiter.lend(HOT, 500)
        assert (lent.tokens, lent.rule, lent.limit, lent.remaining) == (100, "hot", 1000, 900)
        assert 250 <= lent.ends_in_ms <= 500
        assert await remaining(limiter) == 900
        back = await limiter.lend(HOT, 0, Brought(lent.lease, 100, 40, 60))
        assert (back.tokens, back.credited, back.again_after_ms) == (0, 40, AGAIN_AFTER_MS)
        assert await remaining(limiter) == 940


async def test_what_is_brought_back_twice_is_taken_once() -> None:
    async with in_memory(rules()) as limiter:
        lent = await limiter.lend(HOT, 50)
        brought = Brought(lent.lease, lent.tokens, 50, 0)
        assert (await limiter.lend(HOT, 0, brought)).credited == 50
        assert (await limiter.lend(HOT, 0, brought)).credited == 0
        assert await remaining(limiter) == 1000


async def test_one_call_brings_back_and_takes_anew() -> None:
    async with in_memory(rules()) as limiter:
        first = await limiter.lend(HOT, 100)
        second = await limiter.lend(HOT, 80, Brought(first.lease, 100, 10, 90))
        assert (second.credited, second.tokens, second.remaining) == (10, 80, 830)


@pytest.mark.parametrize(
    "wrong",
    [
        Brought("", 50, 50, 0),
        Brought("12.0011223344556677", 50, 50, 0),  # another bucket's
        Brought("x", 50, 50, 0),
        Brought("-1.{name}", 50, 50, 0),
        Brought("²5.{name}", 50, 50, 0),
        Brought("{edge}.{name}", 50, 51, 0),
        Brought("{edge}.{name}", 51, 51, 0),  # more than was lent
        Brought("0.{name}", 50, 50, 0),  # an edge that nothing was lent until
    ],
)
async def test_what_was_not_lent_is_not_credited(wrong: Brought) -> None:
    async with in_memory(rules()) as limiter:
        lent = await limiter.lend(HOT, 50)
        edge, _, name = lent.lease.partition(".")
        brought = replace(wrong, lease=wrong.lease.format(edge=edge, name=name))
        assert (await limiter.lend(HOT, 0, brought)).credited == 0
        assert await remaining(limiter) == 950


async def test_a_lease_of_one_client_does_not_fill_anothers_bucket() -> None:
    other = replace(HOT, attributes={"client_key": "bob", "resource": "hot"})
    async with in_memory(rules()) as limiter:
        lent = await limiter.lend(HOT, 50)
        await limiter.lend(other, 50)
        assert (await limiter.lend(other, 0, Brought(lent.lease, 50, 50, 0))).credited == 0


@pytest.mark.parametrize(
    "document",
    [
        rules(capacity=99),
        rules(charge_denied=True),
        rules(cost=2),
        rules(cost={"attribute": "size", "per": 1, "at_least": 1}),
        rules(algorithm="gcra"),
        rules(unlimited=True),
        rules(split=2),
        rules(mode="soft"),
        rules({**PLAIN, "id": "second"}),
        rules({**PLAIN, "id": "counts", "unlimited": True}),
        rules({**PLAIN, "id": "tried", "mode": "shadow"}),
        rules(match={"resource": "something else"}),
        {**rules(), "overrides": [{"rule": "hot", "key": {"client_key": "alice"}, "block": True}]},
    ],
)
async def test_nothing_is_lent_where_one_plain_bucket_does_not_decide_alone(document: dict[str, Any]) -> None:
    check = replace(HOT, attributes={**HOT.attributes, "size": "3"})
    async with in_memory(document) as limiter:
        lent = await limiter.lend(check, 50)
    assert (lent.tokens, lent.lease) == (0, "")
    assert lent.again_after_ms >= (AGAIN_AFTER_MS if document == rules(capacity=99) else 100)


async def test_where_the_rules_do_not_lend_it_says_when_to_ask_again() -> None:
    async with in_memory(rules(algorithm="gcra")) as limiter:
        assert await limiter.lend(HOT, 50) == Lent(again_after_ms=NOT_LENT_AGAIN_AFTER_MS)


async def test_what_was_spent_counts_as_allowed_by_the_node_and_as_demand(tmp_path: Path) -> None:
    lease = TokenLease(100, 99, 3_600_000_000, 0, 5000, 1000, 6000, ShareKind.LEASE, 3_600_000_000, 0)
    store = FakeStore(leased=lease)
    hot = rule("a", capacity=100_000, refill="1/s", scope="global")
    async with running(store, tmp_path, blob_of(hot)) as limiter:
        first = await limiter.lend(check(), 100)
        assert first.tokens == 100
        await limiter.lend(check(), 0, Brought(first.lease, 100, 30, 35))
        async with asyncio.timeout(5):
            await store.offered.wait()
    usage = store.beats[-1].usage["default/a"]
    assert (usage.allowed, usage.allowed_cost, usage.denied) == (35, 70, 0)
    assert [sum(costs.values()) for _, costs in store.offers] == [70]


async def test_a_store_that_does_not_answer_lends_nothing(tmp_path: Path) -> None:
    store = FakeStore(leased=StoreUnavailable("down"))
    async with running(store, tmp_path, blob_of(rule("a", capacity=100_000, refill="1/s"))) as limiter:
        with pytest.raises(StoreUnavailable):
            await limiter.lend(check(), 100)
