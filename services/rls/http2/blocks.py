"""Header blocks that we send.  They are literals that enter no table, so they are made once.  Pure."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

from services.rls.http2.frames import END_HEADERS, END_STREAM, HEADERS, frame, literal
from services.rls.rpc import Failed

_STATUS: Final = {
    200: b"\x88",
    405: literal(b":status", b"405"),
    415: literal(b":status", b"415"),
    431: literal(b":status", b"431"),
}
_TEXT: Final = literal(b"content-type", b"text/plain")
NOT_GRPC: Final = b"this is a gRPC server: POST with application/grpc, and a head of at most 16 KiB\n"
GRPC_HEAD: Final = _STATUS[200] + literal(b"content-type", b"application/grpc")
OK_TRAILERS: Final = literal(b"grpc-status", b"0")

_HEAD_START: Final = frame(HEADERS, END_HEADERS, 0, GRPC_HEAD)
_TRAILERS_START: Final = frame(HEADERS, END_HEADERS | END_STREAM, 0, OK_TRAILERS)
HEAD_BEFORE, HEAD_AFTER = _HEAD_START[:5], _HEAD_START[9:]
TRAILERS_BEFORE, TRAILERS_AFTER = _TRAILERS_START[:5], _TRAILERS_START[9:]
"""The frames of a head and of trailers, around the number of their stream."""


def text_head(status: int) -> bytes:
    """The head of an answer in words, as HTTP has it."""
    return _STATUS[status] + _TEXT


def trailers_of(error: Failed) -> bytes:
    words = quote(error.words, safe=" !\"#$&'()*+,-./:;<=>?@[\\]^_`{|}~")
    return literal(b"grpc-status", b"%d" % error.code) + literal(b"grpc-message", words[:1024].encode())
