"""Allowances that are told by their numbers alone: what a caller is told, and what is counted, is the same."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from regional_limiter.limiter import Limiter
from regional_limiter.model.decision import Answer, Check, Reason, ShareKind, Verdict
from regional_limiter.model.errors import InvalidCheck, OtherRequest, StoreUnavailable
from regional_limiter.plan import answer_in_full
from regional_limiter.store.base import Allowed, DecidedPlainly, TokenLease
from regional_limiter.store.library import decode_check, decode_plain_check
from tests.unit.limiter_store import Outcome, PromptStore, allow, blob_of, check, deny, rule, running

MUCH = allow(50_000)
LEASE = TokenLease(1000, 99, 3_600_000_000, 0, 50_000, 1000, 10_000, ShareKind.WHOLE, 0, 0)


class TerseStore(PromptStore):
    """Tells shortly what can be."""

    def submit_plainly(self, prepared: Any, done: DecidedPlainly) -> None:
        self.checks.append(prepared)
        told = self.told(prepared[0])
        if not isinstance(told, list) or any(
            verdict != Verdict(True, Reason.OK, verdict.remaining, 0, 1000) for verdict in told
        ):
            done(told)
        else:
            done(Allowed([verdict.remaining for verdict in told], [1000] * len(told)))


RULES = {
    "one": [rule("a", capacity=100_000)],
    "several": [rule(name, capacity=100_000) for name in ("a", "b", "c")],
    "one in each slot": [rule("a"), rule("b", key=["resource"])],
    "none": [],
    "unlimited beside": [rule("a"), {"id": "b", "match": {}, "unlimited": True}],
    "blocked": [rule("a")],
    "global": [rule("a", scope="global", capacity=1000)],
    "soft": [rule("a", mode="soft")],
    "shadow": [rule("a"), rule("b", mode="shadow")],
    "calendar": [{"id": "a", "match": {}, "key": ["client_key"], "algorithm": "fixed_window", "limit": 9,
                  "window": {"calendar": "month"}}],
    "slots": [{"id": "a", "match": {}, "key": ["client_key"], "algorithm": "concurrency", "limit": 9,
               "lease": "30s"}],
    "charged when denied": [rule("a", charge_denied=True)],
    "shed first": [rule("a", priority="low")],
    "open": [rule("a", on_store_failure="open")],
}  # fmt: skip
SAID: dict[str, Outcome] = {
    "allows": allow(7),
    "has much": MUCH,
    "denies": deny(),
    "never": deny(None, Reason.EXCEEDS_CAPACITY),
    "is silent": StoreUnavailable("timeout"),
    "was not asked": StoreUnavailable("breaker_open", may_have_run=False),
    "lets wait": replace(allow(3), wait_ms=20),
    "says it again": replace(allow(3), replayed=True),
}


async def told(
    limiter: Limiter, checks: list[Check], *, plainly: bool
) -> tuple[list[Answer | Exception], list[bool]]:
    """The answers, and which of them were told shortly."""
    answers: list[Answer | Exception] = []
    short: list[bool] = []

    def done(outcome: Answer | Allowed | Exception) -> None:
        short.append(isinstance(outcome, Allowed))
        answers.append(answer_in_full(outcome) if isinstance(outcome, Allowed) else outcome)

    for one in checks:
        if plainly:
            limiter.submit_plainly(one, done)
        else:
            limiter.submit(one, done)
    return answers, short


def comparable(answers: list[Answer | Exception]) -> list[Any]:
    """Without names that are drawn, and without times of the node's own clock."""
    return [
        str(answer)
        if isinstance(answer, Exception)
        else (answer.allowed, answer.reason, answer.rule, answer.remaining)
        if answer.degraded
        else replace(answer, lease_id=answer.lease_id and "some")
        for answer in answers
    ]


