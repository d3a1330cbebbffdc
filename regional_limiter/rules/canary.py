"""``canary`` of a rule: another version of it, in numbers or mode, for a part of its keys."""

from __future__ import annotations

from dataclasses import replace

from regional_limiter.model.rule import CANARY_PARTS, Canary, Mode, Rule
from regional_limiter.rules.faults import Faults, shown
from regional_limiter.rules.fields import below, check_fields, read_choice, read_mapping
from regional_limiter.rules.other_numbers import NUMBERS, given_numbers, with_given_numbers
from regional_limiter.rules.rule import check_mode

_PERCENT_EXPECTED = "a number from 0 to 100 with at most two decimals, such as 5 or 0.25"


def with_canary(faults: Faults, place: str, rule: Rule, regions: int | None) -> Rule:
    """The rule at ``place`` with the canary that its source names, if it names one."""
    if "canary" not in rule.source:
        return rule
    at = below(place, "canary")
    before = faults.count
    fields = read_mapping(faults, at, rule.source["canary"])
    if faults.count > before:
        return rule
    check_fields(faults, at, fields, ("percent", "mode", *NUMBERS))
    parts = _read_percent(faults, below(at, "percent"), fields.get("percent"))
    if "mode" not in fields and not given_numbers(fields):
        faults.add(at, f"says nothing new: give another mode, or one of {', '.join(NUMBERS)}")
    if rule.unlimited:
        faults.add(at, f"{rule.id} is unlimited: it has no limit to try another one of")
        return rule
    in_force = rule
    if given_numbers(fields):
        in_force = with_given_numbers(faults, at, fields, rule, regions)
    mode = rule.mode
    if "mode" in fields:
        mode = read_choice(faults, below(at, "mode"), fields["mode"], Mode, Mode.ENFORCE)
        check_mode(faults, below(at, "mode"), mode, rule.algorithm, stop=rule.stop, unlimited=rule.unlimited)
    return replace(rule, canary=Canary(parts, replace(in_force, mode=mode)))


def _read_percent(faults: Faults, place: str, value: object) -> int:
    """Parts of 10,000."""
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 100:
        parts = value * CANARY_PARTS / 100
        if abs(parts - round(parts)) < 1e-6:
            return round(parts)
    faults.add(place, f"must be {_PERCENT_EXPECTED}, not {shown(value)}")
    return 0
