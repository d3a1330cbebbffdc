"""What is stored of clients, as this process has read its topic: by client, and a page at a time.  [IO]

An index in a file that is made anew at every start, as that of the history: a million clients take no memory.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import structlog

from global_sync.subject_records import decode_record
from global_sync.transport.base import SUBJECTS, Message, RecordsMissed, Transport, TransportUnavailable
from services.control_api.questions import Questions
from services.sqlite_files import thrown_away

READ_MS = 500
PAUSE_S = 0.5
PAUSE_UNWRITABLE_S = 2.0

_SCHEMA = """
create table stored (
  domain text, client_key text, version integer, attributes blob, primary key (domain, client_key)
) without rowid;
pragma journal_mode = wal;
pragma synchronous = off;
"""

log = structlog.get_logger(__name__)


class SubjectIndex:
    """``path``: of the file; what was there is thrown away.  None: in memory.  Call all of it in threads."""

    def __init__(self, path: Path | None = None) -> None:
        if path is not None:
            thrown_away(path)
        self._lock = threading.Lock()
        self._base = sqlite3.connect(path or ":memory:", isolation_level=None, check_same_thread=False)
        self._base.executescript(_SCHEMA)
        self._questions = Questions(path, self._base, self._lock)
        self.malformed = 0
        self.newest = 0
        """The highest version of a change that was read."""

    def close(self) -> None:
        with self._lock:
            self._base.close()

    def take(self, messages: Sequence[Message]) -> None:
        """A batch of the topic.  A record of an older change than the one that is known changes nothing.

        Raises sqlite3.Error: then nothing of the batch is taken, and it may be taken again.
        """
        rows: list[tuple[str, str, int, bytes | None]] = []
        malformed = 0
        for message in messages:
            try:
                one = decode_record(message.key, message.value)
            except ValueError as error:
                malformed += 1
                log.warning("subject not understood", offset=message.offset, error=str(error))
                continue
            rows.append((one.domain, one.client_key, one.version, one.attributes or None))
        with self._lock:
            self._base.execute("begin")
            try:
                self._base.executemany(
                    "insert into stored values (?, ?, ?, ?) on conflict do update set "
                    "version = excluded.version, attributes = excluded.attributes "
                    "where excluded.version >= version",
                    rows,
                )
                self._base.execute("commit")
            except BaseException:
                if self._base.in_transaction:
                    self._base.execute("rollback")
                raise
            self.malformed += malformed
            self.newest = max([self.newest, *(version for _, _, version, _ in rows)])

    def of(self, domain: str, client_keys: Sequence[str]) -> dict[str, dict[str, Any]]:
        """What is known of some clients and since which version, by client key; of the others nothing is."""
        found: dict[str, dict[str, Any]] = {}
        for at in range(0, len(client_keys), 500):
            some = client_keys[at : at + 500]
            rows = self._questions.ask(
                f"select client_key, version, attributes from stored where domain = ? and attributes is not null "
                f"and client_key in ({', '.join('?' * len(some))})",
                (domain, *some),
            )
            found |= {row[0]: _shown(*row) for row in rows}
        return found

    def page(self, domain: str, after: str, most: int) -> list[dict[str, Any]]:
        """Clients by their keys, from the one after ``after``."""
        rows = self._questions.ask(
            "select client_key, version, attributes from stored where domain = ? and client_key > ? "
            "and attributes is not null order by client_key limit ?",
            (domain, after, most),
        )
        return [_shown(*row) for row in rows]

    def count(self, domain: str) -> int:
        rows = self._questions.ask(
            "select count(*) from stored where domain = ? and attributes is not null", (domain,)
        )
        return int(rows[0][0])


def _shown(client_key: str, version: int, attributes: bytes) -> dict[str, Any]:
    return {"client_key": client_key, "version": version, "set": msgspec.json.decode(attributes)}


class SubjectsRead:
    """Follows the topic into an index.  ``run`` until cancelled."""

    def __init__(self, transport: Transport, index: SubjectIndex) -> None:
        self.index = index
        self._transport = transport
        self._changed = asyncio.Event()
        self._caught_up = asyncio.Event()
        self._taken_to = 0
        """Before which offset all is in the index."""

    async def run(self) -> None:
        while True:
            try:
                await self._follow()
            except TransportUnavailable as error:
                log.info("topic of subjects not readable", error=str(error))
            except sqlite3.Error as error:
                log.warning("index of subjects not writable", error=str(error))
                await asyncio.sleep(PAUSE_UNWRITABLE_S)
            await asyncio.sleep(PAUSE_S)

    async def _follow(self) -> None:
        """From where it was, until the topic cannot be read or the index not be written."""
        reader = await self._transport.reader(SUBJECTS, self._taken_to or "earliest")
        try:
            end = await reader.end_offset()
            while True:
                if reader.next_offset >= end:
                    self._caught_up.set()
                messages = await reader.read(READ_MS)
                if messages:
                    await asyncio.to_thread(self.index.take, messages)
                    self._taken_to = messages[-1].offset + 1
                    changed, self._changed = self._changed, asyncio.Event()
                    changed.set()
        except RecordsMissed:
            self._taken_to = 0
        finally:
            await reader.close()

    async def known(self, timeout_s: float) -> bool:
        """Whether the topic has been read to its end once."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._caught_up.wait()
        except TimeoutError:
            return False
        return True

    async def reached(self, version: int, timeout_s: float) -> bool:
        """Whether the change of this version has been read within the time."""
        try:
            async with asyncio.timeout(timeout_s):
                while self.index.newest < version:
                    await self._changed.wait()
        except TimeoutError:
            return False
        return True
