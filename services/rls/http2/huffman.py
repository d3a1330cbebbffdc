"""Texts in HPACK's Huffman code (RFC 7541, 5.2), a byte at a time.  Pure.

The package ``hpack`` has the code as a machine of 256 states that takes four bits a step.  Two of its steps are one
here, in a table that is filled as texts come: what was never needed takes no memory, and all of it some 6 MB.
"""

from __future__ import annotations

from typing import Final

from hpack.huffman_table import HUFFMAN_COMPLETE, HUFFMAN_EMIT_SYMBOL, HUFFMAN_FAIL, HUFFMAN_TABLE

_Step = tuple[int, bytes, bool]
"""The next state, shifted by a byte; what was read; whether the text may end here."""

_STEPS: Final[list[_Step | None]] = [None] * (256 * 256)


class NotHuffman(Exception):
    """No text has this code."""


def decoded(coded: bytes) -> bytes:
    """The text.  Raises NotHuffman."""
    steps, state, may_end = _STEPS, 0, True
    parts = []
    for byte in coded:
        state, part, may_end = steps[state + byte] or _step(state + byte)
        parts.append(part)
    if not may_end:
        raise NotHuffman
    return b"".join(parts)


def _step(place: int) -> _Step:
    """Two steps of four bits.  ``place``: the state, shifted by a byte, and the byte."""
    state, part, flags = place >> 8, b"", 0
    for bits in (place >> 4 & 0x0F, place & 0x0F):
        state, flags, symbol = HUFFMAN_TABLE[state * 16 + bits]
        if flags & HUFFMAN_FAIL:
            raise NotHuffman
        if flags & HUFFMAN_EMIT_SYMBOL:
            part += bytes((symbol,))
    made = _STEPS[place] = (state << 8, part, bool(flags & HUFFMAN_COMPLETE))
    return made
