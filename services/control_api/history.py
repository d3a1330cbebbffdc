"""The history of changes as this process has read it: searched, and every version built again from it.  [IO]

The topic is the one that lasts.  This is only an index of it, in a file that is made anew at every start, so that
nothing is lost with a machine and memory does not grow with the years.
"""

from __future__ import annotations

import sqlite3
import threading
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from global_sync.changes import (
    ACCESS_KINDS,
    PUT_SET,
    STORED_KINDS,
    ChangeRefused,
    History,
    changed_document,
    check_form,
    decode_history,
    rule_of,
)
from regional_limiter.model.errors import InvalidRules
from services.control_api.questions import Questions
from services.sqlite_files import thrown_away

BUILT_KEPT_MOST = 200
"""Versions that were asked for, kept as built."""

CLIENTS_MOST = 20
KEY_NAMES_MOST = 16
KEY_LETTERS_MOST = 1024
"""Of one change, as far as pages show them and searches look into them."""

_OF_SETS = f"kind not in ({', '.join('?' * len(STORED_KINDS))})"
_SCHEMA = """
create table changes (
  at_offset integer primary key, domain text, kind text, rule_id text, accepted integer, version integer,
  author text, reason text, origin text, at_ms integer, about text, head blob, entry blob
);
create index by_domain on changes (domain, accepted, version);
create index by_author on changes (author, at_offset);
create table built (domain text, version integer, document blob, primary key (domain, version));
pragma journal_mode = wal;
pragma synchronous = off;
"""


@dataclass(frozen=True, slots=True)
class Search:
    """What to look for; None: whatever.  ``domains``: only of these, None: of all, changes of access too.
    ``text``: in author, reason, origin, rule, key of an override, or clients, of whom it is up to CLIENTS_MOST.
    ``before``: only older than this offset.  Times in ms."""

    domains: frozenset[str] | None = None
    domain: str | None = None
    author: str | None = None
    kind: str | None = None
    rule_id: str | None = None
    accepted: bool | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    text: str | None = None
    before: int | None = None


class HistoryIndex:
    """``path``: of the file; what was there is thrown away.  None: in memory."""

    def __init__(self, path: Path | None = None) -> None:
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            thrown_away(path)
        self._lock = threading.Lock()
        self._base = sqlite3.connect(path or ":memory:", isolation_level=None, check_same_thread=False)
        self._base.executescript(_SCHEMA)
        self._questions = Questions(path, self._base, self._lock)

    def close(self) -> None:
        with self._lock:
            self._base.close()

    def take(self, entry: History) -> bool:
        """False: it was there already (a successor may tell an outcome again)."""
        row = (
            *(entry.offset, entry.domain, entry.kind, rule_of(entry), entry.accepted, entry.version),
            *(entry.author, entry.reason, entry.origin, entry.at_ms, _about(entry)),
            *(msgspec.json.encode(_head_of(entry)), msgspec.json.encode(entry)),
        )
        with self._lock:
            done = self._base.execute(f"insert or ignore into changes values ({', '.join('?' * len(row))})", row)
        return done.rowcount > 0

    def search(self, search: Search, most: int) -> list[History]:
        """The newest first, without what they say.  May read all of the history, so call it in a thread.

        Raises TookTooLong.
        """
        wheres, values = _conditions(search)
        where = f"where {' and '.join(wheres)}" if wheres else ""
        query = f"select head from changes {where} order by at_offset desc limit ?"
        rows = self._questions.ask(query, (*values, most))
        return [decode_history(row[0]) for row in rows]

    def get(self, offset: int) -> History | None:
        """Call it in a thread, as all that asks.  Raises TookTooLong."""
        rows = self._questions.ask("select entry from changes where at_offset = ?", (offset,))
        return decode_history(rows[0][0]) if rows else None

    def versions(self, domain: str, before: int | None, most: int) -> list[History]:
        """The accepted changes of a domain's set, the newest first, of versions below ``before``: who and when, not
        what they say.  Raises TookTooLong.
        """
        rows = self._questions.ask(
            f"select head from changes where domain = ? and accepted and {_OF_SETS} and version < ? "
            "order by version desc limit ?",
            (domain, *STORED_KINDS, before if before is not None else 2**62, most),
        )
        return [decode_history(row[0]) for row in rows]

    def document(self, domain: str, version: int) -> Mapping[str, Any] | None:
        """The domain's document as it was with this version; None when no accepted change led to it.

        Reads back to the last whole set before it, so call it in a thread.  Raises TookTooLong.
        """
        document, since = self._nearest(domain, version)
        rows = self._questions.ask(
            f"select entry from changes where domain = ? and accepted and {_OF_SETS} "
            "and version > ? and version <= ? order by version",
            (domain, *STORED_KINDS, since, version),
        )
        reached = since
        for row in rows:
            entry = decode_history(row[0])
            try:
                check_form(entry)
                document = changed_document(document, entry)
            except (ChangeRefused, InvalidRules):  # of an older version, whose history did not hold the change
                return None
            reached = entry.version
        if document is None or reached != version:
            return None
        if len(rows) > 1:
            self._keep(domain, version, document)
        return document

    def _nearest(self, domain: str, version: int) -> tuple[dict[str, Any] | None, int]:
        """A document to begin from, and its version: one that was built, or before the last whole set."""
        with self._lock:
            built = self._base.execute(
                "select version, document from built where domain = ? and version <= ? "
                "order by version desc limit 1",
                (domain, version),
            ).fetchone()
            whole = self._base.execute(
                "select max(version) from changes where domain = ? and accepted and kind = ? and version <= ?",
                (domain, PUT_SET, version),
            ).fetchone()[0]
        if built is not None and built[0] >= (whole or 0):
            return msgspec.json.decode(zlib.decompress(built[1])), built[0]
        return None, whole - 1 if whole is not None else 0

    def _keep(self, domain: str, version: int, document: Mapping[str, Any]) -> None:
        packed = zlib.compress(msgspec.json.encode(document), 1)
        with self._lock:
            self._base.execute("insert or replace into built values (?, ?, ?)", (domain, version, packed))
            self._base.execute(
                "delete from built where rowid not in (select rowid from built order by rowid desc limit ?)",
                (BUILT_KEPT_MOST,),
            )


