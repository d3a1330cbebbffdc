"""A limiter that decides checks of hot keys from token leases: what it asks, what it says, what it gives back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from regional_limiter import token_lease_calls
from regional_limiter.limiter import Limiter
from regional_limiter.model.decision import Check, ShareKind
from regional_limiter.model.errors import StoreUnavailable
from regional_limiter.store.base import TokenLease, TouchReply
from tests.unit.limiter_store import FakeStore, allow, blob_of, check, rule, running

HOT = rule("a", capacity=100_000, refill="1/s")
MUCH = allow(50_000)


def leased(tokens: int, kind: ShareKind = ShareKind.WHOLE, share: int = 10_000) -> TokenLease:
    """A lease that outlives a test, so that only what the test does ends it."""
    return TokenLease(tokens, 99, 3_600_000_000, 0, 50_000, 1000, share, kind, 3_600_000_000, 3_600_000_000)


@pytest.fixture(autouse=True)
def _never_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """How fast the machine is must not matter: nothing is brought back for being idle, unless a test wants it."""
    monkeypatch.setattr(token_lease_calls, "SWEEP_EVERY_S", 3600)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not holds():  # noqa: ASYNC110 - what is waited for sets no event
            await asyncio.sleep(0.001)


@asynccontextmanager
async def hot(store: FakeStore, directory: Path, *rules: dict[str, Any], **more: Any) -> AsyncIterator[Limiter]:
    """A limiter whose client alice has leases for her rules."""
    async with running(store, directory, blob_of(*(rules or (HOT,))), **more) as limiter:
        async with asyncio.timeout(5):
            while limiter.status().leases.out == 0:
                await limiter.check(check())
                await asyncio.sleep(0)
        store.checks.clear()
        yield limiter


async def test_a_hot_key_is_decided_without_asking_and_counted_all_the_same(tmp_path: Path) -> None:
    store = FakeStore(default=MUCH, leased=leased(1000))
    async with hot(store, tmp_path) as limiter:
        answers = [await limiter.check(check(cost=2)) for _ in range(10)]
        assert store.checks == []
        assert [answer.remaining for answer in answers] == [51_000 - 2 * n for n in range(1, 11)]
        assert all(answer.allowed and answer.rule == "a" and not answer.degraded for answer in answers)
    usage = store.beats[-1].usage["default/a"]
    assert usage.allowed_cost == usage.allowed - 10 + 20
    assert (store.leases[0][1] >= 20, store.leases[0][2]) == (True, ())


async def test_what_is_left_is_brought_back_when_the_node_stops(tmp_path: Path) -> None:
    store = FakeStore(default=MUCH, leased=leased(1000))
    async with hot(store, tmp_path) as limiter:
        await limiter.check(check(cost=300))
    (_, want, returned) = store.leases[-1]
    assert (want, [(back.edge_ms, back.tokens, back.unspent) for back in returned]) == (0, [(99, 1000, 700)])
    counts = limiter.status().leases
    assert (counts.out, counts.taken, counts.returned, counts.lost) == (0, 1000, 700, 0)


async def test_an_idle_lease_is_brought_back_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_lease_calls, "SWEEP_EVERY_S", 0.001)
    store = FakeStore(default=MUCH, leased=leased(1000))
    async with hot(store, tmp_path) as limiter:
        await until(lambda: limiter.status().leases.returned >= 999)
        assert store.leases[-1][1] == 0


async def test_what_never_is_decided_from_a_lease(tmp_path: Path) -> None:
    store = FakeStore(default=MUCH, leased=leased(1000))
    async with hot(store, tmp_path) as limiter:
        await limiter.check(check(request_id="r1"))
        await limiter.peek(check())
        await limiter.check(check("bob"))
        await limiter.check(check(cost=1001))
        assert len(store.checks) == 4
        assert limiter.status().leases.out == 1000


async def test_rules_that_are_never_leased_from_keep_the_others_from_it(tmp_path: Path) -> None:
    window = {
        "id": "b",
        "match": {},
        "key": ["client_key"],
        "algorithm": "fixed_window",
        "limit": 99,
        "window": "1h",
    }
    for other in (window, rule("b", capacity=99), rule("b", capacity=100_000, charge_denied=True)):
        store = FakeStore(default=MUCH, leased=leased(1000))
        async with running(store, tmp_path, blob_of(HOT, other)) as limiter:
            for _ in range(50):
                await limiter.check(check())
        assert store.leases == []


async def test_a_global_rule_by_base_has_no_lease_and_by_lease_counts_as_demand(tmp_path: Path) -> None:
    shared = rule("a", capacity=100_000, refill="1/s", scope="global")
    bases = {"version": 1, "bases": {"default": 5000}}
    store = FakeStore(default=allow(50_000, 5000, ShareKind.BASE), leased=leased(1000))
    async with running(store, tmp_path, blob_of(shared), bases) as limiter:
        for _ in range(50):
            await limiter.check(check())
    assert store.leases == []
    store = FakeStore(
        default=allow(50_000, 9000, ShareKind.LEASE, session_left_us=10**9),
        leased=leased(10_000, ShareKind.LEASE, 9000),
    )
    async with hot(store, tmp_path, shared, bases=bases) as limiter:
        await limiter.check(check(cost=7000))
        assert store.checks == []
        await until(lambda: sum(sum(demand.values()) for _, demand in store.offers) > 7000)


async def test_an_answer_that_never_came_is_not_spent_and_the_store_goes_on_being_asked(tmp_path: Path) -> None:
    store = FakeStore(default=MUCH, leased=StoreUnavailable("timeout"))
    async with running(store, tmp_path, blob_of(HOT)) as limiter:
        for _ in range(60):
            assert (await limiter.check(check())).allowed
        assert len(store.checks) == 60
        assert limiter.status().degraded == {}


async def test_a_changed_rule_ends_the_leases_of_the_old_one(tmp_path: Path) -> None:
    store = FakeStore(default=MUCH, leased=leased(1000))
    async with hot(store, tmp_path) as limiter:
        store.blob, store.reply = blob_of(rule("a", capacity=500), version=2), TouchReply(0, 2, -1, {}, 1)
        seen: list[Check] = []
        async with asyncio.timeout(5):
            while limiter.status().rules_version != 2:
                seen.append(check())
                await limiter.check(seen[-1])
                await asyncio.sleep(0.001)
        before = len(store.checks)
        await limiter.check(check())
        assert len(store.checks) == before + 1
        assert limiter.status().leases.lost > 0
