"""Rule sets: taken whole, or refused whole with every fault by its place."""

from __future__ import annotations

import json
from decimal import Decimal
from fractions import Fraction
from ipaddress import ip_network
from typing import Any

import pytest

from regional_limiter.model.errors import InvalidRules
from regional_limiter.model.rule import (
    Algorithm,
    CalendarUnit,
    CalendarWindow,
    Condition,
    Distribution,
    MeasuredCost,
    NormalForm,
    OnStoreFailure,
    Priority,
    Rate,
    RuleSet,
    Scope,
    Shed,
    Subject,
)
from regional_limiter.rules import describe, parse, parse_document, with_rule, without_rule

FULL = """
domain: shop
regions: {us-east: 2, eu-west: 1, ap-south: 1}
defaults: {tier: free}
subjects:
  - {client_key: "acme", set: {tier: gold}}
rules:
  - id: orders-free
    description: "free tier, writes"
    match:
      resource: "POST /orders*"
      tier: [free, trial, "x*"]
    capacity: 20
    refill: 10/s
    scope: global
    on_store_failure: closed
    hash_key: true
    headers: false
  - id: logins
    key: []
    algorithm: fixed_window
    limit: 4
    window: 60s
    scope: global
    distribution: static
    charge_denied: true
    mode: enforce
"""


def faults_of(document: object) -> dict[str, str]:
    with pytest.raises(InvalidRules) as caught:
        parse_document(document)
    return {fault.place: fault.problem for fault in caught.value.faults}


def bucket(**fields: Any) -> dict[str, Any]:
    return {"id": "r", "capacity": 5, "refill": "1/s", **fields}


def window(**fields: Any) -> dict[str, Any]:
    return {"id": "r", "algorithm": "fixed_window", "limit": 5, "window": "60s", **fields}


def rule_faults(rule: object, **of_set: Any) -> dict[str, str]:
    """Faults of a set with one rule; places are given without ``rules[0].``."""
    faults = faults_of({"rules": [rule], **of_set})
    return {place.removeprefix("rules[0].").removeprefix("rules[0]"): problem for place, problem in faults.items()}


def the_rule(rule: object, **of_set: Any) -> Any:
    return parse_document({"rules": [rule], **of_set}).rules[0]


def test_a_whole_set_is_read_as_written() -> None:
    rule_set = parse(FULL)
    assert rule_set.domain == "shop"
    assert rule_set.regions == {"us-east": 2, "eu-west": 1, "ap-south": 1}
    assert rule_set.bases == {"us-east": 5000, "eu-west": 2500, "ap-south": 2500}
    assert rule_set.defaults == {"tier": "free"}
    assert rule_set.subjects == (Subject({"client_key": "acme"}, {"tier": "gold"}),)
    orders, logins = rule_set.rules
    assert orders.match == (
        Condition("resource", frozenset(), ("POST /orders*",)),
        Condition("tier", frozenset({"free", "trial"}), ("x*",)),
    )
    assert (orders.key, orders.capacity, orders.refill) == (("client_key",), 20, Rate(1, 100))
    assert (orders.scope, orders.distribution) == (Scope.GLOBAL, Distribution.ADAPTIVE)
    assert orders.on_store_failure is OnStoreFailure.CLOSED
    assert orders.hash_key
    assert not orders.headers
    assert (logins.algorithm, logins.capacity, logins.window_ms) == (Algorithm.FIXED_WINDOW, 4, 60_000)
    assert (logins.key, logins.refill, logins.charge_denied) == ((), None, True)
    assert logins.distribution is Distribution.STATIC


def test_the_source_parses_to_an_equal_set_also_through_json() -> None:
    rule_set = parse(FULL)
    assert parse_document(rule_set.source) == rule_set
    assert parse(json.dumps(rule_set.source), format="json") == rule_set
    assert parse(json.dumps(rule_set.source)) == rule_set
    assert parse(json.dumps(rule_set.source).encode(), format="yaml") == rule_set


def test_the_short_form_of_the_control_api_is_a_whole_rule() -> None:
    document = with_rule(
        {"rules": []},
        "api",
        {
            "match": {"resource": "GET /x"},
            "algorithm": "token_bucket",
            "capacity": 20,
            "refill_per_second": 10,
        },
    )
    (rule,) = parse_document(document).rules
    assert (rule.id, rule.capacity, rule.refill, rule.key) == ("api", 20, Rate(1, 100), ("client_key",))


def test_every_fault_is_named_not_only_the_first() -> None:
    assert set(
        faults_of(
            {
                "domain": "No Spaces",
                "regions": {"a": 0},
                "defaults": {"tier": 1},
                "subjects": [{"set": {}}],
                "floor": "1%",
                "rulez": [],
                "rules": [bucket(refill="0/s"), bucket(id="UPPER", capacity="5"), {"id": "c"}, 7],
            }
        )
    ) == {
        "domain",
        "regions",
        "defaults.tier",
        "subjects[0]",
        "floor",
        "rulez",
        "rules[0].refill",
        "rules[1].id",
        "rules[1].capacity",
        "rules[2].capacity",
        "rules[2].refill",
        "rules[3]",
    }


def test_kgateway_2832_a_duplicate_id_refuses_the_whole_set() -> None:
    faults = faults_of({"rules": [bucket(id="a"), bucket(id="b"), bucket(id="a", capacity=9)]})
    assert list(faults) == ["rules[2].id"]
    assert "rules[0]" in faults["rules[2].id"]


def test_an_unknown_field_is_told_its_nearest_known_name() -> None:
    assert "capacity" in rule_faults(bucket(capasity=3))["capasity"]
    assert "known: id" in rule_faults(bucket(zzzzqq=3))["zzzzqq"]
    assert "did you mean token_bucket" in rule_faults(bucket(algorithm="token-bucket"))["algorithm"]
    assert "global" in rule_faults(bucket(scope="globl"))["scope"]