def _head_of(entry: History) -> History:
    """The entry without what it says, which may be most of a megabyte: pages have hundreds of them.  Of whom, if
    they are few, is left.
    """
    key, clients = key_of(entry), clients_of(entry)
    override = {"rule": rule_of(entry), "key": key} if key is not None else None
    subjects = [{"client_key": client} for client in clients] if clients is not None else None
    return msgspec.structs.replace(entry, rule=None, document=None, override=override, subjects=subjects)


def key_of(entry: History) -> dict[str, str] | None:
    """The key that an override is for."""
    key = (entry.override or {}).get("key")
    if not isinstance(key, dict) or len(key) > KEY_NAMES_MOST:
        return None
    return {str(name): str(text)[:KEY_LETTERS_MOST] for name, text in key.items()}


def clients_of(entry: History) -> list[str] | None:
    """The clients of whom a change says something; None if they are many."""
    if entry.subjects is None or len(entry.subjects) > CLIENTS_MOST:
        return None
    keys = [one.get("client_key") for one in entry.subjects]
    return [key[:KEY_LETTERS_MOST] for key in keys if isinstance(key, str)]


def _about(entry: History) -> str:
    """What ``text`` finds a change by, beside its author and the like."""
    return "\n".join([*(key_of(entry) or {}).values(), *(clients_of(entry) or [])])


def _conditions(search: Search) -> tuple[list[str], list[Any]]:
    wheres: list[str] = []
    values: list[Any] = []

    def add(condition: str, *given: Any) -> None:
        wheres.append(condition)
        values.extend(given)

    if search.domains is not None:
        known = sorted(search.domains)
        add(f"domain in ({', '.join('?' * len(known))})", *known)
        add(f"kind not in ({', '.join('?' * len(ACCESS_KINDS))})", *ACCESS_KINDS)
    for column in ("domain", "author", "kind", "rule_id", "accepted"):
        if (wanted := getattr(search, column)) is not None:
            add(f"{column} = ?", wanted)
    for condition, bound in (
        ("at_ms >= ?", search.since_ms),
        ("at_ms < ?", search.until_ms),
        ("at_offset < ?", search.before),
    ):
        if bound is not None:
            add(condition, bound)
    if search.text:
        columns = ("author", "reason", "origin", "rule_id", "about")
        add("(" + " or ".join(f"instr(lower(ifnull({name}, '')), ?)" for name in columns) + ")")
        values.extend([search.text.lower()] * len(columns))
    return wheres, values
