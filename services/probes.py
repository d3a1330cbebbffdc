"""Looks at the processes of the regions over HTTP, for displays.  Bounded, and at most once a second.  [IO]

No limit depends on what is seen here.  A region that is cut off from the hub's Kafka can often still be asked
directly, so its agent's own view stands in for the usage that no longer arrives.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import httpx
from pydantic import SecretStr

from services.clock import wall_ms
from services.health import NodeProbe, RegionProbe
from services.settings import ClientTls, HubRegion

FRESH_S = 1.0
TIMEOUT_S = 0.7
TRIES = 2
"""A process on a busy machine may miss one question; one that misses two in a row is said not to answer."""
AT_ONCE = 16
NODES_ASKED = 3
NODES_LOOKED_INTO = 64
ANSWER_BYTES_MOST = 2_000_000


@dataclass(frozen=True, slots=True)
class NodeLook:
    """A node's view of itself, None without an answer; by how much its wall clock is before ours, give or take."""

    url: str
    view: Mapping[str, Any] | None
    clock_error_ms: int | None
    give_or_take_ms: int


class Probes:
    """``look`` gives the newest look at every region, not older than a second unless asked otherwise."""

    def __init__(
        self,
        regions: Mapping[str, HubRegion],
        transport: httpx.AsyncBaseTransport | None = None,
        calls: ClientTls | None = None,
    ) -> None:
        self._regions = regions
        # (A certificate of ours that is renewed is shown after a restart only: these are displays.)
        verify = calls.contexts()() if calls else True
        self._client = httpx.AsyncClient(timeout=TIMEOUT_S, transport=transport, trust_env=False, verify=verify)
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

    async def look_at_agent(self, name: str) -> None:
        """A new look at one region's sync service alone; what its nodes answered last stays."""
        region = self._regions.get(name)
        if region is None or region.sync is None:
            return
        view = await self._json(f"{region.sync}/v1/region", region.token)
        nodes = self._seen[name].nodes if name in self._seen else ()
        self._seen = {
            **self._seen,
            name: RegionProbe(nodes, _part(view, "agent"), _part(view, "leader"), wall_ms()),
        }

    async def ask_nodes(self, path: str) -> Mapping[str, Mapping[str, Any] | None]:
        """What every node answers at ``path``, by its address; None: nothing."""
        nodes = {url: region.node_token for region in self._regions.values() for url in region.nodes}
        answers = await asyncio.gather(*(self._json(f"{url}{path}", token) for url, token in nodes.items()))
        return {url: answer or None for url, answer in zip(nodes, answers, strict=True)}

    async def look_into(self, name: str) -> list[NodeLook]:
        """What every node of a region says of itself, ``NODES_LOOKED_INTO`` at most."""
        region = self._regions[name]
        urls = region.nodes[:NODES_LOOKED_INTO]
        return list(await asyncio.gather(*(self._look_into(url, region.node_token) for url in urls)))

    async def _look_into(self, url: str, token: SecretStr | None) -> NodeLook:
        began, began_ms = time.perf_counter(), wall_ms()
        view = await self._json(f"{url}/v1/node", token)
        took_ms = (time.perf_counter() - began) * 1000
        at_ms = view.get("at_ms")
        # It said the time somewhere between question and answer.
        error_ms = None if not isinstance(at_ms, int) else round(at_ms - began_ms - took_ms / 2)
        return NodeLook(url, view or None, error_ms, round(took_ms / 2))

    def last(self) -> Mapping[str, RegionProbe]:
        """What was seen last, without looking."""
        return self._seen

    async def ask_node(self, name: str, path: str) -> Mapping[str, Any]:
        """What the first node of a region that answers says; ``problem``: why there is nothing else."""
        region = self._regions[name]
        problem = "no node of it is known" if not region.nodes else "no node answers"
        for url in region.nodes[:NODES_ASKED]:
            answer = await self._get(f"{url}{path}", _bearer(region.node_token))
            if answer is None or len(answer.content) > ANSWER_BYTES_MOST:
                continue
            try:
                document = answer.json()
            except ValueError:
                continue
            if answer.status_code == 200 and isinstance(document, dict):
                return document
            problem = f"{url} answers {answer.status_code}"
            if isinstance(document, dict) and isinstance(document.get("detail"), str):
                problem += f": {document['detail'][:200]}"
        return {"problem": problem}

    async def send_check(self, name: str, check: bytes) -> dict[str, Any] | None:
        """What the first node of a region that answers says to a check, with its headers; None: none answers.

        Never twice: a check whose answer was missed may have been charged.
        """
        region = self._regions[name]
        for url in region.nodes[:NODES_ASKED]:
            headers = {**_bearer(region.node_token), "Content-Type": "application/json"}
            began = time.perf_counter()
            async with self._limit:
                try:
                    answer = await self._client.post(f"{url}/v1/check?detail=1", content=check, headers=headers)
                except httpx.ConnectError:
                    continue
                except (httpx.HTTPError, OSError):
                    return None
            took_ms = round((time.perf_counter() - began) * 1000, 1)
            try:
                document = answer.json()
            except ValueError:
                document = None
            shown = [[key, value] for key, value in answer.headers.items()]
            return {
                "node": url,
                "status": answer.status_code,
                "took_ms": took_ms,
                "headers": shown,
                "body": document,
            }
        return None

    async def close(self) -> None:
        await self._client.aclose()

    async def _region(self, region: HubRegion) -> RegionProbe:
        ready = await asyncio.gather(*(self._ready(url) for url in region.nodes))
        view = await self._json(f"{region.sync}/v1/region", region.token) if region.sync else {}
        nodes = tuple(NodeProbe(url, answer) for url, answer in zip(region.nodes, ready, strict=True))
        return RegionProbe(nodes, _part(view, "agent"), _part(view, "leader"), wall_ms())

    async def _ready(self, url: str) -> bool | None:
        answer = await self._get(f"{url}/readyz")
        return None if answer is None else answer.status_code == 200

    async def _json(self, url: str, token: SecretStr | None) -> Mapping[str, Any]:
        answer = await self._get(url, _bearer(token))
        if answer is None or answer.status_code != 200 or len(answer.content) > ANSWER_BYTES_MOST:
            return {}
        try:
            document = answer.json()
        except ValueError:
            return {}
        return document if isinstance(document, dict) else {}

    async def _get(self, url: str, headers: Mapping[str, str] = MappingProxyType({})) -> httpx.Response | None:
        """None when it was missed as often as we try."""
        async with self._limit:
            for _ in range(TRIES):
                try:
                    return await self._client.get(url, headers=dict(headers))
                except (httpx.HTTPError, OSError):
                    continue
        return None


def _bearer(token: SecretStr | None) -> Mapping[str, str]:
    return {"Authorization": f"Bearer {token.get_secret_value()}"} if token else {}


def _part(view: Mapping[str, Any], name: str) -> Mapping[str, Any] | None:
    part = view.get(name)
    return part if isinstance(part, dict) else None
