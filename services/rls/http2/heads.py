"""What a request's headers ask for, and whether they are well-formed (RFC 9113, 8.2 and 8.3).  Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from services.rls.http2.hpack_reader import Header

_REQUEST: Final = frozenset({b":method", b":scheme", b":path", b":authority"})
_OF_CONNECTIONS: Final = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"}
)
_NAME: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9a-z-]+")
_VALUE: Final = re.compile(rb"[^\x00\r\n]*")
_GRPC: Final = re.compile(rb"application/grpc(?:\+proto)?(?:;.*)?")

ORDINARY_MOST: Final = 1024
ORDINARY_BYTES_MOST: Final = 256
"""Of the headers that are remembered: 0.5 MiB or so in all."""
_ordinary: Final[set[Header]] = set()
"""Headers that are well-formed and mean nothing here: beside one that is new with each call stand the same ones."""


class Head(NamedTuple):
    """``malformed``: the stream is reset.  ``trailers``: no request's head at all.  ``status``: of HTTP, when it is
    no gRPC call (405, 415), else 200.  ``length``: of the body as it was said; None: it was not."""

    malformed: bool = False
    trailers: bool = False
    status: int = 200
    path: str = ""
    authorization: bytes = b""
    length: int | None = None
    traceparent: bytes = b""


MALFORMED: Final = Head(malformed=True)


def read_head(headers: Sequence[Header]) -> Head:
    """The head of a request, or trailers: a list without a pseudo-header."""
    pseudo: dict[bytes, bytes] = {}
    content_type = authorization = traceparent = b""
    length: int | None = None
    in_pseudo = True
    for header in headers:
        if header in _ordinary:
            in_pseudo = False
            continue
        name, value = header
        if name[:1] == b":":
            if not in_pseudo or name in pseudo or name not in _REQUEST:
                return MALFORMED
            pseudo[name] = value
            continue
        in_pseudo = False
        if not _NAME.fullmatch(name) or not _VALUE.fullmatch(value) or name in _OF_CONNECTIONS:
            return MALFORMED
        if name == b"content-type":
            content_type = value
        elif name == b"authorization":
            authorization = authorization or value
        elif name == b"traceparent":
            traceparent = value
        elif name == b"te":
            if value.lower() != b"trailers":
                return MALFORMED
            _remember(header)
        elif name == b"content-length":
            if not value.isdigit() or len(value) > 12 or (length is not None and int(value) != length):
                return MALFORMED
            length = int(value)
        else:
            _remember(header)
    if not pseudo:
        return Head(trailers=True)
    method = pseudo.get(b":method")
    if not method or not pseudo.get(b":path") or not pseudo.get(b":scheme"):
        return MALFORMED
    if not _VALUE.fullmatch(b"".join(pseudo.values())):
        return MALFORMED
    status = 405 if method != b"POST" else 415 if not _GRPC.fullmatch(content_type) else 200
    return Head(False, False, status, pseudo[b":path"].decode("latin-1"), authorization, length, traceparent)


def _remember(header: Header) -> None:
    if len(header[0]) + len(header[1]) <= ORDINARY_BYTES_MOST:
        if len(_ordinary) >= ORDINARY_MOST:
            _ordinary.clear()
        _ordinary.add(header)
