"""How the whole is doing, as one JSON document; and what has been used."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse

from global_sync.transport.base import LOG
from services.control_api.hub import Hub, wall_ms


def status_router(hub: Hub) -> APIRouter:
    router = APIRouter(prefix="/v1")

    @router.get("/status", summary="Regions, leader, shares, lag, and what is wrong in plain sentences")
    async def status() -> Response:
        probes = await hub.probes.look()
        now_ms = wall_ms()
        body = hub.picture.status(probes, hub.feed.silent_ms(LOG), hub.book.newest(), now_ms)
        return JSONResponse(body, headers={"Cache-Control": "no-store"})

    @router.get("/usage", summary="Running totals by rule and region, and of the busiest keys")
    async def usage() -> Response:
        body: dict[str, Any] = {"at_ms": wall_ms(), **hub.picture.usage()}
        return JSONResponse(body, headers={"Cache-Control": "no-store"})

    return router
