"""Checks by hand: who may, what is sent, and what is told when it cannot be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import httpx
import pytest
from pydantic import SecretStr

from services.probes import Probes
from services.settings import HubRegion
from tests.unit.control_api.conftest import Serving
from tests.unit.control_api.fake_leader import FakeLeader

ROOT = "a-root-token-of-enough-length"
CHECK = {"client_key": "acme", "resource": "GET /a"}


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


@pytest.mark.parametrize(
    ("role", "domain", "status"), [("reader", "shop", 403), ("operator", "bank", 403), ("operator", "shop", 503)]
)
async def test_only_an_operator_of_the_checks_domain_may(
    serving: Serving, leader: FakeLeader, role: str, domain: str, status: int
) -> None:
    """No node is known here, so who may is told that none answers."""
    async with serving(token=ROOT) as client:
        body = {"name": "ann", "role": role, "domains": [domain]}
        token = (await client.post("/tokens", json=body, headers=bearer(ROOT))).json()["token"]
        wanted = {"region": "us-east", "check": CHECK}
        asked = await client.post("/v1/try", params={"domain": "shop"}, json=wanted, headers=bearer(token))
        assert asked.status_code == status


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"check": CHECK}, "body"),
        ({"region": "nowhere", "check": CHECK}, "region"),
        ({"region": "us-east", "check": CHECK, "times": 21}, "times"),
        ({"region": "us-east", "check": {**CHECK, "domain": "bank"}}, "check.domain"),
        ({"region": "us-east", "check": []}, "check"),
    ],
)
async def test_what_is_wrong_is_named(
    serving: Serving, leader: FakeLeader, body: Mapping[str, Any], field: str
) -> None:
    async with serving() as client:
        answer = await client.post("/v1/try", json=dict(body))
        assert answer.status_code == 422
        assert [one["field"] for one in answer.json()["errors"]] == [field]


async def test_a_check_is_sent_once_and_to_the_first_node_that_takes_it() -> None:
    seen: list[str] = []

    def node(request: httpx.Request) -> httpx.Response:
        seen.append(f"{request.url} {request.headers.get('authorization')}")
        if request.url.host == "down":
            raise httpx.ConnectError("refused", request=request)
        if request.url.host == "slow":
            raise httpx.ReadTimeout("late", request=request)
        return httpx.Response(200, json={"allowed": True}, headers={"RateLimit": "x"})

    def region(*hosts: str) -> HubRegion:
        return HubRegion(nodes=[f"http://{host}" for host in hosts], node_token=SecretStr("node-token"))

    regions = {"a": region("down", "up"), "b": region("slow", "up"), "c": region()}
    probes = Probes(regions, httpx.MockTransport(node))
    told = await probes.send_check("a", b"{}")
    assert told is not None
    assert (told["node"], told["status"], told["body"]) == ("http://up", 200, {"allowed": True})
    assert ["ratelimit", "x"] in told["headers"]
    assert seen == [f"http://{host}/v1/check?detail=1 Bearer node-token" for host in ("down", "up")]
    # One that was slow may have charged it.
    assert await probes.send_check("b", b"{}") is None
    assert len(seen) == 3
    assert await probes.send_check("c", b"{}") is None
    await probes.close()
