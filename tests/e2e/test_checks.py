"""Checks on the running system: exact under concurrency, many rules' worth of headers, one answer on every node."""

from __future__ import annotations

import asyncio
import time

import httpx
import pytest

from tests.e2e.system import REGIONS, LocalSystem


async def test_200_checks_at_once_on_a_bucket_of_100_allow_exactly_100(fast_system: LocalSystem) -> None:
    nodes = fast_system.nodes("us-east")
    limits = httpx.Limits(max_connections=50)
    async with httpx.AsyncClient(limits=limits, timeout=30) as client:
        for attempt in range(5):  # where the machine stalls, a node may decide one by itself
            body = {"client_key": f"at-once-{attempt}", "resource": "POST /once"}
            answers = await asyncio.gather(
                *(client.post(f"{nodes[n % len(nodes)]}/v1/check", json=body) for n in range(200))
            )
            assert {answer.status_code for answer in answers} == {200}
            if not any(answer.json()["degraded"] for answer in answers):
                break
    assert not any(answer.json()["degraded"] for answer in answers)
    assert sum(answer.json()["allowed"] for answer in answers) == 100


def test_a_static_window_is_split_by_base_and_never_moves(fast_system: LocalSystem) -> None:
    for attempt in range(2):  # an hour may end meanwhile, but not twice
        hour = time.time() // 3600
        body = {"client_key": f"window-{attempt}", "resource": "POST /split"}
        allowed = {
            region: sum(
                fast_system.http.post(f"{fast_system.nodes(region)[0]}/v1/check", json=body).json()["allowed"]
                for _ in range(15)
            )
            for region in REGIONS
        }
        if time.time() // 3600 == hour:
            break
    assert allowed == dict.fromkeys(REGIONS, 10)


def test_an_answer_carries_the_contract_and_its_headers(fast_system: LocalSystem) -> None:
    node = fast_system.nodes("eu-west")[1]
    answer = fast_system.http.post(
        f"{node}/v1/check?detail=1", json={"client_key": "headers", "resource": "GET /shared"}
    )
    body = answer.json()
    assert body["allowed"] is True
    assert (body["limit"], body["rule"], body["reason"], body["degraded"]) == (20, "shared", "ok", False)
    assert answer.headers["RateLimit-Policy"].startswith('"shared";q=20')
    assert answer.headers["RateLimit"].startswith('"shared";r=')
    assert body["verdicts"][0]["share"] in ("base", "lease")


@pytest.mark.parametrize("cost", [-5, 1.5, "1", True, 2**31])
def test_a_wrong_cost_is_refused_by_name(fast_system: LocalSystem, cost: object) -> None:
    node = fast_system.nodes("eu-west")[0]
    answer = fast_system.http.post(
        f"{node}/v1/check", json={"client_key": "k", "resource": "POST /once", "cost": cost}
    )
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"
    assert "cost" in answer.text
