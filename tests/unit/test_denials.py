"""Denials that are remembered for a moment."""

from __future__ import annotations

from dataclasses import replace

from regional_limiter.denials import Denials
from regional_limiter.model.decision import Reason, Verdict
from regional_limiter.model.rule import Algorithm, Rate
from regional_limiter.store.base import BucketCall

CALL = BucketCall("rl:{t}:default/r:k", Algorithm.TOKEN_BUCKET, 10, Rate(1, 1000), None, 1)
LIMITED = Verdict(False, Reason.LIMITED, 0, 400, 9000)


def remembered(verdict: Verdict = LIMITED, call: BucketCall = CALL) -> Denials:
    denials = Denials()
    denials.remember(call, verdict, 0)
    return denials


def test_the_wait_grows_shorter_while_it_is_remembered() -> None:
    verdict = remembered().verdict(CALL, 99_999)
    assert verdict is not None
    assert (verdict.retry_after_ms, verdict.reset_after_ms) == (301, 8901)


def test_it_is_remembered_for_100_ms_or_until_the_wait_is_over() -> None:
    assert remembered().verdict(CALL, 100_000) is None
    soon = remembered(replace(LIMITED, retry_after_ms=30))
    assert soon.verdict(CALL, 29_999) is not None
    assert soon.verdict(CALL, 30_000) is None


def test_a_denial_that_costs_is_asked_for_each_time() -> None:
    costly = replace(CALL, charge_denied=True)
    assert remembered(call=costly).verdict(costly, 1) is None


def test_a_slot_that_was_not_free_is_asked_for_each_time() -> None:
    slots = BucketCall("rl:{t}:default/r:k", Algorithm.CONCURRENCY, 1, None, None, 1, lease_ms=1000, holder="a")
    assert remembered(call=slots).verdict(slots, 1) is None


def test_what_a_node_decided_alone_is_not_remembered() -> None:
    assert remembered(replace(LIMITED, degraded=True)).verdict(CALL, 1) is None


def test_the_table_is_bounded() -> None:
    denials = Denials(keys_most=10)
    calls = [replace(CALL, key=f"rl:{{t}}:default/r:{i}") for i in range(25)]
    for call in calls:
        denials.remember(call, LIMITED, 0)
    assert sum(denials.verdict(call, 1) is not None for call in calls) <= 10
