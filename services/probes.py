"""Looks at the processes of the regions over HTTP, for displays.  Bounded, and at most once a second.  [IO]

No limit depends on what is seen here.  A region that is cut off from the hub's Kafka can often still be asked
directly, so its agent's own view stands in for the usage that no longer arrives.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

import httpx

from services.clock import wall_ms
from services.health import NodeProbe, RegionProbe
from services.settings import HubRegion

FRESH_S = 1.0
TIMEOUT_S = 0.7
AT_ONCE = 16
ANSWER_BYTES_MOST = 2_000_000


class Probes:
    """``look`` gives the newest look at every region, not older than a second unless asked otherwise."""

    def __init__(self, regions: Mapping[str, HubRegion], transport: httpx.AsyncBaseTransport | None = None) -> None:
        self._regions = regions
        self._client = httpx.AsyncClient(timeout=TIMEOUT_S, transport=transport, trust_env=False)
        self._limit = asyncio.Semaphore(AT_ONCE)
        self._lock = asyncio.Lock()
        self._seen: dict[str, RegionProbe] = {}
        self._looked_at = float("-inf")

    async def look(self, fresh_s: float = FRESH_S) -> Mapping[str, RegionProbe]:
        async with self._lock:
            if time.monotonic() - self._looked_at > fresh_s:
                names = list(self._regions)
                probes = await asyncio.gather(*(self._region(self._regions[name]) for name in names))
                self._seen = dict(zip(names, probes, strict=True))
                self._looked_at = time.monotonic()
        return self._seen

    def last(self) -> Mapping[str, RegionProbe]:
        """What was seen last, without looking."""
        return self._seen

    async def close(self) -> None:
        await self._client.aclose()

    async def _region(self, region: HubRegion) -> RegionProbe:
        ready = await asyncio.gather(*(self._ready(url) for url in region.nodes))
        view = await self._json(f"{region.sync}/v1/region") if region.sync else {}
        nodes = tuple(NodeProbe(url, answer) for url, answer in zip(region.nodes, ready, strict=True))
        return RegionProbe(nodes, _part(view, "agent"), _part(view, "leader"), wall_ms())

    async def _ready(self, url: str) -> bool | None:
        async with self._limit:
            try:
                return (await self._client.get(f"{url}/readyz")).status_code == 200
            except (httpx.HTTPError, OSError):
                return None

    async def _json(self, url: str) -> Mapping[str, Any]:
        async with self._limit:
            try:
                answer = await self._client.get(url)
                if answer.status_code != 200 or len(answer.content) > ANSWER_BYTES_MOST:
                    return {}
                document = answer.json()
            except (httpx.HTTPError, OSError, ValueError):
                return {}
        return document if isinstance(document, dict) else {}


def _part(view: Mapping[str, Any], name: str) -> Mapping[str, Any] | None:
    part = view.get(name)
    return part if isinstance(part, dict) else None