@pytest.mark.parametrize(
    ("fields", "field", "words"),
    [
        ({"split": 0}, "split", "from 1 to 8"),
        ({"split": 9}, "split", "from 1 to 8"),
        ({"split": True}, "split", "whole number"),
        ({"split": 4, "scope": "global"}, "split", "scope: region"),
        ({"split": 4, "charge_denied": True}, "split", "charge_denied"),
        ({"split": 4, "capacity": 3}, "capacity", "at least 4"),
        (
            {"split": 4, "algorithm": "concurrency", "limit": 9, "lease": "1s", "capacity": None, "refill": None},
            "split",
            "concurrency",
        ),
        ({"split": 4, "algorithm": "leaky_bucket", "leak": "1/s", "queue": True, "refill": None}, "split", "queue"),
        ({"split": 8, "capacity": 5207, "refill": "1/day"}, "split", "exactly"),
    ],
)
def test_what_cannot_be_split_is_told_why(fields: dict[str, object], field: str, words: str) -> None:
    asked = {name: value for name, value in bucket(**fields).items() if value is not None}
    assert words in rule_faults(asked, regions={"a": 1, "b": 1})[field]


def test_the_largest_cost_of_a_split_rule_is_its_largest_part() -> None:
    rule_set = parse_document({"rules": [bucket(capacity=10, refill="1/s", split=3)]})
    (rule,) = rule_set.rules
    assert rule.split == 3
    described = describe(rule, rule_set, "us")
    assert described["split"] == 3
    assert described["here"] == {"capacity": 10, "largest_cost": 4}


def test_an_override_keeps_every_part_above_nothing() -> None:
    document = {
        "rules": [bucket(capacity=10, refill="1/s", split=5)],
        "overrides": [
            {"rule": "r", "key": {"client_key": "few"}, "capacity": 4},
            {"rule": "r", "key": {"client_key": "fewer"}, "multiply": 0.3},
            {"rule": "r", "key": {"client_key": "enough"}, "capacity": 5},
        ],
    }
    faults = faults_of(document)
    assert set(faults) == {"overrides[0].capacity", "overrides[1].multiply"}


@pytest.mark.parametrize(
    ("rule", "place", "words"),
    [
        (bucket(mode="shaddow"), "mode", "did you mean shadow?"),
        (bucket(mode="shadow", stop=True), "mode", "take stop out"),
        ({"id": "r", "unlimited": True, "mode": "soft"}, "mode", "limits nothing"),
        ({"id": "r", "algorithm": "concurrency", "limit": 2, "lease": "3s", "mode": "soft"}, "mode", "slot"),
        (bucket(canary=1), "canary", "must be a mapping"),
        (bucket(canary={"percent": 5}), "canary", "says nothing new"),
        (bucket(canary={"capacity": 9}), "canary.percent", "a number from 0 to 100"),
        (bucket(canary={"percent": 100.5, "capacity": 9}), "canary.percent", "a number from 0 to 100"),
        (bucket(canary={"percent": 0.001, "capacity": 9}), "canary.percent", "two decimals"),
        (bucket(canary={"percent": True, "capacity": 9}), "canary.percent", "a number from 0 to 100"),
        (bucket(canary={"percent": 5, "limit": 9}), "canary.limit", "takes capacity and refill"),
        (bucket(canary={"percent": 5, "capacity": -1}), "canary.capacity", "from 0"),
        (bucket(canary={"percent": 5, "capasity": 1}), "canary.capasity", "did you mean capacity?"),
        (bucket(canary={"percent": 5, "mode": "off"}), "canary.mode", "known: enforce"),
        ({"id": "r", "unlimited": True, "canary": {"percent": 5, "capacity": 1}}, "canary", "unlimited"),
    ],
)
def test_a_mode_or_canary_that_means_nothing_is_refused(rule: object, place: str, words: str) -> None:
    assert words in rule_faults(rule)[place]


def test_a_canary_of_a_global_rule_leaves_each_region_something() -> None:
    rule = bucket(scope="global", canary={"percent": 5, "capacity": 1})
    assert "leaves some with none" in rule_faults(rule, regions=["a", "b"])["canary.capacity"]


def test_a_canary_keeps_what_it_does_not_name() -> None:
    rule = the_rule(bucket(refill="2/s", canary={"percent": 0.25, "capacity": 9}))
    assert (rule.canary.parts, rule.canary.in_force.capacity) == (25, 9)
    assert (rule.canary.in_force.refill, rule.canary.in_force.canary) == (rule.refill, None)


@pytest.mark.parametrize("capacity", [True, "20", 20.0, -1, None, [], 10**12])
def test_a_capacity_is_a_whole_number_and_nothing_that_looks_like_one(capacity: object) -> None:
    assert "capacity" in rule_faults(bucket(capacity=capacity))


def test_a_number_too_long_to_print_is_still_a_fault_with_a_place() -> None:
    assert list(rule_faults(bucket(capacity=10**5000))) == ["capacity"]


@pytest.mark.parametrize("flag", ["yes", "true", 1, 0, None])
def test_a_flag_is_true_or_false_and_nothing_else(flag: object) -> None:
    assert set(rule_faults(bucket(charge_denied=flag, hash_key=flag, headers=flag))) == {
        "charge_denied",
        "hash_key",
        "headers",
    }


@pytest.mark.parametrize(
    ("refill", "rate"),
    [
        ("10/s", Rate(1, 100)),
        ("100/min", Rate(1, 600)),
        ("5/h", Rate(1, 720_000)),
        ("1/day", Rate(1, 86_400_000)),
        ("1/d", Rate(1, 86_400_000)),
        ("100/90s", Rate(1, 900)),
        ("7 / 2 min", Rate(7, 120_000)),
        ("0.5/s", Rate(1, 2000)),
        ("3000000/s", Rate(3000, 1)),
    ],
)
def test_a_refill_is_held_as_a_reduced_fraction(refill: str, rate: Rate) -> None:
    assert the_rule(bucket(refill=refill)).refill == rate


