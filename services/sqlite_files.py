"""Files of SQLite: one process at a time, and without what lies beside them.  [IO]"""

from __future__ import annotations

import fcntl
from pathlib import Path
from typing import IO

_BESIDE = ("-wal", "-shm")


def owned(lock_path: Path) -> IO[bytes] | None:
    """The lock of a file, held until it is closed; None: another process has it."""
    lock = lock_path.open("ab")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        return None
    return lock


def thrown_away(path: Path, *, file_too: bool = True) -> None:
    """Remove the file (or not) and what SQLite keeps beside it."""
    for end in ("", *_BESIDE) if file_too else _BESIDE:
        path.with_name(path.name + end).unlink(missing_ok=True)
