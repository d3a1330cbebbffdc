"""Cases against a rule set: what was told otherwise than expected.  Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from regional_limiter.model.errors import InvalidCheck
from regional_limiter.model.rule import RuleSet
from services.rule_cases.cases import Case, Step
from services.rule_cases.region import Region, Told


@dataclass(frozen=True, slots=True)
class Tried:
    """``problems``: by the place of the step; none: the case holds."""

    name: str
    problems: tuple[tuple[str, str], ...]


def try_case(case: Case, rule_set: RuleSet) -> Tried:
    """One case, of which nothing has been used before."""
    region = Region(rule_set)
    now_ms = case.start_ms
    problems: list[tuple[str, str]] = []
    for step in case.steps:
        if step.at_ms is not None:
            now_ms = case.start_ms + step.at_ms
        told = []
        try:
            for number in range(step.times):
                now_ms += step.every_ms if number else 0
                told.append(region.ask(now_ms, dict(step.attributes), step.cost))
        except InvalidCheck as error:
            problems.append((step.place, f"no node would take this check: {error}"))
            continue
        problems.extend((step.place, problem) for problem in _problems(step, told))
    return Tried(case.name, tuple(problems))


def _problems(step: Step, told: list[Told]) -> Iterator[str]:
    last = told[-1]
    answer = last.answer
    allowed = sum(one.answer.allowed for one in told)
    if step.allowed is not None and allowed != step.allowed:
        first = next((place for place, one in enumerate(told, start=1) if not one.answer.allowed), None)
        by = f", the first denied is number {first}, by {_names(told[first - 1].denied_by)}" if first else ""
        yield f"{step.allowed} of {step.times} should be allowed, but {allowed} are{by}"
    if step.denied_by is not None and step.denied_by not in last.denied_by:
        really = f"denied by {_names(last.denied_by)}" if last.denied_by else "allowed"
        yield f"should be denied by {step.denied_by}, but is {really}"
    if step.shadow_denied_by is not None and step.shadow_denied_by not in last.shadows:
        yield f"{step.shadow_denied_by} should deny in its shadow, but {_names(last.shadows) or 'none'} does"
    for name in ("reason", "remaining", "retry_after_ms", "rule"):
        expected, found = getattr(step, name), getattr(answer, name)
        if expected is not None and expected != found:
            yield f"{name} should be {expected}, but is {found}"


def _names(rules: tuple[str, ...]) -> str:
    return ", ".join(rules)