@pytest.mark.parametrize(
    "refill",
    ["0/s", "0.0/s", "-1/s", "1/0s", "10", "10/m", "10/year", "1/400day", "1e3/s", "/s", 10, True, None, "١/s"],
)
def test_a_refill_that_never_refills_or_can_be_misread_is_refused(refill: object) -> None:
    assert list(rule_faults(bucket(refill=refill))) == ["refill"]


@pytest.mark.parametrize(("value", "tokens"), [(10, Fraction(10)), (0.1, Fraction(1, 10)), (2.5, Fraction(5, 2))])
def test_a_decimal_refill_is_the_decimal_not_its_double(value: object, tokens: Fraction) -> None:
    rate = the_rule({"id": "r", "capacity": 5, "refill_per_second": value}).refill
    assert Fraction(rate.tokens, rate.period_ms) * 1000 == tokens


@pytest.mark.parametrize("value", [0, 0.0, -1, -0.5, True, "10", float("inf"), float("nan"), 1e-300, 1e300, None])
def test_a_refill_per_second_out_of_reach_is_refused(value: object) -> None:
    assert list(rule_faults({"id": "r", "capacity": 5, "refill_per_second": value})) == ["refill_per_second"]


def test_refill_is_given_once() -> None:
    assert "refill_per_second" in rule_faults(bucket(refill_per_second=3))


@pytest.mark.parametrize(
    ("value", "window_ms"),
    [
        ("60s", 60_000),
        ("5min", 300_000),
        ("1h", 3_600_000),
        ("1d", 86_400_000),
        ("2 day", 172_800_000),
        (60, 60_000),
    ],
)
def test_a_window_is_a_span_or_seconds(value: object, window_ms: int) -> None:
    assert the_rule(window(window=value)).window_ms == window_ms


@pytest.mark.parametrize("value", [0, -1, "0s", "1m", "s", "1.5h", 1.5, True, "367d", 10**9, None])
def test_a_window_that_can_be_misread_is_refused(value: object) -> None:
    assert list(rule_faults(window(window=value))) == ["window"]


def test_numbers_of_another_algorithm_are_refused() -> None:
    assert set(rule_faults(bucket(limit=5, window=60))) == {"limit", "window"}
    assert set(rule_faults(window(capacity=5, refill="1/s", refill_per_second=1))) == {
        "capacity",
        "refill",
        "refill_per_second",
    }
    assert set(rule_faults({"id": "r", "algorithm": "fixed_window"})) == {"limit", "window"}


def test_a_limit_of_0_is_legal_and_always_denies() -> None:
    assert the_rule(bucket(capacity=0)).capacity == 0
    assert the_rule(window(limit=0)).capacity == 0
    rule = the_rule(window(limit=0, scope="global", distribution="static"), regions=["a", "b"])
    assert rule.capacity == 0


def test_redis_14826_a_rule_beyond_exact_arithmetic_is_refused_at_load() -> None:
    assert the_rule(bucket(capacity=10, refill="1/day")).refill == Rate(1, 86_400_000)
    faults = rule_faults(bucket(capacity=200_000_000, refill="1/day"))
    assert "2^53" in faults["refill"]
    assert "at most 5,20" in faults["refill"]
    assert the_rule(bucket(capacity=5200, refill="1/day")).refill == Rate(1, 86_400_000)


def test_a_global_rule_needs_regions() -> None:
    assert "regions" in rule_faults(bucket(scope="global"))["scope"]


def test_a_fault_in_the_regions_is_not_repeated_by_every_global_rule() -> None:
    rules = [bucket(id="a", scope="global"), bucket(id="b", scope="global")]
    assert list(faults_of({"regions": {"us": -1}, "rules": rules})) == ["regions.us"]


ONE_OF_EACH: dict[Algorithm, dict[str, Any]] = {
    Algorithm.TOKEN_BUCKET: {"capacity": 5, "refill": "1/s"},
    Algorithm.GCRA: {"capacity": 5, "refill_per_second": 1},
    Algorithm.LEAKY_BUCKET: {"capacity": 5, "leak": "1/s", "queue": True},
    Algorithm.FIXED_WINDOW: {"limit": 5, "window": {"calendar": "month", "zone": "Europe/Berlin"}},
    Algorithm.SLIDING_WINDOW_COUNTER: {"limit": 5, "window": "1min"},
    Algorithm.SLIDING_WINDOW_LOG: {"limit": 5, "window": 60},
    Algorithm.CONCURRENCY: {"limit": 5, "lease": "30s"},
}


def kind(algorithm: Algorithm, **fields: Any) -> dict[str, Any]:
    return {"id": "r", "algorithm": algorithm.value, **ONE_OF_EACH[algorithm], **fields}


@pytest.mark.parametrize(
    ("algorithm", "held"),
    [
        (Algorithm.TOKEN_BUCKET, {"refill": Rate(1, 1000)}),
        (Algorithm.GCRA, {"refill": Rate(1, 1000)}),
        (Algorithm.LEAKY_BUCKET, {"refill": Rate(1, 1000), "queue": True}),
        (Algorithm.FIXED_WINDOW, {"calendar": CalendarWindow(CalendarUnit.MONTH, "Europe/Berlin")}),
        (Algorithm.SLIDING_WINDOW_COUNTER, {"window_ms": 60_000}),
        (Algorithm.SLIDING_WINDOW_LOG, {"window_ms": 60_000}),
        (Algorithm.CONCURRENCY, {"lease_ms": 30_000}),
    ],
)
def test_every_algorithm_takes_its_own_numbers_and_no_others(algorithm: Algorithm, held: dict[str, Any]) -> None:
    rule = the_rule(kind(algorithm))
    nothing = {"refill": None, "queue": False, "calendar": None, "window_ms": None, "lease_ms": None}
    assert (rule.algorithm, rule.capacity) == (algorithm, 5)
    assert {name: getattr(rule, name) for name in nothing} == nothing | held
    every_number = {"capacity", "refill", "refill_per_second", "leak", "queue", "limit", "window", "lease"}
    foreign = every_number - set(ONE_OF_EACH[algorithm]) - {"refill", "refill_per_second"}
    faults = rule_faults(kind(algorithm, **dict.fromkeys(foreign, 1)))
    assert set(faults) == foreign
    own = list(ONE_OF_EACH[algorithm])
    assert f"a {algorithm} takes {own[0]} and " in faults[min(foreign)]


