"""Overrides of single keys over HTTP: more for one client until Friday, or nothing at all; changes like others."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.responses import JSONResponse

from global_sync.changes import DELETE_OVERRIDE, PUT_OVERRIDE
from regional_limiter.model.errors import Fault, InvalidRules
from regional_limiter.model.rule import Override
from regional_limiter.rules.describe import override_in_words
from regional_limiter.rules.ends import end_ms
from regional_limiter.rules.judged import unmet_by
from regional_limiter.rules.overrides import key_of
from services.accepted_rules import LoadedSet
from services.clock import wall_ms
from services.control_api import examples
from services.control_api.access import Role
from services.control_api.changing import (
    APPLIED_WAIT_S,
    NAME,
    Domain,
    DryRun,
    Limit,
    changed,
    etag,
    require_change,
    unread_rules,
)
from services.control_api.documented import CHANGING, READING, answer, answers, body, changed_or_tried
from services.control_api.guard import require
from services.control_api.knowledge import Hub
from services.control_api.known_clients import stored_of
from services.control_api.requests import read_mapping
from services.errors import problem_response

OverrideId = Annotated[str, Path(pattern="^[0-9a-f]{16}$")]

_PAGE = {"domain": "default", "version": 17, "overrides": [examples.SHOWN_OVERRIDE], "next": None}
_PUT = changed_or_tried(
    "The override as it is held; with dry_run, what the change would do", examples.SHOWN_OVERRIDE, examples.DRY_RUN
)


def overrides_router(hub: Hub) -> APIRouter:
    router = APIRouter(tags=["overrides"])
    _add_reading(router, hub)
    _add_changes(router, hub)
    return router


def _add_reading(router: APIRouter, hub: Hub) -> None:
    @router.get(
        "/overrides",
        summary="The overrides of a domain, a page at a time",
        responses=answers({200: answer("In the order of the set; those that are over are gone", _PAGE)}, *READING),
    )
    async def list_overrides(
        request: Request,
        domain: Domain = "default",
        rule: Annotated[str | None, Query(pattern=NAME, description="Only of this rule.")] = None,
        after: Annotated[str | None, Query(pattern="^[0-9a-f]{16}$", description="Begin after this one.")] = None,
        limit: Limit = 100,
    ) -> Response:
        require(request, Role.READER, domain)
        known = hub.book.get(domain)
        if known is None:
            empty: dict[str, Any] = {"domain": domain, "version": 0, "overrides": [], "next": None}
            return await unread_rules(hub, domain) or JSONResponse(empty)
        found = [one for one in _shown(known) if rule is None or one["rule"] == rule]
        ids = [one["id"] for one in found]
        if after is not None and after not in ids:
            return problem_response(422, f"after: there is no override {after} any more: begin again without it")
        begin = ids.index(after) + 1 if after is not None else 0
        page = found[begin : begin + limit]
        following = page[-1]["id"] if begin + limit < len(found) else None
        said = {"domain": domain, "version": known.version, "overrides": page, "next": following}
        return JSONResponse(said, headers=etag(known.version))

    @router.get(
        "/overrides/{override_id}",
        summary="One override",
        responses=answers({200: answer("As it is held", examples.SHOWN_OVERRIDE)}, 404, *READING),
    )
    async def get_override(request: Request, override_id: OverrideId, domain: Domain = "default") -> Response:
        require(request, Role.READER, domain)
        found = _find(hub, domain, override_id)
        if found is None:
            return await unread_rules(hub, domain) or _none(override_id, domain)
        return JSONResponse(found)


def _add_changes(router: APIRouter, hub: Hub) -> None:
    @router.put(
        "/overrides",
        summary="Make or replace the override of one key of one rule",
        description="It ends at `until`, when the leader takes it out, or when it is deleted. `warning`, if there "
        "is one: what is known of the client keeps the rule from matching, so that the override does nothing.",
        openapi_extra=body(examples.OVERRIDE),
        responses=answers({200: _PUT, 201: answer("It is new", examples.SHOWN_OVERRIDE)}, *CHANGING),
    )
    async def put_override(request: Request, domain: Domain = "default", dry_run: DryRun = False) -> Response:
        require_change(request, domain, dry_run=dry_run)
        override = await read_mapping(request)
        end = end_ms(override.get("until"))
        if end is not None and end <= wall_ms():
            raise InvalidRules([Fault("until", "is over already")])
        warned = await _warning(hub, domain, override)
        change = {"override": override}
        done = await changed(hub, request, domain, PUT_OVERRIDE, change, dry_run=dry_run, told=warned)
        if isinstance(done, Response):
            return done
        override_id = id_of(override)
        is_new = done.known is None or all(one["id"] != override_id for one in _shown(done.known))
        await hub.book.reached(domain, done.outcome.version, APPLIED_WAIT_S)
        found = _find(hub, domain, override_id)
        if found is None:  # accepted, but the state is still on its way, or it is over already
            return JSONResponse({"id": override_id, "source": override, "version": done.outcome.version, **warned})
        headers = {"Location": f"/overrides/{override_id}?domain={domain}"} if is_new else {}
        return JSONResponse({**found, **warned}, 201 if is_new else 200, headers=headers)

    @router.delete(
        "/overrides/{override_id}",
        summary="End an override now",
        responses=answers({200: {**_PUT, "description": "Ended; with dry_run, what that would do"}}, *CHANGING),
    )
    async def delete_override(
        request: Request, override_id: OverrideId, domain: Domain = "default", dry_run: DryRun = False
    ) -> Response:
        require_change(request, domain, dry_run=dry_run)
        found = _find(hub, domain, override_id)
        if found is None:
            return await unread_rules(hub, domain) or _none(override_id, domain)
        named = {"rule": found["rule"], "key": found["source"].get("key", {})}
        done = await changed(hub, request, domain, DELETE_OVERRIDE, {"override": named}, dry_run=dry_run)
        if isinstance(done, Response):
            return done
        await hub.book.reached(domain, done.outcome.version, APPLIED_WAIT_S)
        return JSONResponse({"id": override_id, "domain": domain, "deleted": True, "version": done.outcome.version})


async def _warning(hub: Hub, domain: str, override: Mapping[str, Any]) -> dict[str, str]:
    """A ``warning`` that the override will do nothing, if so.  Faults are others' to tell."""
    await hub.rules_known()
    known, key = hub.book.get(domain), override.get("key", {})
    if known is None or not isinstance(key, dict):
        return {}
    rule = next((one for one in known.rule_set.rules if one.id == override.get("rule")), None)
    if rule is None:
        return {}
    said = {name: text for name, text in key.items() if isinstance(text, str)}
    client_key = said.get("client_key", "")
    stored = (await stored_of(hub, domain, [client_key])).get(client_key, {}).get("set", {})
    unmet = await asyncio.to_thread(unmet_by, known.rule_set, rule, {**stored, **said})
    if not unmet:
        return {}
    return {"warning": f"does nothing, unless checks say otherwise: {rule.id} does not apply: {'; '.join(unmet)}"}


def id_of(override: Mapping[str, Any]) -> str:
    """The same for the same rule and key as they are written."""
    named = json.dumps([override.get("rule"), override.get("key", {})], sort_keys=True)
    return hashlib.sha256(named.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _shown(known: LoadedSet) -> Iterator[dict[str, Any]]:
    rules = {rule.id: rule for rule in known.rule_set.rules}
    for source in known.document.get("overrides", []):
        rule = rules[source["rule"]]
        yield _said(source, known.rule_set.overrides[rule.id][key_of(rule, source.get("key", {}))])


def _said(source: Mapping[str, Any], one: Override) -> dict[str, Any]:
    return {
        "id": id_of(source),
        "rule": one.in_force.id,
        "key": dict(source.get("key", {})),
        "in_words": override_in_words(one.in_force),
        "until_ms": one.until_ms,
        "source": dict(source),
    }


def _find(hub: Hub, domain: str, override_id: str) -> dict[str, Any] | None:
    known = hub.book.get(domain)
    return next((one for one in _shown(known) if one["id"] == override_id), None) if known is not None else None


def _none(override_id: str, domain: str) -> Response:
    return problem_response(404, f"no override {override_id} in domain {domain}")
