"""Who held what when: the steps of the log in the file, and the questions to them.  [IO]"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence

from services.dashboard.past.file import PastFile
from services.dashboard.past.holding import Held, Holding
from services.dashboard.past.share_steps import KEPT_MS, LEADER, SESSIONS, WINDOW, Step

STEPS_MOST = 500_000
"""Some 60 MB.  At rest a key has none; a key whose demand follows the sun has some a minute."""
STEPS_TOLD_MOST = 5_000
KEYS_TOLD_MOST = 200

_COLUMNS = "k.name, r.name, s.at_ms, s.units, s.kind, s.log_offset, s.epoch, s.n, s.session"
_OF_SESSIONS = "coalesce((select id from names where name = ''), -1)"
_HOLDS_NO_MORE = (
    "(id not in (select max(id) from steps where id <= :cut group by key_id, region_id)"
    f" or (units is null and key_id != {_OF_SESSIONS}) or (kind = :window and session <= :now_ms))"
)
"""As of the step ``cut``.  Neither do those before it of the same key and region: none comes to hold again."""
_FROM = "from steps s join names k on k.id = s.key_id join names r on r.id = s.region_id"


class StoredSteps:
    """``write`` and ``sweep`` belong into ``file.writing()``."""

    def __init__(self, file: PastFile, steps_most: int = STEPS_MOST) -> None:
        self._file = file
        self._steps_most = steps_most

    # ---- writing

    def write(self, base: sqlite3.Connection, steps: Sequence[Step]) -> None:
        base.executemany(
            "insert into steps (key_id, region_id, at_ms, units, kind, log_offset, epoch, n, session)"
            " values (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            [(self._file.name_id(one.key), self._file.name_id(one.region), *one[2:]) for one in steps],
        )

    def sweep(self, base: sqlite3.Connection, now_ms: int) -> None:
        """The oldest go, but for the last that each key and region had: it is what holds since then, unless it is
        of a window that is over.  Beyond the bound goes what holds no more, then what does, sessions last.
        """
        cut = base.execute(
            "select coalesce(max(id), 0) from steps where at_ms < ?", (now_ms - KEPT_MS,)
        ).fetchone()[0]
        first, last = base.execute("select coalesce(min(id), 0), coalesce(max(id), 0) from steps").fetchone()
        count = base.execute("select count(*) from steps").fetchone()[0]
        if count > self._steps_most:
            cut = max(cut, first + (last - first) // 10, last - self._steps_most * 9 // 10)
        if cut == 0:
            return
        over_ones = {"window": WINDOW, "now_ms": now_ms, "cut": cut}
        base.execute(f"delete from steps where id <= :cut and {_HOLDS_NO_MORE}", over_ones)
        over = base.execute("select count(*) from steps").fetchone()[0] - self._steps_most
        if over > 0:
            base.execute(
                "delete from steps where id in (select id from steps"
                f" order by not {_HOLDS_NO_MORE}, key_id = {_OF_SESSIONS}, id limit :over)",
                {**over_ones, "cut": last, "over": over},
            )

    # ---- telling

    def known(self) -> dict[tuple[str, str], int]:
        """(region, key) -> units of those that are away from base, as of the last step."""
        rows = self._file.ask(
            f"select r.name, k.name, s.units {_FROM} where k.name != '' and s.id in"
            " (select max(id) from steps group by key_id, region_id) and s.units is not null and s.kind != ?",
            (WINDOW,),
        )
        return {(region, key): units for region, key, units in rows}

    def since_ms(self) -> int | None:
        found: int | None = self._file.ask("select min(at_ms) from steps")[0][0]
        return found

    def at(self, key: str, at_ms: int, bases: Mapping[str, int]) -> dict[str, Held]:
        """``bases``: of every region to be told of."""
        return Holding(*self.last(key, at_ms), bases, at_ms).held()

    def last(self, key: str, at_ms: int) -> tuple[dict[str, Step], dict[str, Step]]:
        """By region the last steps of ``key`` by then, and those of sessions."""
        said, sessions = self._last([key], at_ms), self._last([SESSIONS], at_ms)
        return {one.region: one for one in said}, {one.region: one for one in sessions}

    def windows_at(self, key: str, at_ms: int) -> list[Step]:
        """What was granted of the windows of ``key`` that run then, the last of each region."""
        return [one for one in self._last([key], at_ms) if one.kind == WINDOW and one.session > at_ms]

    def leader_at(self, at_ms: int) -> Step | None:
        return next((one for one in self._last([SESSIONS], at_ms) if one.kind == LEADER), None)

    def moved_at(self, at_ms: int, most: int = KEYS_TOLD_MOST) -> list[str]:
        """Keys that somebody was granted other than its base of, those that moved last first."""
        rows = self._file.ask(
            "select name from (select k.name as name, s.units as units, max(s.id) as id, s.key_id as key_id,"
            f" s.kind as kind, s.session as session {_FROM} where s.at_ms <= ? and k.name != ''"
            " group by s.key_id, s.region_id)"
            " where units is not null and (kind != ? or session > ?) group by name order by max(id) desc limit ?",
            (at_ms, WINDOW, at_ms, most),
        )
        return [name for (name,) in rows]

    def steps(self, keys: Iterable[str] | None, from_ms: int, until_ms: int, most: int) -> list[Step]:
        """Of these keys (None: of all) within [from, until), the oldest first; the newest ``most`` of them."""
        names = None if keys is None else list(keys)
        within = "" if names is None else f" and k.name in ({', '.join('?' * len(names))})"
        rows = self._file.ask(
            f"select {_COLUMNS} {_FROM} where s.at_ms >= ? and s.at_ms < ?{within} order by s.id desc limit ?",
            (from_ms, until_ms, *(names or ()), most),
        )
        # That a session has ended is noticed a moment later than it did.
        return sorted((Step(*row) for row in reversed(rows)), key=lambda step: step.at_ms)

    def _last(self, keys: Sequence[str], at_ms: int) -> list[Step]:
        """The last step of each region by then, of each of ``keys``."""
        rows = self._file.ask(
            f"select {_COLUMNS} {_FROM} where s.id in (select max(id) from steps where at_ms <= ? and key_id in"
            f" (select id from names where name in ({', '.join('?' * len(keys))})) group by key_id, region_id)",
            (at_ms, *keys),
        )
        return [Step(*row) for row in rows]
