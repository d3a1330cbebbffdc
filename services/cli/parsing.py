"""What commands take from their options, and say of what these leave open."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from services.cli.output import fail

if TYPE_CHECKING:
    from regional_limiter.model.rule import RuleSet
    from services.rehearsal.reading import LogReader


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


def check_format(format: str | None) -> None:
    """Ends the process for a format of logs that is not known; None: it is found out."""
    from services.rehearsal.formats import FORMATS

    if format is not None and format not in FORMATS:
        fail(f"--format {format}: one of {', '.join(FORMATS)}")


def check_map(reader: LogReader, mapped: Mapping[str, str]) -> None:
    """Ends the process where an attribute is mapped to a field that no line of the log has."""
    from services.rehearsal.attributes import unknown_fields

    if unknown := unknown_fields(reader.format, mapped):
        fail(f"--map: {', '.join(unknown)}: {fields_of(reader)}")


def fields_of(reader: LogReader) -> str:
    """The fields that a line of the log has, in words."""
    return f"a line of {reader.format_name} has {', '.join(sorted(reader.format.fields or ()))}"


def not_in_log(name: str, rule_set: RuleSet) -> str:
    """What rules see of an attribute that a log does not have."""
    default = rule_set.defaults.get(name)
    seen = "unset" if default is None else f"as the set's default, {default}"
    if any(name in one.attributes for one in rule_set.subjects):
        seen += ", but for clients of whom the set says it"
    return f"{name} is not in the log: give --map {name}=FIELD, or rules see it {seen}"
