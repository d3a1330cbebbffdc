"""Header blocks of one connection, in the order in which they came (RFC 7541).  Pure.

The package ``hpack`` reads them as well, several times slower, and is the oracle of the tests.  What was read of a
block is remembered until the dynamic table changes: the same bytes mean the same then, and callers send the same
bytes again and again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import lru_cache
from typing import Final, Generic, TypeVar

from hpack.table import HeaderTable

from services.rls.http2.huffman import NotHuffman, decoded

Header = tuple[bytes, bytes]
_T = TypeVar("_T")

TABLE_BYTES_MOST: Final = 4096
LIST_BYTES_MOST: Final = 16 * 1024
"""Of a block's names and values, with 32 for each, as SETTINGS_MAX_HEADER_LIST_SIZE counts them."""
KNOWN_MOST: Final = 256
SHORT_BYTES: Final = 64
"""Of a coded text that is kept beside what it says."""
_ENTRY_BYTES: Final = 32
_STATIC: Final[tuple[Header, ...]] = tuple(HeaderTable.STATIC_TABLE)
_STATIC_COUNT: Final = len(_STATIC)
_INTEGER_MOST: Final = 2**24


class Mangled(Exception):
    """The block cannot be read, and none after it: the connection is lost."""


class TooLarge(Exception):
    """The block was read, and what it holds is more than we take."""


class HpackReader(Generic[_T]):
    """``read`` makes of a list of headers what the connection wants to know of it."""

    def __init__(self, read: Callable[[list[Header]], _T]) -> None:
        self._read = read
        self._table: deque[Header] = deque()
        self._bytes = 0
        self._bytes_most = TABLE_BYTES_MOST
        self._known: dict[bytes, _T] = {}

    def __call__(self, block: bytes) -> _T:
        """What ``block`` says.  Raises Mangled, TooLarge, and what ``read`` raises."""
        known = self._known.get(block)
        if known is not None:
            return known
        headers, changed = self.headers(block)
        said = self._read(headers)
        if not changed:
            if len(self._known) >= KNOWN_MOST:
                self._known.clear()
            self._known[block] = said
        return said

    def headers(self, block: bytes) -> tuple[list[Header], bool]:
        """The headers, and whether the dynamic table has changed.  Raises Mangled and TooLarge."""
        headers: list[Header] = []
        changed = False
        at, end, size = 0, len(block), 0
        while at < end:
            first = block[at]
            if first & 0x80:
                index = first & 0x7F
                at += 1
                if index == 0x7F:
                    index, at = _integer(block, at, 0x7F)
                header = _STATIC[index - 1] if 0 < index <= _STATIC_COUNT else self._at(index)
            elif first & 0x40:
                header, at = self._literal(block, at, 0x3F)
                self._insert(header)
                changed = True
            elif first & 0x20:
                if headers:
                    raise Mangled
                most, at = _prefixed(block, at, 0x1F)
                if most > TABLE_BYTES_MOST:
                    raise Mangled
                self._bytes_most = most
                self._evict()
                changed = True
                self._known.clear()
                continue
            else:
                header, at = self._literal(block, at, 0x0F)
            size += len(header[0]) + len(header[1]) + _ENTRY_BYTES
            if size <= LIST_BYTES_MOST:
                headers.append(header)
        if size > LIST_BYTES_MOST:
            raise TooLarge
        return headers, changed

    def _at(self, index: int) -> Header:
        if 0 < index <= _STATIC_COUNT:
            return _STATIC[index - 1]
        place = index - _STATIC_COUNT - 1
        if not 0 <= place < len(self._table):
            raise Mangled
        return self._table[place]

    def _literal(self, block: bytes, at: int, mask: int) -> tuple[Header, int]:
        index, at = _prefixed(block, at, mask)
        if index:
            name = self._at(index)[0]
        else:
            name, at = _string(block, at)
        value, at = _string(block, at)
        return (name, value), at

    def _insert(self, header: Header) -> None:
        self._known.clear()
        self._table.appendleft(header)
        self._bytes += len(header[0]) + len(header[1]) + _ENTRY_BYTES
        self._evict()

    def _evict(self) -> None:
        while self._bytes > self._bytes_most:
            name, value = self._table.pop()
            self._bytes -= len(name) + len(value) + _ENTRY_BYTES


def _prefixed(block: bytes, at: int, mask: int) -> tuple[int, int]:
    """An integer whose prefix fills ``mask`` of the byte at ``at``, and where it ends."""
    value = block[at] & mask
    return (value, at + 1) if value < mask else _integer(block, at + 1, mask)


def _integer(block: bytes, at: int, value: int) -> tuple[int, int]:
    shift, end = 0, len(block)
    while at < end:
        byte = block[at]
        at += 1
        value += (byte & 0x7F) << shift
        if value > _INTEGER_MOST or shift > 28:
            raise Mangled
        if byte < 0x80:
            return value, at
        shift += 7
    raise Mangled


def _string(block: bytes, at: int) -> tuple[bytes, int]:
    if at >= len(block):
        raise Mangled
    coded = block[at] & 0x80
    length, at = _prefixed(block, at, 0x7F)
    end = at + length
    if end > len(block):
        raise Mangled
    text = block[at:end]
    if coded:
        text = _short_decoded(text) if length <= SHORT_BYTES else _decoded(text)
    return text, end


def _decoded(text: bytes) -> bytes:
    try:
        return decoded(text)
    except NotHuffman:
        raise Mangled from None


_short_decoded = lru_cache(maxsize=4096)(_decoded)