@pytest.mark.parametrize("algorithm", Algorithm)
def test_a_missing_number_is_named(algorithm: Algorithm) -> None:
    needed = {name for name in ONE_OF_EACH[algorithm] if name != "queue"}
    faults = rule_faults({"id": "r", "algorithm": algorithm.value})
    assert {name.replace("refill_per_second", "refill") for name in needed} == set(faults)
    assert all(f"a {algorithm} needs" in problem for problem in faults.values())


def test_an_unknown_algorithm_is_one_fault_not_one_for_each_of_its_numbers() -> None:
    assert list(rule_faults({"id": "r", "algorithm": "sliding_log", "limit": 5, "window": 60})) == ["algorithm"]


@pytest.mark.parametrize(
    ("value", "place", "says"),
    [
        ({"calendar": "fortnight"}, "window.calendar", "known: hour, day, week, month, year"),
        ({"calendar": "Month"}, "window.calendar", "did you mean month"),
        ({"zone": "UTC"}, "window.calendar", "missing: one of hour, day"),
        ({}, "window.calendar", "missing"),
        ({"calendar": "day", "zone": "europe/berlin"}, "window.zone", "did you mean Europe/Berlin"),
        ({"calendar": "day", "zone": "Berlin"}, "window.zone", "did you mean Europe/Berlin"),
        ({"calendar": "day", "zone": "Mars/Base"}, "window.zone", "such as UTC or Europe/Berlin"),
        ({"calendar": "day", "zone": "localtime"}, "window.zone", "such as UTC"),
        ({"calendar": "day", "zone": "right/UTC"}, "window.zone", "such as UTC"),
        ({"calendar": "day", "zone": "../etc/passwd"}, "window.zone", "such as UTC"),
        ({"calendar": "day", "zone": "America"}, "window.zone", "such as UTC"),
        ({"calendar": "day", "zone": 2}, "window.zone", "not 2"),
        ({"calendar": "day", "time_zone": "UTC"}, "window.time_zone", "did you mean zone"),
    ],
)
def test_a_calendar_window_names_what_would_be_right(value: object, place: str, says: str) -> None:
    faults = rule_faults(window(window=value))
    assert list(faults) == [place]
    assert says in faults[place]


def test_a_calendar_window_is_of_utc_unless_it_says_another_zone() -> None:
    assert the_rule(window(window={"calendar": "day"})).calendar == CalendarWindow(CalendarUnit.DAY, "UTC")


@pytest.mark.parametrize("algorithm", [Algorithm.SLIDING_WINDOW_COUNTER, Algorithm.SLIDING_WINDOW_LOG])
def test_only_a_fixed_window_follows_the_calendar(algorithm: Algorithm) -> None:
    assert "only a fixed_window" in rule_faults(kind(algorithm, window={"calendar": "day"}))["window"]


@pytest.mark.parametrize(
    ("algorithm", "most", "fields"),
    [
        (Algorithm.SLIDING_WINDOW_LOG, 10_000, {}),
        (Algorithm.CONCURRENCY, 10_000, {}),
        (Algorithm.SLIDING_WINDOW_COUNTER, 900_000_000_000, {"window": "366d"}),
    ],
)
def test_a_limit_that_could_not_be_kept_or_counted_is_refused_with_the_most(
    algorithm: Algorithm, most: int, fields: dict[str, Any]
) -> None:
    assert the_rule(kind(algorithm, limit=most, **fields)).capacity == most
    assert f"{most:,}, not" in rule_faults(kind(algorithm, limit=most + 1, **fields))["limit"]


def test_a_lease_has_an_end() -> None:
    assert the_rule(kind(Algorithm.CONCURRENCY, lease="1d")).lease_ms == 86_400_000
    assert "1 second to 1 day," in rule_faults(kind(Algorithm.CONCURRENCY, lease="2d"))["lease"]
    assert "charge_denied" in rule_faults(kind(Algorithm.CONCURRENCY, charge_denied=True))


@pytest.mark.parametrize("algorithm", Algorithm)
def test_what_follows_demand_is_a_bucket_or_a_fixed_window_and_the_rest_says_static(algorithm: Algorithm) -> None:
    of_set = {"regions": ["a", "b"]}
    assert the_rule(kind(algorithm, scope="global", distribution="static"), **of_set).capacity == 5
    buckets = (Algorithm.TOKEN_BUCKET, Algorithm.GCRA, Algorithm.LEAKY_BUCKET)
    if algorithm in buckets:
        assert the_rule(kind(algorithm, scope="global"), **of_set).distribution is Distribution.ADAPTIVE
    elif algorithm is Algorithm.FIXED_WINDOW:
        assert the_rule(kind(algorithm, scope="global"), **of_set).distribution is Distribution.STATIC
        asked = window(limit=8, scope="global", distribution="adaptive")
        assert the_rule(asked, **of_set).distribution is Distribution.ADAPTIVE
    else:
        fault = rule_faults(kind(algorithm, scope="global"), **of_set)["distribution"]
        assert "say distribution: static" in fault
        assert "static or home" in fault
        assert "cannot be adaptive" in fault
    small = rule_faults(kind(algorithm, scope="global", distribution="static"), regions=list("abcdef"))
    assert list(small) == [next(iter(ONE_OF_EACH[algorithm]))]


