"""The lines of log files: plain, gzip or zstd, by their first bytes; ``-`` is stdin.  [IO]

Lines are read in blocks and never gathered: a file of any size takes the same memory.  A line longer than
``LINE_MOST`` is cut there, so that a file without line ends cannot fill the memory either.
"""

from __future__ import annotations

import gzip
import io
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import zstandard

BLOCK_BYTES = 256 * 1024
LINE_MOST = 64 * 1024
FEED_BYTES = 1024
STDIN = "-"
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"


class UnreadableLog(Exception):
    """A file that cannot be read, or not to its end.  The text says which and why."""


class _Counted(io.RawIOBase):
    """Tells how many bytes have been read of the file itself, before they are unpacked."""

    def __init__(self, inner: BinaryIO, read: Callable[[int], None]) -> None:
        self._inner, self._read = inner, read

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        data = self._inner.read(len(buffer))
        buffer[: len(data)] = data
        self._read(len(data))
        return len(data)


class _Zstd:
    """The text of zstd frames.  (The library's own reader takes a frame that is cut off for one that ended.)"""

    def __init__(self, packed: io.BufferedReader) -> None:
        self._packed = packed
        self._frame = zstandard.ZstdDecompressor().decompressobj()
        self._begun = False

    def read(self, size: int) -> bytes:
        """Some text, not always ``size`` bytes; empty at the end.  EOFError: the last frame is cut off."""
        text = b""
        while not text:
            # 128 KiB of text may hide in 4 bytes.
            data = self._frame.unused_data if self._frame.eof else b""
            if self._frame.eof:
                self._frame, self._begun = zstandard.ZstdDecompressor().decompressobj(), False
            data = data or self._packed.read(FEED_BYTES)
            if not data:
                if self._begun:
                    raise EOFError("the last frame is cut off")
                return b""
            self._begun = True
            text = self._frame.decompress(data)
        return text


def size_of(files: list[str]) -> int | None:
    """Bytes of all files, packed as they are; None: not known (stdin, a pipe).  Raises UnreadableLog."""
    total = 0
    for file in files:
        if file == STDIN:
            return None
        try:
            path = Path(file)
            total += path.stat().st_size
            if path.is_dir():
                raise UnreadableLog(f"{file} is a directory: name its files")
            if not path.is_file():
                return None
        except OSError as error:
            raise UnreadableLog(f"{file}: {error.strerror}") from None
    return total


def read_lines(file: str, read: Callable[[int], None] = lambda count: None) -> Iterator[tuple[int, str]]:
    """(number from 1, text) of the lines of one file that are not blank.

    ``read`` is told of the bytes taken.  Raises UnreadableLog.
    """
    try:
        opened = sys.stdin.buffer if file == STDIN else Path(file).open("rb")  # noqa: SIM115
    except OSError as error:
        raise UnreadableLog(f"{file}: {error.strerror}") from None
    name = "stdin" if file == STDIN else file
    try:
        with io.BufferedReader(_Counted(opened, read), BLOCK_BYTES) as packed:
            for number, text in enumerate(_texts(_unpacked(packed)), start=1):
                if text and not text.isspace():
                    yield number, text
    except (OSError, EOFError, zlib.error, zstandard.ZstdError) as error:
        raise UnreadableLog(f"{name}: cannot be read to its end: {error}") from None
    finally:
        if file != STDIN:
            opened.close()


def _unpacked(packed: Any) -> Any:
    """What reads the bytes of the text; all of them have ``read``."""
    start = packed.peek(4)[:4]
    if start[:2] == _GZIP:
        return gzip.GzipFile(fileobj=packed)
    if start == _ZSTD:
        return _Zstd(packed)
    return packed


def _texts(opened: Any) -> Iterator[str]:
    rest = b""
    cut = False
    while block := opened.read(BLOCK_BYTES):
        lines = (rest + block).split(b"\n")
        rest = lines.pop()
        if cut and lines:  # the end of a line whose beginning has been given
            cut = False
            del lines[0]
        for line in lines:
            yield line[:LINE_MOST].decode(errors="replace")
        if len(rest) > LINE_MOST:
            if not cut:
                yield rest[:LINE_MOST].decode(errors="replace")
            rest, cut = b"", True
    if rest and not cut:
        yield rest.decode(errors="replace")
