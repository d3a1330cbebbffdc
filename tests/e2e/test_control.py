"""The control API on the running system: operators who race, a history that outlives files, right counts."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx

from tests.e2e.system import REGIONS, ROOT, LocalSystem, wait_for

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
