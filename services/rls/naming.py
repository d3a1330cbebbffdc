"""What a descriptor's entries are called as attributes.  Pure.

An entry is an attribute by its key; a key that comes again gets a number (``header``, ``header.2``).
:data:`KEYS` holds all keys in their order, so that a rule can ask for exactly these.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

KEYS: Final = "descriptor.keys"
"""The attribute that holds the keys of a descriptor, with ``/`` between them (in a key it is ``%2F``)."""


@lru_cache(maxsize=1024)
def keys_text(keys: tuple[str, ...]) -> str:
    """What :data:`KEYS` holds for a descriptor of these keys."""
    return "/".join(key.replace("%", "%25").replace("/", "%2F") for key in keys)


def numbered(keys: Sequence[str]) -> list[str]:
    """The names of the attributes, in the order of ``keys``."""
    names: dict[str, None] = {}
    for key in keys:
        name, number = key, 1
        while name in names:
            number += 1
            name = f"{key}.{number}"
        names[name] = None
    return list(names)
