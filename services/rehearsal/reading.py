"""From log files to requests in the order of their times, and what could not be read.  [W]

A file is opened when the log's clock gets to its first line, so a month of rotated files needs one open at a time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import merge
from itertools import chain, islice
from operator import itemgetter

from services.rehearsal.attributes import OUR_FIELDS, Reading, Refused
from services.rehearsal.formats import FORMATS, LineFormat, Unreadable, found_format
from services.rehearsal.formats.json_lines import JsonLines
from services.rehearsal.logs import STDIN, UnreadableLog, read_lines
from services.rehearsal.order import InOrder, spread

SAMPLE_LINES = 200
EXAMPLES_MOST = 5
EXAMPLE_CHARACTERS = 200
HELD_LINES_MOST = 16_384
HELD_LINES_LEAST = 1024

Request = tuple[Mapping[str, str], int]
"""(attributes, cost)."""


@dataclass(slots=True)
class LineCounts:
    """``read``: lines that became checks.  ``unreadable``: why -> how many.  ``refused``: a node would answer 422.

    ``late``: came too late to be put in order.  ``limited_then``: had the status 429 when the log was written.
    """

    read: int = 0
    unreadable: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    examples: list[tuple[str, int, str, str]] = field(default_factory=list)
    late: int = 0
    late_most_ms: int = 0
    limited_then: int = 0


@dataclass(frozen=True, slots=True)
class _Sampled:
    file: str
    first_ms: int
    lines: Iterable[tuple[int, str]]


class LogReader:
    """All ``files`` in one format, found out from their first lines unless ``format`` names it.

    ``mapped``: see :mod:`attributes`.  ``spread_seconds``: requests of one whole second come evenly over it.
    Raises UnreadableLog.
    """

    def __init__(
        self,
        files: list[str],
        format: str | None,
        mapped: Mapping[str, str],
        *,
        spread_seconds: bool = False,
        progress: Callable[[int], None] = lambda count: None,
    ) -> None:
        self.counts = LineCounts()
        self._progress = progress
        self._spread = spread_seconds
        samples = {file: self._sample(file) for file in files}
        name = format or found_format([text for lines, _ in samples.values() for _, text in lines])
        if name is None:
            known = ", ".join(FORMATS)
            raise UnreadableLog(f"{files[0]}: none of the known formats reads its first lines; name one: {known}")
        self.format_name = name
        self.format: LineFormat = FORMATS[name]
        if name == "json":
            places = {
                ours: place for ours, place in mapped.items() if ours in (*OUR_FIELDS, "client_key", "resource")
            }
            self.format = JsonLines(places)
        self._mapped = mapped
        self._files = [
            _Sampled(file, self._first_ms(lines), rest if file == STDIN else read_lines(file, progress))
            for file, (lines, rest) in samples.items()
        ]

    def _sample(self, file: str) -> tuple[list[tuple[int, str]], Iterable[tuple[int, str]]]:
        """The first lines, and all lines of what can be read only once."""
        if file == STDIN:
            lines = read_lines(file, self._progress)
            sample = list(islice(lines, SAMPLE_LINES))
            return sample, chain(sample, lines)
        return list(islice(read_lines(file), SAMPLE_LINES)), ()

    def _first_ms(self, lines: list[tuple[int, str]]) -> int:
        times = []
        for _, text in lines:
            try:
                times.append(self.format.read(text)[0])
            except Unreadable:
                continue
        return min(times, default=0)

    def reading(self, names: Iterable[str]) -> Reading:
        """How the attributes ``names`` are read."""
        return Reading(names, self.format, self._mapped)

    def requests(self, reading: Reading) -> Iterator[tuple[int, Request]]:
        """(time in ms, request): times never go back.  Raises UnreadableLog.  Only once."""
        most = max(HELD_LINES_LEAST, HELD_LINES_MOST // max(1, len(self._files)))
        if len(self._files) == 1:
            yield from self._ordered(self._files[0], reading, most)
            return
        now_ms = 0
        streams = [self._opened_later(sampled, reading, most) for sampled in self._files]
        for time_ms, request in merge(*streams, key=itemgetter(0)):
            if request is not None:
                now_ms = max(now_ms, time_ms)
                yield now_ms, request

    def _opened_later(self, sampled: _Sampled, reading: Reading, most: int) -> Iterator[tuple[int, Request | None]]:
        yield sampled.first_ms, None
        yield from self._ordered(sampled, reading, most)

    def _ordered(self, sampled: _Sampled, reading: Reading, most: int) -> Iterator[tuple[int, Request]]:
        order = InOrder(most)
        requests = order.of(self._read(sampled, reading))
        yield from spread(requests) if self._spread and self.format.times_whole_s else requests
        self.counts.late += order.late
        self.counts.late_most_ms = max(self.counts.late_most_ms, order.late_most_ms)

    def _read(self, sampled: _Sampled, reading: Reading) -> Iterator[tuple[int, Request]]:
        counts, read_line = self.counts, self.format.read
        attributes_of, cost_of = reading.attributes, reading.cost
        for number, text in sampled.lines:
            try:
                time_ms, fields = read_line(text)
                request = attributes_of(fields), cost_of(fields)
            except Unreadable as error:
                counts.unreadable[error.reason] += 1
                if len(counts.examples) < EXAMPLES_MOST:
                    counts.examples.append((sampled.file, number, error.reason, text[:EXAMPLE_CHARACTERS]))
                continue
            except Refused as error:
                counts.refused[str(error)] += 1
                continue
            counts.read += 1
            if fields.get("status") in ("429", 429):
                counts.limited_then += 1
            yield time_ms, request
