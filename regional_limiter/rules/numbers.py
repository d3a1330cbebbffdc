"""The numbers of a rule, by its algorithm.

Each algorithm takes its own fields; another's are faults, because a number that is ignored would be a limit that
its author believes in.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from math import floor
from typing import NamedTuple

from regional_limiter.model.rule import Algorithm, CalendarUnit, CalendarWindow, Rate, Rule
from regional_limiter.rules import grammar
from regional_limiter.rules.faults import Faults
from regional_limiter.rules.fields import below, check_fields, read_choice, read_flag, read_integer, read_mapping
from regional_limiter.rules.quantities import (
    LEASE_EXPECTED,
    hold_rate,
    largest_capacity,
    read_rate,
    read_refill_per_second,
    read_span_ms,
    read_zone,
)
from regional_limiter.sub_buckets import largest_part, rate_of_part

_TOKEN_BUCKET = ("capacity", "refill", "refill_per_second")
_WINDOW = ("limit", "window")

FIELDS: Mapping[Algorithm, tuple[str, ...]] = {
    Algorithm.TOKEN_BUCKET: _TOKEN_BUCKET,
    Algorithm.GCRA: _TOKEN_BUCKET,
    Algorithm.LEAKY_BUCKET: ("capacity", "leak", "queue"),
    Algorithm.FIXED_WINDOW: _WINDOW,
    Algorithm.SLIDING_WINDOW_COUNTER: _WINDOW,
    Algorithm.SLIDING_WINDOW_LOG: _WINDOW,
    Algorithm.CONCURRENCY: ("limit", "lease"),
}
"""The number fields of each algorithm: first the amount, then what brings it back."""

NUMBER_FIELDS = tuple(dict.fromkeys(name for names in FIELDS.values() for name in names))

ADAPTIVE = frozenset({Algorithm.TOKEN_BUCKET, Algorithm.GCRA, Algorithm.LEAKY_BUCKET, Algorithm.FIXED_WINDOW})
"""The algorithms whose limit can follow the demand of the regions."""


class Numbers(NamedTuple):
    """The fields of a Rule that its algorithm decides by; ``capacity`` 0 and nothing else where there are none."""

    capacity: int = 0
    refill: Rate | None = None
    window_ms: int | None = None
    calendar: CalendarWindow | None = None
    queue: bool = False
    lease_ms: int | None = None


def amount_field(algorithm: Algorithm) -> str:
    """What the algorithm calls its amount: ``capacity`` or ``limit``."""
    return FIELDS[algorithm][0]


def read_numbers(faults: Faults, place: str, fields: Mapping[str, object], algorithm: Algorithm) -> Numbers:
    """The numbers among ``fields``.  Of the algorithm's own ones none may be missing, but ``queue``."""
    before = faults.count
    numbers = _read_numbers(faults, place, fields, algorithm)
    if faults.count == before:
        _check_amount(faults, below(place, amount_field(algorithm)), algorithm, numbers)
    return numbers


def _read_numbers(faults: Faults, place: str, fields: Mapping[str, object], algorithm: Algorithm) -> Numbers:
    own = FIELDS[algorithm]
    for name in NUMBER_FIELDS:
        if name in fields and name not in own:
            faults.add(below(place, name), f"a {algorithm} takes {own[0]} and {own[1]}")
    amount = _read_amount(faults, place, fields, algorithm)
    if own[1] in ("refill", "leak"):
        rate = _read_rate(faults, place, fields, amount)
        queue = read_flag(faults, below(place, "queue"), fields.get("queue", False)) if "queue" in own else False
        return Numbers(amount, rate, queue=queue)
    if own[1] not in fields:
        faults.add(below(place, own[1]), f"missing: a {algorithm} needs it")
        return Numbers(amount)
    at, value = below(place, own[1]), fields[own[1]]
    if own[1] == "lease":
        return Numbers(amount, lease_ms=read_span_ms(faults, at, value, grammar.LEASE_MS_MOST, LEASE_EXPECTED))
    if isinstance(value, dict):
        return Numbers(amount, calendar=_read_calendar(faults, at, value, algorithm))
    return Numbers(amount, window_ms=read_span_ms(faults, at, value, grammar.SPAN_MS_MOST))


def _read_amount(faults: Faults, place: str, fields: Mapping[str, object], algorithm: Algorithm) -> int:
    name = amount_field(algorithm)
    at = below(place, name)
    if name not in fields:
        faults.add(at, f"missing: a {algorithm} needs it")
        return 0
    return read_integer(faults, at, fields[name], 0, grammar.CAPACITY_MOST)


