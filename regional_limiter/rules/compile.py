"""A rule set -> the Matcher that checks run: what is decided once, so that no check pays for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from enum import IntEnum

from regional_limiter.model.rule import Condition, RuleSet, Subject
from regional_limiter.rules.match import Cabinet, Drawers, Matcher, Wildcard

_FEW = 8
"""A drawer with at most so many rules is compared rule by rule."""


class _By(IntEnum):
    EXACT = 0
    PREFIX = 1
    SUFFIX = 2


_Entry = tuple[str, _By, str]
"""One drawer: attribute, how its text is compared, text."""


def compile_rules(rule_set: RuleSet) -> Matcher:
    """The matcher of ``rule_set``.  Takes time and memory in proportion to its rules and values."""
    places = range(len(rule_set.rules))
    open_conditions = {place: rule_set.rules[place].match for place in places}
    cabinet = _file(list(places), open_conditions, top=True)
    return Matcher(rule_set.rules, cabinet, rule_set.defaults, _file_subjects(rule_set.subjects))


def _file(places: list[int], conditions: Mapping[int, Sequence[Condition]], *, top: bool) -> Cabinet:
    """File the rules at ``places`` by one of their ``conditions``, and what is left of each in its drawer.

    Below the top only conditions of one value file a rule: it then lies in one drawer there, and the whole
    never holds more entries a level than the set has values.
    """
    if not top and len(places) <= _FEW:
        return Cabinet(loose=places)
    crowd = Counter(
        entry for place in places for condition in conditions[place] for entry in set(_all_entries(condition))
    )
    cabinet = Cabinet()
    drawers: dict[_Entry, list[int]] = {}
    rest: dict[int, Sequence[Condition]] = {}
    for place in places:
        choices = [
            (max(crowd[entry] for entry in entries), index, entries)
            for index, condition in enumerate(conditions[place])
            if (entries := _entries(condition, crowd))
        ]
        if not choices:
            cabinet.loose.append(place)
            continue
        _, chosen, entries = min(choices, key=lambda choice: choice[:2])
        rest[place] = [
            condition
            for index, condition in enumerate(conditions[place])
            if index != chosen and len(condition.exact) + len(condition.wildcards) == 1
        ]
        for entry in entries:
            drawers.setdefault(entry, []).append(place)
    for (attribute, by, text), filed in drawers.items():
        of_attribute = cabinet.by_attribute.setdefault(attribute, Drawers())
        table = (of_attribute.exact, of_attribute.prefix, of_attribute.suffix)[by]
        table[text] = _file(filed, rest, top=False)
    for of_attribute in cabinet.by_attribute.values():
        of_attribute.prefix_lengths = tuple(sorted({len(text) for text in of_attribute.prefix}))
        of_attribute.suffix_lengths = tuple(sorted({len(text) for text in of_attribute.suffix}))
    return cabinet


def _ends(wildcard: str, attribute: str) -> list[_Entry]:
    """The two drawers that a wildcard may lie in, without an end that says nothing."""
    parts = Wildcard.of(wildcard)
    ends = [(attribute, _By.PREFIX, parts.prefix), (attribute, _By.SUFFIX, parts.suffix)]
    return [end for end in ends if end[2]]


def _all_entries(condition: Condition) -> list[_Entry]:
    exact = [(condition.attribute, _By.EXACT, value) for value in condition.exact]
    return exact + [end for text in condition.wildcards for end in _ends(text, condition.attribute)]


def _entries(condition: Condition, crowd: Counter[_Entry]) -> list[_Entry]:
    """The drawers that together hold every value the condition passes; none when a ``*…*`` fits in no drawer."""
    entries = {(condition.attribute, _By.EXACT, value): None for value in sorted(condition.exact)}
    for text in condition.wildcards:
        ends = _ends(text, condition.attribute)
        if not ends:
            return []
        entries[min(ends, key=lambda end: (crowd[end], -len(end[2])))] = None
    return list(entries)


def _file_subjects(
    subjects: Sequence[Subject],
) -> dict[tuple[str, ...], dict[tuple[str, ...], tuple[int, Mapping[str, str]]]]:
    """Subjects by the attributes that name them, then by their values."""
    filed: dict[tuple[str, ...], dict[tuple[str, ...], tuple[int, Mapping[str, str]]]] = {}
    for index, subject in enumerate(subjects):
        names = tuple(sorted(subject.where))
        values = tuple(subject.where[name] for name in names)
        filed.setdefault(names, {}).setdefault(values, (index, subject.attributes))
    return filed
