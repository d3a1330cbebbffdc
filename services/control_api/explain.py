"""``GET /v1/explain``: why a client is limited, as every region sees it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import JSONResponse

from regional_limiter.model.decision import COST_MOST, VALUE_BYTES_MOST
from regional_limiter.model.rule import Distribution, Scope
from services.check_api.bodies import Refused
from services.check_api.explaining import EXPLAIN_PATH, parse_explain
from services.clock import wall_ms
from services.control_api.access import Role
from services.control_api.changing import NAME
from services.control_api.documented import READING, Anything, Named, answer, answers
from services.control_api.guard import require
from services.control_api.knowledge import Hub
from services.errors import problem_response

_EXAMPLE = {
    "domain": "default",
    "now_ms": 1_767_225_600_000,
    "regions": Named({"us-east": Anything()}),
    "keys": Named({"rl:{tag}:default/orders:42": Anything()}),
}

Identity = Annotated[str, Query(max_length=VALUE_BYTES_MOST)]


def explain_router(hub: Hub) -> APIRouter:
    router = APIRouter(tags=["operators"])

    @router.get(
        EXPLAIN_PATH,
        summary="Which rules a check meets and why, and how its buckets and shares stand in every region",
        description="Attributes are given as `attributes.NAME=text`. `regions`: what one node of each answered, or "
        "`problem`; `keys`: the shares of global buckets, and what the log granted of them lately.",
        responses=answers({200: answer("Nothing was charged to find out", _EXAMPLE)}, *READING),
    )
    async def explain(
        request: Request,
        client_key: Identity,
        resource: Identity,
        domain: Annotated[str, Query(pattern=NAME)] = "default",
        cost: Annotated[int, Query(ge=0, le=COST_MOST)] = 1,
    ) -> Response:
        require(request, Role.READER, domain)
        query: bytes = request.scope["query_string"]
        try:
            parse_explain(query)
        except Refused as error:
            return problem_response(error.status, str(error), faults=error.faults)
        path = f"{EXPLAIN_PATH}?{query.decode()}"
        names = list(hub.settings.regions)
        told = await asyncio.gather(*(hub.probes.ask_node(name, path) for name in names))
        regions = dict(zip(names, told, strict=True))
        body = {"domain": domain, "now_ms": wall_ms(), "regions": regions, "keys": await _keys(hub, regions)}
        return JSONResponse(body, headers={"Cache-Control": "no-store"})

    return router


async def _keys(hub: Hub, regions: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The global buckets that any region named."""
    now_ms = wall_ms()
    health = hub.picture.health(await hub.probes.look(), now_ms)
    keys: dict[str, Any] = {}
    for told in regions.values():
        known = hub.book.get(str(told.get("domain")))
        for row in told.get("rules", ()):
            bucket = row.get("bucket") or {}
            key = bucket.get("key")
            rule = known.meant(row["rule"]) if known is not None else None
            if key is None or key in keys or known is None or rule is None:
                continue
            if rule.scope is not Scope.GLOBAL or rule.homes is not None:
                continue
            adaptive = rule.distribution is Distribution.ADAPTIVE
            keys[key] = {
                "rule": rule.id,
                "distribution": rule.distribution.value,
                "bases": dict(known.rule_set.bases),
                "shares": hub.picture.shares(
                    key,
                    known.rule_set.bases,
                    health,
                    adaptive=adaptive,
                    now_ms=now_ms,
                    in_windows=rule.refill is None,
                ),
                "wants": {region.name: hub.picture.want(region.name, key, now_ms) for region in health},
                "history": [asdict(entry) for entry in hub.picture.share_history(key)],
            }
    return keys
