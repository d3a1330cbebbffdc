"""What is known of clients, over HTTP: a tier and other attributes that their checks need not name."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.responses import JSONResponse

from global_sync.changes import DELETE_SUBJECTS, PUT_SUBJECTS
from regional_limiter.model.errors import Fault, InvalidRules
from regional_limiter.rules.grammar import SUBJECTS_MOST
from services.control_api import examples
from services.control_api.access import Role
from services.control_api.changing import (
    APPLIED_WAIT_S,
    Domain,
    DryRun,
    Limit,
    changed,
    etag,
    require_change,
    unread_rules,
)
from services.control_api.documented import (
    CHANGING,
    READING,
    Anything,
    Named,
    answer,
    answers,
    body,
    changed_or_tried,
)
from services.control_api.guard import require
from services.control_api.knowledge import Hub
from services.control_api.requests import read_list, read_mapping
from services.errors import problem_response

ClientKey = Annotated[str, Path(min_length=1, max_length=1024)]

_SUBJECT = {"client_key": "acme", "domain": "default", "set": Named(tier="gold")}
_PAGE = {
    "domain": "default",
    "version": 17,
    "subjects": [{"where": Named(client_key="acme"), "set": Named(tier="gold")}],
    "next": None,
}
_CHANGED = changed_or_tried("What is known now; with dry_run, what the change would do", _SUBJECT, examples.DRY_RUN)
_IMPORT = {
    "requestBody": {
        "required": True,
        "content": {
            kind: {
                "schema": {"type": "array", "items": {"type": "object"}},
                "example": [{"client_key": "acme", "set": {"tier": "gold"}}],
            }
            for kind in ("application/json", "application/yaml")
        },
    }
}


def subjects_router(hub: Hub) -> APIRouter:
    router = APIRouter(tags=["subjects"])
    _add_reading(router, hub)
    _add_changes(router, hub)
    return router


def _add_reading(router: APIRouter, hub: Hub) -> None:
    @router.get(
        "/subjects",
        summary="What is known of clients, a page at a time",
        responses=answers({200: answer("`next`: what `skip` gives the next page", _PAGE)}, *READING),
    )
    async def list_subjects(
        request: Request,
        domain: Domain = "default",
        skip: Annotated[int, Query(ge=0, le=SUBJECTS_MOST)] = 0,
        limit: Limit = 100,
    ) -> Response:
        require(request, Role.READER, domain)
        known = hub.book.get(domain)
        if known is None:
            empty: dict[str, Any] = {"domain": domain, "version": 0, "subjects": [], "next": None}
            return await unread_rules(hub, domain) or JSONResponse(empty)
        subjects = known.rule_set.subjects[skip : skip + limit]
        more = skip + limit < len(known.rule_set.subjects)
        page = {
            "domain": domain,
            "version": known.version,
            "subjects": [{"where": dict(one.where), "set": dict(one.attributes)} for one in subjects],
            "next": skip + limit if more else None,
        }
        return JSONResponse(page, headers=etag(known.version))

    @router.get(
        "/subjects/{client_key:path}",
        summary="What is known of a client",
        responses=answers({200: answer("The attributes that its checks need not name", _SUBJECT)}, 404, *READING),
    )
    async def get_subject(request: Request, client_key: ClientKey, domain: Domain = "default") -> Response:
        require(request, Role.READER, domain)
        found = _find(hub, domain, client_key)
        if found is None:
            return await unread_rules(hub, domain) or _none(client_key, domain)
        return JSONResponse({"client_key": client_key, "domain": domain, "set": found})


def _add_changes(router: APIRouter, hub: Hub) -> None:
    @router.put(
        "/subjects/{client_key:path}",
        summary="Say what is known of a client, in place of what was",
        openapi_extra=body(Anything(tier="gold", country="DE")),
        responses=answers({200: _CHANGED, 201: answer("Nothing was known of it", _SUBJECT)}, *CHANGING),
    )
    async def put_subject(
        request: Request, client_key: ClientKey, domain: Domain = "default", dry_run: DryRun = False
    ) -> Response:
        require_change(request, domain, dry_run=dry_run)
        attributes = await read_mapping(request)
        known = _find(hub, domain, client_key)
        subjects = [{"client_key": client_key, "set": attributes}]
        done = await changed(hub, request, domain, PUT_SUBJECTS, {"subjects": subjects}, dry_run=dry_run)
        if isinstance(done, Response):
            return done
        await hub.book.reached(domain, done.outcome.version, APPLIED_WAIT_S)
        headers = {"Location": f"/subjects/{quote(client_key, safe='')}?domain={domain}"} if known is None else {}
        said = {"client_key": client_key, "domain": domain, "set": attributes}
        return JSONResponse(said, 201 if known is None else 200, headers=headers)

    @router.delete(
        "/subjects/{client_key:path}",
        summary="Know nothing of a client any more",
        responses=answers({200: {**_CHANGED, "description": "Gone; with dry_run, what that would do"}}, *CHANGING),
    )
    async def delete_subject(
        request: Request, client_key: ClientKey, domain: Domain = "default", dry_run: DryRun = False
    ) -> Response:
        require_change(request, domain, dry_run=dry_run)
        subjects = [{"client_key": client_key}]
        done = await changed(hub, request, domain, DELETE_SUBJECTS, {"subjects": subjects}, dry_run=dry_run)
        if isinstance(done, Response):
            return done
        await hub.book.reached(domain, done.outcome.version, APPLIED_WAIT_S)
        version = done.outcome.version
        return JSONResponse({"client_key": client_key, "domain": domain, "deleted": True, "version": version})

    @router.post(
        "/subjects:import",
        summary="Say what is known of many clients, in one change",
        description="A list of `{client_key, set}`, or of other attributes that a subject is found by. "
        f"Those that are not named stay. A domain knows at most {SUBJECTS_MOST:,}.",
        openapi_extra=_IMPORT,
        responses=answers({200: _CHANGED}, *CHANGING),
    )
    async def import_subjects(request: Request, domain: Domain = "default", dry_run: DryRun = False) -> Response:
        require_change(request, domain, dry_run=dry_run)
        subjects = await read_list(request)
        wrong = [place for place, one in enumerate(subjects) if not isinstance(one, dict)]
        if wrong:
            raise InvalidRules([Fault(f"[{place}]", "must be a mapping") for place in wrong])
        if not subjects:
            return problem_response(422, "the list is empty: there is nothing to import")
        done = await changed(hub, request, domain, PUT_SUBJECTS, {"subjects": subjects}, dry_run=dry_run)
        if isinstance(done, Response):
            return done
        await hub.book.reached(domain, done.outcome.version, APPLIED_WAIT_S)
        return JSONResponse({"domain": domain, "imported": len(subjects), "version": done.outcome.version})


def _find(hub: Hub, domain: str, client_key: str) -> dict[str, str] | None:
    known = hub.book.get(domain)
    if known is None:
        return None
    where = {"client_key": client_key}
    return next((dict(one.attributes) for one in known.rule_set.subjects if one.where == where), None)


def _none(client_key: str, domain: str) -> Response:
    return problem_response(404, f"nothing is known of {client_key} in domain {domain}")
