"""Answers that are put together from templates are, byte for byte, those that are written in full."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from regional_limiter import engine
from regional_limiter.model.decision import Answer, Reason, RuleVerdict, ShareKind, Verdict
from regional_limiter.plan import answer_in_full
from services.check_api.answers import encode_answer
from services.check_api.bounded_http import encode_reply
from services.check_api.headers import HeaderMode, LegacyReset, answer_lines
from services.check_api.replies import ok
from services.check_api.templates import (
    _MARKS,
    HEAD_BYTES,
    HEADS_BYTES_MOST,
    MET_MOST,
    TEMPLATES_MOST,
    Templates,
    _Room,
)
from tests.unit.check_api.allowances import HASH, NUMBERS, RULES, STEPS, allowed_by

DATE = b"date: Mon, 30 Nov 2026 08:10:04 GMT\r\n"
REASONS = st.sampled_from(Reason)
VERDICTS = st.builds(
    Verdict,
    allowed=st.booleans(),
    reason=REASONS | st.sampled_from([Reason.OK, Reason.LIMITED]),
    remaining=NUMBERS,
    retry_after_ms=st.none() | NUMBERS,
    reset_after_ms=NUMBERS,
    share_kind=st.sampled_from(ShareKind),
    degraded=st.booleans(),
    wait_ms=st.sampled_from([0, 0, 5]),
)
TOLD = st.builds(
    RuleVerdict,
    RULES,
    NUMBERS,
    VERDICTS,
    window_ms=st.none() | NUMBERS,
    key_hash=st.sampled_from([HASH, HASH, b"", b"\x00"]),
    in_headers=st.sampled_from([True, True, False]),
)
ANSWERS = st.lists(TOLD, min_size=0, max_size=2).map(engine.combine)


def in_full(answer: Answer, mode: HeaderMode) -> bytes:
    return encode_reply(ok(encode_answer(answer), answer_lines(answer, mode)), DATE)


def told(allowed: bool = True, *, rule: str = "all", limit: int = 100, left: int = 41) -> Answer:
    reason, retry_ms = (Reason.OK, 0) if allowed else (Reason.LIMITED, 1001)
    return engine.combine([RuleVerdict(rule, limit, Verdict(allowed, reason, left, retry_ms, 876), None, HASH)])


@given(ANSWERS, st.sampled_from(HeaderMode))
@example(told(), HeaderMode.BOTH)
@example(told(allowed=False), HeaderMode.BOTH)
@example(told(rule="100%"), HeaderMode.LEGACY)
@example(told(rule=str(_MARKS[0].left)), HeaderMode.BOTH)
@example(told(limit=_MARKS[1].reset_ms), HeaderMode.BOTH)
def test_a_template_says_what_is_written_in_full(answer: Answer, mode: HeaderMode) -> None:
    templates = Templates(mode, LegacyReset.SECONDS)
    for _ in range(2):  # made, and known
        assert templates.response(answer, DATE) in (None, in_full(answer, mode))
        assert templates.body(answer) in (None, encode_answer(answer))


@pytest.mark.parametrize("mode", HeaderMode)
@pytest.mark.parametrize("allowed", [True, False])
@pytest.mark.parametrize("left", [0, 41, 399_999_123])
def test_the_answers_that_nearly_all_are_have_one(mode: HeaderMode, allowed: bool, left: int) -> None:
    templates = Templates(mode, LegacyReset.SECONDS)
    answer = told(allowed, left=left)
    assert templates.response(answer, DATE) == in_full(answer, mode)
    assert templates.body(answer) == encode_answer(answer)


def test_a_rule_that_looks_like_a_mark_has_none() -> None:
    templates = Templates(HeaderMode.BOTH, LegacyReset.SECONDS)
    for marks in _MARKS:
        assert templates.response(told(rule=str(marks.left)), DATE) is None
        assert templates.response(told(limit=marks.left), DATE) is None


def test_a_time_of_day_has_none() -> None:
    assert Templates(HeaderMode.BOTH, LegacyReset.EPOCH).response(told(), DATE) is None


@given(STEPS, st.sampled_from(HeaderMode))
@example([("all", 100, None, HASH, True, 41, 876)], HeaderMode.BOTH)
@example([("a", 100, 60_000, HASH, True, 7, 1), ("b%d", 9, None, HASH, True, 3, 1001)], HeaderMode.BOTH)
@example([("a", 100, None, HASH, True, 3, 1), ("b", 9, None, HASH, True, 3, 1001)], HeaderMode.DRAFT_11)
def test_an_allowance_told_shortly_is_what_is_written_in_full(
    steps: list[tuple[Any, ...]], mode: HeaderMode
) -> None:
    templates = Templates(mode, LegacyReset.SECONDS)
    allowed = allowed_by(steps)
    answer = answer_in_full(allowed)
    for _ in range(2):
        for said, full in (
            (templates.response_to(allowed, DATE), in_full(answer, mode)),
            (templates.body_to(allowed), encode_answer(answer)),
            (templates.lines_to(allowed), answer_lines(answer, mode)),
        ):
            assert said is None or said == (("d", answer.rule, "allowed", "ok"), full)


@pytest.mark.parametrize("mode", HeaderMode)
@pytest.mark.parametrize("rules", [1, 2, 3, 16])
def test_allowances_of_one_and_of_several_rules_have_one(mode: HeaderMode, rules: int) -> None:
    templates = Templates(mode, LegacyReset.SECONDS)
    allowed = allowed_by([(f"r{n}", 100, None, HASH, True, 40 - n, 1000 * n) for n in range(rules)])
    said = templates.response_to(allowed, DATE)
    assert said is not None
    assert templates.body_to(allowed) is not None
    assert templates.lines_to(allowed) is not None
    assert said[1] == in_full(answer_in_full(allowed), mode)


def test_an_allowance_of_more_rules_than_headers_name_is_written_in_full() -> None:
    templates = Templates(HeaderMode.BOTH, LegacyReset.SECONDS)
    assert templates.response_to(allowed_by([("r", 100, None, HASH, True, 4, 1)] * 17), DATE) is None


def test_two_nodes_that_tell_in_other_ways_do_not_share_what_they_keep() -> None:
    allowed = allowed_by([("r", 100, None, HASH, True, 4, 1)])
    for mode in (HeaderMode.BOTH, HeaderMode.OFF, HeaderMode.BOTH):
        said = Templates(mode, LegacyReset.SECONDS).response_to(allowed, DATE)
        assert said is not None
        assert said[1] == in_full(answer_in_full(allowed), mode)


def test_templates_are_bounded() -> None:
    templates = Templates(HeaderMode.BOTH, LegacyReset.SECONDS)
    for limit in range(TEMPLATES_MOST + 10):
        templates._known[("r", limit, None, True, False)] = None
    assert templates.response(told(limit=10**9), DATE) == in_full(told(limit=10**9), HeaderMode.BOTH)
    assert len(templates._known) == 1


def met_together(number: int, rules: int) -> list[tuple[Any, ...]]:
    return [(f"r{number}-{n}", 100, None, HASH, True, 40 - n, 1000 * n) for n in range(rules)]


def test_what_is_kept_of_rules_that_are_met_together_is_bounded_in_rules() -> None:
    templates = Templates(HeaderMode.BOTH, LegacyReset.SECONDS)
    filled = []
    for _, met in zip(range(MET_MOST // 16 + 10), permutations(met_together(0, 16)), strict=False):
        assert templates.body_to(allowed_by(list(met))) is not None
        filled.append(16 * len(templates._rules))
    assert max(filled) == MET_MOST
    assert filled[-1] == 10 * 16


@pytest.mark.parametrize("bytes_most", [100_000, HEADS_BYTES_MOST])
def test_heads_in_all_orders_of_all_that_askings_keep_are_bounded_in_bytes(bytes_most: int) -> None:
    templates = Templates(HeaderMode.BOTH, LegacyReset.SECONDS)
    templates._room = room = _Room(bytes_most)
    kept = [allowed_by(met_together(number, 6)) for number in range(20)]
    for _, order in zip(range(30), permutations(range(6)), strict=False):
        for allowed in kept:
            allowed.left[:] = order
            said, lines = templates.response_to(allowed, DATE), templates.lines_to(allowed)
            assert said is not None
            assert lines is not None
            answer = answer_in_full(allowed)
            assert (said[1], lines[1]) == (in_full(answer, HeaderMode.BOTH), answer_lines(answer, HeaderMode.BOTH))
        rules = [allowed.asking.told.rules for allowed in kept]
        texts = [text for one in rules for text, _ in (*one.heads.values(), *one.forms.values())]
        assert sum(len(text) + HEAD_BYTES for text in texts) == room.bytes_most - room.bytes_left
        assert room.bytes_left >= 0