@pytest.mark.parametrize("distribution", ["adaptive", "static"])
def test_a_global_limit_below_the_number_of_regions_is_refused(distribution: str) -> None:
    regions = ["a", "b", "c"]
    faults = rule_faults(bucket(capacity=2, scope="global", distribution=distribution), regions=regions)
    assert "at least 3" in faults["capacity"]
    assert the_rule(bucket(capacity=3, scope="global", distribution=distribution), regions=regions).capacity == 3


def test_an_adaptive_window_that_has_next_to_nothing_to_grant_is_refused() -> None:
    regions = ["a", "b", "c"]
    small = rule_faults(window(limit=11, scope="global", distribution="adaptive"), regions=regions)
    assert "at least 12, or distribution: static" in small["limit"]
    assert the_rule(window(limit=11, scope="global"), regions=regions).capacity == 11
    enough = window(limit=12, scope="global", distribution="adaptive")
    for limit in (0, 12):
        assert the_rule({**enough, "limit": limit}, regions=regions).capacity == limit
    lowered = rule_faults({**enough, "canary": {"percent": 5, "limit": 9}}, regions=regions)
    assert "at least 12, or distribution: static" in lowered["canary.limit"]


def test_distribution_means_nothing_in_a_region() -> None:
    assert "global" in rule_faults(bucket(distribution="adaptive"))["distribution"]


@pytest.mark.parametrize(
    ("regions", "place"),
    [
        ({}, "regions"),
        ([], "regions"),
        ({"a": 0, "b": 0}, "regions"),
        ({"a": 1.5}, "regions.a"),
        ({"a": True}, "regions.a"),
        ({"US": 1}, "regions.US"),
        (["a", "a"], "regions[1]"),
        (["a", 1], "regions[1]"),
        ("a", "regions"),
        ({f"r{n}": 1 for n in range(65)}, "regions"),
    ],
)
def test_regions_that_cannot_share_are_refused(regions: object, place: str) -> None:
    assert list(faults_of({"regions": regions, "rules": []})) == [place]


def test_a_region_of_weight_0_is_named_and_has_no_base() -> None:
    rule_set = parse_document({"regions": {"a": 1, "b": 0}, "rules": []})
    assert rule_set.bases == {"a": 10_000, "b": 0}


@pytest.mark.parametrize("name", ["", "A", "a b", "a\n", "a/b", "x" * 65, None, 7, "é"])
def test_names_are_of_the_alphabet_that_keys_and_labels_bear(name: object) -> None:
    assert list(rule_faults(bucket(id=name))) == ["id"]
    assert list(faults_of({"domain": name, "rules": []})) == ["domain"]


@pytest.mark.parametrize(
    ("match", "place"),
    [
        ({"tier": []}, "match.tier"),
        ({"tier": 5}, "match.tier"),
        ({"tier": False}, "match.tier"),
        ({"tier": None}, "match.tier"),
        ({"tier": ["a", 5]}, "match.tier[1]"),
        ({"tier": ["a", "*a" * 17]}, "match.tier[1]"),
        ({"tier": {}}, "match.tier"),
        ({"tier": {"like": "x"}}, "match.tier.like"),
        ({"tier": "x" * 1025}, "match.tier"),
        ({"tier": "é" * 513}, "match.tier"),
        ({"tier": "*a" * 17}, "match.tier"),
        ({"tier": [str(n) for n in range(1001)]}, "match.tier"),
        ({"tier": "\ud800"}, "match.tier"),
        ({"a b": "x"}, 'match."a b"'),
        ({5: "x"}, "match"),
        ({f"a{n}": "x" for n in range(17)}, "match"),
        ("x", "match"),
        (None, "match"),
    ],
)
def test_a_match_that_is_not_text_or_unbounded_is_refused(match: object, place: str) -> None:
    assert list(rule_faults(bucket(match=match))) == [place]


@pytest.mark.parametrize(
    ("condition", "place", "says"),
    [
        ({"cidr": ["203.0.113.5/24"]}, "cidr[0]", 'write "203.0.113.0/24"'),
        ({"cidr": "2001:db8::1/32"}, "cidr", 'write "2001:db8::/32"'),
        ({"cidr": ["10.0.0.0/33"]}, "cidr[0]", "such as"),
        ({"cidr": ["10.0.0.0/255.0.0.0"]}, "cidr[0]", "such as"),
        ({"cidr": ["10.0.0"]}, "cidr[0]", "such as"),
        ({"cidr": ["010.0.0.1"]}, "cidr[0]", "such as"),
        ({"cidr": ["fe80::1%eth0"]}, "cidr[0]", "such as"),
        ({"cidr": ["10.0.0.0/8", "example.com"]}, "cidr[1]", 'not "example.com"'),
        ({"cidr": [10]}, "cidr[0]", "not 10"),
        ({"cidr": []}, "cidr", "an empty list matches nothing"),
        ({"cidr": None}, "cidr", "not nothing"),
        ({"min": "1"}, "min", "without quotes"),
        ({"min": True}, "min", "a number"),
        ({"max": float("nan")}, "max", "a number"),
        ({"max": 10**18}, "max", "18 digits"),
        ({"min": 5, "max": 4}, "max", "at least min (5)"),
        ({"not": []}, "not", "an empty list excludes nothing"),
        ({"not": [5]}, "not[0]", "write it in quotes"),
        ({"not": {"cidr": "10.0.0.0/8"}}, "not", "must be text"),
        ({"min": 1, "not": ["x"]}, "", "only one of"),
        ({"cidr": "10.0.0.0/8", "max": 1}, "", "only one of"),
        ({"mim": 1}, "mim", "did you mean min"),
        ({"regex": "x"}, "regex", "{cidr: …}, {min: …, max: …}, {not: …}"),
    ],
)
def test_a_condition_that_is_wrong_is_told_the_right_value(condition: object, place: str, says: str) -> None:
    faults = rule_faults(bucket(match={"a": condition}))
    assert list(faults) == [f"match.a.{place}".rstrip(".")]
    assert says in next(iter(faults.values()))


