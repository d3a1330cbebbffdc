"""Files of subjects as the command line sends them: in parts, so that a million of them take no memory."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from services.cli.output import fail

PART_BYTES = 65_536
JSON_LIST, JSON_LINES, CSV = "application/json", "application/x-ndjson", "text/csv"


@dataclass(frozen=True, slots=True)
class SubjectFile:
    """``first``: what was read of it to find out ``media``.  ``size``: in bytes, 0 where that is not known."""

    first: bytes
    rest: BinaryIO
    media: str
    size: int


def opened(file: str) -> SubjectFile:
    """Ends the process when it cannot be read."""
    try:
        rest = sys.stdin.buffer if file == "-" else Path(file).open("rb")  # noqa: SIM115 (parts_of closes it)
        size = 0 if file == "-" else Path(file).stat().st_size
        first = rest.read(PART_BYTES)
    except OSError as error:
        fail(f"{file}: {error.strerror or error}")
    return SubjectFile(first, rest, _media(first), size)


def _media(first: bytes) -> str:
    begin = first.removeprefix(b"\xef\xbb\xbf").lstrip()[:1]
    return JSON_LIST if begin == b"[" else JSON_LINES if begin == b"{" else CSV


@contextmanager
def parts_of(source: SubjectFile, *, is_shown: bool) -> Iterator[Iterator[bytes]]:
    """The parts to send, with a bar on stderr that tells how much was taken."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (BarColumn(), DownloadColumn(), TimeElapsedColumn())
    bar = Progress(*columns, console=console, transient=True, disable=not (is_shown and console.is_terminal))
    with source.rest, bar:
        task = bar.add_task("", total=source.size or None)

        def parts() -> Iterator[bytes]:
            part = source.first
            while part:
                yield part
                bar.advance(task, len(part))
                part = source.rest.read(PART_BYTES)

        yield parts()
