"""The same messages as JSON, as protobuf's JSON form has them.  Pure.

Names of fields are taken in camelCase and as in the ``.proto``, and written in camelCase; what is zero is left out;
enumerations are names; integers of 64 bits are texts.  A field that is not known is a fault, as the form asks.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec

from services.rls.messages import (
    DESCRIPTORS_MOST,
    ENTRIES_MOST,
    OVER_LIMIT,
    UINT32_MOST,
    BadRequest,
    Descriptor,
    Override,
    Request,
    Response,
    Status,
    Unit,
)

_REQUEST = {"domain": "domain", "descriptors": "descriptors", "hitsAddend": "hits", "hits_addend": "hits"}
_DESCRIPTOR = {
    "entries": "entries",
    "limit": "limit",
    "hitsAddend": "hits",
    "hits_addend": "hits",
    "isNegativeHits": "negative",
    "is_negative_hits": "negative",
}
_ENTRY = {"key": "key", "value": "value"}
_OVERRIDE = {"requestsPerUnit": "requests", "requests_per_unit": "requests", "unit": "unit"}
_UINT64_MOST = 2**64 - 1
_T = TypeVar("_T")


def read_request(body: bytes) -> Request:
    """A RateLimitRequest.  Raises BadRequest."""
    try:
        given = json.loads(body, object_pairs_hook=_object)
    except (ValueError, RecursionError):
        raise BadRequest("", "the body is not JSON") from None
    fields = _fields("", given, _REQUEST)
    descriptors = _list("descriptors", fields.get("descriptors"), DESCRIPTORS_MOST, _read_descriptor)
    return Request(
        _text("domain", fields.get("domain")),
        descriptors,
        _whole("hitsAddend", fields.get("hits"), UINT32_MOST) or 0,
    )


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise BadRequest("", "a field is given twice")
    return found


def _read_descriptor(place: str, value: Any) -> Descriptor:
    fields = _fields(place, value, _DESCRIPTOR)
    override = None
    if fields.get("limit") is not None:
        override = _read_override(f"{place}.limit", fields["limit"])
    negative = fields.get("negative")
    if negative not in (None, True, False):
        raise BadRequest(f"{place}.isNegativeHits", "must be true or false")
    return Descriptor(
        _list(f"{place}.entries", fields.get("entries"), ENTRIES_MOST, _read_entry),
        override,
        _whole(f"{place}.hitsAddend", fields.get("hits"), _UINT64_MOST),
        bool(negative),
    )


def _read_entry(place: str, value: Any) -> tuple[str, str]:
    fields = _fields(place, value, _ENTRY)
    return _text(f"{place}.key", fields.get("key")), _text(f"{place}.value", fields.get("value"))


def _read_override(place: str, value: Any) -> Override:
    fields = _fields(place, value, _OVERRIDE)
    unit = fields.get("unit")
    if isinstance(unit, str):
        if unit not in Unit.__members__:
            raise BadRequest(f"{place}.unit", f"one of {', '.join(Unit.__members__)}")
        unit = int(Unit[unit])
    return Override(
        _whole(f"{place}.requestsPerUnit", fields.get("requests"), UINT32_MOST) or 0,
        _whole(f"{place}.unit", unit, UINT32_MOST) or 0,
    )


def _fields(place: str, value: Any, known: Mapping[str, str]) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise BadRequest(place, "must be an object")
    found: dict[str, Any] = {}
    for name, item in value.items():
        at = f"{place}.{name}" if place else name
        if name not in known:
            raise BadRequest(at[:200], "unknown field")
        if known[name] in found:
            raise BadRequest(at, "is given twice")
        found[known[name]] = item
    return found


def _list(place: str, value: Any, most: int, read: Callable[[str, Any], _T]) -> tuple[_T, ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or len(value) > most:
        raise BadRequest(place, f"must be a list of at most {most}")
    return tuple(read(f"{place}[{index}]", item) for index, item in enumerate(value))


def _text(place: str, value: Any) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise BadRequest(place, "must be a text")
    return value


def _whole(place: str, value: Any, most: int) -> int | None:
    """A whole number, also as a text or as 1.0, as the form allows."""
    if value is None:
        return None
    number = value
    if (isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 21) or (
        isinstance(value, float) and value.is_integer()
    ):
        number = int(value)
    if type(number) is not int or not 0 <= number <= most:
        raise BadRequest(place, f"must be a whole number from 0 to {most}")
    return number


# ---- writing


def write_response(response: Response) -> bytes:
    """A RateLimitResponse."""
    said: dict[str, Any] = {
        "overallCode": _code(response.code),
        "statuses": [_status(status) for status in response.statuses],
    }
    if response.headers:
        said["responseHeadersToAdd"] = [{"key": name, "value": value} for name, value in response.headers]
    if response.metadata is not None:
        said["dynamicMetadata"] = response.metadata
    return msgspec.json.encode(said)


def _code(code: int) -> str:
    return "OVER_LIMIT" if code == OVER_LIMIT else "OK"


def _status(status: Status) -> dict[str, Any]:
    said: dict[str, Any] = {"code": _code(status.code)}
    limit = status.limit
    if limit is not None:
        held: dict[str, Any] = {}
        if limit.name:
            held["name"] = limit.name
        if limit.requests_per_unit:
            held["requestsPerUnit"] = limit.requests_per_unit
        if limit.unit:
            held["unit"] = Unit(limit.unit).name
        said["currentLimit"] = held
    if status.remaining:
        said["limitRemaining"] = status.remaining
    if limit is not None:
        said["durationUntilReset"] = _duration(status.reset_ms)
    return said


def _duration(duration_ms: int) -> str:
    seconds, milliseconds = divmod(duration_ms, 1000)
    return f"{seconds}.{milliseconds:03d}s" if milliseconds else f"{seconds}s"
