"""Allowances that are told shortly are, byte for byte, told as every other answer."""

from __future__ import annotations

from typing import Any

import pytest
from envoy.service.ratelimit.v3 import rls_pb2
from hypothesis import example, given
from hypothesis import strategies as st

from regional_limiter.plan import answer_in_full
from services.check_api.headers import HeaderMode
from services.rls.allowances import Allowances
from services.rls.messages import UINT32_MOST
from services.rls.service import in_full
from tests.unit.check_api.allowances import HASH, STEPS, allowed_by

MINUTE_MS = 60_000


@given(STEPS, st.sampled_from(HeaderMode))
@example([("all", 100, None, HASH, True, 41, 876)], HeaderMode.BOTH)
@example([("all", 100, MINUTE_MS, HASH, True, 0, 60_000)], HeaderMode.BOTH)
@example([("100%", 2**33, MINUTE_MS, HASH, True, UINT32_MOST, UINT32_MOST)], HeaderMode.LEGACY)
@example([("quiet", 100, None, b"", False, 300, 0)], HeaderMode.BOTH)
@example([("long" * 40, 100, 1500, HASH, True, 20_000, 20_000_001)], HeaderMode.DRAFT_11)
def test_an_allowance_told_shortly_is_what_is_told_in_full(steps: list[tuple[Any, ...]], mode: HeaderMode) -> None:
    allowances = Allowances(mode)
    allowed = allowed_by(steps)
    answer = answer_in_full(allowed)
    for _ in range(2):
        said = allowances.told(allowed)
        assert said is None or said == (("d", answer.rule, "allowed", "ok"), in_full(answer, mode))


@pytest.mark.parametrize("mode", HeaderMode)
def test_the_allowance_of_one_rule_is_told_shortly_and_protobuf_reads_it(mode: HeaderMode) -> None:
    said = Allowances(mode).told(allowed_by([("r", 100, MINUTE_MS, HASH, True, 41, 12_345)]))
    assert said is not None
    response = rls_pb2.RateLimitResponse.FromString(said[1])
    (status,) = response.statuses
    assert (response.overall_code, status.code, status.limit_remaining) == (1, 1, 41)
    assert (status.current_limit.requests_per_unit, status.current_limit.unit, status.current_limit.name) == (
        100,
        2,
        "r",
    )
    assert status.duration_until_reset.ToMilliseconds() == 12_345
    assert len(response.response_headers_to_add) == {"off": 0, "legacy": 3, "draft-11": 2, "both": 5}[mode.value]


def test_several_rules_and_what_has_no_place_are_told_in_full() -> None:
    allowances = Allowances(HeaderMode.BOTH)
    one = ("r", 100, None, HASH, True, 4, 1)
    assert allowances.told(allowed_by([one])) is not None
    assert allowances.told(allowed_by([one, one])) is None
    assert allowances.told(allowed_by([("r", 100, None, HASH, True, UINT32_MOST + 1, 1)])) is None
    assert allowances.told(allowed_by([("r", 100, None, HASH, True, -1, 1)])) is None


def test_two_that_tell_in_other_ways_do_not_share_what_they_keep() -> None:
    allowed = allowed_by([("r", 100, None, HASH, True, 4, 1)])
    for mode in (HeaderMode.BOTH, HeaderMode.OFF, HeaderMode.BOTH):
        said = Allowances(mode).told(allowed)
        assert said is not None
        assert said[1] == in_full(answer_in_full(allowed), mode)
