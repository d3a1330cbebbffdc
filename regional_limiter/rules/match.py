"""Which rules match a check, without looking at those that cannot.

A rule is filed under one of its conditions, the one that fewest rules share: by exact value, by the plain text
before the first or after the last ``*``, by network, or by range.  Where a drawer holds many rules, they are filed
again by their next condition.  What the drawers of a check hold is then compared in full; see ``compile.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from regional_limiter.model.rule import Override, Rule
from regional_limiter.rules.index import Prefixes, Ranges, Span
from regional_limiter.rules.values import Seen, View


@dataclass(frozen=True, slots=True)
class Wildcard:
    """A text in which each ``*`` stands for any run of characters, also an empty one.

    Cut at the stars and found from left to right: linear in the value, however the text looks.
    """

    prefix: str
    middle: tuple[str, ...]
    suffix: str

    @classmethod
    def of(cls, text: str) -> Wildcard:
        first, *others = text.split("*")
        return cls(first, tuple(part for part in others[:-1] if part), others[-1])

    def fits(self, value: str) -> bool:
        start, end = len(self.prefix), len(value) - len(self.suffix)
        if start > end or not value.startswith(self.prefix) or not value.endswith(self.suffix):
            return False
        for part in self.middle:
            found = value.find(part, start, end)
            if found < 0:
                return False
            start = found + len(part)
        return True


class Comparison(Protocol):
    """One condition, ready to compare."""

    @property
    def view(self) -> View: ...

    def passes(self, seen: Seen) -> bool: ...


@dataclass(frozen=True, slots=True)
class TextComparison:
    view: View
    exact: frozenset[str]
    wildcards: tuple[Wildcard, ...]
    negated: bool

    def passes(self, seen: Seen) -> bool:
        value = seen.text(self.view)
        if value is None:
            return self.negated
        fits = value in self.exact or any(wildcard.fits(value) for wildcard in self.wildcards)
        return fits is not self.negated


@dataclass(frozen=True, slots=True)
class NetworkComparison:
    view: View
    networks: Prefixes[bool]

    def passes(self, seen: Seen) -> bool:
        address = seen.address(self.view)
        return address is not None and self.networks.holds(address)


@dataclass(frozen=True, slots=True)
class RangeComparison:
    view: View
    span: Span

    def passes(self, seen: Seen) -> bool:
        number = seen.number(self.view)
        return number is not None and self.span[0] <= number <= self.span[1]


@dataclass(frozen=True, slots=True)
class Drawers:
    """The drawers of one view of an attribute, each holding a further cabinet.

    ``suffixes`` are filed backwards.
    """

    view: View
    exact: Mapping[str, Cabinet]
    prefixes: Prefixes[Cabinet]
    suffixes: Prefixes[Cabinet]
    networks: Prefixes[Cabinet]
    ranges: Ranges[Cabinet] | None

    def open(self, seen: Seen) -> Iterator[Cabinet]:
        """Every drawer that the check's value may be filed in."""
        value = seen.text(self.view)
        if value is None:
            return
        if (cabinet := self.exact.get(value)) is not None:
            yield cabinet
        if self.prefixes:
            yield from self.prefixes.of(value)
        if self.suffixes:
            yield from self.suffixes.of(value[::-1])
        if self.networks and (address := seen.address(self.view)) is not None:
            yield from self.networks.of(address)
        if self.ranges is not None and (number := seen.number(self.view)) is not None:
            yield from self.ranges.of(number)


@dataclass(slots=True)
class Cabinet:
    """Rules that lie here by themselves, by their place in the set, and those filed by an attribute."""

    loose: list[int] = field(default_factory=list)
    by_attribute: dict[str, list[Drawers]] = field(default_factory=dict)

    def collect(self, seen: Seen, found: set[int]) -> None:
        found.update(self.loose)
        filed, attributes = self.by_attribute, seen.attributes
        fewer = filed if len(filed) <= len(attributes) else attributes
        for name in fewer:
            for drawers in filed.get(name, ()):
                for cabinet in drawers.open(seen):
                    cabinet.collect(seen, found)


@dataclass(frozen=True, slots=True)
class Match:
    """A rule that applies to a check.

    ``rule``: as it is in force for this check's key, after overrides.  ``attributes``: as this rule sees them, in
    its normal forms.
    """

    rule: Rule
    attributes: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class CompiledRule:
    """``overrides``: by the values of the rule's key."""

    rule: Rule
    comparisons: Sequence[Comparison]
    overrides: Mapping[tuple[str, ...], Override]

    def seen_as(self, seen: Seen) -> Match:
        rule, attributes = self.rule, seen.attributes
        if rule.normalise:
            normal = {view[0]: seen.text(view) for view in rule.normalise}
            attributes = {**attributes, **{name: text for name, text in normal.items() if text is not None}}
        if self.overrides:
            values = tuple(attributes.get(name) for name in rule.key)
            # A key with an attribute that the check lacks has no override: no override can name it.
            override = self.overrides.get(values)  # type: ignore[arg-type]
            if override is not None:
                rule = override.in_force
        return Match(rule, attributes)


class Matcher:
    """The compiled rule set of one domain.  Made by ``compile_rules``; never changes."""

    def __init__(
        self,
        rules: Sequence[CompiledRule],
        cabinet: Cabinet,
        defaults: Mapping[str, str],
        subjects: Mapping[tuple[str, ...], Mapping[tuple[str, ...], tuple[int, Mapping[str, str]]]],
    ) -> None:
        self._rules = tuple(rules)
        self._cabinet = cabinet
        self._defaults = dict(defaults)
        self._subjects = subjects

    def match(self, attributes: Mapping[str, str]) -> tuple[Match, ...]:
        """Every rule that applies, in the order of the set, up to the first that stops the search.

        ``attributes`` as ``complete`` returns them.
        """
        seen = Seen(attributes)
        matches = []
        for place in self._candidates(seen):
            compiled = self._rules[place]
            if all(comparison.passes(seen) for comparison in compiled.comparisons):
                matches.append(compiled.seen_as(seen))
                if compiled.rule.stop:
                    break
        return tuple(matches)

    @property
    def rules(self) -> Sequence[CompiledRule]:
        """Every rule, in the order of the set."""
        return self._rules

    def candidates(self, attributes: Mapping[str, str]) -> list[int]:
        """The places of the rules that ``match`` compares in full: what a check costs."""
        return self._candidates(Seen(attributes))

    def _candidates(self, seen: Seen) -> list[int]:
        found: set[int] = set()
        self._cabinet.collect(seen, found)
        return sorted(found)

    def complete(self, attributes: Mapping[str, str]) -> dict[str, str]:
        """The check's own attributes, else those of the subjects that they name, else the set's defaults.

        Where several subjects fit, the one named first in the set wins.
        """
        fitting = []
        for names, subjects in self._subjects.items():
            values = tuple(attributes.get(name) for name in names)
            if None not in values and (subject := subjects.get(values)) is not None:  # type: ignore[arg-type]
                fitting.append(subject)
        complete = dict(self._defaults)
        for _, known in sorted(fitting, key=lambda subject: -subject[0]):
            complete.update(known)
        complete.update(attributes)
        return complete
