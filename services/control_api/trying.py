"""``POST /v1/try``: checks by hand, for an operator who wants to see what a caller is answered.  [IO]

Real checks: what they are allowed is charged.  So it is not for readers, though it changes no rule.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import structlog
from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from regional_limiter.model.errors import Fault, InvalidRules
from services.control_api.access import Role
from services.control_api.changing import Domain
from services.control_api.documented import CHANGING, Anything, answer, answers, body
from services.control_api.guard import require, who
from services.control_api.knowledge import Hub
from services.control_api.requests import read_mapping
from services.errors import problem_response

log = structlog.get_logger(__name__)

TIMES_MOST = 20

_BODY = Anything(region="us-east", times=1, check={"client_key": "acme", "resource": "POST /orders", "cost": 1})
_ANSWERED = {
    "node": "http://127.0.0.1:7011",
    "status": 200,
    "took_ms": 2.5,
    "headers": [["ratelimit", '"orders-free";r=19;t=1']],
    "body": Anything(allowed=True),
}


class TryBody(msgspec.Struct, forbid_unknown_fields=True):
    """``check``: what a node is sent; it says itself what is wrong with it."""

    region: str
    check: dict[str, Any]
    times: Annotated[int, msgspec.Meta(ge=1, le=TIMES_MOST)] = 1


def trying_router(hub: Hub) -> APIRouter:
    router = APIRouter(prefix="/v1", tags=["operators"])

    @router.post(
        "/try",
        summary="Send checks to a node of a region, one after the other, and see what it answers",
        description="They are charged like any other. Needs the role operator in the domain of the check.",
        openapi_extra=body(_BODY),
        responses=answers({200: answer("Each answer with its headers", {"answers": [_ANSWERED]})}, *CHANGING),
    )
    async def try_it(request: Request, domain: Domain = "default") -> Response:
        require(request, Role.OPERATOR, domain)
        wanted = _read(await read_mapping(request))
        if wanted.check.setdefault("domain", domain) != domain:
            raise InvalidRules([Fault("check.domain", f"must be {domain}, as the address says, or not be given")])
        if wanted.region not in hub.settings.regions:
            known = ", ".join(sorted(hub.settings.regions))
            raise InvalidRules([Fault("region", f"there is no region {wanted.region!r}; known: {known}")])
        log.info("checks by hand", author=who(request).name, region=wanted.region, times=wanted.times)
        found = []
        for _ in range(wanted.times):
            one = await hub.probes.send_check(wanted.region, msgspec.json.encode(wanted.check))
            if one is None:
                return problem_response(503, f"no node of {wanted.region} answers", headers={"Retry-After": "2"})
            found.append(one)
        return JSONResponse({"answers": found}, headers={"Cache-Control": "no-store"})

    return router


def _read(document: dict[str, Any]) -> TryBody:
    try:
        return msgspec.convert(document, TryBody)
    except msgspec.ValidationError as error:
        text, _, place = str(error).partition(" - at `$")
        raise InvalidRules([Fault(place.strip("`.") or "body", text)]) from None
