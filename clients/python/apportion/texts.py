"""Texts that a stranger wrote, as a check may say them.  Pure."""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

VALUE_BYTES_MOST: Final = 1024
"""Of a client key, a resource, and an attribute, in UTF-8."""
_DIGEST_BYTES: Final = 16


def fitting(text: str) -> str:
    """``text``, or its beginning and a hash of all of it where it is longer than a check may say.

    A request must not pass unlimited because somebody made its path too long.
    """
    if len(text) * 4 <= VALUE_BYTES_MOST:
        return text
    whole = text.encode("utf-8", "backslashreplace")
    if len(whole) <= VALUE_BYTES_MOST:
        return whole.decode()
    digest = blake2b(whole, digest_size=_DIGEST_BYTES).hexdigest()
    return whole[: VALUE_BYTES_MOST - len(digest) - 1].decode("utf-8", "ignore") + "#" + digest
