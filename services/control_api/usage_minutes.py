"""What was allowed and denied in each minute, by domain, rule and region, and by key.  [IO]

Fed with the usage topic: running totals of every node's incarnation.  What they have grown by since they were last
told belongs to the minute of the message; so repeats, late messages, agents that take over and nodes that begin
anew count once.  Kept in a file, with the place in the topic in the same transaction: a process that comes back
goes on where it was, and what was counted while it was away goes to the minute in which it is told.

Without the file only the end of the topic is read again.  Totals that were there before that end are not counted:
``since_ms`` says from when on everything is.
"""

from __future__ import annotations

import sqlite3
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from regional_limiter.model.keys import identity_of, rule_of
from services.control_api.questions import Questions
from services.sqlite_files import owned

FIELDS = ("allowed", "denied", "allowed_cost", "denied_cost", "degraded", "at_floor")
KEPT_MS = 7 * 86_400_000
MINUTE_MS = 60_000
SETTLING_MS = 120_000
"""After a start in the middle of the topic: what is heard of first within it was there before."""
SOURCES_MOST = 2_000
NAMES_A_SOURCE_MOST = 20_000
KEYS_A_MINUTE_MOST = 1_000
"""Where a minute comes to have more, the busier half of them stays: an upper bound of what the disk holds."""
HEARD_EVERY_MS = 3_600_000
"""How often it is written that a row whose totals stand still was heard of."""
SWEEP_EVERY = 600
AGENT, WINDOW = "agent ", "keys "
"""What the sources of totals by key begin with: an agent that sums up its nodes, or a window of one node's."""
WINDOWS_MOST = 40_000
"""Of all regions: a hundred agents tell of 400 each at most, so none is dropped that will be told of again."""
WINDOW_KEPT_MS = 2 * HEARD_EVERY_MS
"""No agent tells of a window any more that was last heard of so long ago."""

_SCHEMA = """
create table if not exists place (one integer primary key check (one = 1), next_offset integer, since_ms integer,
  settled_ms integer);
create table if not exists counted (
  region text, source text, name text, values_text text, heard_ms integer, primary key (region, source, name)
) without rowid;
create table if not exists minutes (
  minute_ms integer, domain text, rule text, variant text, region text, allowed integer, denied integer,
  allowed_cost integer, denied_cost integer, degraded integer, at_floor integer,
  primary key (minute_ms, domain, rule, variant, region)
) without rowid;
create table if not exists keys (
  minute_ms integer, domain text, rule text, key text, region text, allowed integer, denied integer,
  allowed_cost integer, denied_cost integer, degraded integer, at_floor integer,
  primary key (minute_ms, domain, rule, key, region)
) without rowid;
pragma journal_mode = wal;
pragma synchronous = normal;
"""
_GROUPS: Mapping[str, tuple[str, ...]] = {
    "rule": ("domain", "rule", "variant"),
    "region": ("domain", "rule", "variant", "region"),
    "domain": ("domain",),
    "key": ("domain", "rule", "key"),
}


@dataclass(frozen=True, slots=True)
class Wanted:
    """``by``: rule, region, domain or key.  ``domains`` None: all.  ``minutes`` False: one row for the whole time.

    Rows of shadow, soft and canary have a ``variant``; by domain only what was decided for callers is summed.
    """

    since_ms: int
    until_ms: int
    by: str = "rule"
    domains: frozenset[str] | None = None
    rule: str | None = None
    minutes: bool = True


@dataclass(slots=True)
class _Source:
    """What a node's incarnation, or an agent, has told: the highest totals by name, and when they were heard."""

    totals: dict[str, tuple[int, ...]] = field(default_factory=dict)
    heard_ms: dict[str, int] = field(default_factory=dict)


