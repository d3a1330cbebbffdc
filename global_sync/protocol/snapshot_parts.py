"""A snapshot in parts of bounded size.  Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

PART_BYTES = 600_000
"""Of a part as JSON: the head and an odd estimate still fit into a message of 900 kB."""

_T = TypeVar("_T")


def in_parts(
    items: Iterable[tuple[str, _T]], bytes_of: Callable[[str, _T], int], keys_most: int | None = None
) -> Iterator[dict[str, _T]]:
    """Each has at most ``keys_most`` keys, and ``PART_BYTES`` by ``bytes_of`` (or a single key)."""
    part: dict[str, _T] = {}
    size = 0
    for key, value in items:
        more = bytes_of(key, value)
        if part and (size + more > PART_BYTES or len(part) == keys_most):
            yield part
            part, size = {}, 0
        part[key] = value
        size += more
    if part:
        yield part
