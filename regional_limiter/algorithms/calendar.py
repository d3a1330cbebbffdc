"""When the windows of a calendar begin: an hour, day, week, month or year of a time zone.  Pure but for zone data.

Windows are half-open, follow one another without a gap, and begin where the clocks of the zone first show the
unit's first instant: a day in which clocks change has 23 or 25 hours, and where midnight is left out the day begins
with the change.  A unit that the zone leaves out altogether (a day at the date line) is no window.  Hours begin
whenever the clocks show a full hour.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

from regional_limiter.model.rule import CalendarUnit, CalendarWindow

_QUARTER_MS = 900_000
"""Every zone's distance from UTC is a multiple of it."""
_QUARTERS_MOST = 16

Edges = tuple[int, int, int, int]
"""When the window before, the one now, the next, and the one after it begin, in ms since 1970 UTC."""

_FIRST: Mapping[CalendarUnit, Callable[[date], date]] = {
    CalendarUnit.DAY: lambda day: day,
    CalendarUnit.WEEK: lambda day: day - timedelta(days=day.weekday()),
    CalendarUnit.MONTH: lambda day: day.replace(day=1),
    CalendarUnit.YEAR: lambda day: day.replace(month=1, day=1),
}
_DAYS_MOST: Mapping[CalendarUnit, int] = {
    CalendarUnit.DAY: 1,
    CalendarUnit.WEEK: 7,
    CalendarUnit.MONTH: 31,
    CalendarUnit.YEAR: 366,
}


def window_at(calendar: CalendarWindow, now_ms: int) -> tuple[int, int]:
    """(start, end) of the window that ``now_ms`` lies in."""
    _, start_ms, end_ms, _ = edges_around(calendar, now_ms)
    return start_ms, end_ms


def edges_around(calendar: CalendarWindow, now_ms: int) -> Edges:
    """The edges of the window that ``now_ms`` lies in and of those beside it."""
    edges = _last.get(calendar)
    if edges is None or not edges[1] <= now_ms < edges[2]:
        if len(_last) >= _LAST_MOST:
            _last.clear()
        start_ms = _start(calendar, now_ms)
        end_ms = _next(calendar, start_ms)
        edges = _start(calendar, start_ms - 1), start_ms, end_ms, _next(calendar, end_ms)
        _last[calendar] = edges
    return edges


_LAST_MOST = 1000
_last: dict[CalendarWindow, Edges] = {}
"""A memory only: what was answered last, since the next question is nearly always of the same window."""


def _start(calendar: CalendarWindow, now_ms: int) -> int:
    zone = _zone(calendar.zone)
    if calendar.unit is CalendarUnit.HOUR:
        return _full_hour(zone, now_ms, -1)
    first = _FIRST[calendar.unit](_local(zone, now_ms).date())
    if _midnight(zone, first) > now_ms:  # clocks that leave midnight out, from before it to after it
        first = _FIRST[calendar.unit](first - timedelta(days=1))
    # Clocks that go back over midnight show yesterday once more.
    following_ms = _midnight(zone, _following(calendar.unit, first))
    return following_ms if following_ms <= now_ms else _midnight(zone, first)


def _next(calendar: CalendarWindow, start_ms: int) -> int:
    zone = _zone(calendar.zone)
    if calendar.unit is CalendarUnit.HOUR:
        return _full_hour(zone, start_ms, 1)
    first = _FIRST[calendar.unit](_local(zone, start_ms).date())
    next_ms = start_ms
    while next_ms <= start_ms:
        first = _following(calendar.unit, first)
        next_ms = _midnight(zone, first)
    return next_ms


def _following(unit: CalendarUnit, first: date) -> date:
    return _FIRST[unit](first + timedelta(days=_DAYS_MOST[unit]))


def _full_hour(zone: ZoneInfo, from_ms: int, direction: int) -> int:
    at_ms = from_ms // _QUARTER_MS * _QUARTER_MS
    for _ in range(_QUARTERS_MOST):
        if direction < 0 or at_ms > from_ms:
            shown = _local(zone, at_ms)
            if shown.minute == shown.second == 0:
                return at_ms
        at_ms += direction * _QUARTER_MS
    raise ValueError(f"the clocks of {zone.key} show no full hour around {from_ms}")


def _midnight(zone: ZoneInfo, day: date) -> int:
    """The first instant of ``day``: of two midnights the first, for none the change of the clocks."""
    return round(datetime.combine(day, time(), zone).timestamp() * 1000)


def _local(zone: ZoneInfo, at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms // 1000, zone)


@lru_cache(maxsize=1000)
def _zone(name: str) -> ZoneInfo:
    return ZoneInfo(name)
