"""What is asked of limits on average: the same whenever a frame comes, and of windows over the whole of them."""

from __future__ import annotations

import pytest

from services.dashboard.nearness import Asked, averaged, busiest


def key(rule: str, client: str) -> str:
    return f"rl:{{t}}:d/{rule}:{client}"


def test_the_busiest_key_of_each_rule_is_the_one_that_is_asked_for_most_denied_included() -> None:
    asked = {key("a", "x"): (5.0, 0.0), key("a", "y"): (1.0, 9.0), key("b", "x"): (0.0, 0.0)}
    assert busiest(asked) == {"d/a": (key("a", "y"), 10.0), "d/b": (key("b", "x"), 0.0)}


def test_of_a_key_that_nobody_knows_nothing_is_known() -> None:
    assert averaged(None, None, None, 1.0) is None


@pytest.mark.parametrize(
    ("window_s", "expected"),
    [(None, [10.0, 5.0, 5.0]), (100.0, [0.1, 0.099, 0.199])],
    ids=["of the first seconds of a bucket the plain mean", "a window over the whole of it"],
)
def test_the_first_seconds(window_s: float | None, expected: list[float]) -> None:
    found: Asked | None = None
    told = []
    for now in (("k", 10.0), ("k", 0.0), ("k", 5.0 if window_s is None else 10.099)):
        found = averaged(found, now, window_s, 1.0)
        assert found is not None
        told.append(round(found.per_s, 3))
    assert told == expected


@pytest.mark.parametrize("window_s", [None, 60.0, 86_400.0])
def test_a_frame_that_comes_early_adds_no_weight(window_s: float | None) -> None:
    before = Asked("k", 20.0, 400.0)
    once = averaged(before, ("k", 0.0), window_s, 1.0)
    twice = averaged(averaged(before, ("k", 0.0), window_s, 0.5), ("k", 0.0), window_s, 0.5)
    assert once is not None
    assert twice is not None
    assert twice.per_s == pytest.approx(once.per_s, rel=0.02)
    at_once = averaged(before, ("k", 0.0), window_s, 0.0)
    assert at_once is not None
    assert at_once.per_s == 20.0


def test_what_is_not_used_any_more_fades_and_keeps_its_name() -> None:
    found = averaged(Asked("k", 20.0, 10.0), None, None, 1.0)
    assert found == Asked("k", 18.0, 10.0)
    assert averaged(found, None, None, 3_600.0) == Asked("k", 0.0, 10.0)
