"""The real limiter, agent and leader of three regions in one process, in real time and short."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from regional_limiter.model.decision import Check
from regional_limiter.model.share import ProtocolTimes
from services.embedded import Embedded
from tests.e2e.bound import rate_between, worst_excess
from tests.quiet_collector import quiet_collector

REGIONS = ["us-east", "eu-west", "ap-south"]
RULES = {
    "domain": "default",
    "regions": dict.fromkeys(REGIONS, 1),
    "rules": [
        {
            "id": "shared",
            "match": {"resource": "GET /shared"},
            "key": ["client_key"],
            "capacity": 20,
            "refill": "100/s",
            "scope": "global",
        }
    ],
}
SCALE = 0.2


@asynccontextmanager
async def embedded(tmp_path: Path) -> AsyncIterator[Embedded]:
    system = Embedded(REGIONS, ProtocolTimes.scaled(SCALE), tmp_path)
    await system.start()
    try:
        await system.put_rules(RULES)
        async with asyncio.timeout(10):
            while not all(in_session(system, name) for name in REGIONS):  # noqa: ASYNC110 (as an operator would)
                await asyncio.sleep(0.05)
        # A pause of 0.2 s is a gap at this scale: the points would be born anew.
        with quiet_collector():
            yield system
    finally:
        await system.stop()


def in_session(system: Embedded, name: str) -> bool:
    region = system.regions[name]
    points = region.agent.view()["points"]
    assert isinstance(points, list)
    return region.limiter.ready and bool(points) and all(point["session_left_ms"] > 0 for point in points)


async def offer(
    system: Embedded, region: str, rate: float, seconds: float, client: str = "c"
) -> list[tuple[float, float]]:
    """Admitted checks as (sent, answered)."""
    admitted = []
    began = time.monotonic()
    check = Check("default", {"client_key": client, "resource": "GET /shared"})
    for number in range(int(rate * seconds)):
        await asyncio.sleep(max(0.0, began + number / rate - time.monotonic()))
        sent = time.monotonic()
        answer = await system.regions[region].limiter.check(check)
        if answer.allowed:
            admitted.append((sent, time.monotonic()))
    return admitted


async def until_followed(system: Embedded, region: str) -> list[tuple[float, float]]:
    """What is admitted until nearly all of the limit is, in one second; where all stalls, all begins anew."""
    admitted = []
    for _ in range(20):
        began = time.monotonic()
        latest = await offer(system, region, 150, 1)
        admitted += latest
        if rate_between(latest, began, time.monotonic()) >= 90:
            return admitted
    raise AssertionError(f"{region} never had the limit: {admitted}")


@pytest.mark.timeout(120)
async def test_the_share_follows_the_load_and_the_bound_holds(tmp_path: Path) -> None:
    async with embedded(tmp_path) as system:
        first = await until_followed(system, "us-east")
        second = await until_followed(system, "eu-west")
    assert worst_excess([*first, *second], burst=20, rate=100, slack=0.001) <= 0


@pytest.mark.timeout(180)
async def test_cut_off_regions_end_at_their_bases(tmp_path: Path) -> None:
    for attempt in range(4):
        stalled, rates = await cut_off(tmp_path / str(attempt))
        if not stalled:
            break
    assert not stalled, "a point was born anew, since the machine stalled, each time"
    assert rates == pytest.approx([100 / 3] * 3, rel=0.1)


async def cut_off(directory: Path) -> tuple[bool, list[float]]:
    """Whether a point was born anew (it rests at its floor until the hub is heard), and what each let pass."""
    consent_s = ProtocolTimes.scaled(SCALE).consent_us / 1e6
    async with embedded(directory) as system:
        before = await offer(system, "us-east", 150, 2)
        resets = resets_of(system)
        for name in REGIONS:
            system.hub.cut(name)
        seconds = consent_s + 5
        start = time.monotonic()
        runs = await asyncio.gather(*(offer(system, name, 60, seconds) for name in REGIONS))
        stalled = resets_of(system) > resets
    admitted = [check for run in runs for check in run]
    assert worst_excess([*before, *admitted], burst=20, rate=100, slack=0.001) <= 0
    return stalled, [rate_between(run, start + consent_s + 1.5, start + seconds) for run in runs]


def resets_of(system: Embedded) -> int:
    resets = 0
    for region in system.regions.values():
        points = region.agent.view()["points"]
        assert isinstance(points, list)
        resets += sum(point["resets"] for point in points)
    return resets
