"""How the whole is doing, as one JSON document; and what has been used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from global_sync.transport.base import LOG
from regional_limiter.model.keys import rule_of
from regional_limiter.model.rule import Distribution, Scope
from services.accepted_rules import Book
from services.clock import time_of_day, wall_ms
from services.control_api.guard import readable
from services.control_api.knowledge import Hub
from services.health import RegionHealth, RegionProbe
from services.picture import Picture

KEYS_MOST = 1_000


def status_router(hub: Hub) -> APIRouter:
    router = APIRouter(prefix="/v1")

    @router.get("/status", summary="Regions, leader, shares, lag, and what is wrong in plain sentences")
    async def status(request: Request) -> Response:
        probes = await hub.probes.look()
        body = status_document(hub.picture, hub.book, probes, hub.feed.silent_ms(LOG), wall_ms(), hub.mode)
        if (mine := readable(request)) is not None:
            body["keys"] = {key: one for key, one in body["keys"].items() if one["domain"] in mine}
        return JSONResponse(body, headers={"Cache-Control": "no-store"})

    return router


def status_document(
    picture: Picture,
    book: Book,
    probes: Mapping[str, RegionProbe],
    kafka_silent_ms: int | None,
    now_ms: int,
    mode: str = "kafka",
) -> dict[str, Any]:
    """``well``: no sentence says that something is wrong.  Shares are out of 10,000, null where not known."""
    regions = picture.health(probes, now_ms)
    said = picture.sentences(regions, kafka_silent_ms, book.newest(), now_ms, probes)
    return {
        "now_ms": now_ms,
        "mode": mode,
        "well": not said,
        "sentences": [one.shown(time_of_day) for one in said],
        "kafka_silent_ms": kafka_silent_ms,
        "leader": picture.leader_shown(probes, now_ms),
        "rules_version": book.newest(),
        "regions": {region.name: _region(region) for region in regions},
        "keys": _keys(picture, book, regions, now_ms),
    }


def _region(region: RegionHealth) -> dict[str, Any]:
    shown = asdict(region)
    del shown["name"]
    return {**shown, "points_ok": region.points_ok, "nodes_alive": region.nodes_alive}


def _keys(picture: Picture, book: Book, regions: list[RegionHealth], now_ms: int) -> dict[str, Any]:
    """Shares of the keys of global rules that anybody has spoken of lately."""
    shown: dict[str, Any] = {}
    for key in picture.keys_seen():
        try:
            domain, rule_id = rule_of(key)
        except ValueError:
            continue
        known = book.get(domain)
        rule = known.meant(rule_id) if known else None
        if known is None or rule is None or len(shown) >= KEYS_MOST:
            continue
        if rule.scope is Scope.GLOBAL and rule.homes is None:
            adaptive = rule.distribution is Distribution.ADAPTIVE
            bases, in_windows = known.rule_set.bases, rule.refill is None
            shares = picture.shares(key, bases, regions, adaptive=adaptive, now_ms=now_ms, in_windows=in_windows)
            wants = {region.name: picture.want(region.name, key, now_ms) for region in regions}
            total = sum(share or 0 for share in shares.values())
            shown[key] = {"domain": domain, "rule": rule_id, "shares": shares, "total": total, "wants": wants}
    return shown
