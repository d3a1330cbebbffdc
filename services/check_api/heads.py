"""Which requests the fast path may answer, by their heads: checks here, a gateway's in ``authorize_heads.py``.

A head is plain if uvicorn's own parser reads from it a POST of HTTP/1.1 to one of two paths, kept alive, with one
length, nothing to wait for and the right token.  Whatever else a head says, also if it is right, is left to the
slow path.  Callers send the same head again and again, so what was read from it is remembered.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

import httptools

from services.check_api.bodies import BATCH_BYTES_MOST, BODY_BYTES_MOST
from services.check_api.headers import Header
from services.tokens import bears_either

if TYPE_CHECKING:
    from services.check_api.authorize import Asked

CHECK_PATH: Final = "/v1/check"
BATCH_PATH: Final = "/v1/check:batch"

REQUEST_LINES: Final = tuple(f"POST {path} HTTP/1.1\r\n".encode() for path in (CHECK_PATH, BATCH_PATH))
"""What a plain head begins with."""

HEADS_MOST = 1024
HEAD_BYTES_MOST = 4096
"""Longer heads are not plain: remembered ones take 4 MiB at most."""

_NEVER_PLAIN = (b"transfer-encoding", b"expect", b"upgrade", b"connection")


_TRACEPARENT = re.compile(
    rb"\r\n[Tt]race[Pp]arent: ?([0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2})(?=\r\n[^ \t])"
)
_TRACESTATE = re.compile(rb"\r\n[Tt]race[Ss]tate:[\x20-\x7e\t]*(?=\r\n[^ \t])")


TRACE_HEADERS: Final = (b"traceparent", b"tracestate")


def without_trace(head: bytes) -> tuple[bytes, bytes | None]:
    """``head`` without what is new in it with every request of a traced caller, and its ``traceparent``, if any.

    Such heads would otherwise be as many as requests, and none be known.
    """
    match = _TRACEPARENT.search(head)
    if match is None:
        return head, None
    rest = head[: match.start()] + head[match.end() :]
    if (state := _TRACESTATE.search(rest)) is not None:
        rest = rest[: state.start()] + rest[state.end() :]
    return rest, match[1]


class Head(NamedTuple):
    """A plain head.  ``length``: of the body, in bytes.  ``asked``: a gateway's question, all in the head."""

    path: str
    length: int
    method: str = "POST"
    asked: Asked | None = None


class Heads:
    """``token``: what callers must bear, None if nothing."""

    def __init__(self, token: str | None) -> None:
        self._token = token
        self.known: dict[bytes, Head] = {}
        """For whoever looks itself, before asking :meth:`find`."""

    def find(self, head: bytes) -> Head | None:
        """What ``head`` says, from the request line to the empty line; None: it is not plain."""
        known = self.known.get(head)
        if known is None and len(head) <= HEAD_BYTES_MOST:
            known = self._read(head)
            if known is not None:
                if len(self.known) >= HEADS_MOST:
                    self.known.clear()
                self.known[head] = known
        return known

    def _read(self, head: bytes) -> Head | None:
        said = read_head(head)
        if said is None:
            return None
        length = said.length()
        path = said.url.decode("latin-1")
        bytes_most = {CHECK_PATH: BODY_BYTES_MOST, BATCH_PATH: BATCH_BYTES_MOST}.get(path, -1)
        if said.method != b"POST" or length is None or length > bytes_most:
            return None
        if self._token is not None and not bears_either(said.headers, self._token):
            return None
        return Head(path, length)


def read_head(head: bytes) -> Said | None:
    """What ``head`` says; None: it is more than one, or says what only the slow path deals with."""
    said = Said()
    parser = httptools.HttpRequestParser(said)
    try:
        parser.feed_data(head)
    except (httptools.HttpParserError, httptools.HttpParserUpgrade):
        return None
    if said.unfit or not said.complete or parser.get_http_version() != "1.1" or not parser.should_keep_alive():
        return None
    said.method = parser.get_method()
    return said


class Said:
    """What the parser tells.  ``headers``: as ASGI has them.  ``unfit``: see :func:`read_head`."""

    def __init__(self) -> None:
        self.method = b""
        self.url = b""
        self.headers: list[Header] = []
        self.unfit = False
        self.complete = False

    def length(self) -> int | None:
        """The one length of the body, None if there is not exactly one."""
        lengths = self._lengths()
        if len(lengths) != 1 or not lengths[0].isdigit() or len(lengths[0]) > 9:
            return None
        return int(lengths[0])

    def has_no_length(self) -> bool:
        return not self._lengths()

    def _lengths(self) -> list[bytes]:
        return [value for name, value in self.headers if name == b"content-length"]

    def on_message_begin(self) -> None:
        self.unfit = self.unfit or self.complete

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        self.headers.append((name, value))
        if name in _NEVER_PLAIN and not (name == b"connection" and value.lower() == b"keep-alive"):
            self.unfit = True

    def on_headers_complete(self) -> None:
        self.complete = True

    def on_body(self, body: bytes) -> None:
        # The parser saw the end of the head before we did.
        self.unfit = True
