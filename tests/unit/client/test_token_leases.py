"""Checks that an application decides itself: as many as the limit, wherever they were decided."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from apportion import Answer, AsyncClient, AsyncTokenLeases, Client, TokenLeases
from apportion._token_lease_table import (
    BACK_BEFORE_NS,
    CHECKS_LEAST,
    MS,
    RENEW_BEFORE_NS,
    Key,
    LeaseCounts,
    Table,
    due,
    returning,
)

from regional_limiter.in_process import in_memory
from regional_limiter.limiter import Limiter
from regional_limiter.model.decision import Check
from services.check_api.app import NodeOptions, create_app
from tests.unit.client.test_middleware import blocking_transport, gone

NODE = "http://node"
CAPACITY = 2500
RULES = f"""
rules:
  - {{id: hot, match: {{resource: hot}}, capacity: {CAPACITY}, refill: 1/h}}
  - {{id: small, match: {{resource: small}}, capacity: 50, refill: 1/h}}
"""
ALLOWED = Answer(True, "ok")
LENT = {
    "tokens": 100, "ends_in_ms": 300, "lease": "12.ab", "rule": "hot", "limit": 1000, "remaining": 900,
    "reset_after_ms": 5000, "credited": 0, "again_after_ms": 0,
}  # fmt: skip


def holding(**changes: Any) -> Key:
    key = Key(("a", "hot", ()))
    key.granted({**LENT, **changes}, 0, MS)
    return key


# ---- one key, without a clock


def test_a_lease_is_spent_to_its_last_token_and_no_further() -> None:
    key = holding()
    answers = [key.spend(7, 2 * MS) for _ in range(20)]
    assert sum(answer is not None for answer in answers) == 14
    assert (key.unspent, key.checks) == (2, 14)
    assert key.spend(2, 2 * MS) is not None
    assert key.spend(1, 2 * MS) is None


def test_a_lease_ends_counted_from_before_it_was_asked_for() -> None:
    key = holding()
    assert key.spend(1, 300 * MS - 1) is not None
    assert key.spend(1, 300 * MS) is None


def test_one_that_came_too_late_is_not_spent() -> None:
    key = Key(("a", "hot", ()))
    key.granted(LENT, 0, 300 * MS)
    assert not key.holds
    assert key.spend(1, 300 * MS) is None


def test_what_is_nearly_spent_or_nearly_over_is_renewed() -> None:
    key = holding()
    assert not key.is_due(2 * MS)
    key.spend(81, 2 * MS)
    assert key.is_due(2 * MS)
    assert holding().is_due(300 * MS - RENEW_BEFORE_NS)
    assert not holding().is_over(20 * MS)
    assert holding().is_over(300 * MS - BACK_BEFORE_NS)


def test_while_a_new_lease_is_asked_for_the_old_one_is_spent_and_then_goes_back() -> None:
    key, counts = holding(), LeaseCounts()
    key.spend(85, 2 * MS)
    lending = due(key, 2 * MS)
    assert lending is not None
    assert (lending.want, lending.back) == (425, None)
    assert due(key, 2 * MS) is None
    lending.begins(2 * MS)
    assert key.spend(5, 3 * MS) is not None
    following = lending.ended({**LENT, "lease": "13.ab", "tokens": 200}, 4 * MS, counts)
    assert (key.lease, key.unspent) == ("13.ab", 200)
    assert following is not None
    assert following.back == {"lease": "12.ab", "tokens": 100, "unspent": 10, "checks": 2}
    assert following.ended({**LENT, "tokens": 0, "credited": 10}, 5 * MS, counts) is None
    assert (key.lease, key.unspent, key.asking) == ("13.ab", 200, False)
    assert (counts.taken, counts.spent, counts.returned, counts.lost) == (200, 90, 10, 0)


def test_where_nothing_more_is_lent_the_old_lease_is_spent_to_its_end() -> None:
    key, counts = holding(), LeaseCounts()
    key.spend(85, 2 * MS)
    lending = due(key, 2 * MS)
    assert lending is not None
    lending.begins(2 * MS)
    assert lending.ended({**LENT, "tokens": 0, "again_after_ms": 100}, 4 * MS, counts) is None
    assert key.spend(5, 5 * MS) is not None
    assert due(key, 5 * MS) is None


@pytest.mark.parametrize("said", [None, {}, {"tokens": "many"}, {**LENT, "credited": None}])
def test_what_is_no_answer_loses_what_was_brought_back_and_nothing_else(said: Any) -> None:
    key, counts = holding(), LeaseCounts()
    lending = returning(key)
    assert lending is not None
    assert lending.ended(said, 4 * MS, counts) is None
    assert counts.lost == 100
    assert not key.asking


def test_the_next_lease_is_as_large_as_this_one_was_quickly_spent() -> None:
    key = holding()
    key.spend(90, 2 * MS)
    assert key.want(51 * MS) == 180
    assert key.want(2 * MS) == 450  # one burst is not yet a rate
    assert holding().want(250 * MS) == 0


def test_what_lies_idle_goes_back() -> None:
    key = holding()
    assert not key.is_over(20 * MS)
    key.spend(1, 30 * MS)
    assert not key.is_over(60 * MS)
    assert not key.is_over(100 * MS)
    assert key.is_over(110 * MS)
    assert key.give_back() == {"lease": "12.ab", "tokens": 100, "unspent": 99, "checks": 1}
    assert key.give_back() is None
    assert key.spend(1, 110 * MS) is None


def test_only_a_busy_key_earns_a_lease_and_only_from_an_answer_of_the_region() -> None:
    key = Key(("a", "hot", ()))
    assert [key.note(ALLOWED, 3, MS) for _ in range(CHECKS_LEAST)] == [0] * (CHECKS_LEAST - 1) + [3 * CHECKS_LEAST]
    assert key.note(ALLOWED, 3, 102 * MS) == 0  # another window
    for answer in (Answer(False, "limited"), Answer(True, "ok", degraded=True), Answer(True, "ok", decided=False)):
        fresh = Key(("a", "hot", ()))
        assert [fresh.note(answer, 1, MS) for _ in range(2 * CHECKS_LEAST)] == [0] * 2 * CHECKS_LEAST


@pytest.mark.parametrize("after_ms", [100, 5000])
def test_who_was_lent_nothing_does_not_ask_again_at_once(after_ms: int) -> None:
    key = Key(("a", "hot", ()))
    key.granted({**LENT, "tokens": 0, "again_after_ms": after_ms}, 0, MS)
    assert not any(key.note(ALLOWED, 1, MS + n) for n in range(2 * CHECKS_LEAST))
    later_ns = (after_ms + 2) * MS
    assert any(key.note(ALLOWED, 1, later_ns + n) for n in range(2 * CHECKS_LEAST))


def test_the_table_is_bounded_and_keeps_what_holds_something() -> None:
    table = Table(3)
    held = table.key("0", "r", None)
    assert held is not None
    held.granted(LENT, 0, MS)
    for place in range(1, 9):
        assert table.key(str(place), "r", None) is not None
    assert table.knows(held)
    assert table.key("0", "r", {}) is held
    busy = Table(1)
    only = busy.key("0", "r", {"b": "1", "a": "2"})
    assert only is not None
    only.granted(LENT, 0, MS)
    assert busy.key("0", "r", {"a": "2", "b": "1"}) is only
    assert busy.key("1", "r", None) is None


# ---- with a node


@asynccontextmanager
async def application() -> AsyncIterator[tuple[Limiter, httpx.ASGITransport, list[str]]]:
    """A node's limiter, the way to it, and the paths that were asked."""
    paths: list[str] = []
    async with in_memory(RULES) as limiter:
        node = create_app(limiter, NodeOptions("local", "local-1"))

        async def noting(scope: Any, receive: Any, send: Any) -> None:
            paths.append(scope["path"])
            await node(scope, receive, send)

        yield limiter, httpx.ASGITransport(app=noting), paths


