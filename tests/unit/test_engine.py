"""Several rules, one answer."""

from __future__ import annotations

import pytest

from regional_limiter.engine import CALLS_AT_ONCE, NO_RULE, combine, given_back, groups, to_give_back
from regional_limiter.model.decision import Reason, RuleVerdict, ShareKind, Verdict
from regional_limiter.model.rule import Algorithm, Rate
from regional_limiter.store.base import BucketCall, Sharing


def allowed(rule: str, remaining: int = 5, **more: object) -> RuleVerdict:
    return RuleVerdict(rule, 100, Verdict(True, Reason.OK, remaining, 0, 1000, **more))  # type: ignore[arg-type]


def denied(rule: str, retry_after_ms: int | None, reason: Reason = Reason.LIMITED) -> RuleVerdict:
    return RuleVerdict(rule, 100, Verdict(False, reason, 0, retry_after_ms, 1000))


def call(key: str, cost: int = 1, **more: object) -> BucketCall:
    return BucketCall(key, Algorithm.TOKEN_BUCKET, 100, Rate(1, 1), None, cost, **more)  # type: ignore[arg-type]


def key(tag: str, rule: str = "a") -> str:
    return f"rl:{{{tag}}}:default/{rule}:x"


def test_no_rule_allows_and_knows_no_limit() -> None:
    answer = combine([])
    assert answer == NO_RULE
    assert (answer.allowed, answer.reason, answer.limit, answer.remaining) == (True, Reason.NO_RULE, None, None)


def test_one_denial_denies_whatever_the_others_have_left() -> None:
    assert not combine([allowed("a"), denied("b", 100), allowed("c")]).allowed


def test_the_longest_wait_is_told_and_its_rule_named() -> None:
    answer = combine([denied("address", 2000), denied("key", 600), denied("tenant", 400)])
    assert (answer.rule, answer.retry_after_ms) == ("address", 2000)


def test_among_allowing_rules_the_one_with_the_fewest_left_is_named() -> None:
    answer = combine([allowed("a", 900), allowed("b", 12), allowed("c", 40)])
    assert (answer.rule, answer.remaining, answer.retry_after_ms) == ("b", 12, 0)


def test_a_denying_rule_is_named_although_an_allowing_one_has_less_left() -> None:
    answer = combine([allowed("a", 900), denied("b", 600), denied("c", 400)])
    assert (answer.rule, answer.retry_after_ms) == ("b", 600)


@pytest.mark.parametrize("reason", [Reason.EXCEEDS_CAPACITY, Reason.ZERO_LIMIT])
def test_a_wait_without_an_end_is_longer_than_any_other(reason: Reason) -> None:
    answer = combine([denied("a", 60_000), denied("b", None, reason)])
    assert (answer.rule, answer.retry_after_ms, answer.reason) == ("b", None, reason)


def test_of_equals_the_first_in_the_set_is_named() -> None:
    assert combine([allowed("a", 3), allowed("b", 3)]).rule == "a"
    assert combine([denied("a", 3), denied("b", 3)]).rule == "a"
    assert combine([denied("a", None), denied("b", None)]).rule == "a"


def test_of_several_queues_the_slowest_says_when_and_none_when_a_rule_denies() -> None:
    assert combine([allowed("a", 5, wait_ms=20), allowed("b", 4, wait_ms=300)]).wait_ms == 300
    assert combine([allowed("a", 5, wait_ms=20)]).wait_ms == 20
    assert combine([allowed("a", 5, wait_ms=20), denied("b", 100)]).wait_ms == 0


def test_an_answer_at_the_floor_is_degraded() -> None:
    assert combine([allowed("a"), allowed("b", share_kind=ShareKind.FLOOR)]).degraded
    assert combine([allowed("a", degraded=True)]).degraded
    assert not combine([allowed("a", share_kind=ShareKind.LEASE)]).degraded


def test_keys_of_one_tag_go_in_one_call_in_their_order() -> None:
    assert groups([key("t")]) == [[0]]
    assert groups([key("t"), key("u"), key("t", "b")]) == [[0, 2], [1]]


def test_a_call_never_decides_more_rules_than_its_bound() -> None:
    found = groups([key("t", str(i)) for i in range(2 * CALLS_AT_ONCE + 1)])
    assert [len(places) for places in found] == [CALLS_AT_ONCE, CALLS_AT_ONCE, 1]


def test_only_groups_that_allowed_as_a_whole_have_charged() -> None:
    calls = [call(key("t")), call(key("t", "b")), call(key("u")), call(key("v"))]
    verdicts = [allowed("a").verdict, denied("b", 5).verdict, allowed("c").verdict, None]
    assert to_give_back([[0, 1], [2]], calls, verdicts) == [2]


def test_a_peek_and_a_charge_denied_rule_have_nothing_to_give_back() -> None:
    calls = [call(key("t"), 0), call(key("t", "b"), 3, charge_denied=True), call(key("t", "c"), 3)]
    assert to_give_back([[0, 1, 2]], calls, [allowed("x").verdict] * 3) == [2]


def test_what_was_given_back_can_be_had_again_but_never_more_than_the_region_holds() -> None:
    whole = given_back(call(key("t"), 30), Verdict(True, Reason.OK, 60, 0, 0))
    assert whole.remaining == 90
    shared = call(key("t"), 30, sharing=Sharing.ADAPTIVE, regions=2)
    half = given_back(shared, Verdict(True, Reason.OK, 40, 0, 0, share=5000, share_kind=ShareKind.BASE))
    assert half.remaining == 50
