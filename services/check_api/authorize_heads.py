"""Which questions of gateways the fast path may answer: such a question is all in its head.

What a gateway says of its caller is new with each caller and each path.  So heads that were read are remembered as
those of checks are, and beside them the questions by what they came to: of two heads that ask the same (another
query behind the path, another header that nobody looks at) the second has its check planned already.
"""

from __future__ import annotations

import re
from typing import Any, Final
from urllib.parse import unquote

import httptools

from services.check_api.authorize import AUTHORIZE_PATH, METHODS, Asked, Authorizer
from services.check_api.bodies import Refused
from services.check_api.heads import HEAD_BYTES_MOST, TRACE_HEADERS, Head, read_head
from services.tokens import bears_either

_METHODS: Final = tuple(method for method in METHODS if method != "HEAD")
"""(The answer to a HEAD is one without a body, which the slow path knows.)"""
_LINE: Final = re.compile(
    rb"(?:%b) %b(?:[/?][\x21-\x7e]*)? HTTP/1\.1\r\n" % ("|".join(_METHODS).encode(), AUTHORIZE_PATH.encode())
)
_LINES_BEGIN: Final = tuple(f"{method} {AUTHORIZE_PATH}".encode() for method in _METHODS)
_LINE_SO_FAR: Final = re.compile(rb"[\x20-\x7e]*\r?\Z")

HEADS_MOST: Final = 2048
KEPT_BYTES_MOST: Final = 1024
"""Of a head that is remembered: all of them take some 3 MiB, and their questions 8 MB."""
ASKED_MOST: Final = 2048


def begins(data: bytes) -> bool:
    """Whether ``data`` begins with the request line of a gateway's question."""
    return _LINE.match(data) is not None


def may_begin(data: bytes) -> bool:
    """Whether ``data`` is the beginning of such a line."""
    if len(data) >= HEAD_BYTES_MOST:
        return False
    if data.startswith(_LINES_BEGIN):
        return _LINE_SO_FAR.match(data) is not None
    return any(line.startswith(data) for line in _LINES_BEGIN)


class AuthorizeHeads:
    """``token``: what gateways must bear, None if nothing."""

    def __init__(self, authorizer: Authorizer, token: str | None) -> None:
        self._authorizer = authorizer
        self._token = token
        self._is_blind = not authorizer.headers.isdisjoint(TRACE_HEADERS)
        """The operator takes something from headers that are not in the heads that are found here."""
        self.known: dict[tuple[bytes, str | None], Head] = {}
        self._asked: dict[tuple[object, ...], Asked] = {}

    def find(self, head: bytes, peer: str | None) -> Head | None:
        """What ``head`` asks, from the request line to the empty line, without its trace; None: it is not plain.

        ``peer``: the address at the other end of the connection.
        """
        known = self.known.get((head, peer))
        if known is None and len(head) <= HEAD_BYTES_MOST and not self._is_blind:
            known = self._read(head, peer)
            if known is not None and len(head) <= KEPT_BYTES_MOST:
                if len(self.known) >= HEADS_MOST:
                    self.known.clear()
                self.known[head, peer] = known
        return known

    def _read(self, head: bytes, peer: str | None) -> Head | None:
        said = read_head(head)
        if said is None or not (said.length() == 0 or said.has_no_length()):
            return None
        if self._token is not None and not bears_either(said.headers, self._token):
            return None
        try:
            url = httptools.parse_url(said.url)
            path = url.path.decode("ascii")
            scope: dict[str, Any] = {
                "headers": said.headers,
                "raw_path": url.path,
                "path": unquote(path) if "%" in path else path,
                "query_string": url.query or b"",
                "method": said.method.decode("ascii"),
                "client": None if peer is None else (peer, 0),
            }
            asked = self._authorizer.read(scope)
        except (httptools.HttpParserInvalidURLError, Refused):
            # The slow path reads it again, and says what is wrong.
            return None
        return Head(AUTHORIZE_PATH, 0, scope["method"], self._once(asked))

    def _once(self, asked: Asked) -> Asked:
        """The same question in one object, as whose check was planned."""
        known = self._asked.get(asked.identity)
        if known is None:
            if len(self._asked) >= ASKED_MOST:
                self._asked.clear()
            known = self._asked[asked.identity] = asked
        return known