class UsageMinutes:
    """``path`` None, or of a file that another process has: in memory.

    Every method may be called from any thread.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._lock = threading.Lock()
        # Another process that has the file would count again.
        self._owned = owned(path.with_suffix(".lock")) if path is not None else None
        name = path if self._owned is not None else None
        self._base = sqlite3.connect(name or ":memory:", isolation_level=None, check_same_thread=False)
        self._base.executescript(_SCHEMA)
        self._known: defaultdict[tuple[str, str], _Source] = defaultdict(_Source)
        self._questions = Questions(name, self._base, self._lock)
        self._taken = 0
        self._load()

    def close(self) -> None:
        with self._lock:
            self._base.close()
            if self._owned is not None:
                self._owned.close()

    def _load(self) -> None:
        place = self._base.execute("select next_offset, since_ms, settled_ms from place").fetchone()
        self.next_offset: int | None = place[0] if place else None
        self.since_ms: int | None = place[1] if place else None
        self._settled_ms: int = place[2] if place else 0
        for region, source, name, text, heard_ms in self._base.execute("select * from counted"):
            known = self._known[region, source]
            known.totals[name] = tuple(map(int, text.split()))
            known.heard_ms[name] = heard_ms

    def clear(self) -> None:
        """Forget everything: the topic is another one."""
        with self._lock:
            for table in ("place", "counted", "minutes", "keys"):
                self._base.execute(f"delete from {table}")
            self._known.clear()
            self.next_offset = self.since_ms = None

    # ---- taking

    def take(self, usage: Mapping[str, Any], offset: int) -> None:
        """A usage message at ``offset``; one that was taken before changes nothing."""
        with self._lock:
            if self.next_offset is not None and offset < self.next_offset:
                return
            at_ms = int(usage["at_ms"])
            if self.next_offset is None:
                self.since_ms = at_ms if offset == 0 else at_ms + SETTLING_MS
                self._settled_ms = 0 if offset == 0 else at_ms + SETTLING_MS
            region = str(usage["region"])
            self._base.execute("begin")
            try:
                for source, rows in (usage.get("counted") or {}).items():
                    for name, values in rows.items():
                        self._grow(region, f"node {source}", str(name), values, at_ms)
                windows = usage.get("counted_keys")
                if windows is None:  # of an agent of an earlier version
                    agent = f"{AGENT}{usage['agent']}"
                    for key, entry in usage["keys"].items():
                        self._grow(region, agent, str(key), entry["totals"], at_ms, is_key=True)
                for source, rows in (windows or {}).items():
                    for key, values in rows.items():
                        self._grow(region, WINDOW + str(source), str(key), values, at_ms, is_key=True)
                self._bound_keys(at_ms - at_ms % MINUTE_MS)
                self.next_offset = offset + 1
                self._base.execute(
                    "insert or replace into place values (1, ?, ?, ?)",
                    (self.next_offset, self.since_ms, self._settled_ms),
                )
                self._taken += 1
                if self._taken % SWEEP_EVERY == 1:
                    self._sweep(at_ms)
            except BaseException:
                self._base.execute("rollback")
                self._known.clear()
                self._load()
                raise
            self._base.execute("commit")

    def _grow(
        self, region: str, source: str, name: str, values: Sequence[int], at_ms: int, *, is_key: bool = False
    ) -> None:
        told = tuple(int(value) for value in values[: len(FIELDS)])
        told += (0,) * (len(FIELDS) - len(told))
        heard = self._known[region, source]
        known = heard.totals.get(name)
        of_agent = source.startswith(AGENT)
        if known is None and not of_agent and len(heard.totals) >= NAMES_A_SOURCE_MOST:
            return
        # An agent's totals of a key begin with what its nodes had: of a new one, only what comes after is growth.
        if known is None and (at_ms < self._settled_ms or of_agent):
            known = told
        if known is None:
            known = (0,) * len(FIELDS)
        newest = tuple(map(max, known, told))
        if newest != heard.totals.get(name) or at_ms - heard.heard_ms[name] > HEARD_EVERY_MS:
            heard.totals[name], heard.heard_ms[name] = newest, at_ms
            text = " ".join(map(str, newest))
            self._base.execute(
                "insert or replace into counted values (?, ?, ?, ?, ?)", (region, source, name, text, at_ms)
            )
        grown = tuple(new - old for new, old in zip(newest, known, strict=True))
        if any(grown):
            self._add(region, name, at_ms - at_ms % MINUTE_MS, grown, is_key=is_key)

    def _add(self, region: str, name: str, minute_ms: int, grown: tuple[int, ...], *, is_key: bool) -> None:
        if is_key:
            domain, rule = rule_of(name)
            table, place = "keys", (minute_ms, domain, rule, identity_of(name), region)
        else:
            domain, _, rest = name.partition("/")
            rule, _, variant = rest.partition("#")
            table, place = "minutes", (minute_ms, domain, rule, variant, region)
        more = ", ".join(f"{field} = {field} + excluded.{field}" for field in FIELDS)
        marks = ", ".join("?" * (len(place) + len(grown)))
        self._base.execute(
            f"insert into {table} values ({marks}) on conflict do update set {more}", (*place, *grown)
        )

    def _bound_keys(self, minute_ms: int) -> None:
        count = "select count(*) from (select distinct domain, rule, key from keys where minute_ms = ?)"
        if self._base.execute(count, (minute_ms,)).fetchone()[0] > KEYS_A_MINUTE_MOST:
            self._base.execute(
                "delete from keys where minute_ms = ? and (domain, rule, key) not in ("
                "select domain, rule, key from keys where minute_ms = ? group by domain, rule, key "
                "order by sum(allowed_cost + denied_cost) desc limit ?)",
                (minute_ms, minute_ms, KEYS_A_MINUTE_MOST // 2),
            )

    def _sweep(self, now_ms: int) -> None:
        oldest_ms = now_ms - KEPT_MS
        self._base.execute("delete from minutes where minute_ms < ?", (oldest_ms,))
        self._base.execute("delete from keys where minute_ms < ?", (oldest_ms,))
        last_ms = {place: max(one.heard_ms.values(), default=0) for place, one in self._known.items()}
        newest = sorted(last_ms, key=lambda place: last_ms[place], reverse=True)
        windows = [place for place in newest if place[1].startswith(WINDOW)]
        others = [place for place in newest if not place[1].startswith(WINDOW)]
        for places, most, since_ms in (
            (windows, WINDOWS_MOST, now_ms - WINDOW_KEPT_MS),
            (others, SOURCES_MOST, oldest_ms),
        ):
            for number, place in enumerate(places):
                if number >= most or last_ms[place] < since_ms:
                    self._base.execute("delete from counted where region = ? and source = ?", place)
                    del self._known[place]
                elif place[1].startswith(AGENT):
                    self._sweep_keys(place, oldest_ms)

    def _sweep_keys(self, place: tuple[str, str], oldest_ms: int) -> None:
        """Of one agent.  A key that comes again is new, so none of it counts twice; a node's rule would."""
        known = self._known[place]
        newest = sorted(known.heard_ms, key=lambda name: known.heard_ms[name], reverse=True)
        for number, name in enumerate(newest):
            if number >= NAMES_A_SOURCE_MOST or known.heard_ms[name] < oldest_ms:
                del known.totals[name], known.heard_ms[name]
                self._base.execute(
                    "delete from counted where region = ? and source = ? and name = ?", (*place, name)
                )

    # ---- telling

    def rows(self, wanted: Wanted, most: int, skip: int = 0) -> list[dict[str, Any]]:
        """At most ``most`` rows after ``skip``, by minute and name; by key, the busiest first within a minute.

        Raises TookTooLong.
        """
        names = _GROUPS[wanted.by]
        columns = (("minute_ms",) if wanted.minutes else ()) + names
        wheres, values = ["minute_ms >= ?", "minute_ms < ?"], [wanted.since_ms, wanted.until_ms]
        more: list[Any] = []
        if wanted.domains is not None:
            wheres.append(f"domain in ({', '.join('?' * len(wanted.domains))})")
            more += sorted(wanted.domains)
        if wanted.rule is not None:
            wheres.append("rule = ?")
            more.append(wanted.rule)
        if wanted.by == "domain":
            wheres.append("variant = ''")
        sums = ", ".join(f"sum({field}) as {field}" for field in FIELDS)
        table = "keys" if wanted.by == "key" else "minutes"
        order = ["minute_ms"] if wanted.minutes else []
        order += ["sum(allowed_cost + denied_cost) desc"] if wanted.by == "key" else []
        order += list(names)
        query = (
            f"select {', '.join(columns)}, {sums} from {table} where {' and '.join(wheres)} "
            f"group by {', '.join(columns)} order by {', '.join(order)} limit ? offset ?"
        )
        found = self._questions.ask(query, (*values, *more, most, skip))
        return [dict(zip((*columns, *FIELDS), row, strict=True)) for row in found]


def csv_lines(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The rows as CSV (RFC 4180), the names first.  What a spreadsheet would take for a formula is quoted."""
    if not rows:
        return
    yield ",".join(rows[0]) + "\r\n"
    for row in rows:
        yield ",".join(_cell(value) for value in row.values()) + "\r\n"


def _cell(value: object) -> str:
    text = str(value)
    if text[:1] in ("=", "+", "-", "@") and not isinstance(value, int):
        text = "'" + text
    return f'"{text.replace(chr(34), chr(34) * 2)}"' if any(mark in text for mark in ',"\r\n') else text
