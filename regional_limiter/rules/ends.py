"""When an override ends.  Nodes do not look at it: the leader takes an override out once its time has come."""

from __future__ import annotations

from datetime import datetime

from regional_limiter.rules.faults import Faults, shown

END_EXPECTED = "a time with its zone, such as 2026-12-31T18:00:00Z or 2026-12-31T18:00:00+01:00"


def end_ms(value: object) -> int | None:
    """Milliseconds since 1970 of an end; None for what is none."""
    try:
        time = datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        return None
    return None if time is None or time.tzinfo is None else int(time.timestamp() * 1000)


def read_end(faults: Faults, place: str, value: object) -> int | None:
    end = end_ms(value)
    if end is None:
        faults.add(place, f"must be {END_EXPECTED}, not {shown(value)}")
    return end


def without_ended_overrides(overrides: object, by_ms: int) -> list[object]:
    """The entries of a document's ``overrides`` without those that end at ``by_ms`` or before."""
    if not isinstance(overrides, list):
        return []
    return [one for one in overrides if (end := _end_of(one)) is None or end > by_ms]


def next_end_ms(overrides: object) -> int | None:
    """When the first of the overrides ends; None when none does."""
    if not isinstance(overrides, list):
        return None
    return min((end for one in overrides if (end := _end_of(one)) is not None), default=None)


def _end_of(override: object) -> int | None:
    return end_ms(override.get("until")) if isinstance(override, dict) else None
