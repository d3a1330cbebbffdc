"""The words of HTTP/2 (RFC 9113), and the frames that we send.  Pure."""

from __future__ import annotations

from collections.abc import Mapping
from struct import pack
from typing import Final

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)

END_STREAM: Final = 0x1
ACK: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
PRIORITISED: Final = 0x20

NO_ERROR: Final = 0
PROTOCOL_ERROR: Final = 1
INTERNAL_ERROR: Final = 2
FLOW_CONTROL_ERROR: Final = 3
STREAM_CLOSED: Final = 5
FRAME_SIZE_ERROR: Final = 6
REFUSED_STREAM: Final = 7
CANCEL: Final = 8
COMPRESSION_ERROR: Final = 9
ENHANCE_YOUR_CALM: Final = 11

HEADER_TABLE_SIZE: Final = 1
ENABLE_PUSH: Final = 2
MAX_CONCURRENT_STREAMS: Final = 3
INITIAL_WINDOW_SIZE: Final = 4
MAX_FRAME_SIZE: Final = 5
MAX_HEADER_LIST_SIZE: Final = 6

FRAME_BYTES_LEAST: Final = 16_384
"""What every peer takes; we ask for no larger ones."""
FRAME_BYTES_MOST: Final = 2**24 - 1
WINDOW_MOST: Final = 2**31 - 1
WINDOW_AT_FIRST: Final = 65_535
STREAM_ID_MOST: Final = 2**31 - 1


class BrokenProtocol(Exception):
    """The peer broke the protocol: the connection ends with ``code``."""

    def __init__(self, code: int, words: str) -> None:
        super().__init__(words)
        self.code = code
        self.words = words


class StreamError(Exception):
    """A stream broke the protocol: it is reset with ``code``, and the connection goes on."""

    def __init__(self, stream: int, code: int) -> None:
        super().__init__(stream, code)
        self.stream = stream
        self.code = code


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """A frame as it goes out."""
    length = len(payload)
    return pack(">BHBBI", length >> 16, length & 0xFFFF, kind, flags, stream) + payload


def settings(values: Mapping[int, int]) -> bytes:
    return frame(SETTINGS, 0, 0, b"".join(pack(">HI", name, value) for name, value in values.items()))


def reset(stream: int, code: int) -> bytes:
    return frame(RST_STREAM, 0, stream, pack(">I", code))


def go_away(last_stream: int, code: int, words: str = "") -> bytes:
    return frame(GOAWAY, 0, 0, pack(">II", last_stream, code) + words.encode())


def window_update(stream: int, by: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream, pack(">I", by))


def literal(name: bytes, value: bytes) -> bytes:
    """A header that is in no table and enters none (RFC 7541, 6.2.2), so it means the same at any time."""
    return b"\x00" + _length(len(name)) + name + _length(len(value)) + value


def _length(value: int) -> bytes:
    """An integer with a prefix of 7 bits."""
    if value < 127:
        return bytes((value,))
    written = bytearray((127,))
    value -= 127
    while value > 127:
        written.append(value & 127 | 128)
        value >>= 7
    written.append(value)
    return bytes(written)
