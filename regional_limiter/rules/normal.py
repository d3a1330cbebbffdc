"""Normal forms: texts that mean the same become the same text, before rules match them and keys are made.  Pure."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from ipaddress import IPv6Address, IPv6Network, ip_address

from regional_limiter.model.rule import NormalForm

_ESCAPE = re.compile(r"%([0-9A-Fa-f]{2})")
_UNRESERVED = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")


def normalised(text: str, forms: Sequence[NormalForm]) -> str:
    """``text`` after each of ``forms``, in their order."""
    for form in forms:
        text = _FUNCTIONS[form](text)
    return text


def _nfc(text: str) -> str:
    return unicodedata.normalize("NFC", text)


def _path(text: str) -> str:
    """A path as a server reads it; what stands before its first slash (a method) stays.

    Cut at ``?`` and ``#``; characters that need no escape are plain, other escapes in capitals; ``.`` and ``..``
    are gone, slashes are single, and none is at the end.  Escapes are read once, as a server does.
    """
    method, slash, rest = text.partition("/")
    if not slash:
        return text
    path = _ESCAPE.sub(_plain, re.split(r"[?#]", rest, maxsplit=1)[0])
    parts: list[str] = []
    for part in path.split("/"):
        if part == "..":
            del parts[-1:]
        elif part not in ("", "."):
            parts.append(part)
    return f"{method}/{'/'.join(parts)}"


def _plain(escape: re.Match[str]) -> str:
    character = chr(int(escape[1], 16))
    return character if character in _UNRESERVED else escape[0].upper()


def _address(text: str) -> str:
    """An address in its shortest form, an IPv4-mapped one as IPv4; any other text stays."""
    try:
        address = ip_address(text)
    except ValueError:
        return text
    return str(address.ipv4_mapped or address) if isinstance(address, IPv6Address) else str(address)


def _address_64(text: str) -> str:
    """As ``_address``, and an IPv6 address as the /64 that it lies in: what one household or host is given."""
    plain = _address(text)
    try:
        return str(IPv6Network((IPv6Address(plain).packed, 64), strict=False))
    except ValueError:
        return plain


_FUNCTIONS: Mapping[NormalForm, Callable[[str], str]] = {
    NormalForm.TRIM: str.strip,
    NormalForm.LOWER: str.lower,
    NormalForm.NFC: _nfc,
    NormalForm.PATH: _path,
    NormalForm.ADDRESS: _address,
    NormalForm.ADDRESS_64: _address_64,
}