def test_conditions_are_held_and_shown_as_a_rule_would_write_them() -> None:
    match = {
        "ip": {"cidr": ["203.0.113.0/24", "::ffff:192.0.2.0/120", "2001:db8::7"]},
        "size": {"min": 1, "max": 2.5},
        "country": {"not": ["DE", "A*"]},
        "tier": "free",
    }
    rule = the_rule(bucket(match=match))
    ip, size, country, _ = rule.match
    assert ip.networks == (ip_network("203.0.113.0/24"), ip_network("192.0.2.0/24"), ip_network("2001:db8::7/128"))
    assert (size.low, size.high) == (Decimal(1), Decimal("2.5"))
    assert (country.exact, country.wildcards, country.negated) == (frozenset({"DE"}), ("A*",), True)
    rule_set = parse_document({"rules": [bucket(match=match)]})
    assert describe(rule, rule_set)["match"] == {
        "ip": {"cidr": ["203.0.113.0/24", "192.0.2.0/24", "2001:db8::7/128"]},
        "size": {"min": 1, "max": 2.5},
        "country": {"not": ["DE", "A*"]},
        "tier": ["free"],
    }


@pytest.mark.parametrize(
    ("key", "place"),
    [("client_key", "key"), (["a", "a"], "key[1]"), ([1], "key[0]"), ([f"a{n}" for n in range(17)], "key")],
)
def test_a_key_is_a_list_of_attributes(key: object, place: str) -> None:
    assert list(rule_faults(bucket(key=key))) == [place]


def test_subjects_are_found_by_exact_text_once() -> None:
    subjects = [
        {"client_key": "a", "set": {"tier": "x"}},
        {"client_key": "a", "set": {"tier": "y"}},
        {"client_key": "b*", "set": {"tier": "y"}},
        {"client_key": "c"},
        {"client_key": 5, "set": {"tier": True}},
    ]
    assert set(faults_of({"rules": [], "subjects": subjects})) == {
        "subjects[1]",
        "subjects[2].client_key",
        "subjects[3].set",
        "subjects[4].client_key",
        "subjects[4].set.tier",
    }


def test_too_many_ways_to_find_a_subject_would_slow_every_check() -> None:
    subjects = [{f"a{n}": "x", "set": {"t": "y"}} for n in range(33)]
    assert list(faults_of({"rules": [], "subjects": subjects})) == ["subjects"]


def test_the_number_of_rules_is_bounded() -> None:
    assert list(faults_of({"rules": [bucket(id=f"r{n}") for n in range(10_001)]})) == ["rules"]


def test_the_number_of_values_of_a_set_is_bounded() -> None:
    values = [str(n) for n in range(1000)]
    rules = [bucket(id=f"r{n}", match={"tier": values}) for n in range(101)]
    assert list(faults_of({"rules": rules})) == ["rules"]


def test_faults_are_bounded_and_the_rest_is_counted() -> None:
    with pytest.raises(InvalidRules) as caught:
        parse_document({"rules": [bucket(id=f"r{n}", capacity=-1) for n in range(1500)]})
    assert len(caught.value.faults) == 1001
    assert "500" in caught.value.faults[-1].problem


@pytest.mark.parametrize("document", [None, [], "x", 5, {"rules": None}, {"rules": {}}, {}, {1: 2, "rules": []}])
def test_a_document_that_is_no_rule_set_is_refused(document: object) -> None:
    assert faults_of(document)


def test_the_set_does_not_change_with_the_document_it_came_from() -> None:
    document: dict[str, Any] = {"rules": [bucket()]}
    rule_set: RuleSet = parse_document(document)
    document["rules"][0]["capacity"] = 7
    assert parse_document(rule_set.source) == rule_set


# ---- what a rule does besides limiting


def test_flags_priorities_and_costs_are_carried() -> None:
    plain = the_rule(bucket())
    assert (plain.stop, plain.unlimited, plain.priority, plain.shed, plain.cost, plain.normalise) == (
        False,
        False,
        Priority.NORMAL,
        Shed.ALLOW,
        0,
        (),
    )
    rule = the_rule(
        bucket(
            stop=True,
            priority="low",
            shed="deny",
            cost={"attribute": "size", "per": 1024},
            match={"email": "a@x"},
            normalise={"email": ["trim", "lower"], "client_key": ["nfc"]},
        )
    )
    assert (rule.stop, rule.priority, rule.shed) == (True, Priority.LOW, Shed.DENY)
    assert rule.cost == MeasuredCost("size", 1024, 1)
    assert rule.normalise == (("email", (NormalForm.TRIM, NormalForm.LOWER)), ("client_key", (NormalForm.NFC,)))
    described = describe(rule, parse_document({"rules": [bucket()]}))
    assert described["cost"] == {"attribute": "size", "per": 1024, "at_least": 1}
    assert described["normalise"] == {"email": ["trim", "lower"], "client_key": ["nfc"]}


def test_a_rule_without_a_limit_needs_no_numbers_but_wrong_ones_are_still_wrong() -> None:
    rule = the_rule({"id": "r", "unlimited": True, "stop": True})
    assert (rule.unlimited, rule.capacity, rule.refill) == (True, 0, None)
    assert describe(rule, parse_document({"rules": []}))["in_words"] == "unlimited"
    assert "capacity" not in describe(rule, parse_document({"rules": []}))
    assert the_rule(bucket(unlimited=True)).refill == Rate(1, 1000)
    assert list(rule_faults({"id": "r", "unlimited": True, "capacity": 5})) == ["refill"]
    assert list(rule_faults({"id": "r", "unlimited": False})) == ["capacity", "refill"]


