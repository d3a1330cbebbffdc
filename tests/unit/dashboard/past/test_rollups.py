"""Seconds for an hour, minutes for thirty days: the same sums, bounded in rows and bytes, on a virtual clock."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.dashboard.past import rollups as module
from services.dashboard.past import routes
from services.dashboard.past.asked import Wanted
from services.dashboard.past.cells import (
    ALLOWED,
    EVERYTHING,
    HEARD,
    MINUTE_MS,
    MINUTES_KEPT_MS,
    PLACES,
    SECOND_MS,
    SECONDS_KEPT_MS,
    Chunk,
    Placed,
    empty_cell,
)
from services.dashboard.past.file import ANSWER_MOST_S, AnswerTookTooLong, PastFile
from services.dashboard.past.rollups import Rollups
from services.dashboard.past.routes import Past
from tests.unit.dashboard.past.usage import KEY, OTHER, START_MS

HOUR_MS = 3_600_000
BEGIN_MS = START_MS - START_MS % HOUR_MS


def placed(at_ms: int, allowed: int, denied: int = 0, *, name: str = "d/g", region: str = "eu") -> Placed:
    return Placed(
        name, "d/g" if name.startswith("rl:") else name, region, at_ms, [allowed, denied, 1, 0, 0, 0, 0, 0, 0]
    )


def write(rollups: Rollups, file: PastFile, now_ms: int, *, sweep: bool = False) -> None:
    with file.writing() as base:
        places = rollups.write(base, now_ms)
        if sweep:
            rollups.sweep(base, now_ms)
    rollups.written(places, now_ms)


@pytest.fixture
def file(tmp_path: Path) -> Iterator[PastFile]:
    one = PastFile(tmp_path / "past.db")
    yield one
    one.close()


def allowed(rollups: Rollups, name: str, begin_ms: int, end_ms: int, step_ms: int) -> dict[int, int]:
    found = rollups.series(Wanted(name, begin_ms, end_ms, step_ms))
    return {at_ms: cell[ALLOWED] for region in found.values() for at_ms, cell in region.items() if cell[ALLOWED]}


def test_minutes_are_the_sums_of_their_seconds(file: PastFile) -> None:
    rollups, rng = Rollups(file), random.Random(3)
    given_: dict[int, int] = {}
    for second in range(0, 3_000, 7):
        now_ms = BEGIN_MS + second * 1_000
        given_[now_ms] = rng.randrange(1, 50)
        rollups.add([placed(now_ms, given_[now_ms])], now_ms)
        if second % 35 == 0:
            write(rollups, file, now_ms)
    end_ms = BEGIN_MS + HOUR_MS
    assert allowed(rollups, "d/g", BEGIN_MS, end_ms, SECOND_MS) == given_
    for step_ms in (60_000, 300_000, 5_000):
        expected: dict[int, int] = {}
        for at_ms, value in given_.items():
            begin_ms = at_ms - at_ms % step_ms
            expected[begin_ms] = expected.get(begin_ms, 0) + value
        assert allowed(rollups, "d/g", BEGIN_MS, end_ms, step_ms) == expected


def test_what_is_written_is_there_after_a_restart_and_can_be_added_to(tmp_path: Path) -> None:
    for turn in range(3):
        file = PastFile(tmp_path / "past.db")
        rollups = Rollups(file)
        rollups.add([placed(BEGIN_MS + 5_000, 7)], BEGIN_MS + 5_000)
        write(rollups, file, BEGIN_MS + 5_000)
        assert allowed(rollups, "d/g", BEGIN_MS, BEGIN_MS + 60_000, SECOND_MS) == {BEGIN_MS + 5_000: 7 * (turn + 1)}
        file.close()


def test_what_comes_late_is_added_to_a_chunk_that_was_written_and_let_go(file: PastFile) -> None:
    rollups = Rollups(file)
    rollups.add([placed(BEGIN_MS, 1)], BEGIN_MS)
    for minute in range(1, 130):
        now_ms = BEGIN_MS + minute * MINUTE_MS
        rollups.add([placed(now_ms, 1)], now_ms)
        write(rollups, file, now_ms)
    now_ms = BEGIN_MS + 130 * MINUTE_MS
    rollups.add([placed(BEGIN_MS + 1_000, 40), placed(now_ms - MINUTE_MS + 1_000, 50)], now_ms)
    minutes = allowed(rollups, "d/g", BEGIN_MS, now_ms, MINUTE_MS)
    assert minutes[BEGIN_MS] == 41
    assert minutes[now_ms - MINUTE_MS] == 51


def test_not_known_is_told_from_nothing_asked(file: PastFile) -> None:
    rollups = Rollups(file)
    rollups.add([placed(BEGIN_MS + 1_000, 5), placed(BEGIN_MS + 1_000, 5, name=EVERYTHING)], BEGIN_MS)
    rollups.add([placed(BEGIN_MS + 2_000, 0, name=EVERYTHING)], BEGIN_MS)
    found = rollups.series(Wanted("d/g", BEGIN_MS, BEGIN_MS + 4_000, SECOND_MS))["eu"]
    assert found[BEGIN_MS + 1_000][HEARD] == 1
    assert found[BEGIN_MS + 2_000][HEARD] == 1, "heard of the region, not of the rule: 0"
    assert BEGIN_MS + 3_000 not in found, "not heard of the region: not known"


def test_seconds_last_an_hour_and_minutes_thirty_days(file: PastFile) -> None:
    rollups = Rollups(file)
    for hour in range(0, 31 * 24, 6):
        now_ms = BEGIN_MS + hour * HOUR_MS
        rollups.add([placed(now_ms, 1)], now_ms)
        write(rollups, file, now_ms, sweep=True)
    end_ms = BEGIN_MS + 31 * 24 * HOUR_MS
    seconds = allowed(rollups, "d/g", BEGIN_MS, end_ms, SECOND_MS)
    minutes = allowed(rollups, "d/g", BEGIN_MS, end_ms, MINUTE_MS)
    assert min(seconds) >= now_ms - SECONDS_KEPT_MS - HOUR_MS
    assert now_ms - MINUTES_KEPT_MS - 2 * HOUR_MS <= min(minutes) <= now_ms - MINUTES_KEPT_MS
    assert file.ask("select count(*) from chunks")[0][0] <= 2 + 30 * 4 + 1


def test_what_is_much_ahead_or_too_old_is_left_out(file: PastFile) -> None:
    rollups = Rollups(file)
    rollups.add([placed(BEGIN_MS + HOUR_MS, 1), placed(BEGIN_MS - MINUTES_KEPT_MS, 1)], BEGIN_MS)
    assert rollups.left_out == 2
    assert not list(rollups.cells("d/g", MINUTE_MS, 0, 2**50))


def test_a_file_that_is_full_loses_its_oldest_minutes(file: PastFile) -> None:
    rollups, rng = Rollups(file, bytes_most=400_000), random.Random(5)
    for hour in range(100):
        now_ms = BEGIN_MS + hour * HOUR_MS
        cells = [
            placed(now_ms + minute * MINUTE_MS, rng.randrange(10**9), name=f"d/r{rule}")._replace(by_minute=True)
            for minute in range(60)
            for rule in range(20)
        ]
        rollups.add(cells, now_ms + HOUR_MS)
        write(rollups, file, now_ms + HOUR_MS, sweep=True)
        assert file.bytes_used() < 500_000
    newest = allowed(rollups, "d/r1", now_ms, now_ms + HOUR_MS, MINUTE_MS)
    assert len(newest) == 60
    since_ms = rollups.since_ms(MINUTE_MS)
    assert since_ms is not None
    assert since_ms > BEGIN_MS


def test_what_is_held_is_bounded(file: PastFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROWS_MOST", 100)
    rollups = Rollups(file)
    cells = [
        placed(BEGIN_MS, 1, name=f"d/r{rule}", region=f"region-{region}")
        for rule in range(50)
        for region in range(5)
    ]
    rollups.add(cells, BEGIN_MS)
    assert rollups.left_out > 0
    write(rollups, file, BEGIN_MS)
    assert file.ask("select count(*) from chunks")[0][0] <= 100
    left_out = rollups.left_out
    rollups.add([placed(BEGIN_MS, 1, name="d/another")], BEGIN_MS)
    assert rollups.left_out == left_out, "what is written makes room"


def test_the_bytes_of_a_chunk_are_what_the_bound_was_computed_from() -> None:
    """5 regions x 200 rules, each asked every second: ADR 0021 counts 12,000 chunks of an hour's seconds and
    144,000 of thirty days' minutes, of at most 4 kB: some 600 MB of the 1,000 MB that a file may have."""
    rng, chunk = random.Random(1), Chunk()
    for place in range(PLACES):
        for region in range(5):
            rates = rng.randrange(6_000), rng.randrange(600), 60
            shares = 60, 200_000, rng.randrange(200_000), 0
            chunk.add(f"region-{region}", place, [*rates, *shares, rng.randrange(3), rng.randrange(3)])
    assert len(chunk.encode()) < 4_000


