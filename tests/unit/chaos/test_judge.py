"""The judge of chaos runs sees what is above the bound, and excuses only what it may."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.chaos.judge import SLACK_PER_MILLE, Excuse, Limit, judge, worst_excess

LIMIT = Limit(capacity=30, rate=60)
Moments = list[tuple[float, float]]


def at_once(at: float, number: int) -> Moments:
    return [(at, at + 0.001)] * number


def naive(admitted: Moments, limit: Limit, excuses: list[Excuse]) -> float:
    """The same by looking at every window."""
    worst = float("-inf")
    for start in {sent for sent, _ in admitted}:
        for end in {answered for _, answered in admitted if answered >= start}:
            inside = sum(answered <= end for _, answered in admitted) - sum(sent < start for sent, _ in admitted)
            more = 0.0
            for excuse in excuses:
                if start <= excuse.end and end >= excuse.start:
                    lasts = min(end, excuse.end) - max(start, excuse.start)
                    more += excuse.burst(limit) + excuse.rate(limit) * lasts
            worst = max(
                worst, inside - limit.capacity - limit.rate * (1 + SLACK_PER_MILLE / 1000) * (end - start) - more
            )
    return worst


def up_to(seconds: float) -> st.SearchStrategy[float]:
    """Moments whose sums are exact: by rounding one may meet an excuse that begins a microsecond after it."""
    return st.integers(0, round(seconds * 1024)).map(lambda part: part / 1024)


@given(
    admitted=st.lists(st.tuples(up_to(3), up_to(0.5)), min_size=1, max_size=25),
    spans=st.lists(st.tuples(up_to(3), up_to(1)), max_size=3),
    capacity=st.integers(1, 5),
)
def test_the_worst_window_is_found_as_by_looking_at_all(admitted: Moments, spans: Moments, capacity: int) -> None:
    moments = [(sent, sent + took) for sent, took in admitted]
    excuses = [Excuse("us-east", start, start + lasts) for start, lasts in spans]
    limit = Limit(capacity, 3)
    assert worst_excess(moments, limit, excuses)[0] == pytest.approx(naive(moments, limit, excuses), abs=1e-3)


@pytest.mark.parametrize(
    ("admitted", "excuses", "keeps"),
    [
        pytest.param(at_once(5, 30), [], True, id="the capacity at once"),
        pytest.param(at_once(5, 31), [], False, id="one more"),
        pytest.param(at_once(5, 30) + at_once(5.5, 30), [], True, id="and what came back within a second"),
        pytest.param(at_once(5, 30) + at_once(5.4, 30), [], False, id="and more than that"),
        pytest.param(at_once(5, 50), [Excuse("us-east", 4, 6)], True, id="a silent store's part"),
        pytest.param(at_once(5, 80), [Excuse("us-east", 4, 6)], False, id="more than a silent store's part"),
        pytest.param(at_once(9, 31), [Excuse("us-east", 4, 6)], False, id="after the store spoke again"),
        pytest.param(
            at_once(5, 281), [Excuse("us-east", 4, 6, unreplicated_s=4)], True, id="what a primary charged alone"
        ),
        pytest.param(
            at_once(5, 282), [Excuse("us-east", 4, 6, unreplicated_s=4)], False, id="more than it could charge"
        ),
    ],
)
def test_what_keeps_the_bound(admitted: Moments, excuses: list[Excuse], keeps: bool) -> None:
    assert (worst_excess(admitted, LIMIT, excuses)[0] <= 0) is keeps


def row(url: str = "http://a", at: float = 1.0, error: str | None = None) -> dict[str, Any]:
    return {
        "region": "us-east",
        "rule": "hot",
        "key": "hot-0",
        "url": url,
        "due_at": at,
        "sent_at": at,
        "answered_at": at + 0.01,
        "allowed": error is None,
        "degraded": False,
        "error": error,
    }


def one_shard(rule: str, key: str) -> int:
    return 0


def test_a_check_without_an_answer_is_a_problem_unless_its_node_was_stopped() -> None:
    stopped = Excuse("us-east", 0.5, 2.0, url="http://a")
    assert judge([row(error="timeout")], [stopped], one_shard).problems == []
    assert len(judge([row(error="timeout", at=3.0)], [stopped], one_shard).problems) == 1
    assert len(judge([row(error="timeout", url="http://b")], [stopped], one_shard).problems) == 1


def test_a_stopped_node_excuses_nothing_of_the_bound() -> None:
    stopped = Excuse("us-east", 0.5, 2.0, url="http://a")
    verdict = judge([row() for _ in range(40)], [stopped], one_shard)
    assert verdict.worst == pytest.approx(10 - 0.6, abs=0.1)
    assert len(verdict.problems) == 1


def test_every_key_has_a_bound_of_its_own() -> None:
    rows = [row() | {"key": f"hot-{number % 2}"} for number in range(60)]
    assert judge(rows, [], one_shard).problems == []


def test_a_silent_shard_excuses_nothing_of_another() -> None:
    silent = Excuse("us-east", 0.5, 2.0, shard=1)
    assert judge([row() for _ in range(40)], [silent], lambda rule, key: 1).problems == []
    assert len(judge([row() for _ in range(40)], [silent], lambda rule, key: 0).problems) == 1
