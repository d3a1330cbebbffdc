"""What /metrics tells, and that it stays bounded."""

from __future__ import annotations

import json
from dataclasses import replace

from prometheus_client.parser import text_string_to_metric_families

from regional_limiter.limiter import ShardStatus
from regional_limiter.model.decision import ShareKind
from services.check_api.counts import SERIES_MOST, Counts
from tests.unit.check_api.fakes import ALLOWED, FakeLimiter, answer_of, call, node_of, rule_verdict


def samples(text: str) -> dict[str, list[tuple[dict[str, str], float]]]:
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((dict(sample.labels), sample.value))
    return found


def by_cause(**counts: float) -> list[tuple[dict[str, str], float]]:
    return [({"cause": cause, "region": "us-east"}, count) for cause, count in counts.items()]


async def test_a_check_that_redis_decided_at_the_floor_is_told_apart_from_one_without_redis() -> None:
    limiter = FakeLimiter(answer_of(rule_verdict(share_kind=ShareKind.FLOOR, share=66), degraded=True))
    node = node_of(limiter)
    await call(node, "POST", "/v1/check", b'{"client_key":"a","resource":"b"}')
    found = samples((await call(node, "GET", "/metrics")).body.decode())
    assert found["ratelimit_degraded_checks_total"] == by_cause(store=0.0, floor=1.0)


async def test_metrics_tell_checks_durations_and_state() -> None:
    without_redis = rule_verdict()
    limiter = FakeLimiter(
        answer_of(replace(without_redis, verdict=replace(without_redis.verdict, degraded=True)), degraded=True),
        degraded={"timeout": 2},
        shards=(ShardStatus("127.0.0.1:7001/1", "closed"), ShardStatus("127.0.0.1:7002/1", "open")),
    )
    node = node_of(limiter)
    for _ in range(3):
        await call(node, "POST", "/v1/check", b'{"client_key":"a","resource":"b","domain":"shop"}')
    response = await call(node, "GET", "/metrics")
    assert response.headers["content-type"].startswith("text/plain")
    found = samples(response.body.decode())
    label = {"region": "us-east"}
    assert found["ratelimit_checks_total"] == [
        ({"domain": "shop", "rule": "orders-free", "outcome": "allowed", "reason": "ok", **label}, 3.0)
    ]
    assert found["ratelimit_degraded_checks_total"] == by_cause(store=3.0, floor=0.0)
    assert found["ratelimit_degraded_total"] == [({"cause": "timeout", **label}, 2.0)]
    assert found["ratelimit_rules_version"] == [(label, 7.0)]
    assert found["ratelimit_base_version"] == [(label, 4.0)]
    assert found["ratelimit_unexpected_errors_total"] == [(label, 0.0)]
    assert sorted(value for _, value in found["ratelimit_shard_breaker"]) == [0.0, 2.0]
    served = [
        value
        for labels, value in found["http_server_request_duration_seconds_count"]
        if labels["http_route"] == "/v1/check" and labels["http_response_status_code"] == "200"
    ]
    assert served == [3.0]
    assert "0.00025" in {labels["le"] for labels, _ in found["http_server_request_duration_seconds_bucket"]}


async def test_envoyproxy_ratelimit_1132_many_users_leave_the_series_unchanged() -> None:
    node = node_of(FakeLimiter())
    body = {"resource": "GET /x", "client_key": "u"}
    await call(node, "POST", "/v1/check", json.dumps(body).encode())
    before = len((await call(node, "GET", "/metrics")).body.splitlines())
    await call(node, "GET", "/metrics")
    with_metrics = len((await call(node, "GET", "/metrics")).body.splitlines())
    for user in range(200):
        body = {"resource": f"GET /{user}", "client_key": f"user-{user}", "domain": f"domain-{user}"}
        await call(node, "POST", "/v1/check", json.dumps(body).encode())
        await call(node, "GET", f"/no/such/{user}")
    text = (await call(node, "GET", "/metrics")).body.decode()
    assert "user-1" not in text
    assert "domain-1" not in text
    one_more_route = with_metrics - before
    assert len(text.splitlines()) <= with_metrics + one_more_route


async def test_an_answer_that_is_given_again_is_no_other_check() -> None:
    new, again = rule_verdict("a"), rule_verdict("a")
    again = replace(again, verdict=replace(again.verdict, replayed=True))
    counts = Counts()
    for verdicts in ((new,), (again,), (again, again), (again, new)):
        counts.checked("shop", answer_of(*verdicts))
    assert sum(counts.checks.values()) == 2, "one whose other rule was asked anew is a check"
    node = node_of(FakeLimiter(answer_of(again)))
    await call(node, "POST", "/v1/check", b'{"client_key":"a","resource":"b"}')
    found = samples((await call(node, "GET", "/metrics")).body.decode())
    assert found["ratelimit_repeated_checks_total"][0][1] == 1
    assert "ratelimit_checks_total" not in found
    assert found["ratelimit_debts_dropped_total"][0][1] == 0


def test_the_table_of_rules_is_bounded_even_when_rules_come_and_go() -> None:
    counts = Counts()
    for number in range(SERIES_MOST + 100):
        counts.checked("shop", answer_of(rule_verdict(f"rule-{number}")))
    counts.checked("made-up", ALLOWED)
    assert len(counts.checks) <= SERIES_MOST + 10
    assert sum(counts.checks.values()) == SERIES_MOST + 101
    assert not [key for key in counts.checks if key[0] == "made-up"]
