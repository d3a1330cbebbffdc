"""The control API on the running system: operators who race, a history that outlives files, right counts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx

from tests.e2e.system import CLI, REGIONS, ROOT, LocalSystem, wait_for

RULE = {"match": {"resource": "POST /raced"}, "capacity": 1, "refill": "1/s"}
WRITES_EACH = 100
NEW_MACHINE = 31099


def _operator(control: str, refused: Counter[int], lock: threading.Lock) -> None:
    """Adds 1 to what was read, a hundred times; begins again whenever somebody was first."""
    with httpx.Client(base_url=control, timeout=15, trust_env=False) as http:
        done = 0
        while done < WRITES_EACH:
            seen = http.get("/rules/raced")
            changed = {**RULE, "capacity": seen.json()["source"]["capacity"] + 1}
            answer = http.put("/rules/raced", json=changed, headers={"If-Match": seen.headers["ETag"]})
            if answer.status_code == 200:
                done += 1
            elif answer.status_code == 429:
                time.sleep(float(answer.headers["Retry-After"]))
            else:
                with lock:
                    refused[answer.status_code] += 1


def test_of_200_racing_writes_none_is_lost_silently_and_all_are_in_the_history(fast_system: LocalSystem) -> None:
    control = fast_system.addresses["control_api"]
    first = fast_system.http.put(f"{control}/rules/raced", json=RULE).json()["version"]
    refused: Counter[int] = Counter()
    lock = threading.Lock()
    with ThreadPoolExecutor(2) as pool:
        for operator in [pool.submit(_operator, control, refused, lock) for _ in range(2)]:
            operator.result()
    assert fast_system.http.get(f"{control}/rules/raced").json()["source"]["capacity"] == 1 + 2 * WRITES_EACH
    assert set(refused) <= {409, 412}
    assert refused, "they never met: this has shown nothing"
    told = fast_system.http.get(f"{control}/rulesets/default/versions", params={"limit": 1000}).json()["versions"]
    assert len([one for one in told if one["version"] > first and one["rule_id"] == "raced"]) == 2 * WRITES_EACH
    print(f"refused and tried again: {dict(refused)}")
    assert fast_system.http.delete(f"{control}/rules/raced").status_code == 200


def test_a_control_api_on_a_new_machine_has_the_whole_history(fast_system: LocalSystem, tmp_path: Path) -> None:
    control = fast_system.addresses["control_api"]
    there = f"http://127.0.0.1:{NEW_MACHINE}"
    own = {
        "APPORTION_CONTROL_API__PORT": str(NEW_MACHINE),
        "APPORTION_CONTROL_API__STATE_DIR": str(tmp_path / "new"),
    }
    config = fast_system.directory / "hub.toml"
    process = subprocess.Popen(
        [sys.executable, "-m", "services.control_api", "--config", str(config)],
        cwd=ROOT,
        env={**os.environ, **own},
        stderr=subprocess.DEVNULL,
    )
    try:
        with httpx.Client(timeout=10, trust_env=False) as http:

            def same() -> bool:
                try:
                    answers = [
                        http.get(f"{url}/history", params={"limit": 1000}).json() for url in (there, control)
                    ]
                except httpx.HTTPError:
                    return False
                return answers[0] == answers[1]

            wait_for(same, 20, "the same history on both")
            told = http.get(f"{control}/rulesets/default/versions", params={"limit": 1000}).json()["versions"]
            for one in (told[0], told[len(told) // 2], told[-1]):
                path = f"/rulesets/default/versions/{one['version']}"
                assert http.get(f"{there}{path}").json() == http.get(f"{control}{path}").json()
    finally:
        process.terminate()
        process.wait(10)


def test_what_was_counted_by_the_minute_equals_what_the_callers_saw(fast_system: LocalSystem) -> None:
    control = fast_system.addresses["control_api"]
    rule = {"match": {"resource": "POST /counted"}, "algorithm": "fixed_window", "limit": 30, "window": "1day"}
    assert fast_system.http.put(f"{control}/rules/counted", json=rule).status_code == 201
    nodes = fast_system.nodes(*REGIONS)
    body = {"client_key": "c", "resource": "POST /counted", "cost": 0}

    def known_by(node: str) -> bool:
        return bool(fast_system.http.post(f"{node}/v1/check", json=body).json()["rule"] == "counted")

    wait_for(lambda: all(map(known_by, nodes)), 5, "the rule everywhere")
    began_ms = int(time.time() * 1000)
    saw: Counter[str] = Counter()
    for number in range(200):
        check = {**body, "client_key": f"c{number % 3}", "cost": 1 + number % 2}
        answer = fast_system.http.post(f"{nodes[number % len(nodes)]}/v1/check", json=check).json()
        kind = "allowed" if answer["allowed"] else "denied"
        saw[kind] += 1
        saw[f"{kind}_cost"] += check["cost"]

    def counted() -> Counter[str]:
        params = {"domain": "default", "rule": "counted", "since_ms": began_ms, "total": True}
        rows = fast_system.http.get(f"{control}/v1/usage/minutes", params=params).json()["rows"]
        return Counter({name: rows[0][name] for name in saw}) if rows else Counter()

    wait_for(lambda: counted() == saw, 10, f"the counts {dict(saw)}")
    assert saw["denied"] > 0
    params = {"rule": "counted", "format": "csv", "since_ms": began_ms}
    table = fast_system.http.get(f"{control}/v1/usage/minutes", params=params)
    assert table.headers["content-type"].startswith("text/csv")
    assert table.text.startswith("minute_ms,domain,rule,variant,allowed,denied")
    assert fast_system.http.delete(f"{control}/rules/counted").status_code == 200


TIERS = {
    "regions": dict.fromkeys(REGIONS, 1),
    "stored_subjects": {"keep": "1s"},
    "defaults": {"tier": "free"},
    "rules": [
        {"id": "gold", "match": {"tier": "gold"}, "key": ["client_key"], "capacity": 1000, "refill": "1/day"},
        {"id": "free", "match": {"tier": "free"}, "key": ["client_key"], "capacity": 5, "refill": "1/day"},
    ],
}


def test_what_is_stored_of_clients_counts_at_every_node_of_every_region(fast_system: LocalSystem) -> None:
    control, http = fast_system.addresses["control_api"], fast_system.http
    nodes = fast_system.nodes(*REGIONS)
    assert http.put(f"{control}/rulesets/tiers", json=TIERS).status_code == 201

    def met(client: str) -> set[str]:
        params = {"domain": "tiers", "client_key": client, "resource": "r"}
        return {http.get(f"{node}/v1/peek", params=params).json()["rule"] for node in nodes}

    wait_for(lambda: met("nobody") == {"free"}, 20, "the set at every node")
    table = "client_key,tier\n" + "".join(f"c{number},gold\n" for number in range(6000))
    sent = http.post(
        f"{control}/subjects:import",
        params={"domain": "tiers"},
        content=table,
        headers={"content-type": "text/csv", "apportion-reason": "the contracts of May"},
        timeout=30,
    )
    assert (sent.status_code, sent.json()["imported"]) == (200, 6000), sent.text
    wait_for(lambda: met("c0") == met("c5999") == {"gold"}, 20, "clients of the first and of the last change")
    check = {"domain": "tiers", "client_key": "c1", "resource": "r", "cost": 500}
    answers = [http.post(f"{node}/v1/check", json=check).json() for node in nodes]
    # Two nodes a region share its bucket of 1000.
    assert [answer["remaining"] for answer in answers] == [500, 0] * len(REGIONS)
    assert http.delete(f"{control}/subjects/c0", params={"domain": "tiers"}).status_code == 200
    wait_for(lambda: met("c0") == {"free"}, 20, "nothing is known of a client any more")
    assert met("c1") == {"gold"}
    [change] = http.get(f"{control}/history", params={"text": "May", "limit": 1}).json()["changes"]
    assert (change["domain"], change["reason"], change["accepted"]) == ("tiers", "the contracts of May", True)
    assert http.delete(f"{control}/rulesets/tiers").status_code == 200


def test_a_rehearsal_beside_what_is_in_force(fast_system: LocalSystem, tmp_path: Path) -> None:
    """Its rules are the set that the system began with, with one limit of 100 made 8."""
    log, proposed = tmp_path / "access.log", tmp_path / "rules.yaml"
    line = '192.0.2.{} - - [10/Oct/2025:13:55:{:02} +0000] "POST /once HTTP/1.1" 200 2 "-" "curl"\n'
    log.write_text("".join(line.format(number % 2, number) for number in range(40)))
    control = fast_system.addresses["control_api"]
    document = fast_system.http.get(f"{control}/rulesets/default", headers={"accept": "application/yaml"}).text
    assert "capacity: 100\n" in document
    proposed.write_text(document.replace("capacity: 100\n", "capacity: 8\n"))
    rehearse = [*CLI, "rehearse", str(log), "--rules", str(proposed), "--current", "control", "--json"]
    done = subprocess.run([*rehearse, "--control", control], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["lines"]["read"] == 40
    assert (report["denied"], report["current"]["denied"]) == (24, 0)
