"""Shadow, soft and canary rules: who is heard, who is charged, what is counted."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from time import time_ns
from typing import Any

import pytest

from regional_limiter.in_process import in_memory
from regional_limiter.limiter import Limiter
from regional_limiter.model.decision import COST_MOST, Answer, Check, Reason
from regional_limiter.model.errors import StoreUnavailable
from regional_limiter.shadow import EXAMPLES_MOST
from regional_limiter.store.memory import MemoryStore
from tests.unit.limiter_store import TIMES, FakeStore, PromptStore, allow, blob_of, check, deny, rule, running

DOWN = StoreUnavailable("timeout")


def asked(store: FakeStore) -> list[list[str]]:
    """The rules of each call to the store."""
    return [[call.key.rpartition("/")[2].partition(":")[0] for call in calls] for calls, _ in store.checks]


def who(client: str, cost: int = 1, **attributes: str) -> Check:
    return Check("default", {"client_key": client, "resource": "GET /", **attributes}, cost)


async def ask(limiter: Limiter, times: int, client: str = "alice") -> list[bool]:
    answers = [(await limiter.check(who(client))).allowed for _ in range(times)]
    await asyncio.sleep(0)
    return answers


def plain(answer: Answer) -> tuple[Any, ...]:
    return answer.allowed, answer.reason, answer.rule, answer.limit, answer.remaining, len(answer.verdicts)


# ---- shadow


async def test_a_shadow_rule_changes_no_answer_and_no_other_rules_charge(tmp_path: Path) -> None:
    store = PromptStore({"s": deny()})
    async with running(store, tmp_path, blob_of(rule("s", mode="shadow"), rule("a"))) as limiter:
        answer = await limiter.check(check(cost=3))
    assert plain(answer) == (True, Reason.OK, "a", 10, 5, 1)
    assert (asked(store), store.refunds) == ([["a"], ["s"]], [])


async def test_a_shadow_rule_alone_leaves_the_answer_as_without_it(tmp_path: Path) -> None:
    store = PromptStore({"s": deny()})
    async with running(store, tmp_path, blob_of(rule("s", mode="shadow"))) as limiter:
        assert (await limiter.check(check())).reason is Reason.NO_RULE
    assert asked(store) == [["s"]]


async def test_a_shadow_rule_sees_only_what_the_others_allow(tmp_path: Path) -> None:
    store = PromptStore({"a": deny()})
    async with running(store, tmp_path, blob_of(rule("a"), rule("s", mode="shadow"))) as limiter:
        assert not (await limiter.check(check())).allowed
        await limiter.peek(check())
    assert ["s"] not in asked(store)


async def test_a_shadow_rule_is_counted_beside_its_own_row(tmp_path: Path) -> None:
    store = PromptStore({"s": deny()})
    async with running(store, tmp_path, blob_of(rule("s", mode="shadow"))) as limiter:
        await limiter.check(check(cost=4))
        store.says["s"] = allow()
        await limiter.check(check(cost=2))
        store.says["s"] = DOWN
        await limiter.check(check())
        counted = limiter.status().shadows["default/s"]
    assert (counted.would_allow, counted.would_deny, counted.would_deny_cost, counted.undecided) == (1, 1, 4, 1)
    usage = store.beats[-1].usage
    assert "default/s" not in usage
    row = usage["default/s#shadow"]
    assert (row.allowed, row.allowed_cost, row.denied, row.denied_cost) == (1, 2, 1, 4)


async def test_examples_are_the_last_keys_denied_and_bounded(tmp_path: Path) -> None:
    store = PromptStore({"s": deny(), "h": deny()})
    rules = blob_of(rule("s", mode="shadow"), rule("h", mode="shadow", hash_key=True))
    async with running(store, tmp_path, rules) as limiter:
        for number in range(EXAMPLES_MOST + 5):
            await limiter.check(check(f"user:{number}"))
        await limiter.check(check("user:9"))
        counts = limiter.status().shadows
    assert list(counts["default/s"].examples.items())[-2:] == [("user%3A14", 1), ("user%3A9", 2)]
    assert len(counts["default/s"].examples) == EXAMPLES_MOST
    assert all(key.startswith("#") for key in counts["default/h"].examples)


async def test_a_repeated_request_is_asked_of_the_shadow_under_a_name_of_its_own(tmp_path: Path) -> None:
    store = PromptStore()
    async with running(store, tmp_path, blob_of(rule("a"), rule("s", mode="shadow"))) as limiter:
        await limiter.check(check(request_id="r1"))
        await limiter.refund(check(request_id="r1"))
        await asyncio.sleep(0)
    assert [request for _, request in store.checks] == ["r1", "r1\0~s"]
    assert sorted(str(request) for _, request in store.refunds) == ["r1", "r1\0~s"]


async def test_a_cost_that_only_a_shadow_rule_cannot_read_is_no_fault_of_the_check(tmp_path: Path) -> None:
    store = PromptStore()
    measured = rule("s", mode="shadow", cost={"attribute": "size"})
    async with running(store, tmp_path, blob_of(rule("a"), measured)) as limiter:
        assert (await limiter.check(check(attributes={"size": "large"}))).allowed
        await limiter.check(check(attributes={"size": "7"}))
    assert [[call.cost for call in calls] for calls, _ in store.checks] == [[1], [1], [7]]


async def test_a_cost_that_a_shadow_rule_makes_too_large_stops_neither_check_nor_refund(tmp_path: Path) -> None:
    store = PromptStore()
    async with running(store, tmp_path, blob_of(rule("a"), rule("s", mode="shadow", cost=5))) as limiter:
        assert (await limiter.check(check(cost=COST_MOST))).allowed
        await limiter.refund(check(cost=COST_MOST))
        assert limiter.status().shadows["default/s"].undecided == 1
    assert [[call.cost for call in calls] for calls, _ in store.refunds] == [[COST_MOST]]


async def test_a_blocked_key_of_a_shadow_rule_is_only_counted(tmp_path: Path) -> None:
    store = PromptStore()
    block = {"rule": "s", "key": {"client_key": "alice"}, "block": True}
    async with running(store, tmp_path, blob_of(rule("s", mode="shadow"), overrides=[block])) as limiter:
        assert (await limiter.check(check())).allowed
        assert limiter.status().shadows["default/s"].would_deny == 1
    assert store.checks == []


async def test_a_crowded_store_is_not_asked_by_shadows(tmp_path: Path) -> None:
    store = PromptStore(crowded=True)
    async with running(store, tmp_path, blob_of(rule("a"), rule("s", mode="shadow"))) as limiter:
        assert (await limiter.check(check())).allowed
        assert limiter.status().shadows["default/s"].undecided == 1
    assert asked(store) == [["a"]]


def window(mode: str, limit: int = 3) -> dict[str, Any]:
    return {"id": "w", "algorithm": "fixed_window", "limit": limit, "window": "1h", "mode": mode}


@pytest.mark.parametrize(
    ("mode", "allowed", "reasons"),
    [
        ("enforce", [True] * 3 + [False] * 2, [Reason.OK] * 3 + [Reason.LIMITED] * 2),
        ("soft", [True] * 5, [Reason.OK] * 3 + [Reason.SOFT_LIMITED] * 2),
        ("shadow", [True] * 5, [Reason.NO_RULE] * 5),
    ],
)
async def test_one_limit_in_each_mode(mode: str, allowed: Sequence[bool], reasons: Sequence[Reason]) -> None:
    async with in_memory({"rules": [window(mode)]}) as limiter:
        answers = [await limiter.check(who("alice")) for _ in range(5)]
        await asyncio.sleep(0.01)
        shadow = limiter.status().shadows.get("default/w")
    assert ([answer.allowed for answer in answers], [answer.reason for answer in answers]) == (allowed, reasons)
    assert (shadow is None) is (mode != "shadow")
    if shadow is not None:
        assert (shadow.would_allow, shadow.would_deny) == (3, 2)


async def test_a_promotion_keeps_what_the_shadow_counted(tmp_path: Path) -> None:
    store = MemoryStore(lambda: time_ns() // 1000, TIMES)
    async with running(store, tmp_path, blob_of(window("shadow"))) as limiter:
        await ask(limiter, 2)
        await asyncio.sleep(0.01)
    async with running(store, tmp_path, blob_of(window("enforce"), version=2)) as limiter:
        assert await ask(limiter, 2) == [True, False]


# ---- soft


async def test_a_soft_denial_spares_no_other_rule_its_charge(tmp_path: Path) -> None:
    store = PromptStore({"soft": deny(), "a": allow(0)})
    async with running(store, tmp_path, blob_of(rule("a"), rule("soft", mode="soft"))) as limiter:
        answer = await limiter.check(check())
    assert (asked(store), store.refunds) == ([["a"], ["soft"]], [])
    assert plain(answer) == (True, Reason.SOFT_LIMITED, "soft", 10, 0, 2)
    assert answer.retry_after_ms == 0
    usage = store.beats[-1].usage
    assert (usage["default/a"].allowed, usage["default/soft#soft"].denied) == (1, 1)
    assert "default/soft" not in usage


async def test_what_a_soft_rule_was_charged_is_given_back_when_another_denies(tmp_path: Path) -> None:
    store = PromptStore({"a": deny(700)})
    async with running(store, tmp_path, blob_of(rule("a"), rule("soft", mode="soft"))) as limiter:
        answer = await limiter.check(check())
        store.says["soft"] = deny()
        await limiter.check(check())
    assert (answer.allowed, answer.rule, answer.retry_after_ms) == (False, "a", 700)
    assert [[call.key.rpartition("/")[2] for call in calls] for calls, _ in store.refunds] == [["soft:alice"]]


async def test_a_remembered_denial_of_a_soft_rule_still_lets_pass(tmp_path: Path) -> None:
    store = PromptStore({"soft": deny()})
    async with running(store, tmp_path, blob_of(rule("soft", mode="soft"))) as limiter:
        answers = [await limiter.check(check()) for _ in range(3)]
    assert {answer.reason for answer in answers} == {Reason.SOFT_LIMITED}
    assert len(store.checks) == 1


async def test_without_the_store_a_soft_rule_still_lets_pass_and_the_others_decide(tmp_path: Path) -> None:
    store = PromptStore(default=DOWN)
    rules = blob_of(rule("a", capacity=2), rule("soft", mode="soft", on_store_failure="closed"))
    async with running(store, tmp_path, rules) as limiter:
        answers = [await limiter.check(check()) for _ in range(3)]
    assert [answer.allowed for answer in answers] == [True, True, False]
    assert answers[0].reason is Reason.SOFT_LIMITED


async def test_a_block_is_a_block_also_of_a_soft_rule(tmp_path: Path) -> None:
    block = {"rule": "a", "key": {"client_key": "alice"}, "block": True}
    async with running(PromptStore(), tmp_path, blob_of(rule("a", mode="soft"), overrides=[block])) as limiter:
        assert (await limiter.check(check())).reason is Reason.BLOCKED


# ---- canary


async def test_a_canary_meets_its_part_of_the_keys_and_the_same_ones_again(tmp_path: Path) -> None:
    store = PromptStore()
    rules = blob_of(rule("a", canary={"percent": 25, "capacity": 30}))

    async def canaries() -> set[str]:
        async with running(store, tmp_path, rules) as limiter:
            return {f"u{n}" for n in range(1000) if (await limiter.check(check(f"u{n}"))).limit == 30}

    first = await canaries()
    assert 190 < len(first) < 310
    assert first == await canaries()
    usage = store.beats[-1].usage
    assert (usage["default/a"].allowed, usage["default/a#canary"].allowed) == (1000, len(first))


@pytest.mark.parametrize(("percent", "met"), [(0, 0), (100, 50), (100.0, 50)])
async def test_none_and_all_of_the_keys(tmp_path: Path, percent: float, met: int) -> None:
    rules = blob_of(rule("a", canary={"percent": percent, "refill": "3/s", "capacity": 7}))
    async with running(PromptStore(), tmp_path, rules) as limiter:
        limits = [(await limiter.check(check(f"u{n}"))).limit for n in range(50)]
    assert limits.count(7) == met


async def test_a_canary_may_enforce_what_is_a_shadow_for_the_others(tmp_path: Path) -> None:
    store = PromptStore(default=deny())
    rules = blob_of(rule("a", mode="shadow", canary={"percent": 50, "mode": "enforce"}))
    async with running(store, tmp_path, rules) as limiter:
        allowed = [(await limiter.check(check(f"u{n}"))).allowed for n in range(200)]
    assert 60 < allowed.count(False) < 140


async def test_an_override_wins_over_the_canary(tmp_path: Path) -> None:
    override = {"rule": "a", "key": {"client_key": "alice"}, "capacity": 77}
    rules = blob_of(rule("a", canary={"percent": 100, "capacity": 30}), overrides=[override])
    async with running(PromptStore(), tmp_path, rules) as limiter:
        assert (await limiter.check(check())).limit == 77