@pytest.mark.parametrize(
    ("fields", "place", "says"),
    [
        ({"stop": 1}, "stop", "true or false"),
        ({"unlimited": "yes"}, "unlimited", "true or false"),
        ({"priority": "hi"}, "priority", "critical, normal, low"),
        ({"shed": "alow"}, "shed", "did you mean allow"),
        ({"cost": -1}, "cost", "a whole number from 0"),
        ({"cost": 1.5}, "cost", "a whole number from 0"),
        ({"cost": True}, "cost", "{attribute: size, per: 1024}"),
        ({"cost": 2**31}, "cost", "2,147,483,647"),
        ({"cost": {}}, "cost.attribute", "an attribute"),
        ({"cost": {"attribute": "size", "per": 0}}, "cost.per", "from 1"),
        ({"cost": {"attribute": "size", "at_least": 0}}, "cost.at_least", "from 1"),
        ({"cost": {"attribute": "size", "atleast": 1}}, "cost.atleast", "did you mean at_least"),
        ({"normalise": []}, "normalise", "a mapping"),
        ({"normalise": {"client_key": "lower"}}, "normalise.client_key", "a list"),
        ({"normalise": {"client_key": []}}, "normalise.client_key", "trim, lower, nfc, path, address, address_64"),
        ({"normalise": {"client_key": ["lowercase"]}}, "normalise.client_key[0]", "did you mean lower"),
        ({"normalise": {"client_key": ["trim"] * 9}}, "normalise.client_key", "at most 8"),
        ({"normalise": {"email": ["lower"]}}, "normalise.email", "neither match nor key"),
        ({"normalise": {"tier": ["lower"]}, "match": {"tier": "Free"}}, "match.tier", 'write "free"'),
        ({"normalise": {"tier": ["lower"]}, "match": {"tier": ["a", "F*"]}}, "match.tier[1]", 'write "f*"'),
        ({"normalise": {"tier": ["trim"]}, "match": {"tier": {"not": " a"}}}, "match.tier.not", 'write "a"'),
        ({"normalise": {"tier": ["path"]}, "match": {"tier": "GET /a/"}}, "match.tier", 'write "GET /a"'),
    ],
)
def test_what_a_rule_says_besides_its_limit_is_checked_too(fields: dict[str, Any], place: str, says: str) -> None:
    faults = rule_faults(bucket(**fields))
    assert list(faults) == [place]
    assert says in faults[place]


def test_normal_forms_of_a_set_are_bounded_because_each_check_has_them_worked_out() -> None:
    rules = [bucket(id=f"r{n}", key=[f"a{n}"], normalise={f"a{n}": ["lower"]}) for n in range(33)]
    assert list(faults_of({"rules": rules})) == ["rules"]
    assert parse_document({"rules": rules[:32]}).rules


# ---- overrides


def overridden(rule: dict[str, Any], key: tuple[str, ...] = ("a",), /, **fields: Any) -> Any:
    """The rule as it is for the key of its one override."""
    rule_set = parse_document({"regions": ["a", "b", "c"], "rules": [rule], "overrides": [override(**fields)]})
    return rule_set.overrides["r"][key].in_force


def override(**fields: Any) -> dict[str, Any]:
    return {"rule": "r", "key": {"client_key": "a"}, **fields}


@pytest.mark.parametrize(
    ("rule", "change", "held"),
    [
        (bucket(), {"multiply": 10}, {"capacity": 50, "refill": Rate(1, 100)}),
        (bucket(), {"multiply": 0.5}, {"capacity": 2, "refill": Rate(1, 2000)}),
        (bucket(), {"capacity": 9}, {"capacity": 9, "refill": Rate(1, 1000)}),
        (bucket(), {"capacity": 0}, {"capacity": 0}),
        (bucket(), {"refill_per_second": 10}, {"capacity": 5, "refill": Rate(1, 100)}),
        (bucket(), {"capacity": 9, "refill": "1/min"}, {"capacity": 9, "refill": Rate(1, 60_000)}),
        (bucket(), {"unlimited": True}, {"unlimited": True, "capacity": 5}),
        (bucket(), {"block": True}, {"blocked": True}),
        (window(), {"limit": 7}, {"capacity": 7, "window_ms": 60_000}),
        (window(), {"multiply": 3}, {"capacity": 15, "window_ms": 60_000}),
        (kind(Algorithm.LEAKY_BUCKET), {"leak": "2/s"}, {"refill": Rate(1, 500), "queue": True}),
        (kind(Algorithm.CONCURRENCY), {"multiply": 2}, {"capacity": 10, "lease_ms": 30_000}),
        ({"id": "r", "unlimited": True}, {"block": True}, {"blocked": True}),
        (bucket(scope="global"), {"multiply": 10}, {"capacity": 50, "scope": Scope.GLOBAL}),
    ],
)
def test_an_override_is_the_rule_with_what_it_says(
    rule: dict[str, Any], change: dict[str, Any], held: dict[str, Any]
) -> None:
    in_force = overridden(rule, **change)
    assert {name: getattr(in_force, name) for name in held} == held
    assert in_force.id == "r"


def test_a_key_is_named_whole_and_in_the_normal_forms_of_the_rule() -> None:
    rule = bucket(key=["email", "client_key"], normalise={"email": ["lower"]})
    key = {"client_key": "a", "email": "X@Y"}
    assert overridden(rule, ("x@y", "a"), key=key, block=True).blocked
    assert overridden(bucket(key=[]), (), key={}, block=True).blocked


