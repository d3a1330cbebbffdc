"""A suggested limit keeps its word when it is rehearsed, and is the least that does."""

from __future__ import annotations

from tempfile import TemporaryFile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regional_limiter.model.rule import RuleSet
from regional_limiter.rules import parse_document
from services.rehearsal.rehearsal import Rehearsal
from services.rehearsal.suggest import Notes, Suggestion

START_MS = 1_700_000_000_000
FIXED = {"id": "r", "algorithm": "fixed_window", "limit": 3, "window": "10s"}
KINDS = [
    FIXED,
    {"id": "r", "algorithm": "sliding_window_log", "limit": 2, "window": "10s"},
    {"id": "r", "capacity": 7, "refill": "3/10s"},
    {"id": "r", "algorithm": "gcra", "capacity": 2, "refill_per_second": 0.5},
    {"id": "r", "algorithm": "leaky_bucket", "capacity": 4, "leak": "1/s", "queue": True},
]
ASKED = st.lists(st.tuples(st.integers(0, 2000), st.sampled_from("aaabc"), st.integers(0, 2)), max_size=80)


def run(rule_set: RuleSet, asked: list[tuple[int, str, int]], notes: Notes | None = None) -> Rehearsal:
    rehearsal = Rehearsal(rule_set, notes=notes)
    now_ms, requests = START_MS, []
    for after_ms, who, cost in asked:
        now_ms += after_ms
        requests.append((now_ms, ({"client_key": who}, cost)))
    rehearsal.run(requests)
    return rehearsal


def suggested(rule: dict[str, object], asked: list[tuple[int, str, int]], percent: float) -> list[Suggestion]:
    rule_set = parse_document({"rules": [rule]})
    notes = Notes(rule_set, TemporaryFile)
    run(rule_set, asked, notes)
    return list(notes.suggestions(percent, 1000))


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(KINDS), ASKED, st.sampled_from([0, 0.1, 5, 33.3]))
def test_a_suggestion_keeps_its_word(
    rule: dict[str, object], asked: list[tuple[int, str, int]], percent: float
) -> None:
    charged = sum(cost > 0 for _, _, cost in asked)
    found = suggested(rule, asked, percent)
    assert len(found) == (charged > 0)
    for one in found:
        assert one.fields is not None
        assert one.checks == charged
        without_rate = {name: value for name, value in rule.items() if name != "refill_per_second"}
        tally = run(parse_document({"rules": [{**without_rate, **one.fields}]}), asked).proposed.tally
        assert tally.denied == one.denied
        assert tally.denied * 100 <= percent * charged


@settings(max_examples=60, deadline=None)
@given(ASKED, st.sampled_from([0, 5, 33.3]))
def test_a_smaller_one_would_not_do(asked: list[tuple[int, str, int]], percent: float) -> None:
    asked = [(after_ms, who, 1) for after_ms, who, _ in asked]
    for one in suggested(FIXED, asked, percent):
        assert one.fields is not None
        limit = one.fields["limit"]
        assert isinstance(limit, int)
        if limit > 1:
            smaller = parse_document({"rules": [{**FIXED, "limit": limit - 1}]})
            assert run(smaller, asked).proposed.tally.denied * 100 > percent * len(asked)


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ({**FIXED, "limit": 0}, "a limit of 0"),
        ({**FIXED, "algorithm": "sliding_window_log", "limit": 9000}, "cannot be held"),
    ],
)
def test_where_there_is_none_it_says_why(rule: dict[str, object], words: str) -> None:
    [one] = suggested(rule, [(0, "a", 1)] * 10_500, 0)
    assert one.fields is None
    assert one.problem is not None
    assert words in one.problem
