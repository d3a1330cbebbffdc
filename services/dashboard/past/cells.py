"""What is kept of a series in one second or minute, and chunks of sixty of them.  Pure.

A cell is a list of integers, one for each of ``FIELDS``, and cells add up: a minute is the sum of its seconds.
"""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

FIELDS = ("allowed", "denied", "heard", "keys", "base", "lent", "borrowed", "grows", "keeps")
"""``allowed``, ``denied``: cost.  ``heard``: how often the region told of the series (0: nothing is known).
``keys``: how many keys the three sums of shares stand for; ``base``, ``lent`` (what a key's share was below its
base) and ``borrowed`` (above): sums over these keys, in units of 10,000.  ``grows``, ``keeps``: records of the
log."""

ALLOWED, DENIED, HEARD, KEYS, BASE, LENT, BORROWED, GROWS, KEEPS = range(len(FIELDS))
PLACES = 60
SECOND_MS, MINUTE_MS = 1_000, 60_000
SECONDS_KEPT_MS = 3_600_000
MINUTES_KEPT_MS = 30 * 86_400_000
EVERYTHING = "*"
"""The series of all rules of a region together: heard whenever the region is."""

Cell = list[int]


def empty_cell() -> Cell:
    return [0] * len(FIELDS)


def add_to(cell: Cell, more: Sequence[int]) -> None:
    for place, value in enumerate(more):
        cell[place] += value


class Placed(NamedTuple):
    """A cell of the series ``name`` (a rule as ``domain/rule``, or a bucket key of ``rule``) at a whole second or,
    if ``by_minute``, a whole minute that no second stands for."""

    name: str
    rule: str
    region: str
    at_ms: int
    cell: Cell
    by_minute: bool = False


class Chunk:
    """Sixty cells of one series, by region, column by column; what is 0 throughout is not there."""

    def __init__(self) -> None:
        self._regions: dict[str, dict[int, array[int]]] = {}

    def add(self, region: str, place: int, more: Sequence[int]) -> None:
        columns = self._regions.setdefault(region, {})
        for field, value in enumerate(more):
            if value:
                if field not in columns:
                    columns[field] = array("q", bytes(8 * PLACES))
                columns[field][place] += value

    def cells(self) -> Iterator[tuple[str, int, Cell]]:
        """(region, place, cell) of those that are not 0."""
        for region, columns in self._regions.items():
            for place in range(PLACES):
                cell = [columns[field][place] if field in columns else 0 for field in range(len(FIELDS))]
                if any(cell):
                    yield region, place, cell

    @property
    def rows(self) -> int:
        return len(self._regions)

    @property
    def offered(self) -> int:
        """Cost, allowed or denied."""
        return sum(sum(columns.get(field, ())) for columns in self._regions.values() for field in (ALLOWED, DENIED))

    def encode(self) -> bytes:
        told = {
            region: {field: column.tolist() for field, column in columns.items()}
            for region, columns in self._regions.items()
        }
        return zlib.compress(msgspec.msgpack.encode(told), 1)

    @classmethod
    def decode(cls, data: bytes) -> Chunk:
        """Raises ValueError for what is no chunk."""
        try:
            told = msgspec.msgpack.decode(zlib.decompress(data), type=dict[str, dict[int, list[int]]])
            chunk = cls()
            for region, columns in told.items():
                if any(len(column) != PLACES or not 0 <= field < len(FIELDS) for field, column in columns.items()):
                    raise ValueError("other columns")
                chunk._regions[region] = {field: array("q", column) for field, column in columns.items()}
        except (zlib.error, msgspec.DecodeError, OverflowError, ValueError) as error:
            raise ValueError(f"no chunk: {error}") from None
        return chunk


def spread(total: int, begin_ms: int, end_ms: int, step_ms: int) -> Iterator[tuple[int, int]]:
    """``total`` evenly over the steps of (begin, end], none of it lost: (begin of the step, its part)."""
    first = (begin_ms // step_ms) + 1
    last = max(first, end_ms // step_ms)
    count = last - first + 1
    given = 0
    for number in range(1, count + 1):
        upto = total * number // count
        yield (first + number - 1) * step_ms, upto - given
        given = upto
