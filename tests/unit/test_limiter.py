"""A node's limiter over a store that says what the test wants."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from regional_limiter.model.decision import Check, Reason, ShareKind
from regional_limiter.model.errors import InvalidCheck, RulesUnavailable, StoreUnavailable
from regional_limiter.model.share import region_capacity
from regional_limiter.store.base import Sharing, TouchReply
from tests.unit.limiter_store import FakeStore, PromptStore, allow, blob_of, check, deny, rule, running

DOWN = StoreUnavailable("timeout")
NEVER_SENT = StoreUnavailable("disconnected", may_have_run=False)


async def until(holds: Callable[[], bool], store: FakeStore) -> None:
    """Wait over touches until ``holds()``."""
    async with asyncio.timeout(5):
        while not holds():
            store.touched.clear()
            await store.touched.wait()
            await asyncio.sleep(0)


# ---- several rules


async def test_no_matching_rule_asks_nobody(tmp_path: Path) -> None:
    store = FakeStore()
    async with running(store, tmp_path, blob_of(rule("a", match={"resource": "POST /"}))) as limiter:
        answer = await limiter.check(check())
    assert (answer.reason, store.checks) == (Reason.NO_RULE, [])


async def test_rules_of_one_client_are_one_call(tmp_path: Path) -> None:
    store = FakeStore()
    async with running(store, tmp_path, blob_of(rule("a"), rule("b"))) as limiter:
        await limiter.check(check())
    assert [[call.key.rpartition(":")[0][-9:] for call in calls] for calls, _ in store.checks] == [
        ["default/a", "default/b"]
    ]


async def test_what_another_slot_charged_is_given_back_when_one_denies(tmp_path: Path) -> None:
    store = FakeStore({"b": deny(700), "a": allow(4)})
    async with running(store, tmp_path, blob_of(rule("a"), rule("b", key=["resource"]))) as limiter:
        answer = await limiter.check(check(cost=3, request_id="r1"))
    assert (answer.allowed, answer.rule, answer.retry_after_ms) == (False, "b", 700)
    assert [([call.key for call in calls], request) for calls, request in store.refunds] == [
        ([store.checks[0][0][0].key], "r1")
    ]
    assert answer.verdicts[0].verdict.remaining == 7


async def test_a_rule_that_charges_denials_keeps_its_charge(tmp_path: Path) -> None:
    store = FakeStore({"b": deny()})
    rules = blob_of(rule("a", charge_denied=True), rule("b", key=["resource"]))
    async with running(store, tmp_path, rules) as limiter:
        await limiter.check(check())
    assert store.refunds == []


async def test_a_refund_that_fails_is_counted_and_changes_no_answer(tmp_path: Path) -> None:
    store = FakeStore({"b": deny()}, refund_error=DOWN)
    async with running(store, tmp_path, blob_of(rule("a"), rule("b", key=["resource"]))) as limiter:
        assert not (await limiter.check(check())).allowed
        await limiter.stop()
        assert limiter.status().refunds_dropped == 1


async def test_a_peek_costs_nothing_and_names_no_request(tmp_path: Path) -> None:
    store = FakeStore()
    async with running(store, tmp_path, blob_of(rule("a"))) as limiter:
        await limiter.peek(check(cost=5, request_id="r1"))
    assert [(calls[0].cost, request) for calls, request in store.checks] == [(0, None)]
    assert store.beats[-1].usage == {}


# ---- rules that do not limit, costs


async def test_a_blocked_key_asks_nobody_and_is_counted_as_denied(tmp_path: Path) -> None:
    store = FakeStore()
    blob = blob_of(rule("a"), rule("b"), overrides=[{"rule": "a", "key": {"client_key": "alice"}, "block": True}])
    async with running(store, tmp_path, blob) as limiter:
        denied, peeked, other = (
            await limiter.check(check()),
            await limiter.peek(check()),
            await limiter.check(check("b")),
        )
        await limiter.refund(check())
    assert (denied.allowed, denied.reason, denied.retry_after_ms) == (False, Reason.BLOCKED, None)
    assert (peeked.reason, other.allowed, store.refunds) == (Reason.BLOCKED, True, [])
    assert [len(calls) for calls, _ in store.checks] == [2]
    usage = store.beats[-1].usage["default/a"]
    assert (usage.denied, usage.denied_cost, usage.allowed) == (1, 1, 1)


async def test_an_unlimited_rule_counts_what_passes_and_never_limits(tmp_path: Path) -> None:
    store = FakeStore({"a": deny()})
    free = {"id": "free", "match": {}, "key": ["client_key"], "unlimited": True, "cost": 4}
    blob = blob_of(free, rule("a", match={"tier": "x"}))
    async with running(store, tmp_path, blob) as limiter:
        answer = await limiter.check(check())
        await limiter.peek(check())
        limited = await limiter.check(check(attributes={"tier": "x"}))
    assert (answer.allowed, answer.reason, answer.rule) == (True, Reason.OK, "free")
    assert (answer.limit, answer.remaining, answer.verdicts) == (None, None, ())
    assert (limited.allowed, limited.rule) == (False, "a")
    usage = store.beats[-1].usage["default/free"]
    assert (usage.allowed, usage.allowed_cost, usage.denied) == (1, 5, 0)


async def test_a_rule_is_charged_refunded_and_counted_at_its_own_cost(tmp_path: Path) -> None:
    store = FakeStore()
    blob = blob_of(rule("a", cost=5), rule("b"), rule("c", cost={"attribute": "size", "per": 10}))
    async with running(store, tmp_path, blob) as limiter:
        await limiter.check(check(cost=2, attributes={"size": "95"}))
        await limiter.refund(check(cost=2, attributes={"size": "95"}))
        with pytest.raises(InvalidCheck):
            await limiter.check(check(attributes={"size": "big"}))
        with pytest.raises(InvalidCheck):
            await limiter.check(check(cost=2**31 - 1))
    assert [[call.cost for call in calls] for calls, _ in store.checks] == [[7, 2, 10]]
    assert [[call.cost for call in calls] for calls, _ in store.refunds] == [[7, 2, 10]]
    assert store.beats[-1].usage["default/a"].allowed_cost == 7


# ---- denials that are remembered


async def test_a_client_that_floods_is_denied_without_asking_and_still_counted(tmp_path: Path) -> None:
    store = FakeStore(default=deny(60_000))
    async with running(store, tmp_path, blob_of(rule("a"))) as limiter:
        answers = [await limiter.check(check()) for _ in range(20)]
    assert not any(answer.allowed for answer in answers)
    assert len(store.checks) < 10
    assert store.beats[-1].usage["default/a"].denied == 20


@pytest.mark.parametrize(
    ("verdict", "other"),
    [
        (deny(60_000), check(cost=2)),  # another cost has another wait
        (deny(60_000), check(request_id="r1")),
        (deny(60_000), check("bob")),
        (deny(None, Reason.EXCEEDS_CAPACITY), check()),
        (allow(), check()),
    ],
)
async def test_everything_else_is_asked(tmp_path: Path, verdict: Any, other: Check) -> None:
    store = FakeStore(default=verdict)
    async with running(store, tmp_path, blob_of(rule("a"))) as limiter:
        await limiter.check(check())
        await limiter.check(other)
    assert len(store.checks) == 2


async def test_one_of_several_rules_is_not_remembered_because_another_may_wait_longer(tmp_path: Path) -> None:
    store = FakeStore({"a": deny(60_000)})
    async with running(store, tmp_path, blob_of(rule("a"), rule("b"))) as limiter:
        await limiter.check(check())
        store.says["b"] = deny(90_000)
        assert (await limiter.check(check())).rule == "b"


async def test_a_denial_does_not_outlive_a_refund_or_a_raised_limit(tmp_path: Path) -> None:
    store = FakeStore(default=deny(60_000))
    async with running(store, tmp_path, blob_of(rule("a"), version=1)) as limiter:
        await limiter.check(check())
        store.default = allow()
        await limiter.refund(check())
        assert (await limiter.check(check())).allowed
        store.default = deny(60_000)
        await limiter.check(check())
        store.default = allow()
        store.blob, store.reply = blob_of(rule("a", capacity=99), version=2), TouchReply(0, 2, -1, {}, 1)
        await until(lambda: limiter.status().rules_version == 2, store)
        assert (await limiter.check(check())).allowed


async def test_a_denial_that_was_under_way_while_the_limit_was_raised_is_not_remembered(tmp_path: Path) -> None:
    store = FakeStore(default=deny(60_000), stuck=asyncio.Event())
    async with running(store, tmp_path, blob_of(rule("a"), version=1), deadline_s=5) as limiter:
        asked = asyncio.create_task(limiter.check(check()))
        await until(lambda: bool(store.checks), store)
        store.blob, store.reply = blob_of(rule("a", capacity=99), version=2), TouchReply(0, 2, -1, {}, 1)
        await until(lambda: limiter.status().rules_version == 2, store)
        assert store.stuck is not None
        store.stuck.set()
        assert not (await asked).allowed
        store.default = allow()
        assert (await limiter.check(check())).allowed


# ---- without the store


async def test_a_store_that_fails_is_answered_by_the_rule_and_counted(tmp_path: Path) -> None:
    store = FakeStore(
        {"local": NEVER_SENT, "open": DOWN, "closed": DOWN},
    )
    rules = blob_of(
        *(
            rule(mode, match={"resource": mode}, on_store_failure=mode, capacity=1, refill="1/h")
            for mode in ("local", "open", "closed")
        )
    )
    async with running(store, tmp_path, rules) as limiter:

        async def ask(mode: str) -> tuple[bool, Reason, bool]:
            answer = await limiter.check(check(attributes={"resource": mode}))
            return answer.allowed, answer.reason, answer.degraded

        assert [await ask("local") for _ in range(2)] == [(True, Reason.OK, True), (False, Reason.LIMITED, True)]
        assert [await ask("open") for _ in range(2)] == [(True, Reason.OK, True)] * 2
        assert await ask("closed") == (False, Reason.STORE_UNAVAILABLE, True)
        assert limiter.status().degraded == {"disconnected": 2, "timeout": 3}
    assert store.beats[-1].usage["default/local"].degraded == 2


async def test_one_slot_down_leaves_the_other_to_the_store(tmp_path: Path) -> None:
    store = FakeStore({"a": DOWN, "b": deny(700)})
    async with running(store, tmp_path, blob_of(rule("a", capacity=1), rule("b", key=["resource"]))) as limiter:
        first = await limiter.check(check())
        store.says["b"] = allow()
        second = await limiter.check(check())
    assert (first.allowed, first.rule, first.degraded) == (False, "b", True)
    # The local bucket was not charged for what the other rule denied.
    assert second.allowed


async def test_a_store_that_is_stuck_is_given_up_at_the_deadline(tmp_path: Path) -> None:
    store = FakeStore(stuck=asyncio.Event())
    async with running(store, tmp_path, blob_of(rule("a")), deadline_s=0.01) as limiter:
        answer = await limiter.check(check())
        assert (answer.allowed, answer.degraded) == (True, True)
        assert limiter.status().degraded == {"deadline": 1}


async def test_what_was_decided_without_a_call_is_charged_when_the_store_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("regional_limiter.debt_payments.PAY_EVERY_S", 0.001)
    store = PromptStore(default=NEVER_SENT)
    async with running(store, tmp_path, blob_of(rule("a", refill="1/h"))) as limiter:
        for _ in range(3):
            await limiter.check(check(cost=2))
        await limiter.check(check(cost=2, request_id="may come again"))
        store.default = DOWN
        await limiter.check(check(cost=1))
        sent = len(store.checks)
        store.default = allow()
        await until(lambda: len(store.checks) > sent, store)
        await until(lambda: not limiter._fallback.owes, store)
    assert [(call.cost, call.charge_denied) for calls, _ in store.checks[-1:] for call in calls] == [(6, True)]


async def test_what_is_owed_is_charged_before_a_node_ends(tmp_path: Path) -> None:
    store = PromptStore(default=NEVER_SENT)
    async with running(store, tmp_path, blob_of(rule("a", refill="1/h"))) as limiter:
        await limiter.check(check(cost=2))
        store.default = allow()
        await limiter.stop()
        assert not limiter._fallback.owes
    assert [call.cost for calls, _ in store.checks for call in calls] == [2, 2]


async def test_a_node_ends_although_what_it_owes_cannot_be_charged(tmp_path: Path) -> None:
    store = PromptStore(default=NEVER_SENT)
    async with running(store, tmp_path, blob_of(rule("a", refill="1/h"))) as limiter:
        await limiter.check(check(cost=2))
        await limiter.stop()
        assert limiter._fallback.owes
    assert len(store.checks) == 2


async def test_an_unexpected_error_is_never_an_allow(tmp_path: Path) -> None:
    store = FakeStore()
    async with running(store, tmp_path, blob_of(rule("a"))) as limiter:
        store.says = None  # type: ignore[assignment]
        with pytest.raises(AttributeError):
            await limiter.check(check())


async def test_an_undelivered_refund_is_told(tmp_path: Path) -> None:
    store = FakeStore(refund_error=DOWN)
    async with running(store, tmp_path, blob_of(rule("a"))) as limiter:
        with pytest.raises(StoreUnavailable):
            await limiter.refund(check())


# ---- validation


@pytest.mark.parametrize("cost", [-1, 2**31, 1.0, True, "1", None])
async def test_a_cost_that_is_no_count_of_tokens_is_refused(tmp_path: Path, cost: Any) -> None:
    async with running(FakeStore(), tmp_path, blob_of(rule("a"))) as limiter:
        with pytest.raises(InvalidCheck) as caught:
            await limiter.check(check(cost=cost))
    assert caught.value.field == "cost"


@pytest.mark.parametrize("value", ["x" * 1025, "é" * 513, "\ud800"])
async def test_a_value_that_is_too_long_or_no_text_is_refused(tmp_path: Path, value: str) -> None:
    async with running(FakeStore(), tmp_path, blob_of(rule("a"))) as limiter:
        with pytest.raises(InvalidCheck) as caught:
            await limiter.check(check(client=value))
    assert caught.value.field == "client_key"


@pytest.mark.parametrize("value", ["a b", "a\n", "{x}", "u:1", "🙂", "x" * 1024, "é" * 512])
async def test_any_text_within_the_bound_is_a_key(tmp_path: Path, value: str) -> None:
    store = FakeStore()
    async with running(store, tmp_path, blob_of(rule("a"))) as limiter:
        assert (await limiter.check(check(client=value))).allowed
        await limiter.check(check(client=value + "."[: 1024 - len(value.encode())]))
    assert len({calls[0].key for calls, _ in store.checks}) == (1 if len(value.encode()) == 1024 else 2)


# ---- rules


async def test_a_node_without_rules_is_not_ready(tmp_path: Path) -> None:
    async with running(FakeStore(), tmp_path, None) as limiter:
        assert not limiter.ready


async def test_a_node_whose_store_is_down_starts_from_its_disk(tmp_path: Path) -> None:
    store = FakeStore(default=DOWN, touch_error=DOWN)
    bases = {"base_version": 3, "bases": {"default": 5000}}
    async with running(store, tmp_path, blob_of(rule("a"), version=9), bases) as limiter:
        assert limiter.ready
        assert (await limiter.check(check())).degraded
        status = limiter.status()
    assert (status.rules_version, status.base_version) == (9, 3)


async def test_newer_rules_of_a_point_are_on_disk_and_in_force(tmp_path: Path) -> None:
    store = FakeStore(blob=blob_of(rule("a", capacity=77), version=4), reply=TouchReply(0, 4, -1, {}, 1))
    async with running(store, tmp_path, blob_of(rule("a"), version=3)) as limiter:
        await until(lambda: limiter.status().rules_version == 4, store)
        assert (await limiter.check(check())).limit == 77
        await until(lambda: store.beats[-1].rules_version == 4, store)
    assert json.loads((tmp_path / "node-n1" / "rules.json").read_bytes())["version"] == 4


async def test_kgateway_2832_a_refused_set_leaves_the_old_one_in_force(tmp_path: Path) -> None:
    store = FakeStore(blob=blob_of(rule("a"), rule("a"), version=4), reply=TouchReply(0, 4, -1, {}, 1))
    async with running(store, tmp_path, blob_of(rule("a", capacity=33), version=3)) as limiter:
        await until(lambda: limiter.status().refused_sets > 0, store)
        assert (await limiter.check(check())).limit == 33
        seen = len(store.beats)
        await until(lambda: len(store.beats) > seen + 3, store)
        assert (limiter.status().rules_version, limiter.status().refused_sets) == (3, 1)
    assert json.loads((tmp_path / "node-n1" / "rules.json").read_bytes())["version"] == 3


@pytest.mark.parametrize("bad", [blob_of(rule("a"), rule("a")), b"{", b'{"version": 1}', b"[]", b"\xff"])
async def test_kgateway_2832_a_cold_start_with_only_a_bad_set_is_not_ready(tmp_path: Path, bad: bytes) -> None:
    async with running(FakeStore(), tmp_path, bad) as limiter:
        assert not limiter.ready
        assert limiter.status().refused_sets == 1


async def test_one_domain_refused_does_not_keep_the_others_back(tmp_path: Path) -> None:
    good = json.loads(blob_of(rule("a", capacity=50), version=4))
    good["sets"]["other"] = json.loads(blob_of(rule("a"), rule("a"), domain="other"))["sets"]["other"]
    store = FakeStore(blob=json.dumps(good).encode(), reply=TouchReply(0, 4, -1, {}, 1))
    async with running(store, tmp_path, blob_of(rule("a"), version=3)) as limiter:
        await until(lambda: limiter.status().refused_sets > 0, store)
        assert (await limiter.check(check())).limit == 50


def with_refused(version: int, capacity: int = 50) -> bytes:
    """A blob whose set of ``default`` is right and whose set of ``other`` is wrong."""
    both = json.loads(blob_of(rule("a", capacity=capacity), version=version))
    both["sets"]["other"] = json.loads(blob_of(rule("a"), rule("a"), version=version, domain="other"))["sets"][
        "other"
    ]
    return json.dumps(both).encode()


async def test_a_domain_whose_rules_cannot_be_read_is_not_allowed_as_one_without_rules(tmp_path: Path) -> None:
    store = FakeStore(blob=with_refused(4), reply=TouchReply(0, 4, -1, {}, 1))
    other = replace(check(), domain="other")
    async with running(store, tmp_path, None) as limiter:
        await until(lambda: limiter.ready, store)
        assert (await limiter.check(check())).allowed
        for ask in (limiter.check, limiter.peek, limiter.refund):
            with pytest.raises(RulesUnavailable):
                await ask(other)
        assert list(limiter.status().refused_domains) == ["other"]
    # The same from disk, with nobody to ask.
    async with running(FakeStore(touch_error=DOWN), tmp_path, None) as limiter:
        assert (await limiter.check(check())).limit == 50
        with pytest.raises(RulesUnavailable):
            await limiter.check(other)


async def test_a_restart_keeps_the_old_set_of_a_refused_domain_and_the_new_ones_of_the_others(
    tmp_path: Path,
) -> None:
    both = json.loads(blob_of(rule("a"), version=3))
    both["sets"]["other"] = json.loads(blob_of(rule("a", capacity=33), version=3, domain="other"))["sets"]["other"]
    store = FakeStore(blob=with_refused(4), reply=TouchReply(0, 4, -1, {}, 1))
    other = replace(check(), domain="other")
    async with running(store, tmp_path, json.dumps(both).encode()) as limiter:
        await until(lambda: limiter.status().refused_sets > 0, store)
        assert (await limiter.check(other)).limit == 33
    async with running(FakeStore(touch_error=DOWN), tmp_path, None) as limiter:
        assert [(await limiter.check(asked)).limit for asked in (check(), other)] == [50, 33]
        assert limiter.status().rules_version == 3


@pytest.mark.parametrize("where", ["fetch_rules", "compile"])
async def test_an_error_that_nobody_foresaw_in_new_rules_is_logged_once_and_not_tried_at_every_touch(
    tmp_path: Path, where: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tried = []

    def fail(*_: object) -> None:
        tried.append(1)
        raise RecursionError("too deep")

    async with running(
        FakeStore(blob=blob_of(rule("a"), version=3)), tmp_path, blob_of(rule("a"), version=3)
    ) as limiter:
        store = limiter._store
        assert isinstance(store, FakeStore)
        if where == "compile":
            monkeypatch.setattr("regional_limiter.node_rules.compile_rules", fail)
        else:
            monkeypatch.setattr(store, "fetch_rules", fail)
        store.blob, store.reply = blob_of(rule("a"), version=4), TouchReply(0, 4, -1, {}, 1)
        await until(lambda: limiter.status().refused_sets > 0, store)
        seen = len(store.beats)
        await until(lambda: len(store.beats) > seen + 3, store)
        assert (limiter.status().rules_version, len(tried)) == (3, 1)
        assert (await limiter.check(check())).allowed
    assert [record.exc_info is not None for record in caplog.records if "version 4" in record.message] == [True]


async def test_a_set_under_the_name_of_another_domain_is_refused(tmp_path: Path) -> None:
    stray = json.loads(blob_of(rule("a")))
    stray["sets"] = {"other": stray["sets"]["default"]}
    async with running(FakeStore(), tmp_path, json.dumps(stray).encode()) as limiter:
        assert not limiter.ready


# ---- bases


GLOBAL = {"scope": "global", "capacity": 100, "refill": "10/s"}


async def test_bases_travel_with_the_calls_of_global_rules(tmp_path: Path) -> None:
    store = FakeStore()
    rules = blob_of(rule("g", **GLOBAL), rule("s", distribution="static", **GLOBAL), rule("r"))
    async with running(store, tmp_path, rules, {"base_version": 3, "bases": {"default": 4000}}) as limiter:
        await limiter.check(check())
    called = {
        call.sharing: (call.base_version, call.base, call.regions, call.largest_share)
        for call in store.checks[0][0]
    }
    assert called == {
        Sharing.ADAPTIVE: (3, 4000, 2, 9900),
        Sharing.STATIC: (3, 4000, 2, 10_000),
        Sharing.WHOLE: (0, 10_000, 1, 10_000),
    }


async def test_before_any_base_is_known_a_region_has_none(tmp_path: Path) -> None:
    store = FakeStore()
    async with running(store, tmp_path, blob_of(rule("g", **GLOBAL))) as limiter:
        await limiter.check(check())
        assert limiter.status().base_version == -1
    assert [(call.base_version, call.base) for call in store.checks[0][0]] == [(0, 0)]
    assert store.beats[-1].base_version == -1


async def test_newer_bases_are_on_disk_before_a_beat_says_so(tmp_path: Path) -> None:
    store = FakeStore(reply=TouchReply(0, -1, 7, {"default": 6000}, 1))
    on_disk: list[tuple[int, bool]] = []
    path = tmp_path / "node-n1" / "bases.json"
    async with running(store, tmp_path, blob_of(rule("g", **GLOBAL))) as limiter:
        original = store.touch

        async def touch(point: str, beat: Any) -> TouchReply:
            on_disk.append((beat.base_version, path.exists()))
            return await original(point, beat)

        store.touch = touch  # type: ignore[method-assign]
        await until(lambda: bool(on_disk) and on_disk[-1][0] == 7, store)
        await limiter.check(check())
    assert all(exists for version, exists in on_disk if version == 7)
    assert (store.checks[-1][0][0].base_version, store.checks[-1][0][0].base) == (7, 6000)


async def test_a_region_that_is_taken_out_still_counts_so_that_capacities_never_sum_above_the_whole(
    tmp_path: Path,
) -> None:
    def of(version: int, *regions: str) -> bytes:
        blob = json.loads(blob_of(rule("g", scope="global", capacity=12, refill="1/s"), version=version))
        blob["sets"]["default"]["document"]["regions"] = dict.fromkeys(regions, 1)
        return json.dumps(blob).encode()

    store = FakeStore(blob=of(2, "us", "eu"), reply=TouchReply(0, 2, -1, {}, 1))
    async with running(store, tmp_path, of(1, "us", "eu", "ap")) as limiter:
        await until(lambda: limiter.status().rules_version == 2, store)
        await limiter.check(check())
    # Also on a node that starts with the new rules.
    async with running(store, tmp_path, None) as limiter:
        await limiter.check(check())
    calls = [calls[0] for calls, _ in store.checks]
    assert [call.regions for call in calls] == [3, 3]
    assert sum(region_capacity(12, share, calls[0].regions) for share in (5000, 3000, 2000)) <= 12


async def test_bases_that_cannot_be_stored_are_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: Path, content: bytes) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("regional_limiter.node_files.replace_file", fail)
    store = FakeStore(reply=TouchReply(0, -1, 7, {"default": 6000}, 1))
    async with running(store, tmp_path, blob_of(rule("g", **GLOBAL))) as limiter:
        seen = len(store.beats)
        await until(lambda: len(store.beats) > seen + 3, store)
        assert limiter.status().base_version == -1
    assert all(beat.base_version == -1 for beat in store.beats)


# ---- usage and demand


async def test_a_rule_counts_only_what_it_was_charged_for(tmp_path: Path) -> None:
    store = FakeStore({"b": deny()})
    async with running(store, tmp_path, blob_of(rule("a"), rule("b"))) as limiter:
        await limiter.check(check(cost=3))
        store.says["b"] = allow()
        await limiter.check(check(cost=2))
    usage = store.beats[-1].usage
    assert (usage["default/a"].allowed, usage["default/a"].allowed_cost, usage["default/a"].denied) == (1, 2, 0)
    assert (usage["default/b"].allowed, usage["default/b"].denied, usage["default/b"].denied_cost) == (1, 1, 3)


async def test_keys_of_all_rules_are_counted_for_as_much_as_their_rules_are(tmp_path: Path) -> None:
    store = FakeStore({"b": deny()})
    blocked = [{"rule": "a", "key": {"client_key": "mallory"}, "block": True}]
    rules = blob_of(rule("a"), rule("b", match={"resource": "GET /"}, scope="global"), overrides=blocked)
    async with running(store, tmp_path, rules) as limiter:
        await limiter.check(check(cost=3))
        store.says["b"] = allow()
        await limiter.check(check(cost=2))
        await limiter.check(check(client="mallory"))
    (window,) = store.beats[-1].windows.values()
    counted = {key.partition(":default/")[2]: (one.allowed_cost, one.denied_cost) for key, one in window.items()}
    assert counted == {"a:alice": (2, 0), "b:alice": (2, 3), "a:mallory": (0, 1)}


async def test_a_request_that_is_sent_again_is_counted_once(tmp_path: Path) -> None:
    store = FakeStore(default=allow(1))
    async with running(store, tmp_path, blob_of(rule("g", **GLOBAL))) as limiter:
        await limiter.check(check(request_id="r1"))
        store.default = replace(allow(1), replayed=True)
        assert (await limiter.check(check(request_id="r1"))).allowed
    assert store.beats[-1].usage["default/g"].allowed == 1
    assert [usage.allowed for usage in store.beats[-1].key_usage.values()] == [1]


async def test_what_is_given_back_names_the_whole_call_so_that_the_store_knows_the_request(tmp_path: Path) -> None:
    store = FakeStore({"b": deny()})
    rules = blob_of(rule("a"), rule("c", charge_denied=True), rule("b", key=["resource"]))
    async with running(store, tmp_path, rules) as limiter:
        await limiter.check(check(cost=3, request_id="r1"))
    assert [[call.cost for call in calls] for calls, _ in store.refunds] == [[3, 0]]
    asked = next(calls for calls, _ in store.checks if len(calls) == 2)
    assert [call.key for call in store.refunds[0][0]] == [call.key for call in asked]


async def test_a_breaker_that_is_open_shows_though_touches_are_answered(tmp_path: Path) -> None:
    store = FakeStore(broken=True)
    async with running(store, tmp_path, blob_of(rule("a"))) as limiter:
        await until(lambda: any(shard.answers for shard in limiter.status().shards), store)
        assert [shard.breaker for shard in limiter.status().shards] == ["open"]
        store.broken, store.touch_error = False, DOWN
        await until(lambda: not any(shard.answers for shard in limiter.status().shards), store)
        assert [shard.breaker for shard in limiter.status().shards] == ["closed"]
    assert {beat.library for beat in store.beats} == {"v"}


async def test_the_last_beat_holds_the_last_totals(tmp_path: Path) -> None:
    store = FakeStore()
    async with running(store, tmp_path, blob_of(rule("a"))) as limiter:
        for _ in range(40):
            await limiter.check(check())
    assert store.beats[-1].usage["default/a"].allowed == 40


@pytest.mark.parametrize(
    ("verdict", "offered"),
    [
        (allow(30, 5000, ShareKind.BASE), False),  # half of 50 and more is left
        (allow(20, 5000, ShareKind.BASE), True),
        (allow(80, 9000, ShareKind.LEASE), True),
        (allow(50, 5000, ShareKind.LEASE), False),  # a lease of just the base
        (replace(deny(), share=5000, share_kind=ShareKind.BASE), True),
        (replace(deny(None, Reason.EXCEEDS_CAPACITY), share=5000, share_kind=ShareKind.BASE), False),
    ],
)
async def test_only_interesting_keys_are_told_of(tmp_path: Path, verdict: Any, offered: bool) -> None:
    store = FakeStore(default=verdict)
    bases = {"base_version": 1, "bases": {"default": 5000}}
    async with running(store, tmp_path, blob_of(rule("g", **GLOBAL)), bases) as limiter:
        await until(lambda: limiter.status().shards[0].answers if limiter.status().shards else False, store)
        await limiter.check(check(cost=2))
        await limiter.check(check(cost=3))
        if offered:
            await asyncio.wait_for(store.offered.wait(), 5)
    assert [sum(costs.values()) for _, costs in store.offers] == ([5] if offered else [])


async def test_a_reset_gives_back_more_than_any_bucket_can_owe_and_forgets_denials(tmp_path: Path) -> None:
    store = FakeStore(default=deny(60_000))
    wide = {
        "id": "b",
        "match": {},
        "key": ["resource"],
        "algorithm": "fixed_window",
        "limit": 2**33,
        "window": "1h",
    }
    rules = blob_of(rule("a", capacity=5), wide)
    async with running(store, tmp_path, rules) as limiter:
        keys = await limiter.reset(check(cost=3))
        assert [key.rpartition(":")[0][-9:] for key in keys] == ["default/a", "default/b"]
        assert [(calls[0].key, calls[0].cost, request) for calls, request in store.refunds] == [
            (key, cost, None) for key, cost in zip(keys, (2**32 - 2, 2**34), strict=True) for _ in range(2)
        ]
        store.refund_error = DOWN
        with pytest.raises(StoreUnavailable):
            await limiter.reset(check())


async def test_a_denial_does_not_outlive_a_reset(tmp_path: Path) -> None:
    store = FakeStore(default=deny(60_000))
    async with running(store, tmp_path, blob_of(rule("a"))) as limiter:
        await limiter.check(check())
        store.default = allow()
        await limiter.reset(check())
        assert (await limiter.check(check())).allowed


async def test_an_inspection_charges_nothing_and_says_what_is_not_known(tmp_path: Path) -> None:
    store = FakeStore()
    async with running(store, tmp_path, blob_of(rule("a"), rule("b", key=[]))) as limiter:
        buckets = await limiter.inspect(check(cost=5))
        assert [(bucket.rule, bucket.limit, bucket.ttl_ms) for bucket in buckets] == [
            ("a", 10, 1234),
            ("b", 10, 1234),
        ]
        assert {calls[0].cost for calls, _ in store.checks} == {0}
        store.default, store.refund_error = DOWN, DOWN
        buckets = await limiter.inspect(check())
        assert [(bucket.verdict.degraded, bucket.ttl_ms) for bucket in buckets] == [(True, None)] * 2


async def test_a_check_by_callback_is_answered_once_and_says_what_nobody_foresaw(tmp_path: Path) -> None:
    store = FakeStore(stuck=asyncio.Event())
    told: list[Any] = []
    async with running(store, tmp_path, blob_of(rule("a")), deadline_s=5) as limiter:
        limiter.submit(check(), told.append)
        await until(lambda: bool(store.checks), store)
        assert told == []
        assert store.stuck is not None
        store.stuck.set()
        await until(lambda: bool(told), store)
        assert told[0].allowed
        store.says["a"] = KeyError("x")  # type: ignore[assignment]
        limiter.submit(check(), told.append)
        await until(lambda: len(told) > 1, store)
        assert isinstance(told[1], Exception)
        with pytest.raises(InvalidCheck):
            limiter.submit(check(cost=-1), told.append)
    assert len(told) == 2


@pytest.mark.parametrize("domain", ["", "No", "a b", "x" * 65])
async def test_a_domain_that_no_set_could_have_is_refused_and_an_unknown_one_is_not(
    tmp_path: Path, domain: str
) -> None:
    async with running(FakeStore(), tmp_path, blob_of(rule("a"))) as limiter:
        with pytest.raises(InvalidCheck) as caught:
            await limiter.check(replace(check(), domain=domain))
        assert caught.value.field == "domain"
        assert (await limiter.check(replace(check(), domain="unknown"))).reason is Reason.NO_RULE


async def test_what_redis_decides_at_the_floor_is_not_counted_as_its_fault(
    tmp_path: Path,
) -> None:
    floor = replace(allow(), share=66, share_kind=ShareKind.FLOOR)
    store = FakeStore({"a": floor})
    async with running(store, tmp_path, blob_of(rule("a", scope="global"))) as limiter:
        assert (await limiter.check(check())).degraded
        assert limiter.status().degraded == {"floor": 1}
    assert (store.beats[-1].usage["default/a"].degraded, store.beats[-1].usage["default/a"].at_floor) == (1, 1)


async def test_what_is_decided_without_redis_is_not_counted_as_at_the_floor(tmp_path: Path) -> None:
    store = FakeStore({"a": DOWN})
    async with running(store, tmp_path, blob_of(rule("a"))) as limiter:
        assert (await limiter.check(check())).degraded
    assert (store.beats[-1].usage["default/a"].degraded, store.beats[-1].usage["default/a"].at_floor) == (1, 0)
