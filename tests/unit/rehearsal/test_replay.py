"""A rehearsal decides as the limiter does, and what it counts is what an independent count finds."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from regional_limiter.model.decision import Check
from regional_limiter.model.share import ProtocolTimes
from regional_limiter.plan import DomainRules, Planner
from regional_limiter.rules import compile_rules, parse_document
from regional_limiter.store.memory import MemoryPoint
from services.rehearsal.order import InOrder, spread
from services.rehearsal.rehearsal import Bounds, Rehearsal
from services.rehearsal.replay import Replay, name_of
from services.rehearsal.tally import BINS_MOST, Keys, OverTime

START_MS = 1_700_000_000_000
RULES = {
    "rules": [
        {"id": "free", "match": {"tier": "free"}, "capacity": 3, "refill": "1/s"},
        {"id": "window", "algorithm": "fixed_window", "limit": 4, "window": "10s", "charge_denied": True},
        {"id": "site", "key": [], "algorithm": "sliding_window_counter", "limit": 9, "window": "5s"},
        {"id": "exact", "key": ["tier", "ip"], "algorithm": "sliding_window_log", "limit": 5, "window": "5s"},
        {"id": "size", "match": {"resource": "put *"}, "cost": {"attribute": "size", "per": 10},
         "algorithm": "gcra", "capacity": 9, "refill": "90/min", "key": ["resource"],
         "normalise": {"resource": ["lower"]}},
        {"id": "leak", "match": {"resource": {"not": "PUT *"}}, "algorithm": "leaky_bucket", "capacity": 4,
         "leak": "1/s", "cost": 1},
        {"id": "counted", "match": {"client_key": "b"}, "unlimited": True},
    ],
    "defaults": {"tier": "free"},
    "subjects": [{"client_key": "a", "set": {"tier": "gold", "ip": "192.0.2.1"}}],
    "overrides": [
        {"rule": "free", "key": {"client_key": "c"}, "multiply": 2},
        {"rule": "window", "key": {"client_key": "d"}, "block": True},
        {"rule": "window", "key": {"client_key": "e"}, "unlimited": True},
    ],
}  # fmt: skip
CHECKS = st.tuples(
    st.integers(0, 3000),
    st.fixed_dictionaries(
        {"client_key": st.sampled_from("abcde"), "resource": st.sampled_from(["PUT /x", "PUT /X", "GET /x"])},
        optional={
            "ip": st.sampled_from(["192.0.2.1", ""]),
            "size": st.sampled_from(["0", "31"]),
            "tier": st.just(""),
        },
    ),
    st.integers(0, 3),
)


@settings(max_examples=150)
@given(st.lists(CHECKS, max_size=40))
def test_it_decides_as_the_limiter_does(checks: list[tuple[int, dict[str, str], int]]) -> None:
    rule_set = parse_document(RULES)
    planner = Planner(b"secret of this test")
    rules = DomainRules(1, rule_set, compile_rules(rule_set), 1, 10_000, "here")
    planner.use({"default": rules}, {}, 0, {})
    point, replay, now_ms = MemoryPoint(ProtocolTimes()), Replay(rule_set), START_MS
    for after_ms, attributes, cost in checks:
        now_ms += after_ms
        plan = planner.plan(Check("default", attributes, cost))
        decided = replay.decide(now_ms, attributes, cost)
        if plan.blocked is not None:
            assert not decided.allowed
            continue
        calls = plan.calls(cost)
        verdicts = point.check(now_ms * 1000, calls) if calls else []
        places = [
            rule_set.rules.index(next(r for r in rule_set.rules if r.id == step.rule.id)) for step in plan.steps
        ]
        limiting = decided.met[len(plan.unlimited) :]
        assert [(met.place, met.denied) for met in limiting] == [
            (place, not verdict.allowed) for place, verdict in zip(places, verdicts, strict=True)
        ]
        assert decided.allowed == all(verdict.allowed for verdict in verdicts)


@given(
    st.lists(st.tuples(*[st.none() | st.sampled_from(["", "a", "=", "/", "1=a", "!", "a/1=a"])] * 2), max_size=20)
)
def test_no_two_identities_share_a_name(identities: list[tuple[str | None, str | None]]) -> None:
    for length in (1, 2):
        cut = {identity[:length] for identity in identities}
        assert len({name_of(identity) for identity in cut}) == len(cut)


def requests(*at: tuple[int, str]) -> list[tuple[int, tuple[dict[str, str], int]]]:
    return [(START_MS + ms, ({"client_key": who, "resource": "GET /"}, 1)) for ms, who in at]


def rules(limit: int) -> dict[str, object]:
    rule = {"id": "r", "algorithm": "fixed_window", "limit": limit, "window": "60s"}
    return {"rules": [rule]}


def test_counts_by_rule_and_by_key_and_beside_the_current_set() -> None:
    asked = requests(*[(second * 1000, who) for second in range(10) for who in "aab"])
    rehearsal = Rehearsal(parse_document(rules(5)), parse_document(rules(12)))
    rehearsal.run(asked)
    proposed, current = rehearsal.proposed.tally, rehearsal.current
    # a asks 20 times and b 10: 5 and 12 of each are allowed.
    assert (proposed.checks, proposed.denied) == (30, 20)
    assert proposed.keys.most_denied(5) == [(0, ("a",), 20, 15), (0, ("b",), 10, 5)]
    assert current is not None
    assert current.tally.denied == 8
    difference = rehearsal.difference
    assert difference is not None
    assert (difference.newly_denied, difference.newly_allowed, difference.denied_by_both) == (12, 0, 8)
    assert difference.keys_denied.most_denied(5) == [(0, ("a",), 7, 7), (0, ("b",), 5, 5)]


def test_concurrency_is_said_not_to_be_rehearsed_and_denies_nothing() -> None:
    rule = {"id": "slots", "algorithm": "concurrency", "limit": 1, "lease": "1h"}
    rehearsal = Rehearsal(parse_document({"rules": [rule]}))
    rehearsal.run(requests((0, "a"), (1, "a")))
    assert list(rehearsal.proposed.replay.not_rehearsed) == ["slots"]
    assert (rehearsal.proposed.tally.checks, rehearsal.proposed.tally.denied) == (2, 0)


def test_a_cost_that_no_node_would_take_is_refused_and_counted() -> None:
    rule = {"id": "r", "cost": {"attribute": "size"}, "capacity": 5, "refill": "1/s"}
    rehearsal = Rehearsal(parse_document({"rules": [rule]}))
    rehearsal.run([(START_MS, ({"client_key": "a", "size": "many"}, 1)), *requests((5, "a"))])
    assert rehearsal.refused.total() == 1
    assert rehearsal.proposed.tally.checks == 1


def test_more_keys_than_there_is_room_for_are_merged_and_never_forgiven() -> None:
    rule = {"id": "r", "algorithm": "fixed_window", "limit": 1, "window": "1h"}
    rehearsal = Rehearsal(parse_document({"rules": [rule]}), bounds=Bounds(keys_most=100, buckets_most=50))
    rehearsal.run(requests(*[(0, f"k{number}") for number in range(500)] * 2))
    tally = rehearsal.proposed.tally
    assert rehearsal.proposed.replay.buckets.merged > 0
    assert tally.keys.forgotten > 0
    assert tally.denied >= 500


@given(st.lists(st.integers(0, 100_000), max_size=300), st.integers(1, 20))
def test_requests_come_in_order_and_what_is_late_is_counted(times: list[int], most: int) -> None:
    order = InOrder(most)
    found = list(order.of((at, place) for place, at in enumerate(times)))
    assert [at for at, _ in found] == sorted(at for at, _ in found)
    assert sorted(place for _, place in found) == list(range(len(times)))
    moved = [(times[place], at) for at, place in found if times[place] != at]
    assert len(moved) == order.late
    assert max((at - was for was, at in moved), default=0) == order.late_most_ms
    if len(times) < 2 * most:
        assert order.late == 0


def test_a_whole_second_is_spread_evenly() -> None:
    spread_out = list(spread([(1000, "a"), (1000, "b"), (1000, "c"), (1000, "d"), (3000, "e")]))
    assert spread_out == [(1000, "a"), (1250, "b"), (1500, "c"), (1750, "d"), (3000, "e")]


@given(st.lists(st.integers(0, 10_000_000), min_size=1, max_size=200))
def test_time_is_counted_in_few_steps_and_nothing_is_lost(after_ms: list[int]) -> None:
    over_time, now_ms, expected = OverTime(), START_MS, []
    for after in after_ms:
        now_ms += after
        over_time.at(now_ms).checks += 1
        expected.append(now_ms)
    bins = over_time.bins()
    assert 0 < len(bins) <= BINS_MOST
    found = Counter({start: counted.checks for start, counted in bins if counted.checks})
    assert found == Counter(at // over_time.step_ms * over_time.step_ms for at in expected)


def test_the_least_denied_keys_make_room() -> None:
    keys = Keys(10)
    for number in range(30):
        keys.count(0, (str(number),), denied=number == 3)
    assert keys.most_denied(5) == [(0, ("3",), 1, 1)]
    assert keys.forgotten == 20


def test_a_shadow_rule_denies_nothing_and_sees_what_is_allowed() -> None:
    window = {"algorithm": "fixed_window", "window": "60s"}
    shadow = {"id": "s", "mode": "shadow", "limit": 2, **window}
    rehearsal = Rehearsal(parse_document({"rules": [shadow, {"id": "r", "limit": 5, **window}]}))
    rehearsal.run(requests(*[(second, "a") for second in range(8)]))
    tally = rehearsal.proposed.tally
    assert tally.denied == 3
    assert [(counted.checks, counted.denied) for counted in tally.by_rule] == [(5, 3), (8, 3)]


def test_a_soft_rule_lets_pass_what_it_has_no_room_for_and_that_costs_it_nothing() -> None:
    soft = {"id": "s", "mode": "soft", "capacity": 2, "refill": "1/s"}
    rehearsal = Rehearsal(parse_document({"rules": [soft]}))
    rehearsal.run(requests(*[(0, "a")] * 5, (1000, "a")))
    tally = rehearsal.proposed.tally
    assert (tally.denied, tally.by_rule[0].denied) == (0, 3)


def test_a_rule_that_is_replaced_is_not_met() -> None:
    few = {"id": "few", "capacity": 1, "refill": "1/day"}
    many = {"id": "many", "match": {"client_key": "a"}, "capacity": 3, "refill": "1/day", "replaces": ["few"]}
    rehearsal = Rehearsal(parse_document({"rules": [few, many]}))
    rehearsal.run(requests(*[(0, who) for who in "aaaabb"]))
    assert [counted.denied for counted in rehearsal.proposed.tally.by_rule] == [1, 1]


def test_a_canary_meets_its_part_of_the_keys() -> None:
    rule = {
        "id": "r",
        "algorithm": "fixed_window",
        "limit": 1,
        "window": "1h",
        "canary": {"percent": 25, "limit": 2},
    }
    rehearsal = Rehearsal(parse_document({"rules": [rule]}))
    rehearsal.run(requests(*[(0, f"k{number}") for number in range(1000)] * 2))
    assert 700 < rehearsal.proposed.tally.denied < 800
