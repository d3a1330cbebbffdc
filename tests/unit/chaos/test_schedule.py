"""Schedules of chaos runs: the same from the same seed, and the same after they were written down."""

from __future__ import annotations

from collections import Counter
from itertools import islice

import pytest

from tests.chaos.faults import _KINDS as STRUCK
from tests.chaos.run import nothing_done
from tests.chaos.schedule import KINDS, read, rounds, written


def test_a_seed_is_a_schedule() -> None:
    first, again, other = (list(islice(rounds(seed, 1 / 3), 50)) for seed in (1, 1, 2))
    assert first == again
    assert first != other
    assert read(written(first)) == first


def test_every_kind_is_drawn_sooner_or_later_and_can_be_done() -> None:
    drawn = {fault.kind for one in islice(rounds(1, 1 / 3), 400) for fault in one}
    assert drawn == set(KINDS) == set(STRUCK)


def test_a_run_that_broke_or_asked_nothing_is_none() -> None:
    assert nothing_done(Counter({"cut a link": 1}), 10) == []
    assert nothing_done(Counter(), 0) == ["no fault happened", "nothing was checked"]


@pytest.mark.parametrize(
    "text", ['[[{"kind": "cut a link"}]]', '[[{"kind": "x", "region": "us-east", "after_s": 0, "seconds": 1}]]']
)
def test_what_is_no_schedule_is_refused(text: str) -> None:
    with pytest.raises((ValueError, TypeError)):
        read(text)
