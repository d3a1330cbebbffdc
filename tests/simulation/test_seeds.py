"""Random worlds.  A failure names its seed: ``python -m tests.simulation SEED SEED+1 --steps N`` replays it."""

from __future__ import annotations

import pytest

from global_sync.codec import decode_records, encode_records

from .healing import heal
from .mutants import MUTANTS
from .world import run

SEEDS = 200
EVENTS = 800
BATCH = 8
HEALING = range(500, 510)


@pytest.mark.parametrize("first", range(0, SEEDS, BATCH))
def test_shares_in_force_never_sum_above_the_limit(first: int) -> None:
    worlds = [run(seed, EVENTS) for seed in range(first, first + BATCH)]
    assert {world.seed: world.found for world in worlds if world.found} == {}


@pytest.mark.parametrize("seed", HEALING)
def test_everything_heals_when_the_faults_end(seed: int) -> None:
    assert heal(run(seed, EVENTS)) == []


def test_random_worlds_notice_a_broken_rule() -> None:
    assert any(run(seed, EVENTS, MUTANTS["ack_on_read"]).found for seed in range(20))


def test_a_seed_replays_exactly() -> None:
    first, again = run(7, 500), run(7, 500)
    assert first.log == again.log
    assert first.true == again.true
    assert first.counted == again.counted


def test_a_whole_log_survives_its_bytes() -> None:
    log = run(11, EVENTS).log
    assert decode_records(encode_records(log)) == log


def test_the_worlds_are_not_idle() -> None:
    """Rare things happen, or the runs prove nothing."""
    counted = sum((run(seed, EVENTS).counted for seed in range(1000, 1012)), start=run(999, EVENTS).counted)
    for what in (
        "grow",
        "keep",
        "welcome",
        "renewing beat",
        "mark",
        "done",
        "snapshot part",
        "trim",
        "failover",
        "lent",
    ):
        assert counted[what] > 0, what
