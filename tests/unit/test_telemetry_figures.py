"""What the bench of telemetry says of its numbers."""

from __future__ import annotations

import pytest

from tests.bench.telemetry import INTERVAL_S, RATE, TRACED, more_a_check, verdict, where_the_median_is


def test_noise_below_nothing_is_not_told_as_saved() -> None:
    sending_us = 0.1 * INTERVAL_S * RATE
    asked_us, more_us = more_a_check(8.6, 8.4, 20.4, 8.0, sending_us)
    assert asked_us == 0
    assert more_us == pytest.approx(TRACED * 20 + 0.1)
    assert more_a_check(8.6, 9.0, 21.0, 8.0, sending_us)[1] == pytest.approx(0.4 + TRACED * 20 + 0.1)


def test_an_interval_has_the_median_and_is_narrower_the_more_was_measured() -> None:
    assert where_the_median_is([3.0]) == (3, 3, 3)
    assert where_the_median_is([5.0, 1.0, 4.0, 2.0, 3.0]) == (1, 3, 5)
    # Of 40 the 14th and the 27th: of 2**40 ways in which each is above or below, 96 % are between them.
    assert where_the_median_is([float(n) for n in range(1, 41)]) == (14, 20.5, 27)


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [
        (-0.01, 0.05, "no more than the bound of 5%"),
        (0.02, 0.06, "not to be told from the bound of 5%"),
        (0.06, 0.07, "beyond the bound of 5%"),
    ],
)
def test_only_what_the_whole_interval_says_is_said(low: float, high: float, words: str) -> None:
    assert verdict(low, high) == words
