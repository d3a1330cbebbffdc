"""Collecting faults: every one by its place, with what would be right."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from regional_limiter.model.errors import Fault, InvalidRules

FAULTS_MOST = 1000
_LONGEST_SHOWN = 60


class Faults:
    """The faults of one document.  The first 1,000 are kept word for word, the others counted."""

    def __init__(self) -> None:
        self._kept: list[Fault] = []
        self._more = 0

    def add(self, place: str, problem: str) -> None:
        if self.full:
            self._more += 1
        else:
            self._kept.append(Fault(place, problem))

    @property
    def full(self) -> bool:
        return len(self._kept) >= FAULTS_MOST

    @property
    def count(self) -> int:
        return len(self._kept) + self._more

    def error(self) -> InvalidRules:
        more = [Fault("document", f"and {self._more} more faults")] if self._more else []
        return InvalidRules([*self._kept, *more])

    def raise_if_any(self) -> None:
        if self._kept:
            raise self.error()


def shown(value: object) -> str:
    """A value for a message: short, on one line, whatever it is."""
    if value is None:
        return "nothing (null)"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        cut = value if len(value) <= _LONGEST_SHOWN else value[: _LONGEST_SHOWN - 3] + "..."
        return '"' + cut.encode("unicode_escape").decode("ascii") + '"'
    if isinstance(value, int):
        return str(value) if value.bit_length() <= 64 else "a very large number"
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, dict):
        return "a mapping"
    return "a list" if isinstance(value, list | tuple) else f"a {type(value).__name__}"


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word that is most like ``word``, if any is."""
    close = get_close_matches(word[:64].lower(), list(known), n=1, cutoff=0.6)
    return close[0] if close else None
