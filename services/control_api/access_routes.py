"""Bearer tokens over HTTP: made, listed, revoked by admins of every domain, and all of it in the history."""

from __future__ import annotations

import secrets
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.responses import JSONResponse

from global_sync.changes import PUT_TOKEN, REVOKE_TOKEN
from regional_limiter.model.errors import Fault, InvalidRules
from services.clock import wall_ms
from services.control_api import examples
from services.control_api.access import TOKENS_MOST, Role, hash_of
from services.control_api.changing import Limit, proposed, unread_history
from services.control_api.documented import CHANGING, READING, answer, answers, body
from services.control_api.guard import require, who
from services.control_api.knowledge import Hub
from services.control_api.requests import read_mapping
from services.errors import problem_response

EXPIRES_S_MOST = 10 * 366 * 86_400
DOMAINS_MOST = 100
_NAME = r"[A-Za-z0-9._@-]{1,64}"
_Domain = Annotated[str, msgspec.Meta(pattern=r"^(\*|[a-z0-9._-]{1,64})$")]

_MADE = {**examples.SHOWN_TOKEN, "token": "apt_bm90LWEtdG9rZW4tYnV0LWFuLWV4YW1wbGUtb2Ytb25l"}
_PAGE = {"tokens": [examples.SHOWN_TOKEN], "next": None}
_ME = {"name": "ann", "role": "operator", "domains": ["default"], "named": True}
_REVOKED = {"id": "9f86d081884c7d65", "revoked": True}


class TokenBody(msgspec.Struct, forbid_unknown_fields=True):
    """What a new token shall be; ``expires_in_s`` not given: it does not expire."""

    name: Annotated[str, msgspec.Meta(pattern=f"^{_NAME}$")]
    role: Role
    domains: Annotated[list[_Domain], msgspec.Meta(min_length=1, max_length=DOMAINS_MOST)] = msgspec.field(
        default_factory=lambda: ["*"]
    )
    expires_in_s: Annotated[int, msgspec.Meta(ge=1, le=EXPIRES_S_MOST)] | None = None


def access_router(hub: Hub) -> APIRouter:
    router = APIRouter(tags=["access"])

    @router.get(
        "/v1/me",
        summary="Who asks, and what they may",
        responses=answers({200: answer("`named` false: nobody asked who it is", _ME)}, *READING),
    )
    async def me(request: Request) -> Response:
        principal = who(request)
        said = {
            "name": principal.name,
            "role": principal.role.value,
            "domains": sorted(principal.domains),
            "named": principal.is_named,
        }
        return JSONResponse(said, headers={"Cache-Control": "no-store"})

    @router.post(
        "/tokens",
        summary="Make a token; it is shown in this answer and never again",
        openapi_extra=body(examples.NEW_TOKEN),
        responses=answers({201: answer("`token`: what to send as a bearer token", _MADE)}, *CHANGING),
        status_code=201,
    )
    async def make_token(request: Request) -> Response:
        require(request, Role.ADMIN)
        wanted = _read(await read_mapping(request))
        if (unread := await unread_history(hub)) is not None:
            return unread
        if len(hub.tokens) >= TOKENS_MOST:
            return problem_response(409, f"there are {TOKENS_MOST:,} tokens: revoke some that are not used")
        # 256 random bits: a plain hash keeps such a token secret.
        token_id, text = secrets.token_hex(8), "apt_" + secrets.token_urlsafe(32)
        expires = None if wanted.expires_in_s is None else wall_ms() + 1000 * wanted.expires_in_s
        token = {
            "id": token_id,
            "name": wanted.name,
            "hash": hash_of(text),
            "role": wanted.role.value,
            "domains": sorted(set(wanted.domains)),
            "expires_at_ms": expires,
        }
        outcome = await proposed(hub, request, "", PUT_TOKEN, {"token": token})
        if isinstance(outcome, Response):
            return outcome
        known = hub.tokens.get(token_id)
        if known is None:  # revoked by somebody who was quicker than this answer
            return problem_response(409, "the token was revoked at once")
        headers = {"Location": f"/tokens/{token_id}", "Cache-Control": "no-store"}
        return JSONResponse({**known.shown(wall_ms()), "token": text}, 201, headers=headers)

    @router.get(
        "/tokens",
        summary="The tokens that have not been revoked, the newest first",
        responses=answers({200: answer("Never the tokens themselves", _PAGE)}, *READING),
    )
    async def list_tokens(
        request: Request,
        after: Annotated[str | None, Query(max_length=64, description="Begin after this token's id.")] = None,
        limit: Limit = 100,
    ) -> Response:
        require(request, Role.ADMIN)
        if (unread := await unread_history(hub)) is not None:
            return unread
        tokens = list(hub.tokens.all())
        ids = [token.id for token in tokens]
        if after is not None and after not in ids:
            return problem_response(422, f"after: there is no token {after} any more: begin again without it")
        begin = ids.index(after) + 1 if after is not None else 0
        page = tokens[begin : begin + limit]
        following = page[-1].id if begin + limit < len(tokens) else None
        return JSONResponse({"tokens": [token.shown(wall_ms()) for token in page], "next": following})

    @router.delete(
        "/tokens/{token_id}",
        summary="Revoke a token: it is refused as soon as this is answered",
        responses=answers({200: answer("Revoked", _REVOKED)}, *CHANGING),
    )
    async def revoke_token(request: Request, token_id: Annotated[str, Path(pattern="^[0-9a-f]{16}$")]) -> Response:
        require(request, Role.ADMIN)
        if (unread := await unread_history(hub)) is not None:
            return unread
        known = hub.tokens.get(token_id)
        if known is None:
            return problem_response(404, f"no token {token_id}")
        token: dict[str, Any] = {"id": token_id, "name": known.name, "role": known.role.value}
        outcome = await proposed(hub, request, "", REVOKE_TOKEN, {"token": token})
        return outcome if isinstance(outcome, Response) else JSONResponse({"id": token_id, "revoked": True})

    return router


def _read(mapping: dict[str, Any]) -> TokenBody:
    try:
        return msgspec.convert(mapping, TokenBody)
    except msgspec.ValidationError as error:
        problem, _, place = str(error).partition(" - at `$")
        raise InvalidRules([Fault(place.strip("`").lstrip(".") or "body", problem)]) from None
