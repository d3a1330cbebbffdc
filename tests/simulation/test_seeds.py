"""Random worlds.  A failure names its seed: ``python -m tests.simulation replay shares SEED`` plays it again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest

from global_sync.codec import decode_records, encode_records

from . import runs
from .mutants import MUTANTS
from .world import run

SEEDS = 2000
BATCH = 250
SYSTEM_SEEDS = 8
EVENTS = 1000

HEALING = 20


@pytest.fixture(scope="module")
def processes() -> Iterator[ProcessPoolExecutor]:
    """Seeds have nothing to do with each other: every core has one."""
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        yield pool


def wrong(processes: ProcessPoolExecutor, jobs: Iterable[runs.Job]) -> dict[int, str]:
    done = list(processes.map(runs.do, jobs))
    assert done
    return {seed: what for one in done for seed, what in one.wrong.items()}


@pytest.mark.timeout(180)
@pytest.mark.parametrize("first", range(0, SEEDS, BATCH))
def test_shares_in_force_never_sum_above_the_limit(processes: ProcessPoolExecutor, first: int) -> None:
    assert wrong(processes, runs.jobs("shares", first, first + BATCH, heal_each=0)) == {}


@pytest.mark.timeout(120)
def test_long_seeds_end_well_and_everything_heals_when_the_faults_end(processes: ProcessPoolExecutor) -> None:
    jobs = [runs.Job("shares", seed, seed + 1, 1000, heal_each=1) for seed in range(5000, 5000 + HEALING)]
    assert wrong(processes, jobs) == {}


@pytest.mark.timeout(180)
def test_the_whole_system_keeps_its_bound_and_heals(processes: ProcessPoolExecutor) -> None:
    jobs = [runs.Job("system", seed, seed + 1, heal_each=3) for seed in range(SYSTEM_SEEDS)]
    assert wrong(processes, jobs) == {}


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
        "rest",
    ):
        assert counted[what] > 0, what
