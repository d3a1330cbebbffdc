from __future__ import annotations

from global_sync.node_usage import NodeUsage
from regional_limiter.store.base import BeatSeen, NodeBeat, RuleTotals

SECOND = 1_000_000


def beat(node: str, incarnation: str, allowed: int, base_version: int = 3) -> NodeBeat:
    totals = {"default/orders": RuleTotals(allowed=allowed, allowed_cost=allowed)}
    return NodeBeat(node, incarnation, "http://127.0.0.1:1", 1, base_version, usage=totals)


def usage_of(*beats: tuple[NodeBeat, int]) -> NodeUsage:
    usage = NodeUsage(forget_after_us=60 * SECOND)
    for number, (seen, age_us) in enumerate(beats):
        usage.take(BeatSeen(seen, age_us), now_us=100 * SECOND + number)
    return usage


def test_clickhouse_7259_a_repeated_beat_counts_once() -> None:
    usage = usage_of((beat("a", "1", 30), 0), (beat("a", "1", 30), 0), (beat("a", "1", 30), 0))
    assert usage.rules()["default/orders"][0] == 30


def test_kafka_pixy_62_an_older_beat_that_comes_later_takes_nothing_back() -> None:
    usage = usage_of((beat("a", "1", 40), 0), (beat("a", "1", 30), SECOND))
    assert usage.rules()["default/orders"][0] == 40


def test_haproxy_1497_a_restarted_node_adds_to_what_its_last_life_counted() -> None:
    usage = usage_of((beat("a", "1", 40), 0), (beat("a", "2", 2), 0), (beat("b", "1", 1), 0))
    assert usage.rules()["default/orders"][0] == 43
    assert [seen.node for seen, _ in usage.nodes(101 * SECOND)] == ["a", "b"]


def test_a_node_that_comes_back_after_a_long_pause_is_not_counted_twice() -> None:
    usage = usage_of((beat("a", "1", 40), 0))
    usage.expire(now_us=300 * SECOND)
    assert usage.nodes(300 * SECOND) == []
    usage.take(BeatSeen(beat("a", "1", 41), 0), now_us=301 * SECOND)
    assert usage.rules()["default/orders"][0] == 41


def test_the_least_base_version_is_that_of_the_node_that_lags() -> None:
    usage = usage_of((beat("a", "1", 1, base_version=5), 0), (beat("b", "1", 1, base_version=3), 0))
    assert usage.least_base_version(101 * SECOND, younger_than_us=30 * SECOND) == 3
    assert usage.least_base_version(200 * SECOND, younger_than_us=30 * SECOND) is None


def test_the_table_of_keys_is_bounded_and_keeps_the_busiest() -> None:
    usage = NodeUsage(forget_after_us=SECOND)
    for start in range(0, 12_000, 1_000):
        keys = {f"k{n}": RuleTotals(allowed=n, allowed_cost=n) for n in range(start, start + 1_000)}
        usage.take(BeatSeen(NodeBeat("a", "1", "", 1, 1, key_usage=keys), 0), now_us=SECOND)
        usage.keys(at_most=10)
    assert len(usage.keys(at_most=100_000)) <= 5_000
    assert next(iter(usage.keys(at_most=1))) == "k11999"


def told(costs: dict[str, int]) -> NodeBeat:
    usage = {key: RuleTotals(allowed=cost, allowed_cost=cost) for key, cost in costs.items()}
    return NodeBeat("a", "1", "", 1, 1, key_usage=usage)


def rate_after(*told_costs: dict[str, int], told_most: int = 3) -> tuple[float, bool] | None:
    usage = NodeUsage(forget_after_us=60 * SECOND)
    for number, costs in enumerate(told_costs):
        for point_age_us in (0, 1000):  # every point tells of the same beat
            usage.take(BeatSeen(told(costs), point_age_us), now_us=number * SECOND // 3)
    return usage.rate("k", told_most)


def test_what_was_asked_for_of_a_key_in_the_last_second() -> None:
    assert rate_after({"k": 500}, {"k": 510}, {"k": 520}, {"k": 530}, {"k": 540}) == (30.0, True)


def test_a_key_that_has_begun_just_now_may_be_more_than_it_seems() -> None:
    assert rate_after({}, {}, {}, {"k": 10}) == (10.0, False)
    assert rate_after({"k": 7}, {"k": 7}, {"k": 7}, {"k": 7}) == (0.0, False)


def test_a_rate_that_cannot_be_known_is_none() -> None:
    assert rate_after() is None
    assert rate_after({"k": 1}, {"k": 2}) is None
    others = {"x": 9, "y": 9, "z": 9}
    assert rate_after(others, others, others, others) is None
    assert rate_after(others, others, others, {"k": 10, "y": 9, "z": 9}) is None
