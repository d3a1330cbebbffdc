"""Series by the second for an hour and by the minute for thirty days, in chunks of sixty.  [IO]

What is being added to is held in memory and written with the next ``write``; a question sees both.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from time import monotonic

from services.dashboard.past.asked import Wanted
from services.dashboard.past.cells import (
    ALLOWED,
    DENIED,
    EVERYTHING,
    HEARD,
    MINUTE_MS,
    MINUTES_KEPT_MS,
    PLACES,
    SECOND_MS,
    SECONDS_KEPT_MS,
    Cell,
    Chunk,
    Placed,
    add_to,
    empty_cell,
)
from services.dashboard.past.file import ANSWER_MOST_S, AnswerTookTooLong, PastFile

ROWS_MOST = 40_000
"""Of chunks that are being added to, one for each series, region and step; what is more is left out, and counted.
Each takes some 2 kB of memory."""
NAMES_MOST = 50_000
AHEAD_MOST_MS = 60_000
BYTES_MOST = 1_000_000_000
SWEPT_PART = 20

_Place = tuple[int, str, int]
"""Step, name, begin of the chunk."""


class Rollups:
    """``write`` and ``sweep`` belong into ``file.writing()``."""

    def __init__(self, file: PastFile, bytes_most: int = BYTES_MOST) -> None:
        self._file = file
        self._bytes_most = bytes_most
        self._held: dict[_Place, Chunk] = {}
        self._rows = 0
        self._rules: dict[str, str] = {}
        self._unwritten: set[_Place] = set()
        self.left_out = 0
        file.on_begun_anew.append(self._write_all_again)

    # ---- adding

    def add(self, cells: Iterable[Placed], now_ms: int) -> None:
        with self._file.lock:
            for one in cells:
                if one.at_ms > now_ms + AHEAD_MOST_MS or one.at_ms <= now_ms - MINUTES_KEPT_MS:
                    self.left_out += 1
                    continue
                self._rules[one.name] = one.rule
                if not one.by_minute and one.at_ms > now_ms - SECONDS_KEPT_MS:
                    self._add(SECOND_MS, one)
                self._add(MINUTE_MS, one)

    def _add(self, step_ms: int, one: Placed) -> None:
        length_ms = step_ms * PLACES
        place = (step_ms, one.name, one.at_ms - one.at_ms % length_ms)
        chunk = self._held.get(place)
        if chunk is None:
            if self._rows >= ROWS_MOST and not self._let_go():
                self.left_out += 1
                return
            chunk = self._held[place] = self._read(place) or Chunk()
            self._rows += chunk.rows
        self._rows -= chunk.rows
        chunk.add(one.region, one.at_ms % length_ms // step_ms, one.cell)
        self._rows += chunk.rows
        self._unwritten.add(place)

    def _let_go(self) -> bool:
        """Chunks that are written need not be held."""
        self._held = {place: chunk for place, chunk in self._held.items() if place in self._unwritten}
        self._rows = sum(chunk.rows for chunk in self._held.values())
        return self._rows < ROWS_MOST

    def _read(self, place: _Place) -> Chunk | None:
        found = self._file.ask(
            "select cells from chunks where step_ms = ? and start_ms = ?"
            " and name_id = (select id from names where name = ?)",
            (place[0], place[2], place[1]),
        )
        return _decoded(found[0][0]) if found else None

    def _write_all_again(self) -> None:
        self._unwritten |= set(self._held)

    # ---- writing

    def write(self, base: sqlite3.Connection, now_ms: int) -> list[_Place]:
        """What has been added to.  Tell ``written`` of the result once the transaction stands."""
        places = sorted(self._unwritten)
        for place in places:
            step_ms, name, start_ms = place
            chunk = self._held[place]
            ids = self._file.name_id(name), self._file.name_id(self._rules[name])
            base.execute(
                "insert or replace into chunks values (?, ?, ?, ?, ?, ?)",
                (step_ms, ids[0], start_ms, ids[1], chunk.offered, chunk.encode()),
            )
        return places

    def written(self, places: Iterable[_Place], now_ms: int) -> None:
        with self._file.lock:
            self._unwritten -= set(places)
            for place in [place for place in self._held if place not in self._unwritten]:
                if place[2] + place[0] * PLACES < now_ms - MINUTE_MS:
                    self._rows -= self._held.pop(place).rows
            if len(self._rules) > NAMES_MOST:
                names = {name for _, name, _ in self._held}
                self._rules = {name: rule for name, rule in self._rules.items() if name in names}

    def sweep(self, base: sqlite3.Connection, now_ms: int) -> None:
        """What is too old, and of what is more than the disk may hold the oldest."""
        for step_ms, kept_ms in ((SECOND_MS, SECONDS_KEPT_MS), (MINUTE_MS, MINUTES_KEPT_MS)):
            oldest_ms = now_ms - kept_ms - step_ms * PLACES
            base.execute("delete from chunks where step_ms = ? and start_ms < ?", (step_ms, oldest_ms))
        if self._file.bytes_used() > self._bytes_most:
            for step_ms in (MINUTE_MS, SECOND_MS):
                first, last = base.execute(
                    "select min(start_ms), max(start_ms) from chunks where step_ms = ?", (step_ms,)
                ).fetchone()
                if first is not None:
                    cut_ms = first + max(step_ms * PLACES, (last - first) // SWEPT_PART)
                    base.execute("delete from chunks where step_ms = ? and start_ms < ?", (step_ms, cut_ms))

    # ---- telling

    def since_ms(self, step_ms: int) -> int | None:
        """Begin of the oldest chunk that is kept."""
        with self._file.lock:
            found = self._file.ask("select min(start_ms) from chunks where step_ms = ?", (step_ms,))[0][0]
            held = [start_ms for step, _, start_ms in self._held if step == step_ms]
            return min([*held, *([found] if found is not None else [])], default=None)

    def cells(self, name: str, source_ms: int, from_ms: int, until_ms: int) -> Iterator[tuple[str, int, Cell]]:
        """(region, begin of the second or minute, cell) of all within [from, until)."""
        length_ms = source_ms * PLACES
        with self._file.lock:
            rows = self._file.ask(
                "select start_ms, cells from chunks where step_ms = ? and start_ms > ? and start_ms < ?"
                " and name_id = (select id from names where name = ?)",
                (source_ms, from_ms - length_ms, until_ms, name),
            )
            held = {
                start_ms: [(region, place, list(cell)) for region, place, cell in chunk.cells()]
                for (step_ms, held_name, start_ms), chunk in self._held.items()
                if step_ms == source_ms and held_name == name and from_ms - length_ms < start_ms < until_ms
            }
        stored = {start_ms: _decoded(data) for start_ms, data in rows if start_ms not in held}
        read = {start_ms: list(chunk.cells()) for start_ms, chunk in stored.items() if chunk is not None}
        found = [
            (region, start_ms + place * source_ms, cell)
            for start_ms, cells in {**read, **held}.items()
            for region, place, cell in cells
        ]
        return ((region, at_ms, cell) for region, at_ms, cell in found if from_ms <= at_ms < until_ms)

    def series(self, wanted: Wanted) -> dict[str, dict[int, Cell]]:
        """region -> begin of the step -> sums.  ``HEARD`` of a rule's step is its region's."""
        begins = wanted.begins()
        if not begins:
            return {}
        until_ms = begins[-1] + wanted.step_ms
        found: dict[str, dict[int, Cell]] = {}

        def step_of(region: str, at_ms: int) -> Cell:
            steps = found.setdefault(region, {})
            return steps.setdefault(at_ms - at_ms % wanted.step_ms, empty_cell())

        is_rule = not wanted.name.startswith("rl:")
        for region, at_ms, cell in self.cells(wanted.name, wanted.source_ms, begins[0], until_ms):
            if is_rule and wanted.name != EVERYTHING:
                cell[HEARD] = 0
            add_to(step_of(region, at_ms), cell)
        if is_rule and wanted.name != EVERYTHING:
            for region, at_ms, cell in self.cells(EVERYTHING, wanted.source_ms, begins[0], until_ms):
                step_of(region, at_ms)[HEARD] += cell[HEARD]
        return found

    def busiest(
        self, rule: str, source_ms: int, from_ms: int, until_ms: int, most: int
    ) -> list[tuple[str, int, int]]:
        """(key, allowed, denied) of a rule's keys over whole chunks that touch the time, the busiest first.

        Raises AnswerTookTooLong.
        """
        until_s = monotonic() + ANSWER_MOST_S
        length_ms = source_ms * PLACES
        with self._file.lock:
            rows = self._file.ask(
                "select n.name, sum(c.offered) from chunks c join names n on n.id = c.name_id where c.step_ms = ?"
                " and c.rule_id = (select id from names where name = ?) and c.start_ms > ? and c.start_ms < ?"
                " and c.name_id != c.rule_id group by c.name_id order by 2 desc limit ?",
                (source_ms, rule, from_ms - length_ms, until_ms, most),
            )
            names = dict.fromkeys(name for name, _ in rows)
            names |= dict.fromkeys(
                name
                for step_ms, name, start_ms in self._held
                if step_ms == source_ms and name != rule and self._rules.get(name) == rule
                and from_ms - length_ms < start_ms < until_ms
            )  # fmt: skip
        totals = []
        for name in names:
            if monotonic() >= until_s:
                raise AnswerTookTooLong
            cells = [cell for _, _, cell in self.cells(name, source_ms, from_ms, until_ms)]
            totals.append((name, sum(cell[ALLOWED] for cell in cells), sum(cell[DENIED] for cell in cells)))
        return sorted(totals, key=lambda one: (-one[1] - one[2], one[0]))[:most]


def _decoded(data: bytes) -> Chunk | None:
    """None for what cannot be read: it is a gap in a picture, not an end of it."""
    try:
        return Chunk.decode(data)
    except ValueError:
        return None