def test_the_busiest_keys_of_a_rule_come_first(file: PastFile) -> None:
    rollups = Rollups(file)
    rollups.add(
        [placed(BEGIN_MS, 5, 1, name=KEY), placed(BEGIN_MS, 3, 9, name=OTHER), placed(BEGIN_MS, 8, 10)], BEGIN_MS
    )
    write(rollups, file, BEGIN_MS)
    rollups.add([placed(BEGIN_MS + 1_000, 20, name=KEY, region="us"), placed(BEGIN_MS, 1, name="d/h")], BEGIN_MS)
    assert rollups.busiest("d/g", SECOND_MS, BEGIN_MS, BEGIN_MS + 9_000, 5) == [(KEY, 25, 1), (OTHER, 3, 9)]
    assert rollups.busiest("d/g", SECOND_MS, BEGIN_MS, BEGIN_MS + 1_000, 5) == [(OTHER, 3, 9), (KEY, 5, 1)]
    assert rollups.busiest("d/g", SECOND_MS, BEGIN_MS, BEGIN_MS + 9_000, 1) == [(KEY, 25, 1)]


async def test_the_busiest_of_exactly_an_hour_are_found_by_the_second(
    file: PastFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As pages ask for them: with the same bounds as the rates above, some milliseconds before the answer."""
    rollups = Rollups(file)
    begin_ms, end_ms = BEGIN_MS + 30_000, BEGIN_MS + 30_000 + HOUR_MS
    rollups.add([placed(begin_ms + 1_000, 5, 1, name=KEY), placed(begin_ms - 1_000, 9, name=OTHER)], begin_ms)
    recorder: Any = SimpleNamespace(rollups=rollups)
    past = Past(recorder, lambda domain, rule: {}, lambda domain, rule: False, list, dict)
    monkeypatch.setattr(routes, "wall_ms", lambda: end_ms + 5)
    told = await past.keys("d", "g", (begin_ms, end_ms), 1)
    # By the minute, what came after the half of the first one would be left out.
    assert told["keys"] == [{"key": KEY, "allowed": 5, "denied": 1}]


def test_a_question_for_the_busiest_ends(file: PastFile, monkeypatch: pytest.MonkeyPatch) -> None:
    rollups = Rollups(file)
    rollups.add([placed(BEGIN_MS, 5, name=KEY), placed(BEGIN_MS, 3, name=OTHER)], BEGIN_MS)
    times = iter([0.0, 1.0, ANSWER_MOST_S])
    monkeypatch.setattr(module, "monotonic", lambda: next(times))
    with pytest.raises(AnswerTookTooLong):
        rollups.busiest("d/g", SECOND_MS, BEGIN_MS, BEGIN_MS + 9_000, 5)


class _Lock:
    """Whether somebody has it."""

    is_held = False

    def __enter__(self) -> None:
        self.is_held = True

    def __exit__(self, *error: object) -> None:
        self.is_held = False


def test_what_is_held_changes_under_the_lock_alone(file: PastFile, monkeypatch: pytest.MonkeyPatch) -> None:
    rollups, lock, popped = Rollups(file), _Lock(), []

    class Held(dict[Any, Any]):
        def pop(self, *given: Any) -> Any:
            popped.append(lock.is_held)
            return super().pop(*given)

    rollups.add([placed(BEGIN_MS, 5)], BEGIN_MS)
    with file.writing() as base:
        places = rollups.write(base, BEGIN_MS)
    rollups._held = Held(rollups._held)
    monkeypatch.setattr(file, "lock", lock)
    rollups.written(places, BEGIN_MS + 2 * HOUR_MS)
    assert popped == [True, True]


def test_a_chunk_that_cannot_be_read_is_a_gap(file: PastFile) -> None:
    rollups = Rollups(file)
    rollups.add([placed(BEGIN_MS, 5), placed(BEGIN_MS + 60_000, 6)], BEGIN_MS)
    write(rollups, file, BEGIN_MS + HOUR_MS)
    with file.writing() as base:
        base.execute("update chunks set cells = x'00ff' where start_ms = ? and step_ms = 1000", (BEGIN_MS,))
    fresh = Rollups(file)
    assert allowed(fresh, "d/g", BEGIN_MS, BEGIN_MS + HOUR_MS, SECOND_MS) == {BEGIN_MS + 60_000: 6}


values = st.lists(st.integers(0, 2**40), min_size=9, max_size=9)
cells = st.lists(st.tuples(st.sampled_from(["eu", "us"]), st.integers(0, PLACES - 1), values), max_size=30)


@settings(deadline=None)
@given(cells)
def test_a_chunk_comes_back_from_its_bytes(added: list[tuple[str, int, list[int]]]) -> None:
    chunk = Chunk()
    expected: dict[tuple[str, int], list[int]] = {}
    for region, place, values in added:
        chunk.add(region, place, values)
        known = expected.setdefault((region, place), empty_cell())
        expected[region, place] = [a + b for a, b in zip(known, values, strict=True)]
    back = Chunk.decode(chunk.encode())
    found = {(region, place): cell for region, place, cell in back.cells()}
    assert found == {name: cell for name, cell in expected.items() if any(cell)}
    assert back.offered == sum(cell[0] + cell[1] for cell in expected.values())
