"""Which rules match a check, without looking at those that cannot.

A rule is filed under one of its conditions, the one that fewest rules share: by exact value, or by the plain text
before the first or after the last ``*``.  Where a drawer holds many rules, they are filed again by their next
condition.  What the drawers of a check hold is then compared in full; see ``compile.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from regional_limiter.model.rule import Condition, Rule


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


@dataclass(frozen=True, slots=True)
class Comparison:
    """One condition, ready to compare."""

    attribute: str
    exact: frozenset[str]
    wildcards: tuple[Wildcard, ...]

    @classmethod
    def of(cls, condition: Condition) -> Comparison:
        return cls(condition.attribute, condition.exact, tuple(Wildcard.of(text) for text in condition.wildcards))

    def passes(self, attributes: Mapping[str, str]) -> bool:
        value = attributes.get(self.attribute)
        if value is None:
            return False
        return value in self.exact or any(wildcard.fits(value) for wildcard in self.wildcards)


@dataclass(slots=True)
class Drawers:
    """The drawers of one attribute, each holding a further cabinet."""

    exact: dict[str, Cabinet] = field(default_factory=dict)
    prefix: dict[str, Cabinet] = field(default_factory=dict)
    suffix: dict[str, Cabinet] = field(default_factory=dict)
    prefix_lengths: tuple[int, ...] = ()
    suffix_lengths: tuple[int, ...] = ()

    def open(self, value: str) -> Iterator[Cabinet]:
        """Every drawer that ``value`` may be filed in."""
        if (cabinet := self.exact.get(value)) is not None:
            yield cabinet
        for length in self.prefix_lengths:
            if length > len(value):
                break
            if (cabinet := self.prefix.get(value[:length])) is not None:
                yield cabinet
        for length in self.suffix_lengths:
            if length > len(value):
                break
            if (cabinet := self.suffix.get(value[len(value) - length :])) is not None:
                yield cabinet


@dataclass(slots=True)
class Cabinet:
    """Rules that lie here by themselves, by their place in the set, and those filed by an attribute."""

    loose: list[int] = field(default_factory=list)
    by_attribute: dict[str, Drawers] = field(default_factory=dict)

    def collect(self, attributes: Mapping[str, str], found: set[int]) -> None:
        found.update(self.loose)
        for name, drawers in self.by_attribute.items():
            value = attributes.get(name)
            if value is not None:
                for cabinet in drawers.open(value):
                    cabinet.collect(attributes, found)


class Matcher:
    """The compiled rule set of one domain.  Made by ``compile_rules``; never changes."""

    def __init__(
        self,
        rules: tuple[Rule, ...],
        cabinet: Cabinet,
        defaults: Mapping[str, str],
        subjects: Mapping[tuple[str, ...], Mapping[tuple[str, ...], tuple[int, Mapping[str, str]]]],
    ) -> None:
        self.rules = rules
        self._comparisons = tuple(tuple(Comparison.of(condition) for condition in rule.match) for rule in rules)
        self._cabinet = cabinet
        self._defaults = dict(defaults)
        self._subjects = subjects

    def match(self, attributes: Mapping[str, str]) -> tuple[Rule, ...]:
        """Every rule that matches, in the order of the set.  ``attributes`` as ``complete`` returns them."""
        return tuple(
            self.rules[index]
            for index in self.candidates(attributes)
            if all(comparison.passes(attributes) for comparison in self._comparisons[index])
        )

    def candidates(self, attributes: Mapping[str, str]) -> list[int]:
        """The places of the rules that ``match`` compares in full: what a check costs."""
        found: set[int] = set()
        self._cabinet.collect(attributes, found)
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
