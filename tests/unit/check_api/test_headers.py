"""Headers of an answer: fixed texts, and the structured fields parser as the judge."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import http_sf
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regional_limiter.model.decision import Reason
from services.check_api.headers import (
    HeaderMode,
    LegacyReset,
    answer_lines,
    as_headers,
    closest_first,
    retry_after_s,
)
from tests.unit.check_api.fakes import ALLOWED, answer_of, rule_verdict


def answer_headers(*arguments: Any) -> list[tuple[bytes, bytes]]:
    return as_headers(answer_lines(*arguments))


def named(headers: list[tuple[bytes, bytes]]) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in headers}


def test_the_draft_11_texts_are_as_the_draft_writes_them() -> None:
    item = rule_verdict(window_ms=60_000, key_hash=b"user:42", reset_after_ms=11_200)
    headers = named(answer_headers(answer_of(item), HeaderMode.DRAFT_11))
    assert headers == {
        "ratelimit-policy": '"orders-free";q=20;w=60;pk=:dXNlcjo0Mg==:',
        "ratelimit": '"orders-free";r=7;t=12',
    }


def test_a_bucket_without_a_window_has_no_w() -> None:
    assert named(answer_headers(answer_of(rule_verdict())))["ratelimit-policy"] == '"orders-free";q=20'


def test_legacy_and_draft_describe_the_same_rule() -> None:
    slack = rule_verdict("slack", remaining=900, limit=1000)
    tight = rule_verdict("tight", remaining=3, limit=5, reset_after_ms=1)
    answer = answer_of(tight, slack)
    headers = named(answer_headers(answer))
    assert headers["ratelimit"].startswith('"tight";r=3;t=1, "slack"')
    assert headers["x-ratelimit-limit"] == "5"
    assert headers["x-ratelimit-remaining"] == "3"
    assert headers["x-ratelimit-reset"] == "1"


@pytest.mark.parametrize(
    ("mode", "names"),
    [
        (HeaderMode.BOTH, {"ratelimit-policy", "ratelimit", "x-ratelimit-limit"}),
        (HeaderMode.DRAFT_11, {"ratelimit-policy", "ratelimit"}),
        (HeaderMode.LEGACY, {"x-ratelimit-limit"}),
        (HeaderMode.OFF, set()),
    ],
)
def test_each_mode_sends_its_own_headers_only(mode: HeaderMode, names: set[str]) -> None:
    headers = named(answer_headers(answer_of(rule_verdict()), mode))
    optional = {"x-ratelimit-remaining", "x-ratelimit-reset"}
    assert set(headers) - optional == names


def test_retry_after_is_sent_in_every_mode() -> None:
    denied = answer_of(rule_verdict(allowed=False, remaining=0, retry_after_ms=334))
    for mode in HeaderMode:
        assert named(answer_headers(denied, mode))["retry-after"] == "1"


@pytest.mark.parametrize(("wait_ms", "seconds"), [(1, 1), (334, 1), (1000, 1), (1001, 2), (2000, 2), (50_000, 50)])
def test_retry_after_is_whole_seconds_rounded_up_never_zero(wait_ms: int, seconds: int) -> None:
    assert retry_after_s(wait_ms) == seconds


def test_no_retry_after_when_waiting_does_not_help_or_when_allowed() -> None:
    never = rule_verdict(allowed=False, reason=Reason.EXCEEDS_CAPACITY, retry_after_ms=None)
    assert "retry-after" not in named(answer_headers(answer_of(never)))
    assert "retry-after" not in named(answer_headers(answer_of(rule_verdict())))


def test_semantics_25_the_longest_wait_comes_first() -> None:
    waits = {"address": 2000, "key": 600, "tenant": 400}
    items = {name: rule_verdict(name, allowed=False, retry_after_ms=wait) for name, wait in waits.items()}
    answer = answer_of(items["address"], items["tenant"], items["key"])
    assert [item.rule for item in closest_first(answer)] == ["address", "key", "tenant"]
    assert named(answer_headers(answer))["retry-after"] == "2"


def test_semantics_29_the_fewest_left_comes_first_and_ties_keep_the_order_of_the_set() -> None:
    items = [rule_verdict("a", remaining=900), rule_verdict("b", remaining=12), rule_verdict("c", remaining=12)]
    answer = answer_of(items[1], items[0], items[2])
    assert [item.rule for item in closest_first(answer)] == ["b", "c", "a"]


def test_a_rule_that_wants_no_headers_is_never_named() -> None:
    hidden = rule_verdict("hidden", allowed=False, retry_after_ms=1500, in_headers=False)
    headers = named(answer_headers(answer_of(hidden, rule_verdict("shown"))))
    assert "hidden" not in str(headers)
    assert headers["ratelimit"].startswith('"shown"')
    assert headers["retry-after"] == "2"


def test_no_rule_means_no_headers() -> None:
    assert answer_headers(ALLOWED) == []


def test_epoch_reset_is_an_instant() -> None:
    headers = answer_headers(
        answer_of(rule_verdict(reset_after_ms=4200)), HeaderMode.LEGACY, LegacyReset.EPOCH, 1000
    )
    assert named(headers)["x-ratelimit-reset"] == "1005"


@given(
    name=st.text(min_size=1, max_size=80),
    limit=st.integers(0, 2**60),
    remaining=st.integers(0, 2**60),
    window_ms=st.none() | st.integers(1, 2**50),
    key_hash=st.binary(max_size=40),
    reset_after_ms=st.integers(0, 2**60),
)
def test_structured_fields_always_parse(
    name: str, limit: int, remaining: int, window_ms: int | None, key_hash: bytes, reset_after_ms: int
) -> None:
    item = rule_verdict(
        name,
        limit=limit,
        remaining=remaining,
        window_ms=window_ms,
        key_hash=key_hash,
        reset_after_ms=reset_after_ms,
    )
    headers = dict(answer_headers(answer_of(item, item), HeaderMode.DRAFT_11))
    policies = http_sf.parse(headers[b"ratelimit-policy"], tltype="list")
    limits = http_sf.parse(headers[b"ratelimit"], tltype="list")
    assert isinstance(policies, list)
    assert isinstance(limits, list)
    assert len(policies) == len(limits) == 2
    for text, parameters in policies:
        assert isinstance(text, str)
        assert parameters["q"] == min(limit, 10**15 - 1)
        assert parameters.get("w", 1) > 0
        assert parameters.get("pk", b"") == key_hash
    for _, parameters in limits:
        assert parameters["r"] == min(remaining, 10**15 - 1)
        assert parameters["t"] == min(-(-reset_after_ms // 1000), 10**15 - 1)


@pytest.mark.parametrize("mode", HeaderMode)
def test_a_soft_limit_is_told_in_every_mode(mode: HeaderMode) -> None:
    passed = replace(answer_of(rule_verdict()), reason=Reason.SOFT_LIMITED)
    assert named(answer_headers(passed, mode))["ratelimit-soft"] == "1"
    assert "ratelimit-soft" not in named(answer_headers(answer_of(rule_verdict()), mode))
