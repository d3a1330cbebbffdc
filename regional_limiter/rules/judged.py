"""Why rules apply to a check, or do not: compared one by one, for a person to read.  Pure.

The matcher itself never looks at most rules; this looks at all of them, and is for questions, not for checks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from regional_limiter.model.rule import Condition, Mode, Rule, RuleSet
from regional_limiter.rules.compile import compile_rules
from regional_limiter.rules.match import Matcher
from regional_limiter.rules.values import Seen

_TEXTS_NAMED = 8


@dataclass(frozen=True, slots=True)
class Judged:
    """``rule``: as it is for the check's key, after overrides.  ``why_not``: empty where it applies; where it does
    not, ``rule`` is without overrides, and ``overridden`` says whether the key has one that does nothing.
    """

    rule: Rule
    why_not: tuple[str, ...]
    overridden: bool = False

    @property
    def applies(self) -> bool:
        return not self.why_not


def judged(matcher: Matcher, attributes: Mapping[str, str]) -> list[Judged]:
    """Every rule of the set, in its order.  ``attributes`` as ``Matcher.complete`` returns them."""
    seen = Seen(attributes)
    found: list[Judged] = []
    stopped: str | None = None
    for compiled in matcher.rules:
        rule = compiled.rule
        unmet = [
            _unmet(condition, seen.text(comparison.view))
            for condition, comparison in zip(rule.match, compiled.comparisons, strict=True)
            if not comparison.passes(seen)
        ]
        if stopped is not None:
            unmet.append(f"{stopped} stands before it, applies, and ends the search")
        if unmet:
            found.append(Judged(rule, tuple(unmet), compiled.seen_as(seen).rule is not rule))
            continue
        in_force = compiled.seen_as(seen).rule
        found.append(Judged(in_force, (), in_force is not rule))
        if rule.stop:
            stopped = rule.id
    return _without_replaced(found)


def unmet_by(rule_set: RuleSet, rule: Rule, attributes: Mapping[str, str]) -> list[str]:
    """The conditions of a rule that a check with ``attributes`` does not meet, whatever else it says: of those that
    are given, or that the set's subjects know.  Attributes that only defaults give are no obstacle.
    """
    alone = compile_rules(replace(rule_set, rules=(rule,), overrides={}, defaults={}))
    seen = Seen(alone.complete(attributes))
    (compiled,) = alone.rules
    return [
        _unmet(condition, seen.text(comparison.view))
        for condition, comparison in zip(rule.match, compiled.comparisons, strict=True)
        if seen.text(comparison.view) is not None and not comparison.passes(seen)
    ]


def _without_replaced(found: list[Judged]) -> list[Judged]:
    by: dict[str, str] = {}
    for one in found:
        if one.applies and one.rule.mode is not Mode.SHADOW:
            for name in one.rule.replaces:
                by.setdefault(name, one.rule.id)
    return [
        Judged(one.rule, (f"{by[one.rule.id]} applies and replaces it",), one.overridden)
        if one.applies and one.rule.id in by
        else one
        for one in found
    ]


def _unmet(condition: Condition, value: str | None) -> str:
    """``tier is "free", and must be trial or paid``."""
    is_now = f"{condition.attribute} is not given" if value is None else f'{condition.attribute} is "{value}"'
    return f"{is_now}, and must {condition_in_words(condition)}"


def condition_in_words(condition: Condition) -> str:
    """``be free or trial``; ``lie in 10.0.0.0/8``; ``be from 1 to 9``; ``not be DE``."""
    if condition.networks:
        return f"lie in {_listed([str(network) for network in condition.networks])}"
    if condition.is_range:
        bounds = [
            f"{word} {bound}"
            for word, bound in (("from", condition.low), ("to", condition.high))
            if bound is not None
        ]
        return f"be a number {' '.join(bounds)}"
    texts = _listed([*sorted(condition.exact), *condition.wildcards])
    return f"not be {texts}" if condition.negated else f"be {texts}"


def _listed(texts: list[str]) -> str:
    named = texts[:_TEXTS_NAMED]
    more = len(texts) - len(named)
    return " or ".join(named) + (f" or one of {more:,} more" if more else "")
