"""From the fields of a log to the attributes of a check: only those that the rules ask for.  Pure.

The map is the user's: ``tier=plan`` reads the attribute ``tier`` from the field ``plan``.  Unless it says
otherwise, every attribute is the field of its name; where a line has no such field, ``client_key`` is the address,
and ``resource`` is method and path (``POST /orders``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from regional_limiter.model.decision import COST_MOST, VALUE_BYTES_MOST
from services.rehearsal.formats import LineFormat
from services.rehearsal.formats.json_lines import value_at

COST = "cost"
OUR_FIELDS = ("time", "ip", "method", "path", "status")
"""What a line of JSON must have, or may: the map says where (``time=ts``)."""

Fields = Mapping[str, Any]


class Refused(Exception):
    """A check that a node would refuse with 422.  The text says why."""


class Reading:
    """What is read of each request.

    ``missing``: attributes that the rules ask for and no line of this format can have.
    """

    def __init__(self, names: Iterable[str], known: LineFormat, mapped: Mapping[str, str]) -> None:
        fields, absent = known.fields, known.absent
        self.missing: list[str] = []
        self._readers: list[tuple[str, Callable[[Fields], str | None]]] = []
        for name in sorted(set(names)):
            field = mapped.get(name, name)
            if fields is None or field in fields:
                own = _reader(field, absent)
            elif name in ("client_key", "resource"):
                own = _nothing
            else:
                self.missing.append(name)
                continue
            if name == "client_key":
                own = _either(own, _reader(mapped.get("ip", "ip"), absent))
            elif name == "resource":
                own = _either(own, _resource)
            self._readers.append((name, own))
        self._cost = _reader(mapped[COST], absent) if COST in mapped else None

    def attributes(self, fields: Fields) -> dict[str, str]:
        """The attributes that the line has.  Raises Refused."""
        found = {}
        for name, reader in self._readers:
            if (text := reader(fields)) is not None:
                if len(text) > VALUE_BYTES_MOST // 4 and len(text.encode(errors="replace")) > VALUE_BYTES_MOST:
                    raise Refused(f"{name} is longer than {VALUE_BYTES_MOST} bytes")
                found[name] = text
        return found

    def cost(self, fields: Fields) -> int:
        """Tokens that the check asks for.  Raises Refused."""
        if self._cost is None:
            return 1
        text = self._cost(fields) or ""
        if not (text.isascii() and text.isdigit()) or int(text) > COST_MOST:
            raise Refused(f"cost is no integer from 0 to {COST_MOST}")
        return int(text)


def unknown_fields(known: LineFormat, mapped: Mapping[str, str]) -> list[str]:
    """The fields of the map that no line of this format has."""
    return [] if known.fields is None else sorted(set(mapped.values()) - set(known.fields))


def _resource(fields: Fields) -> str | None:
    return f"{fields['method']} {fields['path']}" if "method" in fields else None


def _nothing(fields: Fields) -> str | None:
    return None


def _either(
    one: Callable[[Fields], str | None], other: Callable[[Fields], str | None]
) -> Callable[[Fields], str | None]:
    if one is _nothing:
        return other
    return lambda fields: text if (text := one(fields)) is not None else other(fields)


def _reader(field: str, absent: str | None) -> Callable[[Fields], str | None]:
    if absent is not None:  # all fields are text
        return lambda fields: None if (text := fields[field]) == absent else text
    steps = (field, *field.split(".")) if "." in field else (field,)

    def read(fields: Fields) -> str | None:
        value = value_at(fields, steps)
        if value is None or isinstance(value, str):
            return value
        if isinstance(value, bool):
            return "true" if value else "false"
        return str(value) if isinstance(value, int | float) else None

    return read
