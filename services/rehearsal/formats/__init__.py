"""The formats of access logs, as one table: name -> how a line is read.  Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from services.rehearsal.formats.base import LineFormat, Unreadable
from services.rehearsal.formats.json_lines import JsonLines
from services.rehearsal.formats.text_lines import ALB, COMBINED, ENVOY, VHOST

FORMATS: Mapping[str, LineFormat] = {
    "vhost": VHOST,  # before combined, which would take the address for a name
    "combined": COMBINED,
    "envoy": ENVOY,
    "alb": ALB,
    "json": JsonLines(),
}


def found_format(lines: Sequence[str]) -> str | None:
    """The format that reads most of ``lines``; of equals the first in the table; None: none reads any."""
    best, most = None, 0
    for name, known in FORMATS.items():
        read = sum(_reads(known, line) for line in lines)
        if read > most:
            best, most = name, read
    return best


def _reads(known: LineFormat, line: str) -> bool:
    try:
        known.read(line)
    except Unreadable as error:
        return error.is_of_format
    return True


__all__ = ["FORMATS", "LineFormat", "Unreadable", "found_format"]
