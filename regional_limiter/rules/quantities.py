"""Spans, rates, and what can be held exactly.  Pure integers and fractions.

A token bucket's level is an integer of 1/(period_ms x 10,000) tokens.  Both implementations are exact as long as
every intermediate number stays below 2^53.  The largest that can occur, for capacity C, period P, T tokens:

    level                 from -C*P*10,000 (charged after a degraded time) to C*P*10,000
    elapsed x T x share   elapsed is cut at the time from the level to full, rounded up:
                          at most 2*C*P*10,000 + T*10,000

and a little is kept free for adding a time to a time of day.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from decimal import Decimal
from fractions import Fraction
from functools import cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from regional_limiter.model.rule import Rate
from regional_limiter.model.share import LARGEST_EXACT_INTEGER, SHARE_UNITS
from regional_limiter.rules.faults import Faults, nearest, shown
from regional_limiter.rules.grammar import SPAN_MS_MOST

_ROOM = LARGEST_EXACT_INTEGER - 2**43
_LONGEST_PERIOD_MS = 2**39
"""17 years: a bucket's packed state has 5 bytes for it."""
_LARGEST_ERROR = Fraction(1, 1_000_000)
_DAY_MS = 86_400_000
_UNITS_MS = {"s": 1000, "min": 60_000, "h": 3_600_000, "d": _DAY_MS, "day": _DAY_MS}
_SPAN = re.compile(r"([0-9]{1,9}) ?(s|min|h|d|day)", re.ASCII)
_ZONE = re.compile(r"[A-Za-z][A-Za-z0-9_+/-]{0,63}", re.ASCII)
_NO_ZONES = ("localtime", "posixrules", "Factory", "posix", "right")
"""Names that mean another zone on each machine, and folders of copies, one of which counts leap seconds."""
_REFILL = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,9})?) ?/ ?(?:([0-9]{1,9}) ?)?(s|min|h|d|day)", re.ASCII)
_PERCENT = re.compile(r"([0-9]{1,3}(?:\.[0-9])?) ?%", re.ASCII)
_REFILL_EXPECTED = 'tokens per span, such as "10/s", "100/min", "5/h", "1/day" or "100/90s"'
WINDOW_EXPECTED = 'a span such as "60s", "5min", "1h" or "1d", or a number of seconds'
LEASE_EXPECTED = 'a span such as "30s" or "5min", or a number of seconds'
ZERO_REFILL = "0 never refills: for a limit that always denies say capacity: 0 with any refill"


def read_span_ms(faults: Faults, place: str, value: object, most_ms: int, expected: str = WINDOW_EXPECTED) -> int:
    """A span in milliseconds: whole seconds, at most ``most_ms``."""
    span_ms = 0
    if type(value) is int:
        span_ms = value * 1000
    elif isinstance(value, str) and (parts := _SPAN.fullmatch(value)):
        span_ms = int(parts[1]) * _UNITS_MS[parts[2]]
    else:
        faults.add(place, f"must be {expected}, not {shown(value)}")
        return 1000
    if not 0 < span_ms <= most_ms:
        days = most_ms // _DAY_MS
        faults.add(place, f"must be from 1 second to {days} day{'s' if days > 1 else ''}, not {shown(value)}")
        return 1000
    return span_ms


def read_per_mille(faults: Faults, place: str, value: object, least: int) -> int:
    """A part in per cent, with one decimal at most, as thousandths: from ``least`` to the whole."""
    parts = _PERCENT.fullmatch(value) if isinstance(value, str) else None
    per_mille = int(Decimal(parts[1]) * 10) if parts else -1
    if not least <= per_mille <= 1000:
        expected = f'from "{Decimal(least) / 10:f}%" to "100%", with one decimal at most'
        faults.add(place, f"must be a part of the base {expected}, not {shown(value)}")
        return least
    return per_mille


def read_zone(faults: Faults, place: str, value: object) -> str:
    """An IANA time zone that this machine knows."""
    if isinstance(value, str) and is_zone(value):
        return value
    close = _nearest_zone(value) if isinstance(value, str) and not faults.full else None
    hint = f"; did you mean {close}?" if close else ""
    faults.add(place, f"must be a time zone such as UTC or Europe/Berlin, not {shown(value)}{hint}")
    return "UTC"


def is_zone(name: str) -> bool:
    """Whether ``name`` is a time zone that this machine knows, and means the same on others."""
    # "localtime" and the like are another zone on each machine, and "right/…" counts leap seconds.
    if not _ZONE.fullmatch(name) or name.partition("/")[0] in _NO_ZONES:
        return False
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return False
    return True


