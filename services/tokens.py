"""The one comparison of bearer tokens: in constant time."""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from typing import Final

TOKEN_HEADER: Final = b"x-apportion-token"
"""Bears the token where ``Authorization`` is the caller's caller's, as in what a gateway passes on."""


def is_token(given: str | bytes, token: str) -> bool:
    """Whether what a caller gave is the token."""
    return hmac.compare_digest(given.encode() if isinstance(given, str) else given, token.encode())


def bears_token(authorization: str | bytes, token: str) -> bool:
    """Whether an ``Authorization`` header carries the token."""
    return is_token(authorization, f"Bearer {token}")


def bears_either(headers: Iterable[tuple[bytes, bytes]], token: str) -> bool:
    """Whether the first of either header carries the token; names in small letters."""
    own = authorization = None
    for name, value in headers:
        if name == TOKEN_HEADER and own is None:
            own = value
        elif name == b"authorization" and authorization is None:
            authorization = value
    return (own is not None and is_token(own, token)) or bears_token(authorization or b"", token)
