"""Calendar windows: without gaps, in every zone, beginning where the zone's clocks say."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise
from zoneinfo import ZoneInfo, available_timezones

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from regional_limiter.algorithms import calendar as calendars
from regional_limiter.algorithms.calendar import edges_around, window_at
from regional_limiter.model.rule import CalendarUnit, CalendarWindow

HOUR_MS = 3_600_000
ZONES = sorted(available_timezones())
INSTANTS = st.integers(*(round(datetime(year, 1, 1, tzinfo=UTC).timestamp() * 1000) for year in (2000, 2037)))
WINDOWS = st.builds(CalendarWindow, st.sampled_from(CalendarUnit), st.sampled_from(ZONES))


def ms(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1000)


@given(WINDOWS, INSTANTS)
def test_windows_follow_one_another_and_every_instant_in_one_finds_it(window: CalendarWindow, at_ms: int) -> None:
    before, start, end, after = edges = edges_around(window, at_ms)
    assert before < start <= at_ms < end < after
    for probe in (start, (start + end) // 2, end - 1):
        calendars._last.clear()
        assert edges_around(window, probe) == edges
    assert window_at(window, end) == (end, after)
    assert window_at(window, start - 1) == (before, start)


@given(WINDOWS.filter(lambda window: window.unit is not CalendarUnit.HOUR), INSTANTS)
def test_a_window_begins_with_the_first_day_of_its_unit(window: CalendarWindow, at_ms: int) -> None:
    start, _ = window_at(window, at_ms)
    zone = ZoneInfo(window.zone)
    day = datetime.fromtimestamp(start // 1000, zone).date()
    match window.unit:
        case CalendarUnit.WEEK:
            assert day.weekday() == 0
        case CalendarUnit.MONTH:
            assert day.day == 1
        case CalendarUnit.YEAR:
            assert (day.month, day.day) == (1, 1)
    assert datetime.fromtimestamp(start // 1000 - 1, zone).date() < day


@given(st.sampled_from(ZONES), INSTANTS)
@example("Africa/Cairo", 1_283_990_000_000)  # ends as its clocks jump from midnight to one
@example("Africa/Cairo", 1_284_070_000_000)  # begins with that jump
@example("America/Nuuk", 1_711_800_000_000)  # ends as its clocks jump from eleven to midnight
def test_a_day_is_all_the_time_in_which_clocks_show_its_date(zone: str, at_ms: int) -> None:
    start, end = window_at(CalendarWindow(CalendarUnit.DAY, zone), at_ms)
    assert 22 * HOUR_MS <= end - start <= 48 * HOUR_MS
    day = datetime.fromtimestamp(at_ms // 1000, ZoneInfo(zone)).date()
    # (Seven minutes past, since some clocks were once set back at one minute past midnight.)
    for look in range(start - 3 * HOUR_MS + 7 * 60_000, end + 3 * HOUR_MS, 15 * 60_000):
        shown = datetime.fromtimestamp(look // 1000, ZoneInfo(zone)).date()
        assert (shown == day) == (start <= look < end)


@pytest.mark.parametrize(
    ("unit", "zone", "at", "hours"),
    [
        ("day", "America/New_York", "2026-03-08T12:00:00Z", [24, 23, 24]),
        ("day", "America/New_York", "2026-11-01T12:00:00Z", [24, 25, 24]),
        ("day", "Africa/Cairo", "2026-04-24T12:00:00Z", [24, 23, 24]),
        ("day", "America/Havana", "2026-11-01T12:00:00Z", [24, 25, 24]),
        ("day", "America/St_Johns", "2010-11-07T12:00:00Z", [24, 25, 24]),
        ("day", "Australia/Lord_Howe", "2026-04-05T00:00:00Z", [24, 24.5, 24]),
        ("day", "Pacific/Apia", "2011-12-30T09:59:59Z", [24, 24, 24]),
        ("hour", "Australia/Lord_Howe", "2026-04-04T15:00:00Z", [1, 1.5, 1]),
        ("hour", "Asia/Kathmandu", "2026-04-04T15:00:00Z", [1, 1, 1]),
        ("month", "UTC", "2028-02-29T23:59:59Z", [31 * 24, 29 * 24, 31 * 24]),
        ("year", "UTC", "2028-02-29T23:59:59Z", [365 * 24, 366 * 24, 365 * 24]),
    ],
)
def test_lengths(unit: str, zone: str, at: str, hours: list[float]) -> None:
    edges = edges_around(CalendarWindow(CalendarUnit(unit), zone), ms(at))
    assert [(end - start) / HOUR_MS for start, end in pairwise(edges)] == hours


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "America/New_York", "Asia/Tokyo"])
def test_kong_9581_twelve_months_and_as_many_days_as_the_year_has(zone: str) -> None:
    for unit, expected in ((CalendarUnit.MONTH, 12), (CalendarUnit.DAY, 366)):
        window = CalendarWindow(unit, zone)
        _, end = window_at(CalendarWindow(CalendarUnit.YEAR, zone), ms("2028-06-01T00:00:00Z"))
        at, _ = window_at(CalendarWindow(CalendarUnit.YEAR, zone), ms("2028-06-01T00:00:00Z"))
        count = 0
        while at < end:
            _, at = window_at(window, at)
            count += 1
        assert (at, count) == (end, expected)


def test_what_is_remembered_is_bounded() -> None:
    for number in range(calendars._LAST_MOST + 50):
        calendars._last[CalendarWindow(CalendarUnit.DAY, f"zone {number}")] = (0, 0, 0, 0)
        edges_around(CalendarWindow(CalendarUnit.DAY, ZONES[number % len(ZONES)]), ms("2026-01-01T00:00:00Z"))
    assert len(calendars._last) <= calendars._LAST_MOST + 1
