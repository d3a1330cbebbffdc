"""The dashboard's past on the running system: what callers saw, what the control API counted, what a second
one reads again, and shares that never add up to more than the whole at any moment that the log tells of."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.e2e.system import REGIONS, ROOT, LocalSystem, wait_for

RULE = {"match": {"resource": "GET /remembered"}, "capacity": 40, "refill": "40/s", "scope": "global"}
SECOND_DASHBOARD = 31098
Totals = dict[str, tuple[int, int]]
"""Region -> allowed and denied cost."""


@contextmanager
def another_dashboard(system: LocalSystem, history: Path) -> Iterator[str]:
    """A second process, of another port and file; its address."""
    own = {"APPORTION_DASHBOARD__PORT": str(SECOND_DASHBOARD), "APPORTION_DASHBOARD__HISTORY": str(history)}
    process = subprocess.Popen(
        [sys.executable, "-m", "services.dashboard", "--config", str(system.directory / "hub.toml")],
        cwd=ROOT,
        env={**os.environ, **own},
        stderr=subprocess.DEVNULL,
    )
    try:
        yield f"http://127.0.0.1:{SECOND_DASHBOARD}"
    finally:
        process.terminate()
        process.wait(20)


def ask(system: LocalSystem, url: str, **query: Any) -> Mapping[str, Any]:
    try:
        answer = system.http.get(url, params=query)
    except httpx.HTTPError:
        return {}
    found: Mapping[str, Any] = answer.json() if answer.status_code == 200 else {}
    return found


def remembered(system: LocalSystem, dashboard: str, begin_ms: int) -> Totals:
    query = {"domain": "default", "rule": "remembered", "from": begin_ms, "step": 1000}
    totals = ask(system, f"{dashboard}/v1/series", **query).get("totals", {})
    return {region: (one["allowed"], one["denied"]) for region, one in totals.items()}


def counted_by_the_control_api(system: LocalSystem, begin_ms: int) -> Totals:
    query = {"domain": "default", "rule": "remembered", "since_ms": begin_ms, "by": "region", "total": True}
    rows = ask(system, f"{system.addresses['control_api']}/v1/usage/minutes", **query).get("rows", [])
    return {row["region"]: (row["allowed_cost"], row["denied_cost"]) for row in rows}


def check_around(system: LocalSystem) -> Totals:
    """Checks of one client, most of them in a region that changes; what their callers saw."""
    saw: Counter[tuple[str, bool]] = Counter()
    with httpx.Client(timeout=60, trust_env=False) as http:
        for turn in range(60):
            for region in REGIONS:
                node = system.nodes(region)[turn % 2]
                many = 12 if region == REGIONS[turn // 20] else 2
                checks = [{"client_key": "c", "resource": "GET /remembered"}] * many
                answers = http.post(f"{node}/v1/check:batch", json={"checks": checks}).json()["answers"]
                for answer in answers:
                    saw[region, answer["allowed"]] += 1
            time.sleep(0.1)
    return {region: (saw[region, True], saw[region, False]) for region in REGIONS}


def test_what_is_remembered_is_what_callers_saw_and_is_read_again_without_the_file(
    fast_system: LocalSystem, tmp_path: Path
) -> None:
    control, dashboard = (fast_system.addresses[name] for name in ("control_api", "dashboard"))
    assert fast_system.http.put(f"{control}/rules/remembered", json=RULE).status_code == 201
    nodes = fast_system.nodes(*REGIONS)
    body = {"client_key": "peek", "resource": "GET /remembered", "cost": 0}

    def known_by(node: str) -> bool:
        return bool(fast_system.http.post(f"{node}/v1/check", json=body).json()["rule"] == "remembered")

    wait_for(lambda: all(map(known_by, nodes)), 20, "the rule everywhere")
    begin_ms = int(time.time() * 1000) - 1_000
    saw = check_around(fast_system)
    assert sum(denied for _, denied in saw.values()) > 0
    wait_for(lambda: remembered(fast_system, dashboard, begin_ms) == saw, 60, f"the dashboard's counts {saw}")
    wait_for(lambda: counted_by_the_control_api(fast_system, begin_ms) == saw, 60, f"the control API's {saw}")

    (key,) = (one["key"] for one in ask(fast_system, f"{dashboard}/v1/keys", domain="default", rule="remembered",
                                        **{"from": begin_ms})["keys"] if one["key"].endswith(":c"))  # fmt: skip
    _shares_fit_at_every_step(fast_system, dashboard, key, begin_ms)

    with another_dashboard(fast_system, tmp_path / "another.db") as other:
        wait_for(lambda: remembered(fast_system, other, begin_ms) == saw, 60, f"read again: {saw}")
        kept = ask(fast_system, f"{other}/v1/sync")["history"]
        assert (kept["kept_in"], kept["left_out"], kept["problem"]) == ("file", 0, None)
    with another_dashboard(fast_system, fast_system.directory / "control" / "dashboard.db") as third:
        wait_for(lambda: bool(ask(fast_system, f"{third}/v1/sync")), 30, "a third dashboard")
        assert (
            "another process has dashboard.db" in ask(fast_system, f"{third}/v1/sync")["history"]["why_in_memory"]
        )
    assert fast_system.http.delete(f"{control}/rules/remembered").status_code == 200

    def told() -> list[str]:
        incidents = ask(fast_system, f"{dashboard}/v1/incidents", since=begin_ms).get("incidents", [])
        return [one["text"] for one in incidents if one["kind"] == "rules"]

    wait_for(lambda: any("default/remembered was deleted" in text for text in told()), 30, "the change told")


def _shares_fit_at_every_step(system: LocalSystem, dashboard: str, key: str, begin_ms: int) -> None:
    wait_for(
        lambda: (
            len(ask(system, f"{dashboard}/v1/shares/steps", key=key, **{"from": begin_ms}).get("steps", [])) > 5
        ),
        30,
        "shares that moved",
    )
    steps = ask(system, f"{dashboard}/v1/shares/steps", key=key, **{"from": begin_ms})["steps"]
    for at_ms in sorted({one["at_ms"] for one in steps}):
        (held,) = ask(system, f"{dashboard}/v1/shares/at", time=at_ms, key=key)["keys"]
        assert held["together"] <= 10_000, held
