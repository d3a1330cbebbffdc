"""Limits that have one bucket, in one region: asked from three, and cut off from it, between real processes.

The others reach the home over a link of this test's own, which it cuts.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from typing import Any

import httpx
import pytest

from infra.local.link_proxy import Link
from services.cli.drive import CheckRecord, drive
from tests.e2e.bound import worst_excess
from tests.e2e.system import REGIONS, LocalSystem, wait_for

DOMAIN, HOME, PORT = "homes", "eu-west", 33300
OTHERS = tuple(region for region in REGIONS if region != HOME)
BURST, RATE = 10, 20


def rule(name: str, refill: str, **home: str) -> dict[str, Any]:
    return {
        "id": name,
        "match": {"resource": f"GET /{name}"},
        "key": ["client_key"],
        "capacity": BURST,
        "refill": refill,
        "scope": "global",
        "distribution": "home",
        "home": {"by": HOME, **home},
    }


RULES = [rule("few", "1/day"), rule("steady", f"{RATE}/s"), rule("open", "1/day", unreachable="allow")]


@asynccontextmanager
async def rules_at_home(system: LocalSystem) -> AsyncIterator[Link]:
    """Every node has the rules; the link leads to a node of the home, and all others know of no other way."""
    addresses = {region: system.nodes(region)[0] for region in OTHERS} | {HOME: f"http://127.0.0.1:{PORT}"}
    host, port = system.nodes(HOME)[0].removeprefix("http://").split(":")
    link = Link(HOME, (host, int(port)))
    server = await asyncio.start_server(link.accept, "127.0.0.1", PORT)
    rule_set = {"domain": DOMAIN, "regions": dict.fromkeys(REGIONS, 1), "addresses": addresses, "rules": RULES}
    url = f"{system.addresses['control_api']}/rulesets/{DOMAIN}"
    try:
        answer = await asyncio.to_thread(system.http.put, url, json=rule_set)
        assert answer.status_code in (200, 201), answer.text
        await asyncio.to_thread(
            wait_for, lambda: all(_knows(system, node) for node in system.nodes(*REGIONS)), 30, "rules"
        )
        yield link
    finally:
        link.heal()
        server.close()
        with suppress(httpx.HTTPError):  # the other tests do without it, too
            await asyncio.to_thread(system.http.delete, url)


def _knows(system: LocalSystem, node: str) -> bool:
    body = {"domain": DOMAIN, "client_key": "peek", "resource": "GET /few", "cost": 0}
    answer: bool = system.http.post(f"{node}/v1/check", json=body).json()["rule"] == "few"
    return answer


async def ask(
    system: LocalSystem, name: str, regions: Iterable[str], rate: float, seconds: float
) -> list[CheckRecord]:
    """Checks of one client at every node of the regions, at once; all are answered."""
    done = await asyncio.gather(
        *(
            drive(
                system.nodes(region),
                rate,
                seconds,
                client_key="c",
                resource=f"GET /{name}",
                domain=DOMAIN,
                timeout_s=20,
            )
            for region in regions
        )
    )
    checks = [check for result in done for check in result.checks]
    assert [check for check in checks if check.error] == []
    return checks


@pytest.mark.timeout(120)
async def test_a_limit_at_home_is_one_bucket_for_all_regions_and_is_as_its_rule_says_without_the_home(
    fast_system: LocalSystem,
) -> None:
    system = fast_system
    async with rules_at_home(system) as link:
        few = await ask(system, "few", OTHERS, 20, 1)
        assert sum(check.allowed for check in few) == BURST
        assert not any(check.allowed for check in await ask(system, "few", [HOME], 10, 1))

        steady = await ask(system, "steady", REGIONS, RATE, 3)
        assert sum(check.allowed for check in steady) >= 2 * RATE
        link.cut()
        alone, deaf, unbound = await asyncio.gather(
            ask(system, "steady", [HOME], RATE, 3),
            ask(system, "steady", OTHERS, 10, 3),
            ask(system, "open", OTHERS, 10, 3),
        )
        assert sum(check.allowed for check in alone) >= 2 * RATE
        assert {(check.allowed, check.reason) for check in deaf} == {(False, "store_unavailable")}
        assert all(check.allowed and check.degraded for check in unbound)
        assert len(unbound) > 2 * BURST
        link.heal()
        again: list[CheckRecord] = []
        while not any(check.allowed for check in again):
            again += await ask(system, "steady", OTHERS, 10, 1)

        admitted = [check for check in [*steady, *alone, *deaf, *again] if check.allowed]
        excess = worst_excess(((check.sent_at, check.answered_at) for check in admitted), BURST, RATE)
        print(f"{len(admitted)} admitted, {excess:.1f} above burst + rate x time")
        assert excess <= 0
