"""Times as commands take and print them."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

_UNITS_S = {"s": 1, "min": 60, "h": 3600, "d": 86_400, "w": 604_800}
_SPAN = re.compile(r"(\d{1,6})\s*(s|min|h|d|w)", re.ASCII)
SPAN_EXPECTED = "a number and one of s, min, h, d, w, such as 90min or 2d"


def span_s(text: str) -> int | None:
    """Seconds of ``90min``, ``2d``, ...; None for what is no span above 0."""
    found = _SPAN.fullmatch(text.strip())
    return int(found[1]) * _UNITS_S[found[2]] or None if found else None


def after(seconds: int) -> str:
    """The time so many seconds from now, as the API takes it."""
    return (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat(timespec="seconds")


def shown_time(at_ms: int) -> str:
    """In this machine's zone."""
    return datetime.fromtimestamp(at_ms / 1000).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def zone() -> str:
    """The name of this machine's zone just now."""
    return datetime.now().astimezone().tzname() or "local"
