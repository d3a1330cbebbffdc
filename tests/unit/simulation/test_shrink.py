"""A schedule is made shorter as long as it fails, and no longer than it takes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from global_sync.simulation.faults import Act, Scenario
from global_sync.simulation.shrink import fewer, shrink
from tests.simulation.runs import read_scenario, write_scenario


@given(st.sets(st.integers(0, 60), min_size=1, max_size=4))
def test_what_is_needed_stays_and_nothing_else(needed: set[int]) -> None:
    assert fewer(range(61), lambda kept: needed <= set(kept)) == sorted(needed)


def test_it_tries_no_more_often_than_it_may() -> None:
    tries = 0

    def fails(kept: Sequence[int]) -> bool:
        nonlocal tries
        tries += 1
        return len(kept) > 100

    assert len(fewer(range(1000), fails, tries_most=20)) > 100
    assert tries == 20


def test_acts_that_do_not_matter_go_and_those_that_do_become_short() -> None:
    scenario = Scenario.draw(5, 3_000_000)
    needed = scenario.acts[len(scenario.acts) // 2]

    def fails(candidate: Scenario) -> bool:
        return any((one.what, one.at_us) == (needed.what, needed.at_us) for one in candidate.acts)

    shorter = shrink(scenario, fails)
    assert [(one.what, one.at_us) for one in shorter.acts] == [(needed.what, needed.at_us)]
    assert shorter.acts[0].for_us <= needed.for_us // 10 + 1
    assert (shorter.regions, shorter.nodes, shorter.shards, shorter.drift_ppm) == (2, 1, 1, 0)


@given(st.integers(0, 10_000))
def test_a_scenario_follows_from_its_seed(seed: int) -> None:
    assert Scenario.draw(seed, 3_000_000) == Scenario.draw(seed, 3_000_000)
    assert Scenario.draw(seed, 3_000_000).acts


def test_a_written_schedule_is_read_as_it_was(tmp_path: Path) -> None:
    scenario = Scenario(3, acts=(Act(5, "cut_both", 1, 2, 3), Act(7, "failover")), over_us=9)
    assert read_scenario(write_scenario(scenario, tmp_path)) == scenario
