"""What a format of access logs is.  Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol


class Unreadable(Exception):
    """``reason``: why, in words that group lines.  ``is_of_format``: the line is of the format, but no request."""

    def __init__(self, reason: str, *, is_of_format: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.is_of_format = is_of_format


class LineFormat(Protocol):
    """``fields``: the names that :meth:`read` may give; None: any, by a path such as ``user.id``."""

    @property
    def fields(self) -> tuple[str, ...] | None: ...

    @property
    def times_whole_s(self) -> bool:
        """Whether times are whole seconds, so that requests within one second have no order but the log's."""
        ...

    @property
    def absent(self) -> str | None:
        """What a field says that has no value, beside None."""
        ...

    def read(self, line: str) -> tuple[int, Mapping[str, Any]]:
        """(milliseconds since 1970 UTC, the fields that the line has).  Raises Unreadable.

        ``method`` and ``path`` (without the query), or ``resource``, are always among them, and ``ip`` where it is
        known.
        """
        ...
