"""A rule set over a log's requests: limits hold whatever is cut, beside what one place would have allowed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from global_sync.simulation.play import TIMES
from regional_limiter.model.errors import InvalidRules
from regional_limiter.rules import parse_document
from services.simulator.baselines import StaticSplit
from services.simulator.log_report import document, key_rows, notes, page, rule_rows
from services.simulator.over_log import LogOutcome, LogSetting, Request, simulate_log, simulated_part
from services.simulator.placing import Placing

DELAYS = {"near": 2, "middle": 30, "far": 90}
FIRST_MS = 1_767_225_600_000 + 777_000
HOUR = 3600
RULES: dict[str, Any] = {
    "domain": "shop",
    "regions": {"far": 1},
    "rules": [
        {"id": "rate", "match": {"resource": "GET /rate"}, "capacity": 30, "refill": "100/s", "scope": "global"},
        {
            "id": "quota",
            "match": {"resource": "GET /quota"},
            "algorithm": "fixed_window",
            "limit": 90,
            "window": HOUR,
            "scope": "global",
            "distribution": "adaptive",
        },
        {"id": "own", "capacity": 5, "refill": "1/s"},
        {
            "id": "tried",
            "capacity": 5,
            "refill": "1/s",
            "scope": "global",
            "mode": "shadow",
            "distribution": "static",
        },
        {"id": "slots", "algorithm": "concurrency", "limit": 9, "lease": "5s"},
        {
            "id": "homely",
            "key": ["client_key"],
            "capacity": 9,
            "refill": "9/s",
            "scope": "global",
            "distribution": "home",
        },
    ],
    "overrides": [
        {"rule": "rate", "key": {"client_key": "barred"}, "block": True},
        {"rule": "own", "key": {"client_key": "barred"}, "multiply": 2},
    ],
}


@pytest.fixture(autouse=True)
def _quiet(quiet_logs: None) -> None:
    """Warnings of the agents are expected here."""


def asked(at_s: float, client: str, resource: str, place: str) -> Request:
    attributes = {"client_key": client, "resource": f"GET /{resource}", "dc": place}
    return FIRST_MS + round(1000 * at_s), (attributes, 1)


def setting(**more: Any) -> LogSetting:
    rule_set, _ = simulated_part(parse_document(RULES), dict.fromkeys(DELAYS, 1))
    placing = Placing(rule_set.regions, field="dc")
    return LogSetting(rule_set, DELAYS, placing, 60.0, times=TIMES, **more)


def run(requests: list[Request], **more: Any) -> LogOutcome:
    outcome = simulate_log(setting(**more), requests)
    assert outcome is not None
    assert outcome.problems == []
    assert outcome.shares_most <= 10_000
    return outcome


def test_a_rate_follows_its_client_over_the_regions_and_is_never_exceeded() -> None:
    requests = [asked(n / 150, "acme", "rate", "near" if n < 450 else "far") for n in range(900)]
    requests += [asked(n / 10, "barred", "rate", "far") for n in range(20)]
    requests.sort(key=lambda request: request[0])
    outcome = run(requests, cuts=[(5.0, ["far"], True)])
    rate = outcome.by_rule["rate"]
    assert outcome.requests == 920
    assert rate.requests == 900
    assert rate.excess <= 0
    assert rate.at_once >= 0.95 * (30 + 600)
    assert rate.utilisation > 0.8 > 0.5 > rate.parted / rate.at_once
    assert outcome.by_region[0] > 0.9 * 300 < outcome.by_region[2] + 30
    (watched,) = outcome.watched.values()
    assert watched[0][0] > 6_000 < watched[-1][2]


def test_a_window_in_escrow_that_began_before_the_log_has_all_of_its_parts() -> None:
    requests = [asked(n / 40, "acme", "quota", "far") for n in range(200)]
    requests += [asked(6 + n / 40, "acme", "quota", "near") for n in range(80)]
    outcome = run(requests)
    quota = outcome.by_rule["quota"]
    assert quota.excess <= 0
    # Its own half of its base, and most of the pool; the other has its half still.
    assert 45 < outcome.by_region[2] <= 90 - 2 * 15
    assert outcome.by_region[0] >= 15
    assert quota.parted == 60
    assert quota.at_once == 90


def test_the_same_requests_give_the_same_outcome_and_a_document_that_json_can_say() -> None:
    requests = [asked(n / 100, f"c{n % 3}", "rate", "middle" if n % 7 else "nowhere") for n in range(300)]
    found = [told(requests), told(requests)]
    assert found[0] == found[1]
    assert json.loads(json.dumps(found[0])) == found[0]
    assert sum(found[0]["requests_by_region"].values()) == 300 == found[0]["allowed"]
    assert found[0]["unplaced"] == {"nowhere": 43}
    assert [row[0] for row in rule_rows(found[0])] == ["rate", "quota"]
    assert {row[1] for row in key_rows(found[0])} == {"c0", "c1", "c2"}
    assert any("nowhere: 43" in note for note in notes(found[0]))
    assert any("rule own is left out: of region scope" in note for note in notes(found[0]))
    text = page("A <title>", found[0])
    assert "A &lt;title&gt;" in text
    assert "http" not in text
    assert text.count("<svg") == 2  # nothing was lent, so there are no shares to draw


def told(requests: list[Request]) -> Mapping[str, Any]:
    chosen = setting()
    outcome = simulate_log(chosen, requests)
    assert outcome is not None
    _, left_out = simulated_part(parse_document(RULES), dict.fromkeys(DELAYS, 1))
    return document(chosen, outcome, left_out, keys_shown=3, beside=1)


def test_other_ways_are_tried_on_the_key_that_lost_most_with_the_links_cut_for_them_too() -> None:
    requests = [asked(n / 300, "acme", "rate", ("near", "far")[n // 300 % 2]) for n in range(1200)]
    chosen = setting(cuts=[(0.5, ["near", "middle", "far"], True), (3.0, ["near", "middle", "far"], False)])
    outcome = simulate_log(chosen, requests)
    assert outcome is not None
    found = document(chosen, outcome, {}, keys_shown=1, beside=1)
    assert page("lent", found).count("<svg") == 3
    (beside,) = found["beside"]
    ways = {way["name"]: way for way in beside["ways"]}
    assert list(ways)[:2] == ["apportion", StaticSplit.name]
    assert ways["apportion"]["excess_tokens"] == 0
    assert ways["shared counters"]["excess_tokens"] > 10
    assert ways[StaticSplit.name]["utilisation"] < ways["apportion"]["utilisation"]


def test_a_long_log_ends_where_it_is_told_to_and_says_so() -> None:
    requests = [asked(n, f"c{n}", "rate", "near") for n in range(9)]
    short = simulate_log(replace(setting(), seconds_most=3.0), requests)
    few = simulate_log(replace(setting(), keys_most=4), requests)
    assert short is not None
    assert few is not None
    assert (short.requests, short.ended_early) == (3, "the log goes on after 3 s")
    assert (few.requests, few.ended_early) == (4, "after 4 s there were 4 keys, as many as are kept")
    assert simulate_log(setting(), []) is None


def test_only_global_rules_in_force_are_simulated_and_the_others_are_named() -> None:
    part, left_out = simulated_part(parse_document(RULES), {"a": 2, "b": 1})
    assert [rule.id for rule in part.rules] == ["rate", "quota"]
    assert dict(part.regions) == {"a": 2, "b": 1}
    assert list(part.overrides) == ["rate"]
    assert {name: why.split(" ")[0] for name, why in left_out.items()} == {
        "own": "of",
        "tried": "in",
        "slots": "of",
        "homely": "of",
    }
    with pytest.raises(InvalidRules, match="at least"):
        simulated_part(parse_document(RULES), {f"r{number}": 1 for number in range(40)})
