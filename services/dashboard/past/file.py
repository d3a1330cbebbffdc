"""The one SQLite file of what is remembered: owned by one process, begun anew when it is damaged or gone.  [IO]

Nothing in it is the only copy of anything that limits stand on, so a damaged file is put aside and not mended.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import structlog

from services.sqlite_files import owned, thrown_away

log = structlog.get_logger(__name__)

VERSION = 1
ANSWER_MOST_S = 3.0
STEPS_BETWEEN_LOOKS = 10_000
CACHE_KIB = 8_192

SCHEMA = """
create table names (id integer primary key, name text not null unique);
create table meta (name text primary key, value blob) without rowid;
create table chunks (
  step_ms integer, name_id integer, start_ms integer, rule_id integer, offered integer, cells blob,
  primary key (step_ms, name_id, start_ms)
) without rowid;
create index chunks_of_rule on chunks (step_ms, rule_id, start_ms, name_id, offered);
create index chunks_by_time on chunks (step_ms, start_ms);
create table steps (
  id integer primary key, key_id integer, region_id integer, at_ms integer, units integer, kind text,
  log_offset integer, epoch integer, n integer, session integer
);
create index steps_of_key on steps (key_id, id);
create index steps_by_time on steps (at_ms, id);
create table incidents (
  id integer primary key, ref text not null unique, at_ms integer, level text, kind text, region text, domain text,
  rule text, text text
);
create index incidents_by_time on incidents (at_ms);
"""


class AnswerTookTooLong(Exception):
    """A question that was given up; nothing of its answer is known."""

    def __init__(self) -> None:
        super().__init__(f"given up after {ANSWER_MOST_S:g} s: ask for a shorter time (from, to)")


class PastFile:
    """``path`` None, or of a file that another process has: in memory, and ``why_in_memory`` says which.

    Every method may be called from any thread.  ``lock`` is held by whoever reads or writes.
    """

    def __init__(self, path: Path | None) -> None:
        self.lock = threading.RLock()
        self.begun_anew = 0
        self.on_begun_anew: list[Callable[[], None]] = []
        self._ids: dict[str, int] = {}
        self.why_in_memory: str | None = None
        self._owned: IO[bytes] | None = None
        if path is None:
            self.why_in_memory = "no file is configured (dashboard.history)"
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._owned = owned(path.with_name(path.name + ".lock"))
            if self._owned is None:
                self.why_in_memory = f"another process has {path.name}: give each dashboard a file of its own"
                log.warning("history in memory", file=str(path), why=self.why_in_memory)
        self.path = path if self._owned is not None else None
        self._base = self._open()

    @property
    def base(self) -> sqlite3.Connection:
        return self._base

    def close(self) -> None:
        with self.lock:
            self._base.close()
            if self._owned is not None:
                self._owned.close()

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """A transaction: all of it, or nothing.  Raises sqlite3.OperationalError (a full disk, say)."""
        with self.lock:
            self._notice_loss()
            try:
                self._base.execute("begin immediate")
                yield self._base
                self._base.execute("commit")
            except BaseException as error:
                ids = len(self._ids)
                if self._base.in_transaction:
                    self._base.execute("rollback")
                if ids:
                    self._ids.clear()  # some may have been of this transaction
                if _is_damage(error):
                    self._begin_anew(str(error))
                raise

    def ask(self, query: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """All rows of the answer; none when the file turns out to be damaged.  Raises AnswerTookTooLong."""
        with self.lock:
            until = time.monotonic() + ANSWER_MOST_S
            self._base.set_progress_handler(lambda: time.monotonic() >= until, STEPS_BETWEEN_LOOKS)
            try:
                return self._base.execute(query, values).fetchall()
            except sqlite3.DatabaseError as error:
                if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_INTERRUPT:
                    raise AnswerTookTooLong from None
                if not _is_damage(error):
                    raise
                self._begin_anew(str(error))
                return []
            finally:
                self._base.set_progress_handler(None, 0)

    def name_id(self, name: str) -> int:
        """The number that stands for a name; to be called while writing."""
        known = self._ids.get(name)
        if known is None:
            self._base.execute("insert or ignore into names (name) values (?)", (name,))
            known = self._ids[name] = self._base.execute("select id from names where name = ?", (name,)).fetchone()[
                0
            ]
        return known

    def forget_names(self) -> None:
        """Names that nothing refers to any more; while writing."""
        self._base.execute(
            "delete from names where id not in (select name_id from chunks)"
            " and id not in (select rule_id from chunks) and id not in (select key_id from steps)"
            " and id not in (select region_id from steps)"
        )
        self._ids.clear()

    def bytes_used(self) -> int:
        with self.lock:
            pages, free, size = (
                self._base.execute(f"pragma {name}").fetchone()[0]
                for name in ("page_count", "freelist_count", "page_size")
            )
            return int((pages - free) * size)

    # ---- beginning anew

    def _open(self) -> sqlite3.Connection:
        try:
            return self._connected()
        except (sqlite3.DatabaseError, ValueError) as error:
            if self.path is None or (isinstance(error, sqlite3.DatabaseError) and not _is_damage(error)):
                raise
            self._put_aside(str(error))
            return self._connected()

    def _connected(self) -> sqlite3.Connection:
        base = sqlite3.connect(self.path or ":memory:", isolation_level=None, check_same_thread=False)
        try:
            version = base.execute("pragma user_version").fetchone()[0]
            if version not in (0, VERSION):
                raise ValueError(f"of version {version}, this process writes version {VERSION}")
            base.execute(f"pragma cache_size = -{CACHE_KIB}")
            if version == 0:
                base.execute("pragma auto_vacuum = incremental")
                base.execute("pragma journal_mode = wal")
                base.executescript(f"begin; {SCHEMA} pragma user_version = {VERSION}; commit;")
            base.execute("pragma synchronous = normal")
            base.execute("pragma journal_size_limit = 16777216")
            base.execute("select count(*) from meta").fetchone()
        except BaseException:
            base.close()
            raise
        return base

    def _notice_loss(self) -> None:
        if self.path is not None and not self.path.exists():
            self._begin_anew("the file is gone")

    def _begin_anew(self, why: str) -> None:
        self._base.close()
        if self.path is not None:
            self._put_aside(why)
        self._base = self._connected()
        self._ids.clear()
        for tell in self.on_begun_anew:
            tell()

    def _put_aside(self, why: str) -> None:
        assert self.path is not None
        log.error("history begun anew", file=str(self.path), why=why)
        self.begun_anew += 1
        if self.path.exists():
            self.path.replace(self.path.with_name(self.path.name + ".damaged"))
        thrown_away(self.path, file_too=False)


def _is_damage(error: BaseException) -> bool:
    """Whether the file itself is the trouble; a full disk or a lock is not."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return isinstance(error, sqlite3.DatabaseError) and (
        code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_SCHEMA) or "no such" in str(error)
    )