@pytest.mark.parametrize(
    ("fields", "place", "says"),
    [
        ({"rule": "q", "block": True}, "rule", "the id of a rule of this set"),
        ({"rule": "order", "block": True}, "rule", "did you mean orders?"),
        ({"rule": 5, "block": True}, "rule", "not 5"),
        ({"key": {}, "block": True}, "key.client_key", "missing: the key of r is client_key"),
        ({"key": {"client_key": "a", "ip": "x"}, "block": True}, "key.ip", "is not of the key of r"),
        ({"key": {"client_key": 7}, "block": True}, "key.client_key", "in quotes"),
        ({"key": "a", "block": True}, "key", "must be a mapping"),
        ({}, "", "exactly one of multiply"),
        ({"multiply": 2, "block": True}, "", "here is multiply, block"),
        ({"capacity": 2, "unlimited": True}, "", "here is unlimited, capacity"),
        ({"unlimited": False}, "unlimited", "take the override out"),
        ({"block": "yes"}, "block", "true or false"),
        ({"multiply": 0}, "multiply", "above 0"),
        ({"multiply": "2"}, "multiply", "a number"),
        ({"multiply": 0.1}, "multiply", "block: true"),
        ({"multiply": 10**6 + 1}, "multiply", "1,000,000"),
        ({"limit": 5}, "limit", "a token_bucket takes capacity and refill"),
        ({"capacity": -1}, "capacity", "from 0"),
        ({"refill": "0/s"}, "refill", "never refills"),
        ({"window": 60, "multiply": 2}, "window", "unknown field"),
        ({"block": True, "until": "2026-12-31"}, "until", "a time with its zone"),
        ({"block": True, "until": "2026-12-31T00:00:00"}, "until", "a time with its zone"),
        ({"block": True, "until": "friday"}, "until", "a time with its zone"),
        ({"block": True, "until": 1798675200}, "until", "a time with its zone"),
        ({"block": True, "why": 5}, "why", "must be text"),
        ({"block": True, "untill": 5}, "untill", "did you mean until"),
    ],
)
def test_an_override_that_is_wrong_is_told_what_would_be_right(
    fields: dict[str, Any], place: str, says: str
) -> None:
    faults = faults_of({"rules": [bucket(), bucket(id="orders")], "overrides": [override(**fields)]})
    assert list(faults) == [f"overrides[0].{place}".rstrip(".")]
    assert says in next(iter(faults.values()))


def test_one_key_has_one_override_of_a_rule() -> None:
    faults = faults_of(
        {
            "rules": [bucket(normalise={"client_key": ["lower"]})],
            "overrides": [override(block=True), override(key={"client_key": "A"}, multiply=2)],
        }
    )
    assert faults == {"overrides[1]": "is about the same key as overrides[0]"}


def test_an_override_obeys_the_bounds_that_its_rule_obeys() -> None:
    regions = ["a", "b", "c"]
    small = {"regions": regions, "rules": [bucket(scope="global")]}
    assert list(faults_of({**small, "overrides": [override(capacity=2)]})) == ["overrides[0].capacity"]
    assert list(faults_of({**small, "overrides": [override(multiply=0.5)]})) == ["overrides[0].multiply"]
    day = [bucket(capacity=5200, refill="1/day")]
    assert "2^53" in faults_of({"rules": day, "overrides": [override(capacity=10_000)]})["overrides[0].refill"]
    log = [kind(Algorithm.SLIDING_WINDOW_LOG, limit=9000)]
    assert (
        "at most 10,000" in faults_of({"rules": log, "overrides": [override(multiply=2)]})["overrides[0].multiply"]
    )
    assert (
        "at most 10,000" in faults_of({"rules": log, "overrides": [override(limit=10_001)]})["overrides[0].limit"]
    )
    free = [{"id": "r", "unlimited": True}]
    assert "block: true" in faults_of({"rules": free, "overrides": [override(multiply=2)]})["overrides[0]"]


def test_a_faulty_rule_is_named_once_not_again_by_its_overrides() -> None:
    assert list(faults_of({"rules": [bucket(capacity=-1)], "overrides": [override(block=True)]})) == [
        "rules[0].capacity"
    ]


def test_the_number_of_overrides_is_bounded() -> None:
    overrides = [override(key={"client_key": str(n)}, block=True) for n in range(10_001)]
    assert list(faults_of({"rules": [bucket()], "overrides": overrides})) == ["overrides"]


def test_overrides_go_with_their_rule() -> None:
    document = {
        "rules": [bucket(), bucket(id="s")],
        "overrides": [override(block=True), override(rule="s", multiply=2)],
    }
    assert list(parse_document(without_rule(document, "r")).overrides) == ["s"]
    rule_set = parse_document(document)
    assert parse_document(rule_set.source) == rule_set
    assert describe(rule_set.rules[0], rule_set)["overrides"] == 1


# ---- changing one rule


def test_a_rule_is_replaced_in_its_place_or_added_at_the_end() -> None:
    document = {"rules": [bucket(id="a"), bucket(id="b")]}
    changed = with_rule(document, "a", {"capacity": 9, "refill": "1/s"})
    assert [(rule.id, rule.capacity) for rule in parse_document(changed).rules] == [("a", 9), ("b", 5)]
    added = with_rule(changed, "c", bucket(id="c"))
    assert [rule.id for rule in parse_document(added).rules] == ["a", "b", "c"]
    assert [rule.id for rule in parse_document(without_rule(added, "b")).rules] == ["a", "c"]
    assert document == {"rules": [bucket(id="a"), bucket(id="b")]}


def test_removing_a_rule_that_is_not_there_changes_nothing() -> None:
    document = {"rules": [bucket(id="a")]}
    assert without_rule(document, "z") == document


@pytest.mark.parametrize("source", [None, [], "x", {"id": "other"}, {"id": 5}])
def test_a_change_that_names_another_rule_is_refused(source: object) -> None:
    with pytest.raises(InvalidRules):
        with_rule({"rules": []}, "a", source)


@pytest.mark.parametrize("document", [None, [], {"rules": 5}])
def test_a_change_of_no_rule_set_is_refused(document: object) -> None:
    with pytest.raises(InvalidRules):
        with_rule(document, "a", bucket(id="a"))
    with pytest.raises(InvalidRules):
        without_rule(document, "a")


def test_a_change_nested_without_end_is_refused() -> None:
    deep: object = "x"
    for _ in range(3000):
        deep = [deep]
    with pytest.raises(InvalidRules):
        with_rule({"rules": []}, "a", {"match": deep})
    with pytest.raises(InvalidRules):
        parse_document(without_rule({"rules": [deep]}, "a"))
