"""A rule with other numbers for some of its keys: what overrides and canaries share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from regional_limiter.model.rule import Rule, Scope
from regional_limiter.rules.faults import Faults
from regional_limiter.rules.fields import below
from regional_limiter.rules.numbers import Numbers, amount_field, check_split, read_numbers
from regional_limiter.rules.rule import check_for_regions

NUMBERS = ("capacity", "refill", "refill_per_second", "leak", "limit")
"""What may be another number within the same bucket.  A window's length may not: it is part of its identity."""


def given_numbers(fields: Mapping[str, object]) -> list[str]:
    return [name for name in NUMBERS if name in fields]


def with_given_numbers(
    faults: Faults, place: str, fields: Mapping[str, object], rule: Rule, regions: int | None
) -> Rule:
    """The rule with those numbers that ``fields`` gives in place of its own."""
    numbers = given_numbers(fields)
    source = dict(rule.source)
    if not {"refill", "refill_per_second"}.isdisjoint(numbers):
        source = {name: given for name, given in source.items() if name not in ("refill", "refill_per_second")}
    source |= {name: fields[name] for name in numbers}
    before = faults.count
    held = read_numbers(faults, place, source, rule.algorithm)
    if faults.count > before:
        return rule
    return with_held_numbers(faults, place, rule, held, source, numbers, regions)


def with_held_numbers(
    faults: Faults,
    place: str,
    rule: Rule,
    held: Numbers,
    source: Mapping[str, object],
    names: Sequence[str],
    regions: int | None,
) -> Rule:
    """The rule with ``held``; it must leave each region something, and each sub-bucket.

    ``names``: the fields to blame.
    """
    name = amount_field(rule.algorithm)
    at = below(place, name if name in names or not names else names[0])
    if rule.scope is Scope.GLOBAL:
        check_for_regions(faults, at, held.capacity, regions, rule.algorithm, rule.distribution)
    check_split(faults, at, rule.split, held, at)
    return replace(rule, **held._asdict(), source=source)