@pytest.mark.parametrize("said", SAID)
@pytest.mark.parametrize("rules", RULES)
async def test_what_is_told_shortly_says_and_counts_the_same(tmp_path: Path, rules: str, said: str) -> None:
    checks = [check(), check(cost=3), check(cost=0), check(request_id="r"), check("bob"), check()]
    blocked = [{"rule": "a", "key": {"client_key": "alice"}, "block": True}] if rules == "blocked" else []
    seen = []
    for plainly in (False, True):
        store = TerseStore(default=SAID[said])
        async with running(store, tmp_path / str(plainly), blob_of(*RULES[rules], overrides=blocked)) as limiter:
            answers, short = await told(limiter, checks, plainly=plainly)
            asked = [[(call.key, call.cost) for call in calls] for calls, _ in store.checks]
        seen.append((comparable(answers), asked, store.beats[-1].usage, store.beats[-1].key_usage))
    assert seen[0] == seen[1]
    assert any(short) == (rules in (*PLAIN, "blocked") and said in ("allows", "has much"))


PLAIN = ("one", "several", "calendar", "charged when denied", "shed first", "open")


async def test_a_check_that_comes_again_meets_the_rules_of_now(tmp_path: Path) -> None:
    asked = check()
    for name, rules in (("one", [rule("a")]), ("other", [rule("b")]), ("none", [])):
        async with running(TerseStore(default=MUCH), tmp_path / name, blob_of(*rules)) as limiter:
            answers, _ = await told(limiter, [asked, asked], plainly=True)
            assert [answer.rule for answer in answers if isinstance(answer, Answer)] == [
                rules[0]["id"] if rules else None
            ] * 2
            limiter._rules_changed()
            assert limiter._planner.generation != asked.asking.generation


async def test_a_hot_key_is_leased_from_and_then_not_asked_for(tmp_path: Path) -> None:
    store = TerseStore(default=MUCH, leased=LEASE)
    async with running(store, tmp_path, blob_of(*RULES["one"])) as limiter:
        while not limiter.status().leases.out:
            await told(limiter, [check()] * 20, plainly=True)
            await asyncio.sleep(0)
        store.checks.clear()
        known = check()
        assert limiter.leased(known) is None, "what was never planned is submitted"
        await told(limiter, [known], plainly=True)
        leased = limiter.leased(known)
        assert leased is not None
        assert answer_in_full(leased).remaining == 50_998
        answers, short = await told(limiter, [check()] * 10, plainly=True)
        assert store.checks == []
        assert all(short)
        assert [answer.remaining for answer in answers if isinstance(answer, Answer)] == list(
            range(50_997, 50_987, -1)
        )
        counted = limiter._counts.usage()["default/a"].allowed
        limiter._rules_changed()
        assert limiter.leased(known) is None
    assert counted >= 32


async def test_a_wrong_check_is_refused_at_once(tmp_path: Path) -> None:
    async with running(TerseStore(), tmp_path, blob_of(rule("a"))) as limiter:
        with pytest.raises(InvalidCheck):
            await told(limiter, [check(cost=-1)], plainly=True)


VERDICT = st.tuples(
    st.sampled_from([1, 1, 1, 1, 0, 3, 5]),
    st.sampled_from([0, 0, 0, 0, 1]),
    st.integers(0, 2**40),
    st.sampled_from([0, 0, 0, 0, 5, -1]),
    st.integers(0, 2**40),
    st.just(10_000),
    st.sampled_from([0, 0, 0, 0, 1, 3]),
    st.just(0),
    st.just(0),
)
NUMBER = st.integers(0, 2**53 - 1)


@given(st.lists(VERDICT, min_size=1, max_size=4))
def test_a_reply_in_full_is_never_told_shortly(verdicts: list[tuple[int, ...]]) -> None:
    reply = [number for verdict in verdicts for number in verdict]
    assert decode_plain_check(reply) == decode_check(reply)


@given(st.lists(st.tuples(NUMBER, NUMBER), min_size=1, max_size=16))
@example([(0, 0)])
@example([(0, 0)] * 9)
def test_a_brief_reply_says_what_one_in_full_says(said: list[tuple[int, int]]) -> None:
    brief = [number for left, reset_ms in said for number in (-1 - left, reset_ms)]
    in_full = [number for left, reset_ms in said for number in (1, 0, left, 0, reset_ms, 10_000, 0, 0, 0)]
    assert decode_check(brief) == decode_check(in_full)
    read = decode_plain_check(brief)
    assert isinstance(read, Allowed)
    assert list(zip(read.left, read.reset_after_ms, strict=True)) == said


def test_a_reply_to_another_request_is_read_as_one() -> None:
    for decode in (decode_check, decode_plain_check):
        with pytest.raises(OtherRequest):
            decode([-1])
