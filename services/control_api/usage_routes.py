"""What has been used, over HTTP: running totals, and minute by minute, as JSON or CSV."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import JSONResponse

from services.clock import wall_ms
from services.control_api.access import Role
from services.control_api.changing import NAME
from services.control_api.documented import READING, Anything, Named, answer, answers
from services.control_api.guard import readable, require
from services.control_api.knowledge import Hub
from services.control_api.usage_minutes import FIELDS, KEPT_MS, MINUTE_MS, Wanted, csv_lines

ROWS_MOST = 100_000
HOUR_MS = 3_600_000

_TOTALS = {"at_ms": 1_790_000_000_000, "rules": Named({"default/orders-free": Anything(total={}, regions={})})}
_ROW = {"domain": "default", **dict.fromkeys(FIELDS, 7)}
_MINUTES = {
    "since_ms": 1_790_000_000_000,
    "until_ms": 1_790_000_060_000,
    "by": "rule",
    "complete_since_ms": None,
    "rows": [_ROW],
    "next": None,
}
Moment = Annotated[int | None, Query(ge=0, le=2**53, description="Milliseconds since 1970.")]


def usage_router(hub: Hub) -> APIRouter:
    router = APIRouter(prefix="/v1", tags=["usage"])

    @router.get(
        "/usage",
        summary="Running totals by rule and region since this process began to read",
        responses=answers(
            {200: answer("By `domain/rule`; rows with # are shadow, soft, canary", _TOTALS)}, *READING
        ),
    )
    async def usage(request: Request) -> Response:
        mine = readable(request)
        shown = hub.totals.shown()
        if mine is not None:
            shown = {name: one for name, one in shown.items() if name.partition("/")[0] in mine}
        return JSONResponse({"at_ms": wall_ms(), "rules": shown}, headers={"Cache-Control": "no-store"})

    @router.get(
        "/usage/minutes",
        summary="Allowed, denied and cost in each minute, over all regions",
        description="By rule, by rule and region, by domain, or by key (the busiest keys of each node). "
        "`complete_since_ms`: from when on everything was counted, null while nothing was.",
        responses=answers(
            {
                200: {
                    "description": "By minute and name; as CSV with `format=csv`",
                    "content": {**answer("", _MINUTES)["content"], "text/csv": {"schema": {"type": "string"}}},
                }
            },
            *READING,
        ),
    )
    async def minutes(
        request: Request,
        domain: Annotated[str | None, Query(pattern=NAME)] = None,
        rule: Annotated[str | None, Query(pattern=NAME)] = None,
        since_ms: Moment = None,
        until_ms: Moment = None,
        by: Literal["rule", "region", "domain", "key"] = "rule",
        total: Annotated[bool, Query(description="One row for the whole time in place of one a minute.")] = False,
        format: Literal["json", "csv"] = "json",
        skip: Annotated[int, Query(ge=0, le=2**31)] = 0,
        limit: Annotated[int, Query(ge=1, le=ROWS_MOST)] = 1000,
    ) -> Response:
        if domain is not None:
            require(request, Role.READER, domain)
        until = until_ms if until_ms is not None else wall_ms()
        since = since_ms if since_ms is not None else max(0, until - HOUR_MS)
        since = max(since - since % MINUTE_MS, until - KEPT_MS - MINUTE_MS)
        domains = frozenset((domain,)) if domain is not None else readable(request)
        wanted = Wanted(since, until, by, domains, rule, minutes=not total)
        rows = await asyncio.to_thread(hub.minutes.rows, wanted, limit + 1, skip)
        headers = {"Cache-Control": "no-store"}
        if format == "csv":
            return Response("".join(csv_lines(rows[:limit])), media_type="text/csv", headers=headers)
        body: dict[str, Any] = {
            "since_ms": since,
            "until_ms": until,
            "by": by,
            "complete_since_ms": hub.minutes.since_ms,
            "rows": rows[:limit],
            "next": skip + limit if len(rows) > limit else None,
        }
        return JSONResponse(body, headers=headers)

    return router
