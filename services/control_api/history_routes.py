"""The history over HTTP: who changed what, when, from where, from which version and why."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import JSONResponse

from global_sync.changes import ACCESS_KINDS, History, rule_of
from services.control_api import examples
from services.control_api.access import Role
from services.control_api.changing import NAME, Limit, unread_history
from services.control_api.documented import READING, Anything, answer, answers
from services.control_api.guard import readable, require
from services.control_api.history import Search, clients_of, key_of
from services.control_api.knowledge import Hub
from services.errors import problem_response

Text = Annotated[str | None, Query(max_length=200)]
Moment = Annotated[int | None, Query(ge=0, le=2**53, description="Milliseconds since 1970.")]

_PAGE = {"changes": [examples.CHANGE], "next": None}
_TEXT = "In author, reason, origin, rule, key of an override, or clients of a change of up to 20."
_SHOWN = (
    *("offset", "id", "domain", "kind", "accepted", "conflict", "version", "restores"),
    *("author", "origin", "reason", "at_ms", "made_from", "epoch"),
)
_CHANGED = ("rule", "document", "override", "subjects")


def history_router(hub: Hub) -> APIRouter:
    router = APIRouter(tags=["history"])

    @router.get(
        "/history",
        summary="Accepted and refused changes, the newest first",
        description="Refused are those that the leader refused: what has faults, or is made from an old version, "
        "is mostly answered so at once, and is never a change. `rule_id` and `key`: also of overrides; `clients`: "
        "of whom it says what is known, null if more than 20.",
        responses=answers({200: answer("`next`: what `before` gives the next page", _PAGE)}, *READING),
    )
    async def history(
        request: Request,
        domain: Annotated[str | None, Query(pattern=NAME)] = None,
        author: Text = None,
        kind: Text = None,
        rule: Annotated[str | None, Query(pattern=NAME)] = None,
        accepted: bool | None = None,
        since_ms: Moment = None,
        until_ms: Moment = None,
        text: Annotated[str | None, Query(max_length=200, description=_TEXT)] = None,
        before: Annotated[int | None, Query(ge=0, le=2**62, description="Only older than this offset.")] = None,
        limit: Limit = 100,
    ) -> Response:
        if domain is not None:
            require(request, Role.READER, domain)
        if (unread := await unread_history(hub)) is not None:
            return unread
        search = Search(readable(request), domain, author, kind, rule, accepted, since_ms, until_ms, text, before)
        found = await asyncio.to_thread(hub.history.search, search, limit + 1)
        following = found[limit - 1].offset if len(found) > limit else None
        return JSONResponse({"changes": [change_shown(one) for one in found[:limit]], "next": following})

    @router.get(
        "/history/{offset}",
        summary="One change, with what it said",
        responses=answers(
            {200: answer("`change`: the rule, document or override", {**examples.CHANGE, "change": Anything()})},
            404,
            *READING,
        ),
    )
    async def one_change(request: Request, offset: int) -> Response:
        if (unread := await unread_history(hub)) is not None:
            return unread
        found = await asyncio.to_thread(hub.history.get, offset) if 0 <= offset < 2**62 else None
        if found is None:
            return problem_response(404, f"no change has the offset {offset}")
        require(request, Role.READER, None if found.kind in ACCESS_KINDS else found.domain)
        said = {name: getattr(found, name) for name in _CHANGED if getattr(found, name) is not None}
        return JSONResponse({**change_shown(found), "change": said})

    return router


def change_shown(entry: History) -> dict[str, Any]:
    shown = {name: getattr(entry, name) for name in _SHOWN}
    shown |= {"rule_id": rule_of(entry), "key": key_of(entry), "clients": clients_of(entry)}
    if entry.kind in ACCESS_KINDS and entry.token is not None:  # whose, but never its hash
        shown["token"] = {name: entry.token[name] for name in ("id", "name", "role") if name in entry.token}
    errors = [{"field": one.get("place", ""), "problem": one.get("problem", "")} for one in entry.faults]
    return {**shown, "errors": errors}
