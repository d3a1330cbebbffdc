"""Readers of single fields.

Each takes (faults, place, value) and returns a value of the right type.  A wrong one is noted, and something
harmless comes back so that reading goes on to the other faults: a set with any fault is refused whole.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import StrEnum
from typing import TypeVar

from regional_limiter.rules.faults import Faults, nearest, shown
from regional_limiter.rules.grammar import ATTRIBUTE, ATTRIBUTE_EXPECTED, TEXT_BYTES_MOST

_Choice = TypeVar("_Choice", bound=StrEnum)


def below(place: str, name: str) -> str:
    """The place of a field in ``place``."""
    plain = name if ATTRIBUTE.fullmatch(name) else shown(name)
    return f"{place}.{plain}" if place else plain


def read_mapping(faults: Faults, place: str, value: object) -> dict[str, object]:
    """A mapping whose keys are text."""
    if not isinstance(value, dict):
        faults.add(place or "document", f"must be a mapping, not {shown(value)}")
        return {}
    mapping: dict[str, object] = {}
    for name, item in value.items():
        if isinstance(name, str):
            mapping[name] = item
        else:
            faults.add(place or "document", f"the key {shown(name)} must be text: write it in quotes")
    return mapping


def read_list(faults: Faults, place: str, value: object, at_most: int) -> list[object]:
    if not isinstance(value, list):
        faults.add(place, f"must be a list, not {shown(value)}")
        return []
    if len(value) > at_most:
        faults.add(place, f"at most {at_most:,} entries, not {len(value):,}")
        return []
    return value


def check_fields(faults: Faults, place: str, mapping: dict[str, object], known: Sequence[str]) -> None:
    """Every field must be known; an unknown one is told its nearest known name."""
    for name in mapping:
        if name in known:
            continue
        if faults.full:
            faults.add(place, "unknown field")
        else:
            faults.add(below(place, name), _unknown("field", name, known))


def _unknown(kind: str, word: str, known: Sequence[str]) -> str:
    close = nearest(word, known)
    return f"unknown {kind}; " + (f"did you mean {close}?" if close else f"known: {', '.join(known)}")


def read_text(faults: Faults, place: str, value: object, *, empty: bool = True) -> str:
    """Text of at most 1,024 bytes of UTF-8."""
    if not isinstance(value, str):
        hint = ": write it in quotes" if isinstance(value, bool | int | float) else ""
        faults.add(place, f"must be text, not {shown(value)}{hint}")
        return ""
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        faults.add(place, "must be UTF-8: it holds half of a surrogate pair")
        return ""
    if size > TEXT_BYTES_MOST:
        faults.add(place, f"at most {TEXT_BYTES_MOST:,} bytes, not {size:,}")
        return ""
    if not value and not empty:
        faults.add(place, "must not be empty")
    return value


def read_name(faults: Faults, place: str, value: object, pattern: re.Pattern[str], expected: str) -> str:
    if not isinstance(value, str) or not pattern.fullmatch(value):
        faults.add(place, f"must be {expected}, not {shown(value)}")
        return ""
    return value


def read_integer(faults: Faults, place: str, value: object, low: int, high: int) -> int:
    """A whole number, written as one: no text, no boolean, no 20.0."""
    if type(value) is not int:
        hint = ": write it without quotes" if isinstance(value, str) and value.strip().isdecimal() else ""
        faults.add(place, f"must be a whole number, not {shown(value)}{hint}")
        return low
    if not low <= value <= high:
        faults.add(place, f"must be from {low:,} to {high:,}, not {shown(value)}")
        return low
    return value


def read_flag(faults: Faults, place: str, value: object) -> bool:
    if not isinstance(value, bool):
        faults.add(place, f"must be true or false, not {shown(value)}")
        return False
    return value


def read_choice(
    faults: Faults,
    place: str,
    value: object,
    choices: type[_Choice],
    default: _Choice,
) -> _Choice:
    """One word of an enumeration."""
    if isinstance(value, str):
        try:
            return choices(value)
        except ValueError:
            pass
    read_word(faults, place, value, [choice.value for choice in choices])
    return default


def read_word(faults: Faults, place: str, value: object, words: Sequence[str]) -> None:
    if not isinstance(value, str):
        faults.add(place, f"must be one of {', '.join(words)}, not {shown(value)}")
    elif value not in words:
        faults.add(place, _unknown("word", value, words))


def read_attributes(faults: Faults, place: str, value: object) -> dict[str, str]:
    """Attribute names with their values, both text."""
    mapping = read_mapping(faults, place, value)
    for name in mapping:
        if not ATTRIBUTE.fullmatch(name):
            faults.add(below(place, name), f"an attribute is named by {ATTRIBUTE_EXPECTED}")
    return {name: read_text(faults, below(place, name), item) for name, item in mapping.items()}