def _check_amount(faults: Faults, at: str, algorithm: Algorithm, numbers: Numbers) -> None:
    """What the algorithm can keep."""
    most, why = grammar.CAPACITY_MOST, "no rule takes more"
    if algorithm in grammar.ENTRIES_MOST:
        most = grammar.ENTRIES_MOST[algorithm]
        why = f"a {algorithm} keeps an entry for each"
        if algorithm is Algorithm.SLIDING_WINDOW_LOG:
            why += ", a sliding_window_counter takes more"
    if numbers.capacity > most:
        faults.add(at, f"at most {most:,}, not {numbers.capacity:,}: {why}")


def check_split(faults: Faults, place: str, split: int, numbers: Numbers, amount_place: str) -> None:
    """Every sub-bucket must get something, and hold its part of the rate exactly."""
    if split == 1 or not numbers.capacity:
        return
    if numbers.capacity < split:
        faults.add(
            amount_place,
            f"{numbers.capacity} in {split} sub-buckets leaves some with none: at least {split}, or a lower split",
        )
    elif numbers.refill is not None:
        part = rate_of_part(numbers.refill, split)
        if hold_rate(Fraction(part.tokens, part.period_ms), largest_part(numbers.capacity, split)) != part:
            faults.add(place, f"1/{split} of the rate cannot be held exactly: a lower split, capacity or precision")


def multiplied(faults: Faults, place: str, rule: Rule, by: Fraction) -> Numbers:
    """The rule's numbers, amount and rate times ``by``; the amount rounded down."""
    amount = floor(rule.capacity * by)
    numbers = Numbers(amount, rule.refill, rule.window_ms, rule.calendar, rule.queue, rule.lease_ms)
    if rule.capacity and not amount:
        name = amount_field(rule.algorithm)
        faults.add(place, f"leaves nothing of {name} {rule.capacity:,}: to deny always say block: true")
        return numbers
    before = faults.count
    _check_amount(faults, place, rule.algorithm, numbers)
    asked = asked_rate(Faults(), "", rule.source) if rule.refill is not None else None
    if asked is None or faults.count > before:
        return numbers
    return numbers._replace(refill=held_rate(faults, place, asked * by, amount))


def _read_calendar(faults: Faults, place: str, value: object, algorithm: Algorithm) -> CalendarWindow | None:
    mapping = read_mapping(faults, place, value)
    if algorithm is not Algorithm.FIXED_WINDOW:
        faults.add(place, f'a {algorithm} needs a span such as "60s": only a fixed_window follows the calendar')
        return None
    check_fields(faults, place, mapping, ("calendar", "zone"))
    at = below(place, "calendar")
    if "calendar" not in mapping:
        faults.add(at, f"missing: one of {', '.join(CalendarUnit)}")
        return None
    unit = read_choice(faults, at, mapping["calendar"], CalendarUnit, CalendarUnit.DAY)
    return CalendarWindow(unit, read_zone(faults, below(place, "zone"), mapping.get("zone", "UTC")))


# ---- rates


def _read_rate(faults: Faults, place: str, fields: Mapping[str, object], capacity: int) -> Rate | None:
    asked = asked_rate(faults, place, fields)
    if asked is None:
        return None
    name = next(name for name in ("refill", "refill_per_second", "leak") if name in fields)
    return held_rate(faults, below(place, name), asked, capacity)


def held_rate(faults: Faults, place: str, asked: Fraction, capacity: int) -> Rate | None:
    """``asked`` as it is held; a fault at ``place`` when no rate near it is exact with this capacity."""
    rate = hold_rate(asked, capacity)
    if rate is None:
        most = largest_capacity(asked)
        hint = f"a capacity of at most {most:,}, or " if most > 0 else ""
        faults.add(
            place,
            f"with capacity {capacity:,} this rate cannot be held exactly below 2^53:"
            f" choose {hint}a rate of few digits over a short span",
        )
    return rate


def asked_rate(faults: Faults, place: str, fields: Mapping[str, object]) -> Fraction | None:
    """The refill or leak as its author wrote it, in tokens over milliseconds."""
    if fields.get("algorithm") == Algorithm.LEAKY_BUCKET:
        if "leak" in fields:
            return read_rate(faults, below(place, "leak"), fields["leak"])
        faults.add(below(place, "leak"), "missing: a leaky_bucket needs it")
        return None
    if "refill" in fields and "refill_per_second" in fields:
        faults.add(below(place, "refill_per_second"), "refill is given too: keep one of them")
    if "refill" in fields:
        return read_rate(faults, below(place, "refill"), fields["refill"])
    if "refill_per_second" in fields:
        return read_refill_per_second(faults, below(place, "refill_per_second"), fields["refill_per_second"])
    algorithm = fields.get("algorithm", Algorithm.TOKEN_BUCKET)
    faults.add(below(place, "refill"), f"missing: a {algorithm} needs refill or refill_per_second")
    return None
