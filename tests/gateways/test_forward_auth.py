"""Real gateways with the example configurations, before two real nodes: what callers and the application see."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from itertools import count
from pathlib import Path

import httpx
import pytest

from tests.contract.region_processes import Region
from tests.gateways.conftest import KINDS
from tests.gateways.gateway import WITHIN_MS, Application, Gateway, problem, running, silent_node
from tests.unit.check_api.test_process import free_port

CALLERS = 6
LOADED_S = 0.25
BETWEEN_S = 1.3
"""Between a node that is back and the next one that goes: so long gateways pass over one that failed."""

pytestmark = pytest.mark.timeout(120)

_fresh = count()


def fresh(gateway: Gateway, prefix: str = "/few/") -> str:
    """A path whose bucket nobody has used."""
    return f"{prefix}{gateway.kind}-{next(_fresh)}"


def get(gateway: Gateway, path: str, method: str = "GET", **more: object) -> httpx.Response:
    with httpx.Client(trust_env=False, timeout=20) as client:
        return client.request(method, gateway.url + path, **more)  # type: ignore[arg-type]


def test_what_is_allowed_reaches_the_application_and_tells_what_is_left(
    gateway: Gateway, behind: Application
) -> None:
    path = fresh(gateway)
    with httpx.Client(trust_env=False, timeout=20) as client:
        for left in (4, 3):
            # The second over the same connections: nothing of the first is left on them.
            response = client.post(gateway.url + path, content=b"a body")
            assert (response.status_code, response.text) == (200, "from the application")
            assert behind.asked[-1] == f"POST {path} a body"
            assert response.headers["ratelimit"].startswith(f'"few";r={left};t=')
    assert response.headers["ratelimit-policy"].startswith('"few";q=5')
    assert response.headers["x-ratelimit-remaining"] == "3"
    assert "retry-after" not in response.headers


@pytest.mark.parametrize("status", [401, 403, 404, 429, 500, 503])
def test_what_the_application_says_itself_stays_as_it_is(gateway: Gateway, status: int) -> None:
    response = get(gateway, f"/status/{status}")
    assert (response.status_code, response.text) == (status, "from the application")


def test_exactly_the_limit_reaches_the_application_and_the_rest_is_429(
    gateway: Gateway, behind: Application
) -> None:
    path = fresh(gateway)
    with httpx.Client(trust_env=False, timeout=20) as client:
        responses = [client.get(gateway.url + path + f"?attempt={i}") for i in range(9)]
    assert [response.status_code for response in responses] == [200] * 5 + [429] * 4
    assert sum(path in asked for asked in behind.asked) == 5
    denied = responses[-1]
    assert 60 < int(denied.headers["retry-after"]) <= 3600
    assert denied.headers["ratelimit"].startswith('"few";r=0;t=')
    assert denied.headers["content-type"] == "application/problem+json"
    assert problem(denied.text) == "quota-exceeded"
    # A line for every denial would be a gift to whoever floods.
    assert "[error]" not in gateway.log()


def test_a_hundred_at_once_are_exactly_the_limit(gateway: Gateway) -> None:
    path = fresh(gateway)

    async def ask() -> Counter[int]:
        limits = httpx.Limits(max_connections=25)
        async with httpx.AsyncClient(trust_env=False, timeout=20, limits=limits) as client:
            responses = await asyncio.gather(*(client.get(gateway.url + path) for _ in range(100)))
        return Counter(response.status_code for response in responses)

    assert asyncio.run(ask()) == {200: 5, 429: 95}


@pytest.mark.parametrize(
    "headers",
    [
        {"X-Forwarded-For": "192.0.2.{i}"},
        {"X-Forwarded-Uri": "/free/{i}", "X-Forwarded-Method": "GET"},
        {"X-Original-Uri": "/free/{i}", "X-Real-Ip": "192.0.2.{i}", "Forwarded": "for=192.0.2.{i}"},
        {"X-Apportion-Status": "200", "X-Apportion-Token": "{i}", "Authorization": "Bearer {i}"},
    ],
)
def test_no_header_of_the_callers_makes_it_another_request_or_another_caller(
    gateway: Gateway, headers: dict[str, str]
) -> None:
    path = fresh(gateway, "/login/")
    with httpx.Client(trust_env=False, timeout=20) as client:
        statuses = [
            client.get(
                gateway.url + path, headers={name: text.format(i=i) for name, text in headers.items()}
            ).status_code
            for i in range(5)
        ]
    assert statuses == [200] * 3 + [429] * 2


def test_a_head_is_limited_like_a_get(gateway: Gateway) -> None:
    path = fresh(gateway)
    responses = [get(gateway, path, "HEAD") for _ in range(6)]
    assert [response.status_code for response in responses] == [200] * 5 + [429]


def test_a_path_of_any_length_is_limited(gateway: Gateway) -> None:
    path = fresh(gateway) + "x" * 3000
    assert [get(gateway, path).status_code for _ in range(6)] == [200] * 5 + [429]


@pytest.mark.parametrize("kind", KINDS)
def test_without_a_limiter_requests_pass_and_logins_do_not(kind: str, behind: Application, tmp_path: Path) -> None:
    gone = [f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"]
    with running(kind, tmp_path / "run", gone, behind) as gateway:
        passed = get(gateway, "/few/gone", "POST", content=b"a body")
        refused = get(gateway, "/login")
    assert (passed.status_code, passed.text) == (200, "from the application")
    assert behind.asked[-1] == "POST /few/gone a body"
    assert refused.status_code == 503
    # Envoy says this by itself, without further headers.
    assert kind == "envoy-ext-authz" or refused.headers["retry-after"] == "1"


@pytest.mark.parametrize("kind", KINDS)
def test_a_limiter_that_does_not_answer_is_not_waited_for(kind: str, behind: Application, tmp_path: Path) -> None:
    with (
        silent_node() as first,
        silent_node() as second,
        running(kind, tmp_path / "run", [first, second], behind) as gateway,
    ):
        began_s = time.monotonic()
        passed = get(gateway, "/few/silent")
        took_s = time.monotonic() - began_s
        refused = get(gateway, "/login")
    assert (passed.status_code, refused.status_code) == (200, 503)
    # Within one time-out, not one for each node.
    assert took_s < 1.9 * WITHIN_MS / 1000


async def test_nodes_that_are_restarted_in_turn_under_load_are_not_noticed(
    gateway: Gateway, region: Region
) -> None:
    over = asyncio.Event()
    seen: Counter[int] = Counter()
    undecided: list[httpx.Response] = []

    async def call() -> None:
        async with httpx.AsyncClient(trust_env=False, timeout=20) as client:
            while not over.is_set():
                response = await client.get(gateway.url + "/many")
                seen[response.status_code] += 1
                if "ratelimit" not in response.headers:
                    undecided.append(response)
                await asyncio.sleep(0.002)

    callers = [asyncio.create_task(call()) for _ in range(CALLERS)]
    try:
        for number in region.urls:
            await asyncio.sleep(LOADED_S)
            await region.stop(number)
            await asyncio.sleep(LOADED_S)
            await region.start(number)
            await asyncio.sleep(BETWEEN_S)
    finally:
        over.set()
        await asyncio.gather(*callers)
    assert set(seen) == {200}
    assert seen[200] > 100
    # Each was decided by a node: none was let through for want of one.
    assert undecided == [], gateway.log()[-4000:]