@cache
def _zones() -> Mapping[str, str]:
    """Every zone by its name in lower case: a search of the disk, so once, and only for a hint."""
    return {name.lower(): name for name in available_timezones() if is_zone(name)}


def _nearest_zone(word: str) -> str | None:
    word, zones = word[:64].lower(), _zones()
    city = next((zone for zone in sorted(zones) if zone.rpartition("/")[2] == word), None)
    close = word if word in zones else city or nearest(word, zones)
    return zones[close] if close else None


def read_rate(faults: Faults, place: str, value: object) -> Fraction | None:
    """``10/s`` as a fraction of tokens over milliseconds."""
    parts = _REFILL.fullmatch(value) if isinstance(value, str) else None
    if parts is None:
        faults.add(place, f"must be {_REFILL_EXPECTED}, not {shown(value)}")
        return None
    span_ms = int(parts[2] or 1) * _UNITS_MS[parts[3]]
    tokens = Fraction(parts[1])
    if tokens == 0:
        faults.add(place, ZERO_REFILL)
    elif not 0 < span_ms <= SPAN_MS_MOST:
        faults.add(place, f"the span must be from 1 second to 366 days, in {shown(value)}")
    else:
        return tokens / span_ms
    return None


def read_refill_per_second(faults: Faults, place: str, value: object) -> Fraction | None:
    """A whole or decimal number of tokens a second, as a fraction of tokens over milliseconds."""
    if type(value) is int:
        tokens = Fraction(value)
    elif isinstance(value, float) and math.isfinite(value):
        # The shortest decimal that names this double is what the author wrote.
        tokens = Fraction(Decimal(repr(value)))
    else:
        faults.add(place, f"must be a number of tokens a second, not {shown(value)}")
        return None
    if tokens <= 0:
        faults.add(place, ZERO_REFILL if tokens == 0 else "must be above 0")
        return None
    return tokens / 1000


def read_decimal(faults: Faults, place: str, value: object, most: int) -> Fraction | None:
    """A whole or decimal number above 0, exactly as it was written."""
    number = None
    if type(value) is int:
        number = Fraction(value)
    elif isinstance(value, float) and math.isfinite(value):
        number = Fraction(Decimal(repr(value)))
    if number is None or not 0 < number <= most:
        faults.add(place, f"must be a number above 0 and at most {most:,}, not {shown(value)}")
        return None
    return number


def largest_period_ms(rate: Fraction, capacity: int) -> int:
    """The largest period with which buckets of ``capacity`` at ``rate`` (tokens/ms) stay exact; may be 0."""
    return min(_LONGEST_PERIOD_MS, math.floor(_ROOM / (SHARE_UNITS * (2 * capacity + rate))))


def largest_capacity(rate: Fraction) -> int:
    """The largest capacity with which ``rate`` is held as asked; below 0: none."""
    if rate.denominator > _LONGEST_PERIOD_MS:
        return -1
    return math.floor((Fraction(_ROOM, SHARE_UNITS * rate.denominator) - rate) / 2)


def hold_rate(asked: Fraction, capacity: int) -> Rate | None:
    """The rate as it is held: ``asked``, or the nearest lower fraction that stays exact.

    None when the nearest is more than one in a million too low.
    """
    largest = largest_period_ms(asked, capacity)
    if largest < 1:
        return None
    held = asked if asked.denominator <= largest else _nearest_lower(asked, largest)
    if held <= 0 or asked - held > asked * _LARGEST_ERROR:
        return None
    return Rate(held.numerator, held.denominator)


def _nearest_lower(value: Fraction, largest_denominator: int) -> Fraction:
    """The largest fraction <= ``value`` whose denominator is at most ``largest_denominator``.

    The continued fraction of ``value``, cut where the denominator grows too large, leaves its two neighbours
    among the fractions of bounded denominator; one of them lies below.
    """
    p0, q0, p1, q1 = 0, 1, 1, 0
    numerator, denominator = value.numerator, value.denominator
    while True:
        whole = numerator // denominator
        if q0 + whole * q1 > largest_denominator:
            break
        p0, q0, p1, q1 = p1, q1, p0 + whole * p1, q0 + whole * q1
        numerator, denominator = denominator, numerator - whole * denominator
        if denominator == 0:
            return Fraction(p1, q1)
    steps = (largest_denominator - q0) // q1
    neighbours = (Fraction(p1, q1), Fraction(p0 + steps * p1, q0 + steps * q1))
    return max(neighbour for neighbour in neighbours if neighbour <= value)
