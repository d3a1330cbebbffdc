"""Cases from text: taken whole, or refused whole with every fault by its place.  Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from regional_limiter.model.decision import COST_MOST, Reason
from regional_limiter.model.errors import InvalidRules
from regional_limiter.rules.faults import Faults, shown
from regional_limiter.rules.fields import (
    below,
    check_fields,
    read_attributes,
    read_integer,
    read_list,
    read_mapping,
    read_text,
)
from regional_limiter.rules.quantities import read_span_ms
from regional_limiter.rules.text import read_document

CASES_MOST = 1000
STEPS_MOST = 1000
TIMES_MOST = 10_000
SPAN_MS_MOST = 366 * 86_400_000
_FIELDS = ("rules", "cases")
_CASE = ("name", "with", "cost", "start", "checks")
_EXPECTATIONS = ("allowed", "denied_by", "shadow_denied_by", "reason", "remaining", "retry_after_ms", "rule")
_STEP = ("at", "times", "every", "with", "cost", *_EXPECTATIONS)
DEFAULT_START_MS = 1_767_225_600_000
"""2026-01-01T00:00:00Z: the beginning of every window of the calendar in UTC."""


@dataclass(frozen=True, slots=True)
class Step:
    """``times`` checks, the first at ``at_ms`` from the start, then ``every_ms``.

    ``allowed``: how many of them; the other expectations are of the last one.  None: not said.
    """

    place: str
    at_ms: int | None
    times: int
    every_ms: int
    attributes: Mapping[str, str]
    cost: int
    allowed: int | None = None
    denied_by: str | None = None
    shadow_denied_by: str | None = None
    reason: str | None = None
    remaining: int | None = None
    retry_after_ms: int | None = None
    rule: str | None = None


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    start_ms: int
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class CaseFile:
    """``rules``: the file of the rule set, from where the cases lie; None: not said."""

    rules: str | None
    cases: tuple[Case, ...]


def read_cases(text: bytes | str) -> CaseFile:
    """Raises InvalidRules with every fault."""
    faults = Faults()
    fields = read_mapping(faults, "", read_document(text, None))
    check_fields(faults, "", fields, _FIELDS)
    rules = read_text(faults, "rules", fields["rules"], empty=False) if "rules" in fields else None
    if "cases" not in fields:
        faults.add("cases", "missing: a list of cases")
    items = read_list(faults, "cases", fields.get("cases", []), CASES_MOST)
    cases = [_case(faults, f"cases[{index}]", item) for index, item in enumerate(items)]
    faults.raise_if_any()
    return CaseFile(rules, tuple(cases))


def is_case_file(text: bytes) -> bool:
    """Whether a document has cases; a rule set has none."""
    try:
        document = read_document(text, None)
    except InvalidRules:
        return False
    return isinstance(document, dict) and "cases" in document


def _case(faults: Faults, place: str, value: object) -> Case:
    fields = read_mapping(faults, place, value)
    check_fields(faults, place, fields, _CASE)
    name = read_text(faults, below(place, "name"), fields.get("name", place), empty=False)
    given = read_attributes(faults, below(place, "with"), fields.get("with", {}))
    cost = read_integer(faults, below(place, "cost"), fields.get("cost", 1), 0, COST_MOST)
    start_ms = _moment(faults, below(place, "start"), fields.get("start"))
    at = below(place, "checks")
    if "checks" not in fields:
        faults.add(at, "missing: a list of checks, such as {times: 10, allowed: 10}")
    items = read_list(faults, at, fields.get("checks", []), STEPS_MOST)
    steps = [_step(faults, f"{at}[{index}]", item, given, cost) for index, item in enumerate(items)]
    return Case(name, start_ms, tuple(steps))


def _step(faults: Faults, place: str, value: object, given: Mapping[str, str], cost: int) -> Step:
    fields = read_mapping(faults, place, value)
    check_fields(faults, place, fields, _STEP)
    if isinstance(value, dict) and not any(name in fields for name in _EXPECTATIONS):
        faults.add(place, f"expects nothing: say one of {', '.join(_EXPECTATIONS)}")
    times = read_integer(faults, below(place, "times"), fields.get("times", 1), 1, TIMES_MOST)
    own = read_attributes(faults, below(place, "with"), fields.get("with", {}))
    words = {
        name: read_text(faults, below(place, name), fields[name])
        for name in ("denied_by", "shadow_denied_by", "reason", "rule")
        if name in fields
    }
    if words.get("reason", "ok") not in Reason.__members__.values():
        faults.add(below(place, "reason"), f"must be one of {', '.join(Reason)}, not {shown(words['reason'])}")
    numbers = {
        name: read_integer(faults, below(place, name), fields[name], 0, 2**53)
        for name in ("remaining", "retry_after_ms")
        if name in fields
    }
    return Step(
        place,
        _offset(faults, below(place, "at"), fields["at"]) if "at" in fields else None,
        times,
        _offset(faults, below(place, "every"), fields.get("every", 0)),
        {**given, **own},
        read_integer(faults, below(place, "cost"), fields.get("cost", cost), 0, COST_MOST),
        _allowed(faults, below(place, "allowed"), fields["allowed"], times) if "allowed" in fields else None,
        words.get("denied_by"),
        words.get("shadow_denied_by"),
        words.get("reason"),
        numbers.get("remaining"),
        numbers.get("retry_after_ms"),
        words.get("rule"),
    )


def _allowed(faults: Faults, place: str, value: object, times: int) -> int:
    """How many of ``times`` are allowed: true is all of them, false none."""
    if isinstance(value, bool):
        return times if value else 0
    if type(value) is not int or not 0 <= value <= times:
        faults.add(place, f"must be true, false, or how many of the {times:,}, not {shown(value)}")
        return 0
    return value


def _offset(faults: Faults, place: str, value: object) -> int:
    """A span from 0 on: ``90s``, ``5min``, ``250ms``, or whole seconds."""
    if value in (0, "0s", "0ms") and not isinstance(value, bool):
        return 0
    if isinstance(value, str) and value.endswith("ms") and value[:-2].isdecimal() and len(value) < 15:
        return int(value[:-2])
    return read_span_ms(faults, place, value, SPAN_MS_MOST, 'a span such as "90s", "5min" or "250ms"')


def _moment(faults: Faults, place: str, value: object) -> int:
    """ISO 8601 with a zone, in milliseconds since 1970."""
    if value is None:
        return DEFAULT_START_MS
    from datetime import UTC, datetime, timedelta

    try:
        moment = datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None or moment.year < 1971:
        faults.add(place, f"must be a time such as 2026-03-08T00:00:00Z, not {shown(value)}")
        return DEFAULT_START_MS
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
