"""Whole sets over HTTP: every version of them, what is between two, and back to any.

Documents are parsed in a thread: ten thousand rules take seconds, and others want their answers meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.responses import JSONResponse

from global_sync.changes import DELETE_DOMAIN, PUT_SET
from regional_limiter.model.errors import Fault, InvalidRules
from regional_limiter.model.rule import RuleSet
from regional_limiter.rules import describe, parse_document
from regional_limiter.rules.effects import effects
from services.accepted_rules import LoadedSet
from services.control_api import examples
from services.control_api.access import Role
from services.control_api.changing import (
    APPLIED_WAIT_S,
    PAGE_MOST,
    DomainInPath,
    Done,
    DryRun,
    Limit,
    changed,
    etag,
    require_change,
    unread_history,
    unread_rules,
    version_of,
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
from services.control_api.guard import readable, require
from services.control_api.history_routes import change_shown
from services.control_api.knowledge import Hub
from services.control_api.requests import precondition, read_mapping
from services.errors import problem_response
from services.yaml_text import yaml_text

Version = Annotated[int, Path(ge=1, le=2**62)]
VersionInQuery = Annotated[int, Query(ge=1, le=2**62)]

_SET = {
    "domain": "default",
    "version": 17,
    "rule_versions": Named({"orders-free": 17}),
    "document": examples.RULE_SET,
    "rules": [examples.SHOWN_RULE],
}
_AT_VERSION = {"domain": "default", "version": 17, "document": examples.RULE_SET}
_SETS = {"rulesets": [{"domain": "default", "version": 17, "rules": 3}], "next": None}
_VERSIONS = {"domain": "default", "versions": [examples.CHANGE], "next": None}
_DIFF = {"domain": "default", "from": 12, "to": 17, "effect": examples.EFFECT}
_VALID = {"valid": True, "errors": [{"field": "rules[0].capacity", "problem": "must be from 0"}]}
_CHANGED = changed_or_tried("The set as it is held; with dry_run, what the change would do", _SET, examples.DRY_RUN)


def rulesets_router(hub: Hub) -> APIRouter:
    router = APIRouter(tags=["rule sets"])
    _add_reading(router, hub)
    _add_versions(router, hub)
    _add_changes(router, hub)
    return router


def _add_reading(router: APIRouter, hub: Hub) -> None:
    @router.get(
        "/rulesets",
        summary="The domains that have rules",
        responses=answers({200: answer("By name; `next`: what `after` gives the next page", _SETS)}, *READING),
    )
    async def list_sets(
        request: Request,
        after: Annotated[str | None, Query(max_length=64, description="Begin after this domain.")] = None,
        limit: Limit = PAGE_MOST,
    ) -> Response:
        mine = readable(request)
        sets = [
            {"domain": known.domain, "version": known.version, "rules": len(known.rule_set.rules)}
            for known in sorted(hub.book.sets().values(), key=lambda known: known.domain)
            if (mine is None or known.domain in mine) and known.domain > (after or "")
        ]
        page = {"rulesets": sets[:limit], "next": sets[limit - 1]["domain"] if len(sets) > limit else None}
        return (await unread_rules(hub) if not sets else None) or JSONResponse(page)

    @router.get(
        "/rulesets/{domain}",
        summary="A domain's document, as JSON or (by Accept) as YAML",
        responses=answers(
            {
                200: {
                    "description": "The document, its version, and what it means",
                    "content": {
                        **answer("", _SET)["content"],
                        "application/yaml": {"schema": {"type": "string"}},
                    },
                }
            },
            404,
            *READING,
        ),
    )
    async def get_set(domain: DomainInPath, request: Request) -> Response:
        require(request, Role.READER, domain)
        known = hub.book.get(domain)
        if known is None:
            return await unread_rules(hub, domain) or problem_response(404, f"domain {domain} has no rules")
        if "yaml" in request.headers.get("accept", ""):
            text = yaml_text(dict(known.document))
            return Response(text, media_type="application/yaml", headers=etag(known.version))
        return JSONResponse(_set_body(known), headers=etag(known.version))


def _add_versions(router: APIRouter, hub: Hub) -> None:
    @router.get(
        "/rulesets/{domain}/versions",
        summary="The versions that a domain has had, the newest first",
        responses=answers({200: answer("Each with who, when, from where and why", _VERSIONS)}, *READING),
    )
    async def versions(
        domain: DomainInPath,
        request: Request,
        before: Annotated[int | None, Query(ge=1, le=2**62, description="Only versions below.")] = None,
        limit: Limit = 100,
    ) -> Response:
        require(request, Role.READER, domain)
        if (unread := await unread_history(hub)) is not None:
            return unread
        found = await asyncio.to_thread(hub.history.versions, domain, before, limit + 1)
        shown = [change_shown(one) for one in found[:limit]]
        following = found[limit - 1].version if len(found) > limit else None
        return JSONResponse({"domain": domain, "versions": shown, "next": following})

    @router.get(
        "/rulesets/{domain}/versions/{version}",
        summary="A domain's document as it was with a version",
        responses=answers({200: answer("As it was written then", _AT_VERSION)}, 404, *READING),
    )
    async def at_version(domain: DomainInPath, version: Version, request: Request) -> Response:
        require(request, Role.READER, domain)
        document = await _document(hub, domain, version)
        if isinstance(document, Response):
            return document
        return JSONResponse({"domain": domain, "version": version, "document": dict(document)})

    @router.get(
        "/rulesets/{domain}/diff",
        summary="What it did, or would do, to go from one version to another",
        responses=answers({200: answer("Rules that appear, change and vanish", _DIFF)}, 404, *READING),
    )
    async def diff(
        domain: DomainInPath,
        request: Request,
        since: Annotated[int, Query(alias="from", ge=1, le=2**62)],
        to: Annotated[int | None, Query(ge=1, le=2**62, description="Default: the newest.")] = None,
    ) -> Response:
        require(request, Role.READER, domain)
        if to is None:
            if (unread := await unread_rules(hub, domain)) is not None:
                return unread
            to = version_of(hub.book.get(domain), None) or since
        sides = [await _document(hub, domain, version) for version in (since, to)]
        sets: list[RuleSet] = []
        for side in sides:
            if isinstance(side, Response):
                return side
            sets.append(await asyncio.to_thread(parse_document, dict(side)))
        effect = await asyncio.to_thread(effects, *sets)
        return JSONResponse({"domain": domain, "from": since, "to": to, "effect": effect})


def _add_changes(router: APIRouter, hub: Hub) -> None:
    @router.put(
        "/rulesets/{domain}",
        summary="Replace a domain's whole set",
        openapi_extra=body(examples.RULE_SET),
        responses=answers({200: _CHANGED, 201: answer("The domain is new", Anything(_SET))}, *CHANGING),
    )
    async def put_set(
        domain: DomainInPath,
        request: Request,
        dry_run: DryRun = False,
        keep_unnamed: Annotated[
            bool, Query(description="Keep the overrides and subjects there are, where the document names none.")
        ] = False,
    ) -> Response:
        require_change(request, domain, dry_run=dry_run)
        document = _of_domain(await read_mapping(request), domain)
        fields: dict[str, Any] = {"document": document}
        if keep_unnamed:
            if (unread := await unread_rules(hub, domain)) is not None:  # what is there could not be kept
                return unread
            known = hub.book.get(domain)
            if known is not None:
                document = fields["document"] = _with_kept(document, known.document)
            if precondition(request).version is None:  # or an override that is made meanwhile would be lost
                fields["made_from"] = version_of(known, None)
        done = await changed(hub, request, domain, PUT_SET, fields, dry_run=dry_run)
        return done if isinstance(done, Response) else await _set_answer(hub, done, document)

    @router.delete(
        "/rulesets/{domain}",
        summary="Delete a domain: all its rules, overrides and subjects",
        description="To its callers it is then as if it had never had rules. Its versions stay, and any of them "
        "can be gone back to. What is stored of its clients stays, unused until a set says `stored_subjects`.",
        responses=answers({200: {**_CHANGED, "description": "Gone; with dry_run, what that would do"}}, *CHANGING),
    )
    async def delete_set(domain: DomainInPath, request: Request, dry_run: DryRun = False) -> Response:
        require_change(request, domain, dry_run=dry_run)
        done = await changed(hub, request, domain, DELETE_DOMAIN, {}, dry_run=dry_run)
        if isinstance(done, Response):
            return done
        version = done.outcome.version
        await hub.book.gone(domain, version, APPLIED_WAIT_S)
        return JSONResponse({"domain": domain, "deleted": True, "version": version})

    @router.post(
        "/rulesets/{domain}:rollback",
        summary="Go back to a version that the domain has had",
        description="A new version with the old document: nothing of the history is taken back.",
        responses=answers({200: _CHANGED}, *CHANGING),
    )
    async def rollback(
        domain: DomainInPath, request: Request, to: VersionInQuery, dry_run: DryRun = False
    ) -> Response:
        require_change(request, domain, dry_run=dry_run)
        document = await _document(hub, domain, to)
        if isinstance(document, Response):
            return document
        fields = {"document": dict(document), "restores": to}
        done = await changed(hub, request, domain, PUT_SET, fields, dry_run=dry_run)
        return done if isinstance(done, Response) else await _set_answer(hub, done, document)

    @router.post(
        "/rulesets/{domain}:validate",
        summary="Check a set without changing anything",
        openapi_extra=body(examples.RULE_SET),
        responses=answers(
            {200: answer("Every fault, or what the rules come to", _VALID)}, 400, 408, 413, 415, *READING
        ),
    )
    async def validate_set(domain: DomainInPath, request: Request) -> Response:
        require(request, Role.READER, domain)
        try:
            document = _of_domain(await read_mapping(request), domain)
            rule_set = await asyncio.to_thread(parse_document, document)
        except InvalidRules as error:
            faults = [{"field": fault.place, "problem": fault.problem} for fault in error.faults]
            return JSONResponse({"valid": False, "errors": faults})
        loaded = [describe(rule, rule_set) for rule in rule_set.rules]
        return JSONResponse({"valid": True, "errors": [], "rules": loaded})


async def _document(hub: Hub, domain: str, version: int) -> Mapping[str, Any] | Response:
    if (unread := await unread_history(hub)) is not None:
        return unread
    document = await asyncio.to_thread(hub.history.document, domain, version)
    if document is not None:
        return document
    newest = [str(one.version) for one in await asyncio.to_thread(hub.history.versions, domain, None, 5)]
    known = f"the newest are {', '.join(newest)}" if newest else "it has none"
    return problem_response(404, f"domain {domain} has had no version {version}; {known}")


async def _set_answer(hub: Hub, done: Done, document: Mapping[str, Any]) -> Response:
    outcome = done.outcome
    loaded = await hub.book.reached(outcome.domain, outcome.version, APPLIED_WAIT_S)
    body: dict[str, Any] = {"domain": outcome.domain, "version": outcome.version, "document": dict(document)}
    body = _set_body(loaded) if loaded else body
    return JSONResponse(body, 201 if done.known is None else 200, headers=etag(body["version"]))


def _with_kept(document: dict[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    """With the overrides and subjects that are known, where it names none; overrides of rules that are gone go."""
    kept = {name: known[name] for name in ("overrides", "subjects") if name in known and name not in document}
    if "overrides" in kept:
        rules = document.get("rules")
        ids = [rule.get("id") for rule in rules if isinstance(rule, dict)] if isinstance(rules, list) else []
        kept["overrides"] = [one for one in kept["overrides"] if one["rule"] in ids]
    return {**document, **kept}


def _of_domain(document: Mapping[str, Any], domain: str) -> dict[str, Any]:
    if document.get("domain", domain) != domain:
        raise InvalidRules([Fault("domain", f"says {document['domain']!r}, but the address says {domain!r}")])
    return {"domain": domain, **document}


def _set_body(known: LoadedSet) -> dict[str, Any]:
    return {
        "domain": known.domain,
        "version": known.version,
        "rule_versions": dict(known.rule_versions),
        "document": dict(known.document),
        "rules": known.rules(),
    }
