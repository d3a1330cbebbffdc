"""What a log says of callers' keys and of secrets: nothing that tells who it was, or lets somebody in.  Pure.

A key in clear would be an address, an account, or a token.  Instead stands the beginning of a hash, keyed with the
deployment's secret: who has the secret can look a key up, and the same key is the same everywhere; nobody else
can try all addresses.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, MutableMapping
from hashlib import blake2b
from typing import Any, Final

HASH_BYTES: Final = 6
TEXT_MOST: Final = 20_000
"""Characters of one value that are written; a trace of an exception may be long."""

STARS: Final = "***"
_SECRET_NAMES: Final = re.compile(
    r"(?:.*_)?(?:token|password|passwd|secret|authorization|cookie|api_key)", re.IGNORECASE
)
_KEY_NAMES: Final = frozenset(("key", "keys", "client_key"))
_BUCKET_KEY: Final = re.compile(r"(rl:\{[^}\s]*\}:[^\s:'\"]+:)([^\s'\",)\]]+(?:,[^\s'\",)\]]+)*)")
"""An identity of several parts is joined with commas; one with a blank after it ends the key."""
_BEARER: Final = re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{4,}")
_USER_INFO: Final = re.compile(r"://[^/\s@]*@")


class Hiding:
    """``secret``: keys the hash.  ``tells_keys``: keys are told in clear; secrets never."""

    def __init__(self, secret: bytes, tells_keys: bool = False) -> None:
        self._secret = secret[:64]
        self._tells_keys = tells_keys

    def hidden(self, key: str) -> str:
        """What stands for ``key``: '#' and twelve hexadecimal digits."""
        return "#" + blake2b(key.encode(errors="replace"), digest_size=HASH_BYTES, key=self._secret).hexdigest()

    def line(self, said: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        """A log's line, by field, as it may be written."""
        for name, value in said.items():
            said[name] = self._field(name, value)
        return said

    def _field(self, name: str, value: Any) -> Any:
        if _SECRET_NAMES.fullmatch(name.replace("-", "_")):
            return STARS
        if name in _KEY_NAMES and not self._tells_keys:
            values = value if isinstance(value, list | tuple | set | frozenset) else [value]
            told = [self.hidden(str(one)) for one in values]
            return told if values is value else told[0]
        return self._value(value)

    def _value(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {str(name): self._field(str(name), one) for name, one in value.items()}
        if isinstance(value, list | tuple):
            return [self._value(one) for one in value]
        return value

    def text(self, text: str) -> str:
        """Words in which a key or a secret may stand."""
        text = text[:TEXT_MOST]
        if "://" in text:
            text = _USER_INFO.sub(f"://{STARS}@", text)
        text = _BEARER.sub(rf"\1 {STARS}", text)
        if "rl:{" in text and not self._tells_keys:
            text = _BUCKET_KEY.sub(lambda found: found[1] + self.hidden(found[2]), text)
        return text
