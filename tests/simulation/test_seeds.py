"""Random worlds.  A failure names its seed: ``python -m tests.simulation SEED SEED+1 --steps N`` replays it."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest

from global_sync.codec import decode_records, encode_records

from .healing import heal
from .mutants import MUTANTS
from .world import Found, run

SEEDS = 200
EVENTS = 1000
BATCH = 40
HEALING = range(500, 510)


@pytest.fixture(scope="module")
def processes() -> Iterator[ProcessPoolExecutor]:
    """Seeds have nothing to do with each other: every core has one."""
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        yield pool


def judge(seed: int) -> tuple[int, Found]:
    return seed, run(seed, EVENTS).found


def mend(seed: int) -> list[str]:
    return heal(run(seed, EVENTS))


@pytest.mark.timeout(180)
@pytest.mark.parametrize("first", range(0, SEEDS, BATCH))
def test_shares_in_force_never_sum_above_the_limit(processes: ProcessPoolExecutor, first: int) -> None:
    judged = list(processes.map(judge, range(first, first + BATCH)))
    assert [seed for seed, _ in judged] == list(range(first, first + BATCH))
    assert {seed: found for seed, found in judged if found} == {}


@pytest.mark.timeout(120)
def test_everything_heals_when_the_faults_end(processes: ProcessPoolExecutor) -> None:
    assert list(processes.map(mend, HEALING)) == [[] for _ in HEALING]


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
