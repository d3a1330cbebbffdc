"""What an import gives.  Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from regional_limiter.model.errors import Fault


@dataclass(frozen=True, slots=True)
class Imported:
    """``document``: the rule set.  ``notes``: what has no effect here, or another one, by its place."""

    domain: str
    document: dict[str, Any]
    notes: tuple[Fault, ...]


class Findings:
    """Faults and notes, each once and at most ``most`` of either."""

    def __init__(self, most: int = 200) -> None:
        self._most = most
        self._faults: dict[Fault, None] = {}
        self._notes: dict[Fault, None] = {}

    def fault(self, place: str, problem: str) -> None:
        if len(self._faults) < self._most:
            self._faults[Fault(place, problem)] = None

    def note(self, place: str, problem: str) -> None:
        if len(self._notes) < self._most:
            self._notes[Fault(place, problem)] = None

    @property
    def faults(self) -> list[Fault]:
        return list(self._faults)

    @property
    def notes(self) -> tuple[Fault, ...]:
        return tuple(self._notes)
