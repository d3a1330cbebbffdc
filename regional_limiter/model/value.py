"""Values that are made for every check.

A frozen dataclass sets each of its fields through ``object.__setattr__``: a verdict of eleven fields costs four
times as much to make, and a check makes several.  So these are frozen for the type checker, which refuses an
assignment, and plain at run time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

_T = TypeVar("_T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def value(made: type[_T]) -> type[_T]:
    """A dataclass with slots, equality and a hash, whose fields nobody assigns."""
    return dataclass(slots=True, unsafe_hash=True)(made)
