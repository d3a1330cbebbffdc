"""A rule set -> the Matcher that checks run: what is decided once, so that no check pays for it."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import IntEnum
from functools import cached_property

from regional_limiter.model.rule import Condition, Rule, RuleSet, Subject
from regional_limiter.rules.index import Prefixes, Ranges, Span
from regional_limiter.rules.match import (
    Cabinet,
    Comparison,
    CompiledRule,
    Drawers,
    Matcher,
    NetworkComparison,
    RangeComparison,
    TextComparison,
    Wildcard,
)
from regional_limiter.rules.values import View, name_of, network_bits

_FEW = 8
"""A drawer with at most so many rules is compared rule by rule."""

_LOWEST, _HIGHEST = Decimal("-Infinity"), Decimal("Infinity")


class _By(IntEnum):
    EXACT = 0
    PREFIX = 1
    SUFFIX = 2
    NETWORK = 3
    RANGE = 4


_Entry = tuple[View, _By, str | Span]
"""One drawer: the view of an attribute, how its value is filed, and under what."""


@dataclass(frozen=True)
class _Filing:
    """One condition as it can be filed.

    ``entries``: the drawers that together hold every value that passes; of a wildcard, those of both its ends, of
    which one will do.  None: it passes values that no drawer holds, as ``*…*`` and negations do.
    """

    condition: Condition
    view: View

    @cached_property
    def entries(self) -> list[_Entry]:
        condition, view = self.condition, self.view
        if condition.negated:
            return []
        if condition.is_range:
            return [(view, _By.RANGE, _span(condition))]
        exact: list[_Entry] = [(view, _By.EXACT, value) for value in sorted(condition.exact)]
        networks: list[_Entry] = [(view, _By.NETWORK, network_bits(network)) for network in condition.networks]
        return exact + networks + [end for ends in self.wildcards for end in ends]

    @cached_property
    def wildcards(self) -> list[list[_Entry]]:
        """The one or two drawers that each wildcard may lie in, without an end that says nothing."""
        found = []
        for text in self.condition.wildcards:
            parts = Wildcard.of(text)
            ends: list[_Entry] = [
                (self.view, _By.PREFIX, parts.prefix),
                (self.view, _By.SUFFIX, parts.suffix[::-1]),
            ]
            found.append([end for end in ends if end[2]])
        return found

    @property
    def is_single(self) -> bool:
        """Whether one drawer will do."""
        condition = self.condition
        many = len(condition.exact) + len(condition.wildcards) + len(condition.networks) + condition.is_range
        return not condition.negated and many == 1

    def chosen(self, crowd: Mapping[_Entry, int]) -> list[_Entry]:
        """The drawers to file by, of a wildcard the emptier one; none when it cannot be filed."""
        if self.condition.negated or not all(self.wildcards):
            return []
        sides = {side for ends in self.wildcards for side in ends}
        chosen = {entry: None for entry in self.entries if entry not in sides}
        for ends in self.wildcards:
            chosen[min(ends, key=lambda end: (crowd[end], -len(end[2])))] = None
        return list(chosen)


def compile_rules(rule_set: RuleSet) -> Matcher:
    """The matcher of ``rule_set``.  Takes time and memory in proportion to its rules and values."""
    filings = {place: _filings(rule) for place, rule in enumerate(rule_set.rules)}
    compiled = [
        CompiledRule(rule, [_comparison(filing) for filing in filings[place]], rule_set.overrides.get(rule.id, {}))
        for place, rule in enumerate(rule_set.rules)
    ]
    cabinet = _file(list(filings), filings, top=True)
    return Matcher(compiled, cabinet, rule_set.defaults, _file_subjects(rule_set.subjects))


def _filings(rule: Rule) -> list[_Filing]:
    forms = dict(rule.normalise)
    return [
        _Filing(
            condition,
            (condition.attribute, forms[condition.attribute])
            if condition.attribute in forms
            else condition.attribute,
        )
        for condition in rule.match
    ]


def _comparison(filing: _Filing) -> Comparison:
    condition, view = filing.condition, filing.view
    if condition.networks:
        return NetworkComparison(view, Prefixes(dict.fromkeys(map(network_bits, condition.networks), True)))
    if condition.is_range:
        return RangeComparison(view, _span(condition))
    wildcards = tuple(Wildcard.of(text) for text in condition.wildcards)
    return TextComparison(view, condition.exact, wildcards, condition.negated)


def _span(condition: Condition) -> Span:
    low, high = condition.low, condition.high
    return _LOWEST if low is None else low, _HIGHEST if high is None else high


# ---- filing


def _file(places: list[int], filings: Mapping[int, Sequence[_Filing]], *, top: bool) -> Cabinet:
    """File the rules at ``places`` by one of their conditions, and what is left of each in its drawer.

    Below the top only conditions of one value file a rule: it then lies in one drawer there, and the whole
    never holds more entries a level than the set has values.
    """
    if not top and len(places) <= _FEW:
        return Cabinet(loose=places)
    crowd = _crowd([filing for place in places for filing in filings[place]])
    cabinet = Cabinet()
    drawers: defaultdict[_Entry, list[int]] = defaultdict(list)
    rest: dict[int, Sequence[_Filing]] = {}
    for place in places:
        choices = [
            (max(crowd[entry] for entry in entries), index, entries)
            for index, filing in enumerate(filings[place])
            if (entries := filing.chosen(crowd))
        ]
        if not choices:
            cabinet.loose.append(place)
            continue
        _, chosen, entries = min(choices, key=lambda choice: choice[:2])
        rest[place] = [
            filing for index, filing in enumerate(filings[place]) if index != chosen and filing.is_single
        ]
        for entry in entries:
            drawers[entry].append(place)
    filed: defaultdict[View, dict[_By, dict[str | Span, Cabinet]]] = defaultdict(lambda: {by: {} for by in _By})
    for (view, by, under), inside in drawers.items():
        filed[view][by][under] = _file(inside, rest, top=False)
    for view, tables in filed.items():
        cabinet.by_attribute.setdefault(name_of(view), []).append(_drawers(view, tables))
    return cabinet


def _drawers(view: View, tables: Mapping[_By, Mapping[str | Span, Cabinet]]) -> Drawers:
    texts: dict[_By, dict[str, Cabinet]] = {
        by: {under: cabinet for under, cabinet in table.items() if isinstance(under, str)}
        for by, table in tables.items()
    }
    spans = [(under, cabinet) for under, cabinet in tables[_By.RANGE].items() if not isinstance(under, str)]
    return Drawers(
        view,
        texts[_By.EXACT],
        Prefixes(texts[_By.PREFIX]),
        Prefixes(texts[_By.SUFFIX]),
        Prefixes(texts[_By.NETWORK]),
        Ranges(spans) if spans else None,
    )


def _crowd(filings: Sequence[_Filing]) -> Mapping[_Entry, int]:
    """How many rules a drawer would hold; for a range, how many others overlap it."""
    crowd: Counter[_Entry] = Counter()
    spans: defaultdict[View, list[Span]] = defaultdict(list)
    for filing in filings:
        for entry in set(filing.entries):
            if isinstance(entry[2], str):
                crowd[entry] += 1
            else:
                spans[entry[0]].append(entry[2])
    for view, ranges in spans.items():
        lows, highs = sorted(span[0] for span in ranges), sorted(span[1] for span in ranges)
        for span in set(ranges):
            crowd[view, _By.RANGE, span] = bisect_right(lows, span[1]) - bisect_left(highs, span[0])
    return crowd


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
