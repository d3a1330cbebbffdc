"""Under overload: who is answered without the store, with what, and that nothing waits beyond a bound."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from regional_limiter.model.decision import Answer, Reason
from regional_limiter.submitting import InTasks
from tests.unit.limiter_store import FakeStore, PromptStore, allow, blob_of, check, deny, rule, running


async def answered(
    directory: Path, *rules: dict[str, Any], cost: int = 1
) -> tuple[Answer, PromptStore, dict[str, int]]:
    """One check over a crowded store: the answer, what was asked, and what was counted."""
    store = PromptStore(crowded=True)
    async with running(store, directory, blob_of(*rules)) as limiter:
        return await limiter.check(check(cost=cost)), store, limiter.status().degraded


async def test_a_check_of_low_priority_is_allowed_without_asking_a_crowded_store(tmp_path: Path) -> None:
    answer, store, degraded = await answered(tmp_path, rule("a", priority="low"))
    assert (answer.allowed, answer.reason, answer.degraded) == (True, Reason.SHED, True)
    assert (store.checks, degraded) == ([], {"shed": 1})


async def test_one_rule_that_says_so_denies_what_is_shed(tmp_path: Path) -> None:
    rules = rule("a", priority="low"), rule("b", priority="low", shed="deny", key=["resource"])
    answer, store, degraded = await answered(tmp_path, *rules)
    assert (answer.allowed, answer.reason, answer.rule, answer.retry_after_ms) == (False, Reason.SHED, "b", 1000)
    assert (store.checks, degraded) == ([], {"shed": 1})


@pytest.mark.parametrize("priority", ["normal", "critical"])
async def test_a_rule_that_matters_keeps_a_check_from_being_shed(tmp_path: Path, priority: str) -> None:
    rules = rule("a", priority="low", shed="deny"), rule("b", priority=priority)
    answer, store, degraded = await answered(tmp_path, *rules)
    assert (answer.allowed, answer.reason, answer.degraded) == (True, Reason.OK, False)
    assert (len(store.checks), degraded) == (1, {})


async def test_a_rule_without_a_limit_keeps_a_check_from_being_shed_too(tmp_path: Path) -> None:
    free = {"id": "free", "match": {}, "key": ["client_key"], "unlimited": True}
    answer, store, _ = await answered(tmp_path, rule("a", priority="low"), free)
    assert (answer.reason, len(store.checks)) == (Reason.OK, 1)


@pytest.mark.parametrize(
    ("fields", "cost", "reason"),
    [({"capacity": 0}, 1, Reason.ZERO_LIMIT), ({}, 11, Reason.EXCEEDS_CAPACITY)],
)
async def test_shedding_never_allows_what_no_bucket_would(
    tmp_path: Path, fields: dict[str, Any], cost: int, reason: Reason
) -> None:
    answer, _, _ = await answered(tmp_path, rule("a", priority="low", **fields), cost=cost)
    assert (answer.allowed, answer.reason, answer.retry_after_ms) == (False, reason, None)


async def test_what_is_shed_is_counted_by_its_rule_and_owed_to_nobody(tmp_path: Path) -> None:
    store = PromptStore(crowded=True)
    rules = blob_of(rule("a", priority="low"), rule("b", priority="low", match={"tier": "x"}, shed="deny"))
    async with running(store, tmp_path, rules) as limiter:
        await limiter.check(check(cost=3))
        await limiter.check(check(attributes={"tier": "x"}))
        await limiter.peek(check())
        assert limiter.status().degraded == {"shed": 3}
        store.crowded = False
        assert (await limiter.check(check())).reason is Reason.OK
    usage = store.beats[-1].usage
    a, b = usage["default/a"], usage["default/b"]
    assert (a.allowed, a.allowed_cost, a.denied, a.degraded) == (2, 4, 0, 1)
    assert (b.allowed, b.denied, b.degraded) == (0, 1, 1)
    assert [[call.cost for call in calls] for calls, _ in store.checks] == [[1]]


async def test_what_the_node_knows_by_itself_is_not_shed(tmp_path: Path) -> None:
    store = PromptStore(default=deny())
    async with running(store, tmp_path, blob_of(rule("a", priority="low"))) as limiter:
        await limiter.check(check())
        store.crowded = True
        answer = await limiter.check(check())
    assert (answer.allowed, answer.reason, answer.degraded) == (False, Reason.LIMITED, False)


async def test_a_store_that_is_awaited_has_a_bound_as_well_and_beyond_it_the_rule_decides(tmp_path: Path) -> None:
    store = FakeStore(default=allow(), stuck=asyncio.Event())
    rules = (
        rule("low", match={"tier": "low"}, priority="low"),
        rule("open", match={"tier": "open"}, on_store_failure="open"),
        rule("shut", match={"tier": "shut"}, on_store_failure="closed"),
    )
    async with running(store, tmp_path, blob_of(*rules), deadline_s=5) as limiter:
        limiter._calls._submitting = InTasks(store, 5, tasks_most=4)

        def ask(client: str, tier: str) -> asyncio.Task[Answer]:
            return asyncio.create_task(limiter.check(check(client, attributes={"tier": tier})))

        waiting = [ask("a", "open") for _ in range(3)]
        await asyncio.sleep(0)
        waiting.append(ask("b", "low"))
        await asyncio.sleep(0)
        assert not any(task.done() for task in waiting)
        assert (await ask("c", "low")).reason is Reason.SHED
        over, shut = await ask("d", "open"), await ask("e", "shut")
        assert (over.allowed, over.reason, over.degraded) == (True, Reason.OK, True)
        assert (shut.allowed, shut.reason) == (False, Reason.STORE_UNAVAILABLE)
        assert limiter.status().degraded == {"shed": 1, "queue_full": 2}
        store.stuck.set()
        assert all(answer.allowed and not answer.degraded for answer in await asyncio.gather(*waiting))
