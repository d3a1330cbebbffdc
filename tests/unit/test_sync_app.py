"""The sync service's four routes, without FastAPI."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from global_sync.agent import Agent, monotonic_us
from global_sync.leader import Leader
from global_sync.transport.memory import MemoryHub
from regional_limiter.model.share import ProtocolTimes
from regional_limiter.store.memory import MemoryStore
from services.sync_service.app import SyncApp


class Part:
    """An agent or a leader, as far as the routes look at them."""

    region = "us-east"
    active = True

    def __init__(self, **view: Any) -> None:
        self._view = view

    def view(self) -> dict[str, Any]:
        if not self._view:
            raise RuntimeError("nothing to see")
        return self._view


def client_of(agent: Part) -> httpx.AsyncClient:
    app = SyncApp(agent, Part(leading=True))  # type: ignore[arg-type]
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://sync")


async def test_probes_and_the_view_are_answered_and_an_unknown_path_is_told() -> None:
    async with client_of(Part(epoch=3)) as client:
        assert (await client.get("/livez")).json() == {"status": "ok"}
        assert (await client.get("/readyz")).json() == {"status": "ok", "active": True, "leading": True}
        assert (await client.get("/v1/region")).json() == {"agent": {"epoch": 3}, "leader": {"leading": True}}
        assert (await client.head("/livez")).content == b""
        unknown = await client.get("/nothing")
        assert unknown.status_code == 404
        assert unknown.headers["content-type"] == "application/problem+json"
        assert (await client.post("/livez")).status_code == 405


async def test_an_unforeseen_error_is_a_500_and_not_a_hung_connection() -> None:
    async with client_of(Part()) as client:
        assert (await client.get("/v1/region")).status_code == 500


@pytest.mark.parametrize("failing", ["startup", "shutdown"])
async def test_a_service_that_cannot_start_or_end_says_so_in_the_right_step(failing: str) -> None:
    @asynccontextmanager
    async def whole_life() -> AsyncIterator[None]:
        if failing == "startup":
            raise OSError("no disk")
        yield
        raise OSError("no disk")

    async def receive() -> dict[str, Any]:
        return {}

    async def send(message: Any) -> None:
        said.append(message["type"])

    said: list[str] = []
    app = SyncApp(Part(), Part(), whole_life())  # type: ignore[arg-type]
    await app({"type": "lifespan"}, receive, send)
    assert said[-1] == f"lifespan.{failing}.failed"


async def test_where_there_is_a_token_only_the_probes_do_without() -> None:
    times, transport = ProtocolTimes(), MemoryHub().transport("us-east")
    agent = Agent("us-east", MemoryStore(monotonic_us, times, ["p/memory"]), transport, times, None)
    app = SyncApp(agent, Leader(transport, times, 0), token="a token of 23 letters")
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://sync") as client:
        for path in ("/livez", "/readyz"):
            assert (await client.get(path)).status_code == 200
        for path in ("/metrics", "/v1/region"):
            assert (await client.get(path)).status_code == 401
            wrong = {"Authorization": "Bearer a token of 24 letters."}
            assert (await client.get(path, headers=wrong)).status_code == 401
            right = {"Authorization": "Bearer a token of 23 letters"}
            assert (await client.get(path, headers=right)).status_code == 200
