"""What an import gives.  Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from regional_limiter.model.errors import Fault

_ID_CHARACTERS = 56
"""So that a number has room behind them."""


@dataclass(frozen=True, slots=True)
class Imported:
    """``document``: the rule set.  ``notes``: what has no effect here, or another one, by its place."""

    domain: str
    document: dict[str, Any]
    notes: tuple[Fault, ...]


class Ids:
    """Makes ids of rules out of names: each as like its name as may be, none twice."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def __call__(self, name: str) -> str:
        base = re.sub(r"[^a-z0-9._-]", "-", name.lower())[:_ID_CHARACTERS] or "rule"
        number, made = 1, base
        while made in self._taken:
            number += 1
            made = f"{base}-{number}"
        self._taken.add(made)
        return made


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
