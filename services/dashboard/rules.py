"""Rules as the page names them: the limit in words, and what its charts need.  Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from regional_limiter.model.rule import CalendarUnit, Distribution, Rule, Scope
from regional_limiter.rules import limit_in_words
from services.accepted_rules import Book

_CALENDAR_S = {
    CalendarUnit.HOUR: 3_600,
    CalendarUnit.DAY: 86_400,
    CalendarUnit.WEEK: 604_800,
    CalendarUnit.MONTH: 2_592_000,
    CalendarUnit.YEAR: 31_536_000,
}
"""A month of thirty days and a year of 365 are near enough for a look."""


@dataclass(frozen=True, slots=True)
class RuleShown:
    """``name``: ``domain/id``; ``rate_per_s``: the refill, None for windows; ``even_per_s``: what can pass a second
    for ever, of windows their limit by their length, None where there is none; ``window_s``: that length.
    ``is_global``: in parts by region; ``at_home``: over all regions, but each key in one of them."""

    name: str
    domain: str
    id: str
    description: str
    limit: str
    rate_per_s: float | None
    even_per_s: float | None
    window_s: float | None
    is_global: bool
    adaptive: bool
    at_home: bool
    mode: str
    version: int

    def frame(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "domain": self.domain,
            "id": self.id,
            "description": self.description,
            "limit": self.limit,
            "rate_per_s": self.rate_per_s,
            "even_per_s": self.even_per_s,
            "window_s": self.window_s,
            "mode": self.mode,
            "scope": "global" if self.is_global else "home" if self.at_home else "region",
            "distribution": "home" if self.at_home else "adaptive" if self.adaptive else "static",
            "version": self.version,
        }


def rules_shown(book: Book) -> list[RuleShown]:
    """Every accepted rule, domain by domain, in the order of its set."""
    shown = []
    for domain in sorted(book.sets()):
        known = book.sets()[domain]
        for rule in known.rule_set.rules:
            per_s = rule.refill.tokens * 1000 / rule.refill.period_ms if rule.refill else None
            at_home = rule.homes is not None
            is_global = rule.scope is Scope.GLOBAL and not at_home
            shown.append(
                RuleShown(
                    name=f"{domain}/{rule.id}",
                    domain=domain,
                    id=rule.id,
                    description=rule.description,
                    limit=limit_words(rule),
                    rate_per_s=per_s,
                    even_per_s=even_rate(rule),
                    window_s=window_s(rule),
                    is_global=is_global,
                    at_home=at_home,
                    adaptive=is_global and rule.distribution is Distribution.ADAPTIVE,
                    mode=rule.mode.value,
                    version=known.rule_versions.get(rule.id, known.version),
                )
            )
    return shown


def even_rate(rule: Rule) -> float | None:
    """Cost per second that can pass for ever; None for concurrency and for what is unlimited."""
    if rule.unlimited or rule.capacity == 0:
        return None
    if rule.refill is not None:
        return rule.refill.tokens * 1000 / rule.refill.period_ms
    length_s = window_s(rule)
    return rule.capacity / length_s if length_s else None


def window_s(rule: Rule) -> float | None:
    """The length of a window's limit; None for what is none."""
    if rule.calendar is not None:
        return _CALENDAR_S[rule.calendar.unit]
    return rule.window_ms / 1000 if rule.window_ms else None


def limit_words(rule: Rule) -> str:
    """``100 at once, then 50/s, for each client_key, over all regions``."""
    whom = f"for each {' and '.join(rule.key)}" if rule.key else "for all together"
    return f"{limit_in_words(rule)}, {whom}" + (", over all regions" if rule.scope is Scope.GLOBAL else "")
