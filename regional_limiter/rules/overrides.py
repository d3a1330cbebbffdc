"""The overrides of a set: single keys of a rule with other numbers, without a limit, or without access."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import replace

from regional_limiter.model.rule import Override, Rule
from regional_limiter.rules import grammar
from regional_limiter.rules.ends import read_end
from regional_limiter.rules.faults import Faults, nearest, shown
from regional_limiter.rules.fields import below, check_fields, read_flag, read_list, read_mapping, read_text
from regional_limiter.rules.normal import normalised
from regional_limiter.rules.numbers import multiplied
from regional_limiter.rules.other_numbers import given_numbers, with_given_numbers, with_held_numbers
from regional_limiter.rules.quantities import read_decimal

_HINTS_AMONG = 100
"""Looking for the nearest of ten thousand ids, for each of a thousand wrong ones, would take minutes."""
_CHANGES_EXPECTED = "exactly one of multiply, numbers of the rule (such as capacity), unlimited: true, block: true"


def read_overrides(
    faults: Faults, value: object, rules: Mapping[str, Rule], ids: Set[str], regions: int | None
) -> dict[str, dict[tuple[str, ...], Override]]:
    """The overrides of a set, by rule and key.  ``rules``: those without faults; ``ids``: of all its rules."""
    overrides: dict[str, dict[tuple[str, ...], Override]] = {}
    first_place: dict[tuple[str, tuple[str, ...]], str] = {}
    for index, item in enumerate(read_list(faults, "overrides", value, grammar.OVERRIDES_MOST)):
        place = f"overrides[{index}]"
        read = _read_override(faults, place, item, rules, ids, regions)
        if read is None:
            continue
        rule, key, override = read
        first = first_place.setdefault((rule, key), place)
        if first != place:
            faults.add(place, f"is about the same key as {first}")
        overrides.setdefault(rule, {})[key] = override
    return overrides


def _read_override(
    faults: Faults, place: str, value: object, rules: Mapping[str, Rule], ids: Set[str], regions: int | None
) -> tuple[str, tuple[str, ...], Override] | None:
    before = faults.count
    fields = read_mapping(faults, place, value)
    if faults.count > before:
        return None
    check_fields(faults, place, fields, grammar.OVERRIDE_FIELDS)
    until_ms = read_end(faults, below(place, "until"), fields["until"]) if "until" in fields else None
    why = read_text(faults, below(place, "why"), fields.get("why", ""))
    name = fields.get("rule")
    if not isinstance(name, str) or name not in ids:
        close = nearest(name, sorted(ids)) if isinstance(name, str) and len(ids) <= _HINTS_AMONG else None
        hint = f"; did you mean {close}?" if close else ""
        faults.add(below(place, "rule"), f"must be the id of a rule of this set, not {shown(name)}{hint}")
        return None
    rule = rules.get(name)
    if rule is None:  # a faulty rule, whose faults are named in its own place
        return None
    key = _read_key(faults, below(place, "key"), fields.get("key", {}), rule)
    in_force = replace(_changed(faults, place, fields, rule, regions), canary=None)
    return (name, key, Override(in_force, why, until_ms)) if faults.count == before else None


def key_of(rule: Rule, key: Mapping[str, str]) -> tuple[str, ...]:
    """Where the set keeps the override of ``rule`` whose key was written so."""
    forms = dict(rule.normalise)
    return tuple(normalised(key[name], forms.get(name, ())) for name in rule.key)


def _read_key(faults: Faults, place: str, value: object, rule: Rule) -> tuple[str, ...]:
    """The values of the rule's key, in its order and in its normal forms."""
    before = faults.count
    mapping = read_mapping(faults, place, value)
    if faults.count > before:
        return ()
    forms = dict(rule.normalise)
    for name in mapping:
        if name not in rule.key:
            known = ", ".join(rule.key) or "nothing: it has one bucket for all"
            faults.add(below(place, name), f"is not of the key of {rule.id}, which is {known}")
    values = []
    for name in rule.key:
        if name in mapping:
            values.append(normalised(read_text(faults, below(place, name), mapping[name]), forms.get(name, ())))
        else:
            faults.add(below(place, name), f"missing: the key of {rule.id} is {', '.join(rule.key)}")
    return tuple(values)


def _changed(faults: Faults, place: str, fields: Mapping[str, object], rule: Rule, regions: int | None) -> Rule:
    """The rule as it is for the key."""
    numbers = given_numbers(fields)
    words = [name for name in ("multiply", "unlimited", "block") if name in fields]
    if len(words) + bool(numbers) != 1:
        given = ", ".join(words + numbers) or "none"
        faults.add(place, f"needs {_CHANGES_EXPECTED}; here is {given}")
        return rule
    if words != ["multiply"] and words:
        at, before = below(place, words[0]), faults.count
        if not read_flag(faults, at, fields[words[0]]) and faults.count == before:
            faults.add(at, "must be true: to end it, take the override out")
        return replace(rule, blocked=True) if words == ["block"] else replace(rule, unlimited=True)
    if rule.unlimited:
        faults.add(place, f"{rule.id} is unlimited: the only override of it is block: true")
        return rule
    if numbers:
        return with_given_numbers(faults, place, fields, rule, regions)
    return _multiplied(faults, place, fields, rule, regions)


def _multiplied(faults: Faults, place: str, fields: Mapping[str, object], rule: Rule, regions: int | None) -> Rule:
    at, before = below(place, "multiply"), faults.count
    by = read_decimal(faults, at, fields["multiply"], grammar.MULTIPLY_MOST)
    if by is None:
        return rule
    held = multiplied(faults, at, rule, by)
    if faults.count > before:
        return rule
    return with_held_numbers(faults, place, rule, held, rule.source, ["multiply"], regions)
