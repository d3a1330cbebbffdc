"""The picture over a whole embedded system: the shares that it shows never add up to more than the whole."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from global_sync.transport.base import LOG, USAGE
from regional_limiter.model.decision import Check
from regional_limiter.model.share import SHARE_UNITS, ProtocolTimes
from services.embedded import Embedded
from services.feed import Feed
from services.picture import Picture

REGIONS = ["eu", "us", "ap"]
RULES = {
    "domain": "d",
    "regions": {"eu": 1, "us": 1, "ap": 1},
    "rules": [{"id": "r", "match": {}, "capacity": 100, "refill": "100/s", "scope": "global"}],
}
BASES = {"eu": 3334, "us": 3333, "ap": 3333}


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@pytest.mark.timeout(60)
async def test_shares_that_move_never_add_up_to_more_than_the_whole(tmp_path: Path) -> None:
    times = ProtocolTimes.scaled(0.2)
    system = Embedded(REGIONS, times, tmp_path)
    picture = Picture(REGIONS, times)
    take: Any = lambda message: picture.take(message, now_ms())  # noqa: E731
    feed = Feed(system.hub.transport("display"), {LOG: take, USAGE: take})
    following = asyncio.create_task(feed.run())
    await system.start()
    try:
        await system.put_rules(RULES)
        shown = await _totals(system, picture, seconds=12)
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        await system.stop()
    assert max(max(shares.values()) for shares in shown) > 4_000, "the shares did not move"
    assert max(sum(shares.values()) for shares in shown) <= SHARE_UNITS


async def _totals(system: Embedded, picture: Picture, seconds: float) -> list[dict[str, int]]:
    """What the picture shows while demand wanders from region to region."""
    shown: list[dict[str, int]] = []
    began = time.monotonic()
    while (elapsed := time.monotonic() - began) < seconds:
        busy = REGIONS[int(elapsed / 3) % 3]
        for region in REGIONS:
            for _ in range(8 if region == busy else 1):
                await system.regions[region].limiter.check(Check("d", {"client_key": "k"}))
        health = picture.health({}, now_ms())
        for key in picture.keys_seen():
            shares = picture.shares(key, BASES, health, adaptive=True, now_ms=now_ms())
            if None not in shares.values():
                shown.append({region: share or 0 for region, share in shares.items()})
        await asyncio.sleep(0.03)
    return shown
