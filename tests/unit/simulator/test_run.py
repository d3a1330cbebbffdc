"""The real code on a virtual clock: it follows demand, never exceeds, ends at its base when cut off, repeats."""

from __future__ import annotations

from dataclasses import replace

import pytest

from global_sync.simulation.play import TIMES
from services.simulator import traces
from services.simulator.faults import cut
from services.simulator.page import page
from services.simulator.report import convergence_in_words, document, rows
from services.simulator.run import APPORTION, Setting, simulate

DELAYS = {"near": 2, "middle": 30, "far": 90}
SWAP = Setting(DELAYS, traces.swap(200, 0, 2, 4.0), 8.0, rate=200, capacity=30, seed=3)


@pytest.fixture(autouse=True)
def _quiet(quiet_logs: None) -> None:
    """Warnings of the agents are expected here."""


def test_shares_follow_a_jump_over_an_ocean_and_nothing_is_over_the_limit() -> None:
    outcome = simulate(SWAP)
    counts = outcome.counts[APPORTION]
    assert counts.excess == 0
    assert outcome.shares_most <= 10_000
    assert outcome.problems == []
    assert outcome.utilisation(APPORTION) > 0.75 > 0.4 > outcome.utilisation("static split")
    assert outcome.shares[2] > 8_000
    assert outcome.counts["drop ratio"].excess > 30
    assert len(outcome.convergence.times_s) >= 1


def test_the_same_setting_gives_the_same_outcome_to_the_last_byte() -> None:
    setting = replace(SWAP, seconds=5.0)
    first, again = simulate(setting), simulate(setting)
    assert document(first) == document(again)
    assert first.samples == again.samples
    assert document(simulate(replace(setting, seed=4))) != document(first)


def test_cut_off_for_longer_than_its_consent_a_region_is_at_its_base() -> None:
    setting = replace(
        SWAP,
        trace=traces.steady(200, 3, 2),
        seconds=6.0,
        times=TIMES,
        faults=[(1.5, cut(["far"]))],
        with_models=False,
        random=False,
    )
    outcome = simulate(setting)
    assert outcome.shares[2] == setting.bases["far"]
    assert outcome.counts[APPORTION].excess == 0


def test_the_report_and_the_page_say_what_was_counted() -> None:
    outcome = simulate(replace(SWAP, seconds=5.0))
    first = rows(outcome)[0]
    assert first.name == APPORTION
    assert first.excess == "never"
    assert "%" in convergence_in_words(outcome)
    text = page("A <title>", "about & more", list(DELAYS), 200, rows(outcome), outcome)
    assert "A &lt;title&gt;" in text
    assert "about &amp; more" in text
    assert text.count("<svg") == 3
    assert "http" not in text
    for row in rows(outcome):
        assert f"<td>{row.name}</td><td>{row.utilisation}</td>" in text
