"""Single rules over HTTP: read, tried, and changed by proposal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import JSONResponse

from global_sync.changes import DELETE_RULE, PUT_RULE, History
from services.control_api import examples
from services.control_api.access import Role
from services.control_api.changing import (
    APPLIED_WAIT_S,
    NAME,
    PAGE_MOST,
    Domain,
    DryRun,
    Limit,
    RuleId,
    changed,
    etag,
    require_change,
    unread_rules,
)
from services.control_api.documented import CHANGING, READING, answer, answers, body, changed_or_tried
from services.control_api.guard import require
from services.control_api.knowledge import Hub
from services.control_api.requests import read_mapping
from services.errors import problem_response

_PAGE = {"domain": "default", "version": 17, "rules": [examples.SHOWN_RULE], "next": None}
_CHANGED = changed_or_tried(
    "The rule as it is held; with dry_run, what the change would do", examples.SHOWN_RULE, examples.DRY_RUN
)
_DELETED = {"id": "orders-free", "domain": "default", "deleted": True, "version": 18}


def rules_router(hub: Hub) -> APIRouter:
    router = APIRouter(tags=["rules"])
    _add_reading(router, hub)
    _add_changes(router, hub)
    return router


def _add_reading(router: APIRouter, hub: Hub) -> None:
    @router.get(
        "/rules",
        summary="The accepted rules of a domain, a page at a time",
        responses=answers(
            {200: answer("In the order of the set; `next`: what `after` gives the next page", _PAGE)}, *READING
        ),
    )
    async def list_rules(
        request: Request,
        domain: Domain = "default",
        after: Annotated[str | None, Query(pattern=NAME, description="Begin after this rule.")] = None,
        limit: Limit = PAGE_MOST,
    ) -> Response:
        require(request, Role.READER, domain)
        known = hub.book.get(domain)
        if known is None:
            empty: dict[str, Any] = {"domain": domain, "version": 0, "rules": [], "next": None}
            return await unread_rules(hub, domain) or JSONResponse(empty)
        begin = 0
        if after is not None:
            place = known.place_of(after)
            if place is None:
                return problem_response(422, f"after: there is no rule {after} any more: begin again without it")
            begin = place + 1
        rules = known.rules(begin, limit)
        more = begin + limit < len(known.rule_set.rules)
        page = {"domain": domain, "version": known.version, "rules": rules}
        return JSONResponse({**page, "next": rules[-1]["id"] if more else None}, headers=etag(known.version))

    @router.get(
        "/rules/{rule_id}",
        summary="One accepted rule",
        responses=answers(
            {200: answer("What is held, what its author wrote, and its version", examples.SHOWN_RULE)},
            404,
            *READING,
        ),
    )
    async def get_rule(request: Request, rule_id: RuleId, domain: Domain = "default") -> Response:
        require(request, Role.READER, domain)
        known = hub.book.get(domain)
        rule = known.rule(rule_id) if known is not None else None
        if rule is None:
            return await unread_rules(hub, domain) or problem_response(404, f"no rule {rule_id} in domain {domain}")
        return JSONResponse(rule, headers=etag(rule["version"]))


def _add_changes(router: APIRouter, hub: Hub) -> None:
    @router.put(
        "/rules/{rule_id}",
        summary="Make or replace a rule",
        openapi_extra=body(examples.RULE),
        responses=answers({200: _CHANGED, 201: answer("It is new", examples.SHOWN_RULE)}, *CHANGING),
    )
    async def put_rule(
        rule_id: RuleId, request: Request, domain: Domain = "default", dry_run: DryRun = False
    ) -> Response:
        require_change(request, domain, dry_run=dry_run)
        source = await read_mapping(request)
        done = await changed(hub, request, domain, PUT_RULE, {"rule_id": rule_id, "rule": source}, dry_run=dry_run)
        if isinstance(done, Response):
            return done
        is_new = done.known is None or done.known.place_of(rule_id) is None
        return await _rule_answer(hub, done.outcome, source, created=is_new)

    @router.delete(
        "/rules/{rule_id}",
        summary="Remove a rule, and its overrides",
        responses=answers(
            {200: {**_CHANGED, "description": "Removed; with dry_run, what that would do"}}, *CHANGING
        ),
    )
    async def delete_rule(
        rule_id: RuleId, request: Request, domain: Domain = "default", dry_run: DryRun = False
    ) -> Response:
        require_change(request, domain, dry_run=dry_run)
        done = await changed(hub, request, domain, DELETE_RULE, {"rule_id": rule_id}, dry_run=dry_run)
        if isinstance(done, Response):
            return done
        version = done.outcome.version
        await hub.book.reached(domain, version, APPLIED_WAIT_S)
        return JSONResponse({**_DELETED, "id": rule_id, "domain": domain, "version": version})


async def _rule_answer(hub: Hub, outcome: History, source: Mapping[str, Any], *, created: bool) -> Response:
    rule_id, domain = outcome.rule_id or "", outcome.domain
    loaded = await hub.book.reached(domain, outcome.version, APPLIED_WAIT_S)
    rule = loaded.rule(rule_id) if loaded is not None else None
    if rule is None:  # accepted, but the state is still on its way, or already changed again
        seen = {"loaded": {}, "source": dict(source)}
        rule = {"id": rule_id, "domain": domain, "version": outcome.version, **seen}
    headers = etag(rule["version"])
    if created:
        headers["Location"] = f"/rules/{rule_id}?domain={domain}"
    return JSONResponse(rule, 201 if created else 200, headers=headers)
