"""Incidents in the file.  [IO]"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

from services.dashboard.past.file import PastFile
from services.dashboard.past.incidents import Incident

KEPT_MS = 30 * 86_400_000
INCIDENTS_MOST = 20_000


class StoredIncidents:
    """``write`` and ``sweep`` belong into ``file.writing()``."""

    def __init__(self, file: PastFile, incidents_most: int = INCIDENTS_MOST) -> None:
        self._file = file
        self._incidents_most = incidents_most

    def write(self, base: sqlite3.Connection, incidents: Sequence[Incident]) -> None:
        base.executemany(
            "insert or ignore into incidents (ref, at_ms, level, kind, region, domain, rule, text)"
            " values (?, ?, ?, ?, ?, ?, ?, ?)",
            [
                (one.ref, one.at_ms, one.level, one.kind, one.region, one.domain, one.rule, one.text)
                for one in incidents
            ],
        )

    def sweep(self, base: sqlite3.Connection, now_ms: int) -> None:
        base.execute("delete from incidents where at_ms < ?", (now_ms - KEPT_MS,))
        base.execute(
            "delete from incidents where id in (select id from incidents order by at_ms desc limit -1 offset ?)",
            (self._incidents_most,),
        )

    def cut(self) -> dict[str, int]:
        """Regions that were cut off when it was last written of them, and since when."""
        rows = self._file.ask(
            "select region, kind, at_ms from incidents where id in (select max(id) from incidents"
            " where kind in ('cut', 'healed') group by region)"
        )
        return {region: at_ms for region, kind, at_ms in rows if kind == "cut"}

    def since(self, from_ms: int, until_ms: int, most: int) -> list[dict[str, Any]]:
        """Within [from, until), the newest first."""
        names = ("id", "at_ms", "level", "kind", "region", "domain", "rule", "text")
        rows = self._file.ask(
            f"select {', '.join(names)} from incidents where at_ms >= ? and at_ms < ? order by at_ms desc, id desc"
            " limit ?",
            (from_ms, until_ms, most),
        )
        return [dict(zip(names, row, strict=True)) for row in rows]
