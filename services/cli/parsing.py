"""What commands that send checks take from their options."""

from __future__ import annotations

from collections.abc import Iterable

from services.cli.output import fail


def parse_attributes(pairs: Iterable[str]) -> dict[str, str]:
    """``["tier=free"]`` as a mapping.  Ends the process for a pair without a name or given twice."""
    attributes: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not name or not equals:
            fail(f"--attr {pair}: an attribute looks like tier=free")
        if name in attributes:
            fail(f"--attr {pair}: {name} is given twice")
        attributes[name] = value
    return attributes


def parse_map(pairs: Iterable[str]) -> dict[str, str]:
    """``["tier=plan"]`` as a mapping from attribute to field.  Ends the process for what is none."""
    mapped: dict[str, str] = {}
    for pair in pairs:
        name, equals, field = pair.partition("=")
        if not name or not equals or not field:
            fail(f"--map {pair}: a field is mapped as tier=plan, the attribute first")
        if name in mapped:
            fail(f"--map {pair}: {name} is given twice")
        mapped[name] = field
    return mapped
