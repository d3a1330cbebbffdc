"""Subjects line by line, out of a body in parts: JSON lines, or CSV with names in its first line.  Pure."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from regional_limiter.model.errors import Fault

LINE_BYTES_MOST = 16_384
Format = Literal["ndjson", "csv"]
MEDIA: dict[str, Format] = {
    "application/x-ndjson": "ndjson",
    "application/jsonl": "ndjson",
    "application/json-lines": "ndjson",
    "text/csv": "csv",
}


@dataclass(frozen=True, slots=True)
class Line:
    """``number``: from 1.  ``subject``: what it says; None where ``fault`` says what is wrong with it."""

    number: int
    subject: dict[str, Any] | None
    fault: Fault | None = None


class SubjectLines:
    """Fed with the parts of a body; ``end`` gives what is left."""

    def __init__(self, format: Format) -> None:
        self._format = format
        self._rest = b""
        self._number = 0
        self._names: list[str] | None = None

    def feed(self, part: bytes) -> Iterator[Line]:
        """The lines that are whole now.  Raises ValueError for a line without an end, or a CSV without names."""
        lines = (self._rest + part).split(b"\n")
        self._rest = lines.pop()
        if len(self._rest) > LINE_BYTES_MOST:
            raise ValueError(f"line {self._number + len(lines) + 1}: longer than {LINE_BYTES_MOST:,} bytes")
        for line in lines:
            yield from self._line(line)

    def end(self) -> Iterator[Line]:
        rest, self._rest = self._rest, b""
        yield from self._line(rest)

    def _line(self, line: bytes) -> Iterator[Line]:
        self._number += 1
        if self._number == 1:
            line = line.removeprefix(b"\xef\xbb\xbf")
        if not line.strip():
            return
        try:
            text = line.decode().rstrip("\r")
        except UnicodeDecodeError:
            yield self._wrong("", "must be UTF-8")
            return
        if self._format == "ndjson":
            yield self._from_json(text)
        elif self._names is None:
            self._read_names(text)
        else:
            yield self._from_csv(text, self._names)

    def _from_json(self, text: str) -> Line:
        try:
            said = msgspec.json.decode(text)
        except msgspec.DecodeError as error:
            return self._wrong("", f"must be JSON: {error}")
        if not isinstance(said, dict):
            return self._wrong("", 'must be a mapping such as {"client_key": "acme", "set": {"tier": "gold"}}')
        return Line(self._number, said)

    def _read_names(self, text: str) -> None:
        names = _cells(text)
        if names is None or "client_key" not in names or len(set(names)) != len(names):
            raise ValueError("line 1: must name the columns of a CSV, each once, one of them client_key")
        self._names = names

    def _from_csv(self, text: str, names: list[str]) -> Line:
        cells = _cells(text)
        if cells is None or len(cells) != len(names):
            return self._wrong("", f"must have {len(names)} cells, each on one line")
        said = dict(zip(names, cells, strict=True))
        client_key = said.pop("client_key")
        return Line(
            self._number, {"client_key": client_key, "set": {name: cell for name, cell in said.items() if cell}}
        )

    def _wrong(self, place: str, problem: str) -> Line:
        return Line(self._number, None, Fault(f"line {self._number}{place}", problem))


def _cells(text: str) -> list[str] | None:
    if '"' not in text:
        return text.split(",")
    try:
        return next(csv.reader([text], strict=True))
    except (csv.Error, StopIteration):
        return None
