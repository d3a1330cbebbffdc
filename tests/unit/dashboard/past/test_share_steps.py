"""The log as steps, and what is asked of them: who held what when."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from global_sync.protocol.messages import (
    Beat,
    Gone,
    Kind,
    LeaseRecord,
    Mark,
    Record,
    Snapshot,
    Welcome,
    WindowGrant,
)
from regional_limiter.model.enforcement import BASE
from services.dashboard.past import routes
from services.dashboard.past import share_steps as steps_module
from services.dashboard.past import stored_steps as module
from services.dashboard.past.bases_over_time import BasesOverTime
from services.dashboard.past.file import PastFile
from services.dashboard.past.holding import Holding
from services.dashboard.past.routes import Past
from services.dashboard.past.share_steps import SESSIONS, WINDOW, WINDOW_OVER, ShareSteps, Step, with_ends
from services.dashboard.past.stored_steps import StoredSteps
from tests.unit.dashboard.past.usage import KEY, OTHER, START_MS

BASES = {"eu": 5_000, "us": 5_000}
SESSION_MS = 20_000


class Log:
    """A log, its steps and the file that they are written to; times in seconds since the start."""

    def __init__(self, file: PastFile, steps: ShareSteps | None = None) -> None:
        self.file = file
        self.steps = steps or ShareSteps(SESSION_MS)
        self.stored = StoredSteps(file)
        self.offset = 0
        self.n = 0
        self.written: list[Step] = []

    def tell(self, second: float, *records: Record) -> list[Step]:
        steps = self.steps.take(records, self.offset, START_MS + int(second * 1000))
        self.offset += 1
        return self.write(steps)

    def look(self, second: float) -> list[Step]:
        return self.write(self.steps.look(START_MS + int(second * 1000)))

    def write(self, steps: Sequence[Step]) -> list[Step]:
        with self.file.writing() as base:
            self.stored.write(base, steps)
        self.written += steps
        return list(steps)

    def begin(self) -> None:
        self.tell(0, Mark(1, "nonce", 1))
        self.tell(0, *(Welcome(1, n, region, f"agent-{region}", 1, 1, {}) for n, region in ((1, "eu"), (2, "us"))))
        self.n = 2

    def lease(self, second: float, region: str, value: int, key: str = KEY, kind: Kind = Kind.GROW) -> list[Step]:
        self.n += 1
        return self.tell(second, LeaseRecord(1, self.n, key, region, 1, kind, value))

    def units(self, second: float, key: str = KEY) -> dict[str, int]:
        held = self.stored.at(key, START_MS + int(second * 1000), BASES)
        return {region: one.units for region, one in held.items()}


@pytest.fixture
def log() -> Log:
    return Log(PastFile(None))


def test_what_records_grant_beyond_the_whole_is_told_as_given_back() -> None:
    def step(region: str, units: int, n: int) -> Step:
        return Step(KEY, region, START_MS, units, "grow", n, 1, n, 1)

    alive = {region: Step(SESSIONS, region, START_MS, None, "welcome", 0, 1, 0, 1) for region in ("eu", "us")}
    told = Holding({"eu": step("eu", 6_000, 3), "us": step("us", 5_500, 4)}, alive, BASES, START_MS).held()
    assert {region: (one.units, one.given_back) for region, one in told.items()} == {
        "eu": (4_500, 1_500), "us": (5_500, 0),
    }  # fmt: skip


async def test_a_lowering_without_a_record_is_told_with_the_step_that_shows_it(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "wall_ms", lambda: START_MS + 300_000)
    log.begin()
    log.lease(1, "us", 100, kind=Kind.KEEP)
    log.lease(2, "eu", 9_500)
    log.lease(3, "us", 5_500)  # eu has given 5,000 back, and nobody wrote that
    log.lease(4, "us", 4_000)
    log.lease(5, "eu", BASE)
    recorder: Any = SimpleNamespace(stored_steps=log.stored, bases=BasesOverTime())
    past = Past(recorder, lambda domain: BASES, lambda domain, rule: False, lambda: ["eu", "us"], dict)
    told = await past.steps(KEY, (START_MS + 500, START_MS + 9_000))
    assert [one["held"] for one in told["steps"]] == [
        {"us": 100}, {"eu": 9_500}, {"eu": 4_500, "us": 5_500}, {"eu": 6_000, "us": 4_000}, {"eu": 5_000},
    ]  # fmt: skip
    assert [one["units"] for one in told["steps"]] == [100, 9_500, 5_500, 4_000, None], "as the records say"


STATIC = {"eu": 2_500, "us": 2_500}


def of_window(log: Log, second: float) -> dict[str, tuple[int, bool]]:
    held = log.stored.at(KEY, START_MS + int(second * 1000), STATIC)
    return {region: (one.units, one.is_base) for region, one in held.items()}


def grant(log: Log, second: float, region: str, window: int, total: int) -> list[Step]:
    """Of windows of a minute."""
    log.n += 1
    return log.tell(second, WindowGrant(1, log.n, KEY, region, window, START_MS + window * 60_000, total))


def test_what_was_granted_of_a_window_counts_until_it_ends_and_needs_no_session(log: Log) -> None:
    log.begin()
    grant(log, 5, "eu", 1, 1_000)
    grant(log, 9, "eu", 1, 3_000)
    assert grant(log, 10, "eu", 1, 2_000) == [], "the largest counts"
    grant(log, 70, "us", 2, 500)
    log.look(50)  # nobody renewed the sessions
    assert of_window(log, 4) == {"eu": (2_500, True), "us": (2_500, True)}
    assert of_window(log, 6) == {"eu": (3_500, False), "us": (2_500, True)}
    assert of_window(log, 59.9) == {"eu": (5_500, False), "us": (2_500, True)}
    assert of_window(log, 61) == {"eu": (2_500, True), "us": (2_500, True)}
    assert of_window(log, 71) == {"eu": (2_500, True), "us": (3_000, False)}
    moved = [log.stored.moved_at(START_MS + second * 1000) for second in (4, 6, 61, 71)]
    assert moved == [[], [KEY], [], [KEY]]
    assert [log.steps.keys_moved(START_MS + second * 1000) for second in (71, 121)] == [1, 0]
    assert log.steps.moved(5, START_MS + 71_000) == [KEY]
    assert log.stored.known() == {}, "of a window nothing is a lease"


def test_the_end_of_a_window_is_told_among_its_steps_unless_more_was_granted_of_the_next(log: Log) -> None:
    log.begin()
    for second, window, total in ((5, 1, 1_000), (61, 2, 700), (200, 4, 300)):
        grant(log, second, "eu", window, total)
    steps = log.stored.steps([KEY], START_MS, START_MS + 300_000, 100)
    told = [(one.at_ms - START_MS, one.kind, one.units) for one in with_ends(steps, START_MS + 230_000)]
    assert told == [
        (5_000, WINDOW, 1_000),
        (60_000, WINDOW_OVER, None),
        (61_000, WINDOW, 700),
        (120_000, WINDOW_OVER, None),
        (200_000, WINDOW, 300),
    ]


def test_a_window_granted_before_the_steps_begin_ends_among_them(log: Log) -> None:
    log.begin()
    grant(log, 3, "eu", 1, 1_000)
    grant(log, 4, "us", 1, 200)
    grant(log, 40, "us", 1, 500)
    begin, until = START_MS + 30_000, START_MS + 120_000
    steps = log.stored.steps([KEY], begin, until, 100)
    told = with_ends(steps, until, log.stored.windows_at(KEY, begin))
    assert [(one.region, one.at_ms - START_MS, one.kind, one.units) for one in told] == [
        ("us", 40_000, WINDOW, 500),
        ("eu", 60_000, WINDOW_OVER, None),
        ("us", 60_000, WINDOW_OVER, None),
    ]
    assert log.stored.windows_at(KEY, START_MS + 60_000) == [], "what is over by then was told before"
    assert log.stored.windows_at(OTHER, begin) == []


async def test_what_a_page_is_told_at_the_beginning_is_told_to_end(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "wall_ms", lambda: START_MS + 300_000)
    log.begin()
    grant(log, 3, "eu", 1, 1_000)
    recorder: Any = SimpleNamespace(stored_steps=log.stored, bases=BasesOverTime())
    past = Past(recorder, lambda domain: BASES, lambda domain, rule: True, lambda: ["eu", "us"], dict)
    told = await past.steps(KEY, (START_MS + 30_000, START_MS + 120_000))
    assert {region: share["units"] for region, share in told["begin"].items()} == {"eu": 3_500, "us": 2_500}
    assert [(one["region"], one["at_ms"] - START_MS, one["kind"], one["units"]) for one in told["steps"]] == [
        ("eu", 60_000, WINDOW_OVER, 2_500)
    ]


async def test_what_a_rule_holds_at_rest_is_looked_up_once_for_all_steps_of_its_keys(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "wall_ms", lambda: START_MS + 300_000)
    log.begin()
    for second in range(3, 30):
        grant(log, second, "eu", 1, 100 * second)
    looked_up = []

    def bases(domain: str) -> dict[str, int]:
        looked_up.append(domain)
        return BASES

    recorder: Any = SimpleNamespace(stored_steps=log.stored, bases=BasesOverTime())
    past = Past(recorder, bases, lambda domain, rule: True, lambda: ["eu", "us"], dict)
    steps = (await past.steps(KEY, (START_MS, START_MS + 50_000)))["steps"]
    assert [one["units"] for one in steps if one["kind"] == WINDOW] == [2_500 + 100 * n for n in range(3, 30)]
    assert looked_up == ["d"] * 3, "for the question, for the beginning, and for the steps"
    looked_up.clear()
    records = (await past.records((START_MS, START_MS + 50_000), KEY, 100))["steps"]
    assert records == [{name: said for name, said in one.items() if name != "held"} for one in steps[::-1]]
    assert sorted(looked_up) == ["", "d"], "that of no rule: of sessions"


def test_while_as_many_windows_run_as_are_known_not_each_grant_goes_through_them(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps_module, "WINDOWS_MOST", 10)
    log.begin()

    def grant_each(second: float, names: range, window: int) -> list[Step]:
        told = []
        for name in names:
            log.n += 1
            record = WindowGrant(1, log.n, f"{KEY}{name}", "eu", window, START_MS + window * 60_000, 100)
            told += log.tell(second, record)
        return told

    grant_each(1, range(10), 1)
    known = log.steps._windows
    grant_each(2, range(10, 12), 1)
    at_first = log.steps._windows
    assert at_first is not known
    assert len(grant_each(2.5, range(12, 30), 1)) == 18, "they are steps"
    assert log.steps._windows is at_first
    assert log.steps.keys_moved(START_MS + 2_500) == 10
    grant_each(61, range(30, 35), 2)
    assert log.steps.keys_moved(START_MS + 61_000) == 5, "when some are over there is room again"


def test_a_snapshot_tells_of_windows_that_were_missed_and_not_of_those_that_are_over(log: Log) -> None:
    windows = {
        KEY: ((1, START_MS + 60_000, {"eu": 900, "us": 100}),),
        OTHER: ((0, START_MS - 1, {"eu": 50}),),
    }
    snapshot = Snapshot(1, 1, 0, 1, (), {"eu": 1}, {}, 1, {}, 1, {}, {}, windows=windows)
    steps = log.tell(1, snapshot)
    assert {(one.key, one.region, one.units) for one in steps if one.kind == WINDOW} == {
        (KEY, "eu", 900),
        (KEY, "us", 100),
    }
    again = ShareSteps(SESSION_MS, log.stored.known(), log.steps.next_offset)
    assert again.take([snapshot], 0, START_MS + 1_000) == [], "it is written already"
    assert again.moved(5, START_MS + 2_000) == [KEY]
    assert {(one.kind, one.units) for one in again.standing(START_MS + 2_000) if one.key == KEY} == {
        (WINDOW, 900),
        (WINDOW, 100),
    }


def test_who_held_what_at_any_moment(log: Log) -> None:
    log.begin()
    log.lease(1, "eu", 100, kind=Kind.KEEP)
    log.lease(2, "us", 9_900)
    log.lease(5, "us", 5_000, kind=Kind.KEEP)
    log.lease(6, "us", BASE)
    log.lease(6, "eu", BASE)
    assert log.units(0.5) == {"eu": 5_000, "us": 5_000}
    assert log.units(1) == {"eu": 100, "us": 5_000}
    assert log.units(4.9) == {"eu": 100, "us": 9_900}
    assert log.units(5.5) == {"eu": 100, "us": 5_000}
    assert log.units(7) == {"eu": 5_000, "us": 5_000}
    assert log.units(7, OTHER) == {"eu": 5_000, "us": 5_000}
    at_four = log.stored.at(KEY, START_MS + 4_000, BASES)
    assert at_four["us"].shown(5_000) == {
        "units": 9_900, "base": 5_000, "lent": 0, "borrowed": 4_900, "is_base": False, "session": "alive",
        "said_by": "grow", "since_ms": START_MS + 2_000, "epoch": 1, "n": 4,
        "given_back": 0,
    }  # fmt: skip


def test_a_keep_is_the_lesser_of_both_as_the_ledger_has_it(log: Log) -> None:
    log.begin()
    log.lease(1, "eu", 300, kind=Kind.KEEP)
    assert log.lease(2, "eu", 4_000, kind=Kind.KEEP) == [], "it allows no more than before"
    assert log.units(3)["eu"] == 300


def test_a_session_that_is_not_renewed_ends_and_its_leases_count_no_more(log: Log) -> None:
    log.begin()
    log.lease(1, "eu", 3_000)
    log.tell(3, Beat(1, 1, {"eu": (1, 5)}))
    log.tell(9, Beat(1, 2, {"eu": (1, 5)}))  # names the same moment: renews nothing
    assert [(one.region, one.kind) for one in log.look(21)] == [("us", "over")]
    (over,) = log.look(30)
    assert (over.region, over.at_ms) == ("eu", START_MS + 23_000)
    assert log.look(31) == [], "told once"
    held = log.stored.at(KEY, START_MS + 24_000, BASES)
    assert (held["eu"].units, held["eu"].session) == (5_000, "over")
    assert log.units(22.9)["eu"] == 3_000
    log.tell(40, Beat(1, 3, {"eu": (1, 9)}))
    assert log.units(41)["eu"] == 3_000, "the session lives on, and its lease with it"
    log.tell(42, Welcome(1, 9, "eu", "agent-2", 2, 1, {KEY: 100}))
    assert log.units(43)["eu"] == 100


def test_steps_are_told_in_the_order_of_time_though_an_end_is_noticed_later(log: Log) -> None:
    log.begin()
    log.lease(20.9, "eu", 100)
    log.look(21)
    told = log.stored.steps(None, START_MS + 1, START_MS + 60_000, 100)
    assert [(one.kind, one.at_ms - START_MS) for one in told] == [
        ("over", 20_000),
        ("over", 20_000),
        ("grow", 20_900),
    ]


def test_what_a_region_gave_without_a_record_is_not_counted_twice(log: Log) -> None:
    log.begin()
    log.lease(1, "eu", 9_000)
    log.lease(2, "us", 8_000)
    assert log.units(3) == {"eu": 2_000, "us": 8_000}


def test_records_of_older_leaders_are_void(log: Log) -> None:
    log.begin()
    (leader,) = log.tell(1, Mark(2, "other", 1))
    assert (leader.kind, leader.epoch, leader.key) == ("leader", 2, SESSIONS)
    assert log.lease(2, "eu", 9_000) == []
    found = log.stored.leader_at(START_MS + 5_000)
    assert found is not None
    assert found.epoch == 2


def test_a_destroyed_region_holds_nothing(log: Log) -> None:
    log.begin()
    log.lease(1, "eu", 100)
    log.tell(5, Gone(1, "eu"))
    log.lease(6, "us", 10_000)
    held = log.stored.at(KEY, START_MS + 7_000, BASES)
    assert {region: (one.units, one.session) for region, one in held.items()} == {
        "eu": (0, "gone"), "us": (10_000, "alive"),
    }  # fmt: skip


def test_what_was_missed_is_in_the_next_snapshot(log: Log) -> None:
    log.begin()
    log.offset += 40
    snapshot = Snapshot(
        1, 1, 0, 1, (("eu", 1, (1, 1)), ("us", 1, (1, 2))), {"eu": 1, "us": 1}, {}, 1, {}, 1, {},
        {KEY: {"eu": (((1, 30), 700, 1),), "us": ()}},
    )  # fmt: skip
    steps = log.tell(60, snapshot)
    assert [(one.region, one.units, one.kind) for one in steps] == [("eu", 700, "snapshot")]
    assert log.tell(61, snapshot) == [], "a repeat tells nothing"


def test_a_dashboard_that_comes_back_writes_nothing_twice(tmp_path: Path) -> None:
    file = PastFile(tmp_path / "past.db")
    log = Log(file)
    records: list[tuple[float, Sequence[Record]]] = [
        (0, [Mark(1, "nonce", 1)]),
        (0, [Welcome(1, 1, "eu", "a", 1, 1, {}), Welcome(1, 2, "us", "b", 1, 1, {})]),
        (1, [LeaseRecord(1, 3, KEY, "eu", 1, Kind.KEEP, 100)]),
        (2, [LeaseRecord(1, 4, KEY, "us", 1, Kind.GROW, 9_000)]),
    ]
    for second, one in records:
        log.tell(second, *one)
    written = len(log.written)
    assert log.stored.known() == {("eu", KEY): 100, ("us", KEY): 9_000}
    again = Log(file, ShareSteps(SESSION_MS, log.stored.known(), log.steps.next_offset))
    for second, one in records:
        again.tell(second, *one)
    again.tell(3, LeaseRecord(1, 5, KEY, "us", 1, Kind.GROW, 9_500))
    assert [one.units for one in again.written] == [9_500]
    assert file.ask("select count(*) from steps") == [(written + 1,)]
    assert again.units(4) == {"eu": 100, "us": 9_500}
    file.close()


def test_a_file_that_lost_its_steps_is_told_what_holds(log: Log) -> None:
    log.begin()
    log.lease(1, "eu", 100)
    fresh = Log(PastFile(None), log.steps)
    fresh.write(log.steps.standing(START_MS + 9_000))
    assert fresh.units(9.5) == log.units(9.5) == {"eu": 100, "us": 5_000}
    leader = fresh.stored.leader_at(START_MS + 9_500)
    assert leader is not None
    assert leader.epoch == 1


def test_keys_that_moved_are_found_the_last_moved_first(log: Log) -> None:
    log.begin()
    log.lease(1, "eu", 100)
    log.lease(2, "eu", 100, OTHER)
    log.lease(3, "eu", BASE)
    assert log.stored.moved_at(START_MS + 1_500) == [KEY]
    assert log.stored.moved_at(START_MS + 2_500) == [OTHER, KEY]
    assert log.stored.moved_at(START_MS + 3_500) == [OTHER]
    assert log.steps.moved(5, START_MS) == [OTHER]
    log.lease(4, "us", 200)
    assert log.steps.moved(5, START_MS) == [KEY, OTHER]
    log.lease(5, "eu", 90, OTHER)
    assert (log.steps.moved(5, START_MS), log.steps.moved(1, START_MS)) == ([OTHER, KEY], [OTHER])


def test_steps_are_bounded_and_what_holds_is_never_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log(PastFile(None))
    log.stored = StoredSteps(log.file, steps_most=200)
    log.begin()
    log.lease(1, "us", 123, OTHER)
    for number in range(1, 1_000):
        log.lease(number, "eu", 100 + number % 2)
        if number % 50 == 0:
            with log.file.writing() as base:
                log.stored.sweep(base, START_MS + number * 1_000)
            assert log.file.ask("select count(*) from steps")[0][0] <= 200
    assert log.units(1_001, OTHER)["us"] == 123
    assert log.units(1_001) == {"eu": 101, "us": 5_000}
    monkeypatch.setattr(module, "KEPT_MS", 10_000)
    with log.file.writing() as base:
        log.stored.sweep(base, START_MS + 10**9)
    assert log.file.ask("select count(*) from steps")[0][0] <= 6
    assert log.units(10**6, OTHER)["us"] == 123
    assert log.units(10**6)["eu"] == 101


def window_steps(first: int, count: int, end_s: float) -> list[Step]:
    end_ms = START_MS + int(end_s * 1000)
    return [
        Step(f"{KEY}{n}", "eu", START_MS + 2_000, 300, WINDOW, n, 1, n, end_ms) for n in range(first, first + count)
    ]


def test_windows_that_are_over_push_nothing_out_that_holds() -> None:
    log = Log(PastFile(None))
    log.stored = StoredSteps(log.file, steps_most=1_000)
    log.begin()
    log.lease(1, "us", 123, OTHER)
    log.write(window_steps(0, 3_000, end_s=60))
    log.write(window_steps(3_000, 200, end_s=600))
    with log.file.writing() as base:
        log.stored.sweep(base, START_MS + 61_000)
    assert log.file.ask("select count(*) from steps")[0][0] <= 1_000
    assert log.stored.known() == {("us", OTHER): 123}
    assert log.units(61, OTHER) == {"eu": 5_000, "us": 123}
    assert [one.session for one in log.stored.at(OTHER, START_MS + 61_000, BASES).values()] == ["alive", "alive"]
    assert len(log.stored.moved_at(START_MS + 61_000, 300)) == 201


def test_windows_that_are_over_go_with_the_time_that_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log(PastFile(None))
    log.begin()
    log.lease(1, "us", 123, OTHER)
    log.write(window_steps(0, 50, end_s=60))
    log.write(window_steps(50, 5, end_s=600))
    monkeypatch.setattr(module, "KEPT_MS", 10_000)
    with log.file.writing() as base:
        log.stored.sweep(base, START_MS + 61_000)
    kinds = dict(log.file.ask("select kind, count(*) from steps group by kind"))
    assert kinds == {"welcome": 2, "leader": 1, "grow": 1, WINDOW: 5}


def test_beyond_the_bound_what_holds_goes_last_and_sessions_after_it() -> None:
    log = Log(PastFile(None))
    log.stored = StoredSteps(log.file, steps_most=100)
    log.begin()
    log.lease(1, "us", 123, OTHER)
    log.write(window_steps(0, 150, end_s=600))
    with log.file.writing() as base:
        log.stored.sweep(base, START_MS + 61_000)
    assert log.file.ask("select count(*) from steps")[0][0] <= 100
    assert log.stored.leader_at(START_MS + 61_000) is not None
    assert [one.session for one in log.stored.at(OTHER, START_MS + 61_000, BASES).values()] == ["alive", "alive"]


regions, keys = st.sampled_from(["eu", "us"]), st.sampled_from([KEY, OTHER])
leases = st.lists(st.tuples(regions, keys, st.sampled_from(Kind), st.integers(0, 4_000)), max_size=25)


@settings(max_examples=40, deadline=None)
@given(leases)
def test_every_moment_is_what_a_plain_fold_of_the_log_says(told: list[tuple[str, str, Kind, int]]) -> None:
    log = Log(PastFile(None))
    log.begin()
    plain: dict[tuple[str, str], int] = {}
    moments = []
    for second, (region, key, kind, value) in enumerate(told, 1):
        log.lease(second, region, value, key, kind)
        before = plain.get((region, key))
        plain[region, key] = value if kind is Kind.GROW or before is None else min(before, value)
        moments.append(dict(plain))
    for second, moment in enumerate(moments, 1):
        for key in (KEY, OTHER):
            expected = {region: moment.get((region, key), 5_000) for region in BASES}
            assert log.units(second + 0.5, key) == expected
    log.file.close()


changes = st.lists(
    st.tuples(regions, st.sampled_from([*Kind, "over", "renewed", "base"]), st.integers(0, 10_000)), max_size=30
)


@settings(max_examples=60, deadline=None)
@given(changes)
def test_what_is_held_from_step_to_step_is_what_is_held_at_each_moment(told: list[tuple[str, Any, int]]) -> None:
    said: dict[str, Step] = {}
    sessions = {region: Step(SESSIONS, region, 0, None, "welcome", 0, 1, 0, 1) for region in BASES}
    bases = dict(BASES)
    holding = Holding(said, sessions, bases, 0)
    units = {region: one.units for region, one in holding.held().items()}
    for n, (region, kind, value) in enumerate(told, 1):
        if kind == "base":
            bases[region] = value
            units |= holding.rest(region, value, n)
        else:
            key = SESSIONS if kind in ("over", "renewed") else KEY
            step = Step(key, region, n, value if key else None, str(kind), n, 1, n, 1)
            (said if key else sessions)[region] = step
            units |= holding.take(step)
        expected = {one: of.units for one, of in Holding(said, sessions, bases, n).held().items()}
        assert units == expected
        assert sum(units.values()) <= 10_000 or any(one.kind == "over" for one in sessions.values())
