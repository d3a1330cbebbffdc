"""Protobuf of Envoy's rate limit service, read and written by hand.  Pure.

A generated reader takes several times as long, and the one that is published does not know a descriptor's
``is_negative_hits`` yet.  Numbers of fields are those of ``envoy/service/ratelimit/v3/rls.proto`` and
``envoy/extensions/common/ratelimit/v3/ratelimit.proto``; fields that are not read are skipped, as protobuf asks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from struct import pack

from services.rls.messages import (
    DESCRIPTORS_MOST,
    ENTRIES_MOST,
    UINT32_MOST,
    BadRequest,
    Descriptor,
    Limit,
    Override,
    Request,
    Response,
    Status,
)

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MANGLED = BadRequest("", "the message is not protobuf")


def read_request(data: bytes) -> Request:
    """A RateLimitRequest.  Raises BadRequest."""
    domain, hits = "", 0
    descriptors: list[Descriptor] = []
    for number, value in _fields(data, 0, len(data)):
        if number == 1:
            domain = _text(data, value, "domain")
        elif number == 2:
            if len(descriptors) >= DESCRIPTORS_MOST:
                raise BadRequest("descriptors", f"at most {DESCRIPTORS_MOST}")
            descriptors.append(_read_descriptor(data, _span(value), len(descriptors)))
        elif number == 3:
            hits = _number(value) & UINT32_MOST
    return Request(domain, tuple(descriptors), hits)


def _read_descriptor(data: bytes, span: tuple[int, int], place: int) -> Descriptor:
    entries: list[tuple[str, str]] = []
    override: Override | None = None
    hits: int | None = None
    negative = False
    for number, value in _fields(data, *span):
        if number == 1:
            if len(entries) >= ENTRIES_MOST:
                raise BadRequest(f"descriptors[{place}].entries", f"at most {ENTRIES_MOST}")
            entries.append(_read_entry(data, _span(value), place))
        elif number == 2:
            per_unit, unit = override or (0, 0)
            for inner, given in _fields(data, *_span(value)):
                if inner == 1:
                    per_unit = _number(given) & UINT32_MOST
                elif inner == 2:
                    unit = _number(given)
            override = Override(per_unit, unit)
        elif number == 3:
            # A UInt64Value: a message, so that 0 can be told from nothing.
            hits = hits or 0
            for inner, given in _fields(data, *_span(value)):
                if inner == 1:
                    hits = _number(given)
        elif number == 4:
            negative = bool(_number(value))
    return Descriptor(tuple(entries), override, hits, negative)


def _read_entry(data: bytes, span: tuple[int, int], place: int) -> tuple[str, str]:
    key = text = ""
    for number, value in _fields(data, *span):
        if number == 1:
            key = _text(data, value, f"descriptors[{place}].entries")
        elif number == 2:
            text = _text(data, value, f"descriptors[{place}].entries")
    return key, text


_Value = int | tuple[int, int] | None


def fields_of(data: bytes) -> Iterator[tuple[int, _Value]]:
    """(number, value) of each field of a message: an integer, or where its bytes lie.  Raises BadRequest."""
    return _fields(data, 0, len(data))


def _fields(data: bytes, at: int, end: int) -> Iterator[tuple[int, _Value]]:
    """(number, value) of each field: an integer, or where its bytes lie; None for a kind that nothing here has."""
    while at < end:
        tag = data[at]
        at += 1
        if tag > 0x7F:
            tag, at = _varint(data, at - 1, end)
        number, kind = tag >> 3, tag & 7
        if kind == _BYTES:
            if at < end and (length := data[at]) < 0x80:
                at += 1
            else:
                length, at = _varint(data, at, end)
            if length > end - at:
                raise _MANGLED
            yield number, (at, at + length)
            at += length
        elif kind == _VARINT:
            value, at = _varint(data, at, end)
            yield number, value
        elif kind in (_FIXED64, _FIXED32):
            at += 8 if kind == _FIXED64 else 4
            if at > end:
                raise _MANGLED
            yield number, None
        else:
            raise _MANGLED
        if not number:
            raise _MANGLED


def _varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while at < end:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, at
        shift += 7
        if shift > 63:
            break
    raise _MANGLED


def _number(value: _Value) -> int:
    if not isinstance(value, int):
        raise _MANGLED
    return value


def _span(value: _Value) -> tuple[int, int]:
    if not isinstance(value, tuple):
        raise _MANGLED
    return value


def _text(data: bytes, value: _Value, field: str) -> str:
    start, end = _span(value)
    try:
        return data[start:end].decode()
    except UnicodeDecodeError:
        raise BadRequest(field, "must be UTF-8") from None


# ---- writing


def write_response(response: Response) -> bytes:
    """A RateLimitResponse."""
    parts = [b"\x08", number_bytes(response.code)]
    for status in response.statuses:
        body = _status(status)
        parts += (b"\x12", number_bytes(len(body)), body)
    for name, value in response.headers:
        body = field_bytes(0x0A, name.encode()) + field_bytes(0x12, value.encode())
        parts += (b"\x1a", number_bytes(len(body)), body)
    if response.metadata is not None:
        parts.append(_metadata(response.metadata))
    return b"".join(parts)


def write_one(
    code: int, status: Status, lines: bytes, metadata: dict[str, str | bool | int] | None = None
) -> bytes:
    """The same for one descriptor, with its headers as lines of HTTP (``name: value``, each with its end)."""
    body = _status(status)
    written = b"\x08%c\x12%b%b" % (code, number_bytes(len(body)), body)
    if lines:
        for line in lines[:-2].split(b"\r\n"):
            written += _header(line)
    if metadata is not None:
        written += _metadata(metadata)
    return written


@lru_cache(maxsize=4096)
def _header(line: bytes) -> bytes:
    name, _, value = line.partition(b": ")
    return header_bytes(name, value)


def header_bytes(name: bytes, value: bytes) -> bytes:
    """A header that a RateLimitResponse asks to add, as its field."""
    return field_bytes(0x1A, field_bytes(0x0A, name) + field_bytes(0x12, value))


def _status(status: Status) -> bytes:
    code, limit, remaining, reset_ms = status
    body = b"\x08%c" % code
    if limit is not None:
        body += limit_bytes(limit)
    if remaining:
        body += b"\x18" + number_bytes(remaining)
    if limit is not None:
        seconds, milliseconds = divmod(reset_ms, 1000)
        duration = b"\x08" + number_bytes(seconds) if seconds else b""
        if milliseconds:
            duration += b"\x10" + number_bytes(milliseconds * 1_000_000)
        body += b"\x22%c%b" % (len(duration), duration)
    return body


@lru_cache(maxsize=4096)
def limit_bytes(limit: Limit) -> bytes:
    """The limit of a DescriptorStatus, as its field."""
    held = b""
    if limit.requests_per_unit:
        held += b"\x08" + number_bytes(limit.requests_per_unit)
    if limit.unit:
        held += b"\x10" + number_bytes(limit.unit)
    if limit.name:
        held += field_bytes(0x1A, limit.name.encode())
    return field_bytes(0x12, held)


def _metadata(metadata: Mapping[str, str | bool | int]) -> bytes:
    return field_bytes(0x32, b"".join(field_bytes(0x0A, _member(*item)) for item in metadata.items()))


def _member(name: str, value: str | bool | int) -> bytes:
    """An entry of a Struct: its numbers are doubles."""
    if isinstance(value, bool):
        held = b"\x20\x01" if value else b"\x20\x00"
    elif isinstance(value, int):
        held = b"\x11" + pack("<d", value)
    else:
        held = field_bytes(0x1A, value.encode())
    return field_bytes(0x0A, name.encode()) + field_bytes(0x12, held)


def field_bytes(tag: int, body: bytes) -> bytes:
    """A field of bytes; ``tag`` below 128, its kind included."""
    length = len(body)
    if length < 0x80:
        return b"%c%c%b" % (tag, length, body)
    return b"%c%b%b" % (tag, number_bytes(length), body)


def number_bytes(value: int) -> bytes:
    """A varint."""
    if value < 0x80:
        return b"%c" % value
    if value < 0x4000:
        return b"%c%c" % (value & 0x7F | 0x80, value >> 7)
    written = bytearray()
    while value > 0x7F:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    written.append(value)
    return bytes(written)
