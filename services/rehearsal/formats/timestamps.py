"""Times as access logs write them -> milliseconds since 1970 UTC.  Pure but for a small memory of minutes seen."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

_MONTHS = {
    name: number
    for number, name in enumerate(
        ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"), start=1
    )
}
_MINUTES_MOST = 4096
MS_FROM = 100_000_000_000
"""A number of at least this is milliseconds (since March 1973); a smaller one is seconds."""


class Minutes:
    """Most lines lie in the minute of the line before: its beginning is reckoned once."""

    def __init__(self) -> None:
        self._clf: dict[str, int] = {}
        self._iso: dict[str, int] = {}

    def clf_ms(self, text: str) -> int:
        """``10/Oct/2000:13:55:36 -0700``.  Raises ValueError."""
        minute = text[:17] + text[20:]
        start_ms = self._clf.get(minute)
        if start_ms is None:
            start_ms = _kept(self._clf, minute, _clf_minute_ms(text))
        return start_ms + int(text[18:20]) * 1000

    def iso_ms(self, text: str) -> int:
        """``2016-04-15T20:17:00.310Z`` and what else ISO 8601 allows; UTC without a zone.  Raises ValueError."""
        if len(text) >= 20 and text[-1] == "Z" and text[16] == ":":
            minute = text[:16]
            start_ms = self._iso.get(minute)
            if start_ms is None:
                start_ms = _kept(self._iso, minute, _ms(datetime.fromisoformat(minute).replace(tzinfo=UTC)))
            return start_ms + int(text[17:19]) * 1000 + int((text[20:-1] + "000")[:3])
        moment = datetime.fromisoformat(text)
        return _ms(moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC))

    def any_ms(self, value: object) -> int:
        """A time as JSON logs write it: seconds or milliseconds since 1970, or either text.  Raises ValueError."""
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise ValueError("no time")
        if isinstance(value, str):
            if value[2:3] == "/":
                return self.clf_ms(value)
            if value[4:5] == "-":
                return self.iso_ms(value)
            value = float(value)
        if not 0 <= value < 1e16:
            raise ValueError("no time of this age")
        return int(value) if value >= MS_FROM else round(value * 1000)


def _kept(seen: dict[str, int], minute: str, start_ms: int) -> int:
    if len(seen) >= _MINUTES_MOST:
        seen.clear()
    seen[minute] = start_ms
    return start_ms


def _clf_minute_ms(text: str) -> int:
    if len(text) != 26 or text[2] != "/" or text[17] != ":" or text[3:6] not in _MONTHS:
        raise ValueError("not as 10/Oct/2000:13:55:36 -0700")
    offset = timedelta(hours=int(text[22:24]), minutes=int(text[24:26]))
    zone = timezone(-offset if text[21] == "-" else offset)
    year, month, day = int(text[7:11]), _MONTHS[text[3:6]], int(text[:2])
    return _ms(datetime(year, month, day, int(text[12:14]), int(text[15:17]), tzinfo=zone))


def _ms(moment: datetime) -> int:
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return since // timedelta(milliseconds=1)
