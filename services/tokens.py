"""The one comparison of bearer tokens: in constant time."""

from __future__ import annotations

import hmac


def is_token(given: str | bytes, token: str) -> bool:
    """Whether what a caller gave is the token."""
    return hmac.compare_digest(given.encode() if isinstance(given, str) else given, token.encode())


def bears_token(authorization: str | bytes, token: str) -> bool:
    """Whether an ``Authorization`` header carries the token."""
    return is_token(authorization, f"Bearer {token}")
