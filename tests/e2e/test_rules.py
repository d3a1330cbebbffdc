"""Rules on the running system: a change reaches every node of every region; a broken set changes nothing."""

from __future__ import annotations

import time

from tests.e2e.system import REGIONS, LocalSystem

RAISED = {"match": {"resource": "POST /raised"}, "algorithm": "token_bucket", "capacity": 9, "refill": "1/day"}


def limits_seen(system: LocalSystem, nodes: list[str]) -> set[int]:
    body = {"client_key": "watcher", "resource": "POST /raised", "cost": 0}
    return {system.http.post(f"{node}/v1/check", json=body).json()["limit"] for node in nodes}


def test_a_raised_rule_is_enforced_on_every_node_within_two_seconds(fast_system: LocalSystem) -> None:
    control, nodes = fast_system.addresses["control_api"], fast_system.nodes(*REGIONS)
    first = nodes[0]
    body = {"client_key": "raise-me", "resource": "POST /raised"}
    used = [fast_system.http.post(f"{first}/v1/check", json=body).json()["allowed"] for _ in range(6)]
    assert used == [True] * 5 + [False]
    began = time.monotonic()
    answer = fast_system.http.put(f"{control}/rules/raised", json=RAISED)
    assert answer.status_code == 200, answer.text
    while limits_seen(fast_system, nodes) != {9}:
        assert time.monotonic() - began < 2, "not on every node within 2 s"
        time.sleep(0.02)
    print(f"enforced on all {len(nodes)} nodes after {time.monotonic() - began:.2f} s")
    after = [fast_system.http.post(f"{first}/v1/check", json=body).json()["allowed"] for _ in range(5)]
    assert after == [True] * 4 + [False]  # what was used stays used


def test_two_operators_do_not_overwrite_each_other(fast_system: LocalSystem) -> None:
    control = fast_system.addresses["control_api"]
    seen = fast_system.http.get(f"{control}/rules/hundred")
    tag = seen.headers["ETag"]
    rule = {"match": {"resource": "POST /once"}, "capacity": 100, "refill": "2/day"}
    first = fast_system.http.put(f"{control}/rules/hundred", json=rule, headers={"If-Match": tag})
    second = fast_system.http.put(f"{control}/rules/hundred", json=rule, headers={"If-Match": tag})
    assert first.status_code == 200, first.text
    assert second.status_code in (409, 412), second.text


def test_a_broken_set_is_refused_with_every_fault_and_the_old_one_stays(fast_system: LocalSystem) -> None:
    control, nodes = fast_system.addresses["control_api"], fast_system.nodes(*REGIONS)
    before = fast_system.http.get(f"{control}/rulesets/default")
    broken = {
        "domain": "default",
        "regions": {"us-east": 1, "eu-west": 1, "ap-south": 1},
        "rules": [
            {"id": "a", "capacity": -1, "refill": "10/s"},
            {"id": "a", "capacity": 5, "refill": "0/s"},
            {"id": "c", "capacity": 5, "refill": "1/s", "algorithm": "magic", "colour": "red"},
        ],
    }
    answer = fast_system.http.put(f"{control}/rulesets/default", json=broken)
    assert answer.status_code == 422
    for place in ("rules[0].capacity", "rules[1].id", "rules[1].refill", "rules[2].algorithm", "rules[2].colour"):
        assert place in answer.text
    after = fast_system.http.get(f"{control}/rulesets/default")
    assert (after.headers["ETag"], after.json()) == (before.headers["ETag"], before.json())
    body = {"client_key": "still-there", "resource": "GET /regional"}
    assert all(fast_system.http.post(f"{node}/v1/check", json=body).json()["rule"] == "regional" for node in nodes)
