"""Questions to the past: what is meant when little is said, and what is refused, by name."""

from __future__ import annotations

import pytest

from services.dashboard.past.asked import POINTS_USUAL, BadQuestion, Wanted, columns, span, wanted
from services.dashboard.past.cells import EVERYTHING
from tests.unit.dashboard.past.usage import KEY, START_MS

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


@pytest.mark.parametrize(
    ("length_ms", "step_ms"),
    [(300_000, 1_000), (900_000, 5_000), (HOUR_MS, 10_000), (6 * HOUR_MS, 60_000), (DAY_MS, 300_000),
     (7 * DAY_MS, 1_800_000), (30 * DAY_MS, 7_200_000)],
)  # fmt: skip
def test_a_step_is_chosen_so_that_a_picture_can_show_it(length_ms: int, step_ms: int) -> None:
    asked = wanted("d", "g", None, (START_MS - length_ms, START_MS), None, START_MS)
    assert asked.step_ms == step_ms
    assert len(asked.begins()) <= POINTS_USUAL + 1


def test_the_last_hour_has_its_seconds_also_when_the_question_was_under_way_for_a_while() -> None:
    time = (START_MS - HOUR_MS, START_MS)
    assert wanted("d", "g", None, time, None, START_MS + 5).step_ms == 10_000
    assert wanted("d", "g", None, time, None, START_MS + 60_000).step_ms == 60_000


def test_names() -> None:
    time = (START_MS - 60_000, START_MS)
    assert wanted(None, None, None, time, None, START_MS).name == EVERYTHING
    assert wanted("d", "g", None, time, None, START_MS).name == "d/g"
    assert wanted("d", "g", KEY, time, None, START_MS).name == KEY


@pytest.mark.parametrize(
    ("domain", "rule", "key", "back_ms", "step_ms", "said"),
    [
        (None, "g", None, 60_000, None, "domain: is needed"),
        ("d", None, None, 60_000, None, "rule: is needed"),
        ("d", "g", "acme", 60_000, None, "key: must be a bucket key"),
        ("d", "g", None, 60_000, 1_500, "step: must be whole seconds"),
        ("d", "g", None, 2 * HOUR_MS, 5_000, "step: must be whole minutes"),
        ("d", "g", None, 30 * DAY_MS, 60_000, "step: at least 1296000 ms"),
    ],
)
def test_what_cannot_be_answered_is_refused_by_name(
    domain: str | None, rule: str | None, key: str | None, back_ms: int, step_ms: int | None, said: str
) -> None:
    with pytest.raises(BadQuestion, match=said):
        wanted(domain, rule, key, (START_MS - back_ms, START_MS), step_ms, START_MS)


@pytest.mark.parametrize(
    ("begin_ms", "end_ms", "said"),
    [(START_MS, None, "from: must be before to"), (START_MS - 5, START_MS - 5, "from: must be"),
     (START_MS - 31 * DAY_MS, None, "from: at most 30 days")],
)  # fmt: skip
def test_a_time_that_is_none_is_refused(begin_ms: int, end_ms: int | None, said: str) -> None:
    with pytest.raises(BadQuestion, match=said):
        span(begin_ms, end_ms, START_MS)


def test_the_future_is_not_asked() -> None:
    assert span(START_MS - 10_000, START_MS + 10_000, START_MS) == (START_MS - 10_000, START_MS)
    assert span(None, None, START_MS) == (START_MS - 900_000, START_MS)


def test_rates_shares_and_what_is_not_known() -> None:
    begin_ms = START_MS - START_MS % 5_000
    asked = Wanted("d/g", begin_ms, begin_ms + 12_000, 5_000)
    cells = {begin_ms: [50, 5, 5, 10, 50_000, 20_000, 0, 1, 2], begin_ms + 5_000: [7, 0, 0, 0, 0, 0, 0, 0, 0]}
    shown = columns(asked, {"eu": cells}, ["eu", "us"])
    assert shown["at_ms"] == [begin_ms, begin_ms + 5_000], "only whole steps"
    assert shown["regions"]["eu"] == {
        "allowed": [10.0, None], "denied": [1.0, None], "base": [5_000.0, None], "lent": [2_000.0, None],
        "borrowed": [0.0, None], "grows": [1, 0], "keeps": [2, 0],
    }  # fmt: skip
    assert shown["regions"]["us"]["allowed"] == [None, None]
    assert shown["totals"] == {
        "eu": {"allowed": 57, "denied": 5, "grows": 1, "keeps": 2},
        "us": {"allowed": 0, "denied": 0, "grows": 0, "keeps": 0},
    }