async def gone_from(limiter: Limiter) -> int:
    """What the bucket has given, but to the node, which leases from it as well."""
    answer = await limiter.peek(Check("default", {"client_key": "everybody", "resource": "hot"}))
    assert answer.remaining is not None
    leases = limiter.status().leases
    return CAPACITY - answer.remaining - leases.out - leases.lost


async def hammer(leases: AsyncTokenLeases, checks: int, resource: str = "hot") -> int:
    allowed = 0
    for turn in range(checks):
        allowed += (await leases.check("everybody", resource)).allowed
        if turn % 50 == 0:
            await asyncio.sleep(0)
    return allowed


async def test_a_hot_key_is_nearly_never_asked_for_and_every_token_is_accounted_for() -> None:
    async with (
        application() as (limiter, transport, paths),
        AsyncClient(NODE, transport=transport, timeout_s=10) as client,
    ):
        async with AsyncTokenLeases(client) as leases:
            assert await hammer(leases, 2000) == 2000
        counts = leases.counts()
        # A busy machine may bring a lease back too late.
        assert await gone_from(limiter) == 2000 + counts.lost
    assert counts.taken == counts.spent + counts.returned + counts.lost
    assert paths.count("/v1/check") < 1500
    assert paths.count("/v1/token-lease") > 1


async def test_applications_that_share_a_key_pass_exactly_the_limit_together() -> None:
    async with (
        application() as (limiter, transport, _),
        AsyncClient(NODE, transport=transport, timeout_s=10) as client,
    ):
        async with AsyncTokenLeases(client) as one, AsyncTokenLeases(client) as other:
            allowed = await asyncio.gather(*(hammer(leases, 1000) for leases in (one, other, one)))
        lost = one.counts().lost + other.counts().lost
        assert await gone_from(limiter) == sum(allowed) + lost
    assert sum(allowed) <= CAPACITY


async def test_small_buckets_are_asked_for_as_ever() -> None:
    async with (
        application() as (_, transport, paths),
        AsyncClient(NODE, transport=transport, timeout_s=10) as client,
        AsyncTokenLeases(client) as leases,
    ):
        assert await hammer(leases, 200, "small") == 50
    assert paths.count("/v1/check") == 200


async def test_without_a_node_the_clients_choice_counts() -> None:
    async with (
        AsyncClient(NODE, transport=httpx.MockTransport(gone), on_no_answer="deny") as client,
        AsyncTokenLeases(client) as leases,
    ):
        assert await hammer(leases, 50) == 0


def test_threads_that_share_a_key_pass_exactly_the_limit_together() -> None:
    with blocking_transport(RULES) as transport, Client(NODE, transport=transport, timeout_s=10) as client:
        allowed: list[int] = []
        with TokenLeases(client) as leases:

            def work() -> None:
                allowed.append(sum(leases.check("everybody", "hot").allowed for _ in range(800)))

            threads = [threading.Thread(target=work) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(50)
                assert not thread.is_alive()
        counts = leases.counts()
    assert sum(allowed) <= CAPACITY - counts.lost
    assert counts.spent > sum(allowed) / 10
