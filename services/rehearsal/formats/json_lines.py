"""One JSON object a line, with the fields that its writer chose.  Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from services.rehearsal.formats.base import Unreadable
from services.rehearsal.formats.text_lines import NO_REQUEST, NO_TIME, without_origin
from services.rehearsal.formats.timestamps import Minutes

KNOWN: Mapping[str, tuple[str, ...]] = {
    "time": ("time", "timestamp", "@timestamp", "ts", "time_iso8601", "start_time", "StartUTC", "time_local"),
    "ip": ("ip", "remote_addr", "client_ip", "remote_ip", "ClientHost", "client", "downstream_remote_address"),
    "method": ("method", "request_method", "http_method", "RequestMethod"),
    "path": ("path", "uri", "request_uri", "url", "RequestPath"),
    "client_key": ("client_key",),
    "resource": ("resource",),
    "status": ("status", "status_code", "response_code", "DownstreamStatus"),
}
"""Where our fields are looked for unless a map says: the first name that a line has."""


class JsonLines:
    """``places``: our field -> where it is in the object (``a.b``: ``b`` inside of ``a``); the others by KNOWN."""

    fields: tuple[str, ...] | None = None
    times_whole_s = False
    absent: str | None = None

    def __init__(self, places: Mapping[str, str] | None = None) -> None:
        mapped = {name: (place,) for name, place in (places or {}).items()}
        looked_for = {name: [_steps(place) for place in found] for name, found in {**KNOWN, **mapped}.items()}
        self._time = looked_for.pop("time")
        self._places = looked_for
        self._decode = msgspec.json.Decoder().decode
        self._any_ms = Minutes().any_ms

    def read(self, line: str) -> tuple[int, Mapping[str, Any]]:
        try:
            document = self._decode(line)
        except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
            raise Unreadable("no JSON") from None
        if not isinstance(document, dict):
            raise Unreadable("no JSON object")
        try:
            time_ms = self._any_ms(_first(document, self._time))
        except (ValueError, OverflowError):
            raise Unreadable(NO_TIME) from None
        fields: dict[str, Any] = dict(document)
        for name, places in self._places.items():
            value = _first(document, places)
            if value is None:
                fields.pop(name, None)
            else:
                fields[name] = value
        target = fields.get("path")
        if isinstance(target, str) and target and isinstance(fields.get("method"), str):
            path, _, query = (target if target[0] == "/" else without_origin(target)).partition("?")
            fields["path"], fields["query"] = path, query
        elif not isinstance(fields.get("resource"), str):
            raise Unreadable(NO_REQUEST, is_of_format=True)
        return time_ms, fields


def _steps(place: str) -> tuple[str, ...]:
    """A name with dots in it is looked for as it is first: see :func:`value_at`."""
    return (place, *place.split(".")) if "." in place else (place,)


def _first(document: Mapping[str, Any], places: list[tuple[str, ...]]) -> Any:
    for steps in places:
        if (value := value_at(document, steps)) is not None:
            return value
    return None


def value_at(document: Mapping[str, Any], steps: tuple[str, ...]) -> Any:
    """What is at ``steps``: (name,), or (the name with its dots, then its parts)."""
    if len(steps) == 1 or steps[0] in document:
        return document.get(steps[0])
    inner: Any = document
    for step in steps[1:]:
        if not isinstance(inner, dict):
            return None
        inner = inner.get(step)
    return inner
