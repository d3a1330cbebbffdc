"""What is known of clients, over HTTP: a tier and other attributes that their checks need not name."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

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
from services.control_api.known_clients import client_of, is_stored, known_of, named_by, stored_of
from services.control_api.requests import precondition, read_list, read_mapping
from services.control_api.subject_changes import (
    CLIENTS_A_CHANGE,
    imported,
    lines_of,
    listed,
    no_longer_named,
    stored,
    unread_subjects,
)
from services.control_api.subject_lines import MEDIA, Format
from services.errors import problem_response

ClientKey = Annotated[str, Path(min_length=1, max_length=1024)]

_SUBJECT = {"client_key": "acme", "domain": "default", "set": Named(tier="gold"), "stands_in": ["set"]}
_PAGE = {
    "domain": "default",
    "version": 17,
    "subjects": [{"where": Named(client_key="acme"), "set": Named(tier="gold"), "also_stored": False}],
    "next": None,
}
_STORED_PAGE = {
    "domain": "default",
    "clients": 1_000_000,
    "looked_up": True,
    "subjects": [{"client_key": "acme", "version": 17, "set": Named(tier="gold")}],
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
        }
        | {
            "application/x-ndjson": {
                "schema": {"type": "string"},
                "example": '{"client_key": "acme", "set": {"tier": "gold"}}\n',
            },
            "text/csv": {"schema": {"type": "string"}, "example": "client_key,tier\nacme,gold\n"},
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
        description="Those that the set names. `also_stored`: more is stored of the client, and wins.",
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
        if is_stored(hub, domain) and (unread := await unread_subjects(hub)) is not None:
            return unread
        subjects = known.rule_set.subjects[skip : skip + limit]
        more = skip + limit < len(known.rule_set.subjects)
        clients = [client for one in subjects if (client := client_of(one)) is not None]
        stored_too = await stored_of(hub, domain, clients)
        page = {
            "domain": domain,
            "version": known.version,
            "subjects": [
                {
                    "where": dict(one.where),
                    "set": dict(one.attributes),
                    "also_stored": client_of(one) in stored_too,
                }
                for one in subjects
            ],
            "next": skip + limit if more else None,
        }
        return JSONResponse(page, headers=etag(known.version))

    @router.get(
        "/subjects/{client_key:path}",
        summary="What is known of a client",
        description="What counts of it. `stands_in`: `stored`, `set`, or both: then each attribute that is stored "
        "wins over the set's.",
        responses=answers({200: answer("The attributes that its checks need not name", _SUBJECT)}, 404, *READING),
    )
    async def get_subject(request: Request, client_key: ClientKey, domain: Domain = "default") -> Response:
        require(request, Role.READER, domain)
        if (unread := await unread_rules(hub, domain)) is not None:
            return unread
        if is_stored(hub, domain) and (unread := await unread_subjects(hub)) is not None:
            return unread
        known = (await known_of(hub, domain, [client_key])).get(client_key)
        if known is None:
            return _none(client_key, domain)
        version = {"version": known.version} if known.version is not None else {}
        said = {"set": known.attributes, "stands_in": known.stands_in, **version}
        return JSONResponse({"client_key": client_key, "domain": domain, **said})

    @router.get(
        "/subjects:stored",
        summary="What is stored of clients, by client key, a page at a time",
        description="`looked_up`: whether the domain's set says `stored_subjects`, so that they count. `clients`: "
        "how many there are; `next`: what `after` gives the next page. `version`: of the change that said so; "
        "`GET /history/{version - 1}` tells who made it.",
        responses=answers(
            {200: answer("Beside these, `/subjects` lists those of the set", _STORED_PAGE)}, *READING
        ),
    )
    async def list_stored(
        request: Request,
        domain: Domain = "default",
        after: Annotated[str, Query(max_length=1024, description="Begin after this client.")] = "",
        limit: Limit = 100,
    ) -> Response:
        require(request, Role.READER, domain)
        if (unread := await unread_rules(hub, domain) or await unread_subjects(hub)) is not None:
            return unread
        index = hub.subjects.index
        page = await asyncio.to_thread(index.page, domain, after, limit + 1)
        following = page[limit - 1]["client_key"] if len(page) > limit else None
        clients = await asyncio.to_thread(index.count, domain)
        counted = {"clients": clients, "looked_up": is_stored(hub, domain)}
        return JSONResponse({"domain": domain, **counted, "subjects": page[:limit], "next": following})


def _add_changes(router: APIRouter, hub: Hub) -> None:
    @router.put(
        "/subjects/{client_key:path}",
        summary="Say what is known of a client, in place of what was",
        description="Where the set says `stored_subjects` it is stored, and the set no longer names the client.",
        openapi_extra=body(Anything(tier="gold", country="DE")),
        responses=answers({200: _CHANGED, 201: answer("Nothing was known of it", _SUBJECT)}, *CHANGING),
    )
    async def put_subject(
        request: Request, client_key: ClientKey, domain: Domain = "default", dry_run: DryRun = False
    ) -> Response:
        require_change(request, domain, dry_run=dry_run)
        attributes = await read_mapping(request)
        if await _stores(hub, domain):
            return await _store(hub, request, domain, client_key, attributes, dry_run=dry_run)
        known = named_by(hub.book.get(domain), [client_key]).get(client_key)
        subjects = [{"client_key": client_key, "set": attributes}]
        done = await changed(hub, request, domain, PUT_SUBJECTS, {"subjects": subjects}, dry_run=dry_run)
        if isinstance(done, Response):
            return done
        await hub.book.reached(domain, done.outcome.version, APPLIED_WAIT_S)
        headers = {"Location": f"/subjects/{quote(client_key, safe='')}?domain={domain}"} if known is None else {}
        said = {"client_key": client_key, "domain": domain, "set": attributes, "stands_in": ["set"]}
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
        if await _stores(hub, domain):
            return await _store(hub, request, domain, client_key, None, dry_run=dry_run)
        subjects = [{"client_key": client_key}]
        done = await changed(hub, request, domain, DELETE_SUBJECTS, {"subjects": subjects}, dry_run=dry_run)
        if isinstance(done, Response):
            return done
        await hub.book.reached(domain, done.outcome.version, APPLIED_WAIT_S)
        version = done.outcome.version
        return JSONResponse({"client_key": client_key, "domain": domain, "deleted": True, "version": version})

    @router.post(
        "/subjects:import",
        summary="Say what is known of many clients",
        description="A list of `{client_key, set}`, or of other attributes that a subject is found by; or a body "
        "of any length as `application/x-ndjson` or `text/csv` (first line: `client_key` and names of attributes). "
        f"Clients that are not named stay. A set has at most {SUBJECTS_MOST:,} and takes all in one change; where "
        "it says `stored_subjects` there is no such bound, and what comes is stored in changes of "
        f"{CLIENTS_A_CHANGE:,} clients, each whole or not at all.",
        openapi_extra=_IMPORT,
        responses=answers({200: _CHANGED}, *CHANGING),
    )
    async def import_subjects(request: Request, domain: Domain = "default", dry_run: DryRun = False) -> Response:
        require_change(request, domain, dry_run=dry_run)
        if (unread := await unread_rules(hub, domain)) is not None:
            return unread
        stores = is_stored(hub, domain)
        format = MEDIA.get(request.headers.get("content-type", "").partition(";")[0].strip().lower())
        if stores and format is not None:
            _without_precondition(request)
            return await imported(hub, request, domain, format, dry_run=dry_run)
        subjects = await (read_list(request) if format is None else _read_lines(request, format))
        wrong = [place for place, one in enumerate(subjects) if not isinstance(one, dict)]
        if wrong:
            raise InvalidRules([Fault(f"[{place}]", "must be a mapping") for place in wrong])
        if not subjects:
            return problem_response(422, "the list is empty: there is nothing to import")
        if stores:
            _without_precondition(request)
            said = listed(subjects)
            outcome = await stored(hub, request, domain, said, dry_run=dry_run)
            if isinstance(outcome, Response):
                return outcome
            if (refused := await no_longer_named(hub, request, domain, said)) is not None:
                return refused
            done_here = {"imported": len(subjects), "changes": 1, "version": outcome.version}
            return JSONResponse({"domain": domain, **done_here})
        done = await changed(hub, request, domain, PUT_SUBJECTS, {"subjects": subjects}, dry_run=dry_run)
        if isinstance(done, Response):
            return done
        await hub.book.reached(domain, done.outcome.version, APPLIED_WAIT_S)
        return JSONResponse({"domain": domain, "imported": len(subjects), "version": done.outcome.version})


async def _read_lines(request: Request, format: Format) -> list[Any]:
    """At most as many as a set may have.  Raises InvalidRules, HTTPException."""
    subjects: list[Any] = []
    try:
        async for lines in lines_of(request, format):
            for line in lines:
                if line.fault is not None:
                    raise InvalidRules([line.fault])
                subjects.append(line.subject)
                if len(subjects) > SUBJECTS_MOST:
                    problem = (
                        f"at most {SUBJECTS_MOST:,} fit into a set; with stored_subjects: true in it, any number"
                    )
                    raise InvalidRules([Fault("body", problem)])
    except ValueError as error:
        raise InvalidRules([Fault("body", str(error))]) from error
    return subjects


# ---- stored beside the set


async def _stores(hub: Hub, domain: str) -> bool:
    await hub.rules_known()
    return is_stored(hub, domain)


def _without_precondition(request: Request) -> None:
    wanted = precondition(request)
    if wanted.exists or wanted.version is not None:
        raise HTTPException(
            400, "If-Match: what is stored of clients has no versions to hold on to; the later counts"
        )


async def _store(
    hub: Hub, request: Request, domain: str, client_key: str, attributes: dict[str, Any] | None, *, dry_run: bool
) -> Response:
    """Where the value counts: in what is stored, and nowhere in the set, whose other attributes would count on."""
    _without_precondition(request)
    if (unread := await unread_rules(hub, domain) or await unread_subjects(hub)) is not None:
        return unread
    before = (await known_of(hub, domain, [client_key])).get(client_key)
    if attributes is None and before is None:
        return _none(client_key, domain)
    told: dict[str, Any] = {"client_key": client_key, "domain": domain}
    if attributes is None and not dry_run:
        # First out of the set: what it says would count for a moment.
        refused = await no_longer_named(hub, request, domain, [client_key])
        if refused is not None:
            return refused
    if dry_run or attributes is not None or (before is not None and before.version is not None):
        outcome = await stored(hub, request, domain, {client_key: attributes}, dry_run=dry_run)
        if isinstance(outcome, Response):
            return outcome
        told["version"] = outcome.version
    if attributes is None:
        return JSONResponse({**told, "deleted": True})
    if (refused := await no_longer_named(hub, request, domain, [client_key])) is not None:
        return refused
    headers = {"Location": f"/subjects/{quote(client_key, safe='')}?domain={domain}"} if before is None else {}
    said = {**told, "set": attributes, "stands_in": ["stored"]}
    return JSONResponse(said, 201 if before is None else 200, headers=headers)


def _none(client_key: str, domain: str) -> Response:
    return problem_response(404, f"nothing is known of {client_key} in domain {domain}")
