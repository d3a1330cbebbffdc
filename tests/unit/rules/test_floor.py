"""``floor`` of a set: what of each base is never lent."""

from __future__ import annotations

import pytest

from regional_limiter.model.errors import InvalidRules
from regional_limiter.model.rule import RuleSet
from regional_limiter.rules import parse_document
from regional_limiter.rules.describe import describe
from regional_limiter.rules.effects import effects

RULE = {"id": "a", "capacity": 100, "refill": "10/s", "scope": "global"}


def a_set(**fields: object) -> RuleSet:
    return parse_document({"regions": {"us": 2, "eu": 1, "ap": 0}, "rules": [RULE], **fields})


@pytest.mark.parametrize(
    ("written", "per_mille", "floors"),
    [
        ("2%", 20, {}),
        ("2.0 %", 20, {}),
        ("12.5%", 125, {"us": 833, "eu": 416, "ap": 0}),
        ("100%", 1000, {"us": 6667, "eu": 3333, "ap": 0}),
    ],
)
def test_it_is_a_part_of_each_base(written: str, per_mille: int, floors: dict[str, int]) -> None:
    rule_set = a_set(floor=written)
    assert (rule_set.floor_per_mille, rule_set.floors) == (per_mille, floors)


@pytest.mark.parametrize("written", ["1.9%", "0%", "100.1%", "2", 2, 0.02, "2.55%", "", None, "-3%", True])
def test_what_is_no_part_from_two_per_cent_on_is_refused(written: object) -> None:
    with pytest.raises(InvalidRules) as refused:
        a_set(floor=written)
    (fault,) = refused.value.faults
    assert fault.place == "floor"
    assert '"2%" to "100%"' in fault.problem


def test_without_regions_there_is_nothing_that_it_could_be_a_part_of() -> None:
    with pytest.raises(InvalidRules, match="regions"):
        parse_document({"floor": "5%", "rules": []})


def test_the_loaded_rule_shows_the_floor_and_the_cost_that_can_pass_beside_the_others_floors() -> None:
    rule_set = a_set(floor="50%")
    (rule,) = rule_set.rules
    here = describe(rule, rule_set, "us")["here"]
    assert here == {"base": 6667, "floor": 3333, "capacity": 65, "largest_cost": 81}


def test_a_change_of_it_is_told_before_it_is_made() -> None:
    told = effects(a_set(), a_set(floor="10%"))
    assert told["set"] == {"floor": {"before": "2%", "after": "10%"}}
    assert not told["nothing"]
