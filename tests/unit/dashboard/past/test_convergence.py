"""From a record in the log to the report that says it is settled: both by the broker's clock."""

from __future__ import annotations

from global_sync.protocol.messages import Kind, LeaseRecord, Report
from services.dashboard.past import convergence as module
from services.dashboard.past.convergence import LATE_MS, Convergence
from tests.unit.dashboard.past.usage import KEY, OTHER, START_MS


def lease(n: int, key: str = KEY, kind: Kind = Kind.GROW) -> LeaseRecord:
    return LeaseRecord(1, n, key, "eu", 1, kind, 100)


def report(n: int, key: str = KEY, region: str = "eu") -> Report:
    return Report(region, "a", 1, 1, (1, 1), 1, {key: ((1, n), 100)})


def test_the_first_report_that_settles_a_record_ends_its_time() -> None:
    seen = Convergence()
    seen.take([lease(1), lease(2, OTHER, Kind.KEEP)], START_MS)
    seen.settled(report(0), START_MS + 10)
    seen.settled(report(1, region="us"), START_MS + 20)
    seen.settled(report(1), START_MS + 40)
    seen.settled(report(1), START_MS + 90)
    shown = seen.shown(START_MS + 1_000)
    assert (shown["settled"], shown["settled_ms_p50"], shown["settled_ms_max"]) == (1, 40, 40)
    assert (shown["waiting"], shown["waiting_ms_max"]) == (1, 1_000)
    assert (shown["grows_per_s"], shown["keeps_per_s"]) == (0.2, 0.2)


def test_a_newer_record_does_not_make_an_older_one_look_quick() -> None:
    seen = Convergence()
    seen.take([lease(1)], START_MS)
    seen.take([lease(2)], START_MS + 500)
    seen.settled(report(2), START_MS + 520)
    assert seen.shown(START_MS + 600)["settled_ms_max"] == 520


def test_a_report_may_be_read_before_the_record_that_it_settles() -> None:
    seen = Convergence()
    seen.settled(report(3), START_MS + 30)
    seen.take([lease(3)], START_MS)
    shown = seen.shown(START_MS + 100)
    assert (shown["settled_ms_max"], shown["waiting"]) == (30, 0)
    seen.take([lease(4)], START_MS + 50)
    assert seen.shown(START_MS + 100)["waiting"] == 1


def test_only_the_last_minute_is_told_and_nobody_is_waited_for_for_ever() -> None:
    seen = Convergence()
    seen.take([lease(1), lease(2, OTHER)], START_MS)
    seen.settled(report(1), START_MS + 40)
    shown = seen.shown(START_MS + 61_000)
    assert (shown["settled"], shown["settled_ms_p95"], shown["waiting"], shown["grows_per_s"]) == (0, None, 0, 0)
    assert seen.shown(START_MS + LATE_MS)["waiting_ms_max"] is None


def test_what_waits_is_bounded() -> None:
    seen = Convergence()
    for n in range(module.WAITING_MOST + 50):
        seen.take([lease(n, f"rl:{{0}}:d/g:{n}")], START_MS)
    assert seen.shown(START_MS)["waiting"] == module.WAITING_MOST
