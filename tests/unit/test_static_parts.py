"""The parts of a static limit in whole units sum to the limit, and every region reckons the same ones."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regional_limiter.model.decision import Check
from regional_limiter.model.share import ProtocolTimes, bases_by_weight, left_over, region_capacity
from regional_limiter.plan import DomainRules, Planner
from regional_limiter.rules import compile_rules, parse_document
from regional_limiter.store.base import BucketCall
from regional_limiter.store.memory import MemoryPoint

START_US = 20_000 * 86_400_000_000


def parts(capacity: int, weights: dict[str, int]) -> list[int]:
    bases = bases_by_weight(weights)
    return [
        region_capacity(capacity, bases[name], len(bases)) + left_over(capacity, bases, name) for name in weights
    ]


@pytest.mark.parametrize(
    ("capacity", "weights", "expected"),
    [
        (30, (1, 1, 1), [10, 10, 10]),
        (31, (1, 1, 1), [11, 10, 10]),
        (32, (1, 1, 1), [11, 11, 10]),
        (4, (1, 1), [2, 2]),
        (5, (1, 1), [3, 2]),
        (100, (2, 1, 1), [50, 25, 25]),
        (2, (1, 1, 1), [1, 1, 0]),
        (0, (1, 1, 1), [0, 0, 0]),
        (10, (1, 0, 0), [10, 0, 0]),
    ],
)
def test_parts(capacity: int, weights: tuple[int, ...], expected: list[int]) -> None:
    assert parts(capacity, dict(zip("abc", weights, strict=False))) == expected


@given(
    st.integers(0, 10**6),
    st.dictionaries(st.sampled_from("abcdefg"), st.integers(0, 1000), min_size=1).filter(
        lambda weights: any(weights.values())
    ),
)
def test_nothing_is_lost_and_nobody_gets_less_than_by_rounding_down(capacity: int, weights: dict[str, int]) -> None:
    bases, given_out = bases_by_weight(weights), parts(capacity, weights)
    assert sum(given_out) == capacity
    least = [region_capacity(capacity, base, len(bases)) for base in bases.values()]
    assert all(part >= rounded for part, rounded in zip(given_out, least, strict=True))
    if all(bases.values()):
        assert all(part <= rounded + 1 for part, rounded in zip(given_out, least, strict=True))
    assert all(part == 0 for part, base in zip(given_out, bases.values(), strict=True) if base == 0)


def call_in(region: str, regions: dict[str, int], *, base: int | None = None, **rule: object) -> BucketCall:
    """The call of a global static rule as a node of ``region`` makes it, with what its bases say (or ``base``)."""
    fields = {"id": "r", "match": {}, "scope": "global", "distribution": "static", **rule}
    rule_set = parse_document({"domain": "default", "regions": regions, "rules": [fields]})
    domain = DomainRules(1, rule_set, compile_rules(rule_set), len(regions), rule_set.largest_share(region), region)
    planner = Planner(b"0123456789abcdef")
    bases = {"default": rule_set.bases[region] if base is None else base}
    planner.use({"default": domain}, {}, 1, bases)
    (call,) = planner.plan(Check("default", {"client_key": "u"})).calls(1)
    return call


WINDOW = {"algorithm": "fixed_window", "limit": 30, "window": "60s"}


def test_thirty_over_three_equal_regions_is_ten_each() -> None:
    regions = {"a": 1, "b": 1, "c": 1}
    assert [call_in(name, regions, **WINDOW).part for name in regions] == [10, 10, 10]


def test_while_the_bases_are_not_those_of_the_rules_a_part_is_rounded_down() -> None:
    regions = {"a": 1, "b": 1, "c": 1}
    call = call_in("a", regions, base=3000, **WINDOW)
    assert (call.extra, call.part) == (0, region_capacity(30, 3000, 3))


def test_a_bucket_is_not_rounded_up_since_its_rate_is_exact() -> None:
    assert call_in("b", {"a": 1, "b": 1, "c": 1}, capacity=30, refill="1/s").extra == 0


@pytest.mark.parametrize("turns", ["aaabbaa", "ababaaa", "bbaaaaa"])
def test_litellm_41221_parts_of_a_static_window_sum_to_the_limit_in_any_order(turns: str) -> None:
    points = {name: MemoryPoint(ProtocolTimes()) for name in "ab"}
    window = WINDOW | {"limit": 4}
    calls = {name: call_in(name, {"a": 1, "b": 1}, **window) for name in "ab"}
    allowed = dict.fromkeys("ab", "")
    for name in turns:
        (verdict,) = points[name].check(START_US, [calls[name]])
        allowed[name] += "A" if verdict.allowed else "D"
    assert allowed == {"a": "AADDD", "b": "AA"}


def test_a_cost_above_a_part_but_not_above_the_limit_is_limited() -> None:
    point, call = MemoryPoint(ProtocolTimes()), call_in("b", {"a": 99, "b": 1}, **WINDOW)
    assert call.part == 1
    (verdict,) = point.check(START_US, [replace(call, cost=30)])
    assert (verdict.reason, verdict.retry_after_ms) == ("limited", 1000)
    (verdict,) = point.check(START_US, [replace(call, cost=31)])
    assert (verdict.reason, verdict.retry_after_ms) == ("exceeds_capacity", None)
