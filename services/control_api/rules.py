"""Rules over HTTP: read, checked, and changed by proposal.

Documents are parsed in a thread: ten thousand rules take seconds, and others want their answers meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Annotated, Any

import yaml
from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.responses import JSONResponse

from global_sync.changes import DELETE_RULE, PUT_RULE, PUT_SET, History
from regional_limiter.model.errors import Fault, InvalidRules
from regional_limiter.rules import describe, parse_document
from services.accepted_rules import LoadedSet
from services.control_api.knowledge import Hub
from services.control_api.proposals import NoOutcome, NotProposed, TooManyPending
from services.control_api.requests import Precondition, author_and_reason, precondition, read_mapping
from services.errors import problem_response

NAME = r"^[a-z0-9._-]{1,64}$"
APPLIED_WAIT_S = 1.0

Domain = Annotated[str, Query(pattern=NAME, description="The namespace of the rule.")]
DomainInPath = Annotated[str, Path(pattern=NAME)]
RuleId = Annotated[str, Path(pattern=NAME)]

_EXAMPLE = {
    "match": {"resource": "POST /orders", "tier": ["free", "trial"]},
    "algorithm": "token_bucket",
    "capacity": 20,
    "refill_per_second": 10,
}
_BODY_RULE = {
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": {"type": "object", "example": _EXAMPLE}}},
    }
}
_BODY_SET = {
    "requestBody": {
        "required": True,
        "content": {
            kind: {"schema": {"type": "object", "example": {"domain": "default", "rules": []}}}
            for kind in ("application/json", "application/yaml")
        },
    }
}
_PROBLEMS: dict[int | str, dict[str, Any]] = {
    409: {"description": "Somebody else's change came first."},
    412: {"description": "If-Match names a version that is no longer the newest."},
    422: {"description": "Refused whole, with every fault by its place."},
    503: {"description": "Kafka does not answer; the proposal may still be accepted."},
    504: {"description": "No outcome in time; the proposal may still be accepted."},
}


def rules_router(hub: Hub) -> APIRouter:
    router = APIRouter()
    _add_reading(router, hub)
    _add_rule_changes(router, hub)
    _add_set_changes(router, hub)
    return router


def _add_reading(router: APIRouter, hub: Hub) -> None:
    @router.get("/rules", summary="The accepted rules of a domain")
    async def list_rules(domain: Domain = "default") -> Response:
        known = hub.book.get(domain)
        if known is None:
            return await _unread(hub) or JSONResponse({"domain": domain, "version": 0, "rules": []})
        body = {"domain": domain, "version": known.version, "rules": known.rules()}
        return JSONResponse(body, headers=_etag(known.version))

    @router.get("/rules/{rule_id}", summary="One accepted rule")
    async def get_rule(rule_id: RuleId, domain: Domain = "default") -> Response:
        known = hub.book.get(domain)
        rule = known.rule(rule_id) if known is not None else None
        if rule is None:
            return await _unread(hub) or problem_response(404, f"no rule {rule_id} in domain {domain}")
        return JSONResponse(rule, headers=_etag(rule["version"]))

    @router.get("/rulesets", summary="The domains that have rules")
    async def list_sets() -> Response:
        sets = [
            {"domain": known.domain, "version": known.version, "rules": len(known.rule_set.rules)}
            for known in sorted(hub.book.sets().values(), key=lambda known: known.domain)
        ]
        return (await _unread(hub) if not sets else None) or JSONResponse({"rulesets": sets})

    @router.get("/rulesets/{domain}", summary="A domain's document, as JSON or (by Accept) as YAML")
    async def get_set(domain: DomainInPath, request: Request) -> Response:
        known = hub.book.get(domain)
        if known is None:
            return await _unread(hub) or problem_response(404, f"domain {domain} has no rules")
        if "yaml" in request.headers.get("accept", ""):
            text = yaml.safe_dump(dict(known.document), sort_keys=False, allow_unicode=True)
            return Response(text, media_type="application/yaml", headers=_etag(known.version))
        return JSONResponse(_set_body(known), headers=_etag(known.version))

    @router.get("/history", summary="Accepted and refused changes, the newest first")
    async def history(
        domain: Annotated[str | None, Query(pattern=NAME)] = None,
        limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    ) -> Response:
        found = [one for one in reversed(hub.proposer.outcomes) if domain in (None, one.domain)]
        return JSONResponse({"changes": [_outcome_body(one) for one in found[:limit]]})


def _add_rule_changes(router: APIRouter, hub: Hub) -> None:
    @router.put("/rules/{rule_id}", summary="Make or replace a rule", openapi_extra=_BODY_RULE, responses=_PROBLEMS)
    async def put_rule(rule_id: RuleId, request: Request, domain: Domain = "default") -> Response:
        source = await read_mapping(request)
        if (early := await _refused_early(hub, domain, rule_id, wanted := precondition(request))) is not None:
            return early
        await asyncio.to_thread(hub.book.with_rule, domain, rule_id, source)
        known = hub.book.get(domain)
        is_new = known is None or known.place_of(rule_id) is None
        change: dict[str, Any] = {
            "rule_id": rule_id,
            "rule": source,
            "made_from": _made_from(wanted, known, rule_id),
        }
        if known is None:  # the first rule of a domain brings the regions of this deployment with it
            change["regions"] = hub.book.default_regions()
        outcome = await _proposed(hub, request, domain, PUT_RULE, change)
        if isinstance(outcome, Response):
            return outcome
        return await _rule_answer(hub, outcome, source, created=is_new)

    @router.delete("/rules/{rule_id}", summary="Remove a rule", responses=_PROBLEMS)
    async def delete_rule(rule_id: RuleId, request: Request, domain: Domain = "default") -> Response:
        if (early := await _refused_early(hub, domain, rule_id, wanted := precondition(request))) is not None:
            return early
        known = hub.book.get(domain)
        if known is None or known.place_of(rule_id) is None:
            return problem_response(404, f"no rule {rule_id} in domain {domain}")
        change = {"rule_id": rule_id, "made_from": _made_from(wanted, known, rule_id)}
        outcome = await _proposed(hub, request, domain, DELETE_RULE, change)
        if isinstance(outcome, Response):
            return outcome
        await hub.book.reached(domain, outcome.version, APPLIED_WAIT_S)
        return JSONResponse({"id": rule_id, "domain": domain, "deleted": True, "version": outcome.version})


def _add_set_changes(router: APIRouter, hub: Hub) -> None:
    @router.put(
        "/rulesets/{domain}", summary="Replace a domain's whole set", openapi_extra=_BODY_SET, responses=_PROBLEMS
    )
    async def put_set(domain: DomainInPath, request: Request) -> Response:
        document = _of_domain(await read_mapping(request), domain)
        if (early := await _refused_early(hub, domain, None, wanted := precondition(request))) is not None:
            return early
        await asyncio.to_thread(parse_document, document)
        known = hub.book.get(domain)
        change = {"document": document, "made_from": _made_from(wanted, known, None)}
        outcome = await _proposed(hub, request, domain, PUT_SET, change)
        if isinstance(outcome, Response):
            return outcome
        loaded = await hub.book.reached(domain, outcome.version, APPLIED_WAIT_S)
        body: dict[str, Any] = {"domain": domain, "version": outcome.version, "document": document}
        body = _set_body(loaded) if loaded else body
        status = 201 if known is None else 200
        return JSONResponse(body, status, headers=_etag(body["version"]))

    @router.post(
        "/rulesets/{domain}:validate", summary="Check a set without changing anything", openapi_extra=_BODY_SET
    )
    async def validate_set(domain: DomainInPath, request: Request) -> Response:
        try:
            document = _of_domain(await read_mapping(request), domain)
            rule_set = await asyncio.to_thread(parse_document, document)
        except InvalidRules as error:
            faults = [{"field": fault.place, "problem": fault.problem} for fault in error.faults]
            return JSONResponse({"valid": False, "errors": faults})
        loaded = [describe(rule, rule_set) for rule in rule_set.rules]
        return JSONResponse({"valid": True, "errors": [], "rules": loaded})


# ---- a change


async def _rule_answer(hub: Hub, outcome: History, source: Mapping[str, Any], *, created: bool) -> Response:
    rule_id, domain = outcome.rule_id or "", outcome.domain
    loaded = await hub.book.reached(domain, outcome.version, APPLIED_WAIT_S)
    rule = loaded.rule(rule_id) if loaded is not None else None
    if rule is None:  # accepted, but the state is still on its way, or already changed again
        rule = {"id": rule_id, "domain": domain, "version": outcome.version, "source": dict(source)}
    headers = _etag(rule["version"])
    if created:
        headers["Location"] = f"/rules/{rule_id}?domain={domain}"
    return JSONResponse(rule, 201 if created else 200, headers=headers)


async def _proposed(
    hub: Hub, request: Request, domain: str, kind: str, change: Mapping[str, Any]
) -> History | Response:
    """The accepted outcome, or the problem to answer with."""
    author, reason = author_and_reason(request)
    try:
        outcome = await hub.proposer.propose(domain, kind, **change, author=author, reason=reason)
    except NotProposed as error:
        detail = "Kafka does not answer. Nothing is changed yet, but the proposal may still be written and accepted"
        return problem_response(503, detail, extra={"proposal": error.proposal}, headers={"Retry-After": "2"})
    except NoOutcome as error:
        detail = "proposed, but no leader has decided it in time; it may still be accepted: see GET /history"
        return problem_response(504, detail, extra={"proposal": error.proposal})
    except TooManyPending:
        return problem_response(503, "too many changes wait for their outcome", headers={"Retry-After": "2"})
    if outcome.accepted:
        return outcome
    faults = [Fault(fault.get("place", ""), fault.get("problem", "")) for fault in outcome.faults]
    extra: dict[str, object] = {"proposal": outcome.id}
    if outcome.conflict:
        detail = "somebody else's change came first: read the newest version and decide again"
        return problem_response(409, detail, faults=faults, extra={**extra, "newest": outcome.version})
    return problem_response(422, "refused by the leader", faults=faults, extra=extra)


async def _refused_early(hub: Hub, domain: str, rule_id: str | None, wanted: Precondition) -> Response | None:
    """What the accepted rules, as read here, already rule out."""
    if (unread := await _unread(hub)) is not None:
        return unread
    known = hub.book.get(domain)
    version = _version_of(known, rule_id)
    if wanted.exists and version == 0:
        return problem_response(412, "If-Match: *, but there is none")
    if wanted.version is not None and wanted.version != version:
        newest = f"version {version} is the newest" if version else "there is none"
        return problem_response(412, f"made from version {wanted.version}, but {newest}", extra={"newest": version})
    return None


def _version_of(known: LoadedSet | None, rule_id: str | None) -> int:
    """The version of a rule or, without one, of the set; 0 for what is not there."""
    if known is None:
        return 0
    if rule_id is None:
        return known.version
    return known.rule_versions.get(rule_id, 0) if known.place_of(rule_id) is not None else 0


def _made_from(wanted: Precondition, known: LoadedSet | None, rule_id: str | None) -> int | None:
    return _version_of(known, rule_id) if wanted.exists else wanted.version


async def _unread(hub: Hub) -> Response | None:
    """A problem while the accepted rules are not known: "no rule" would be a guess."""
    if await hub.rules_known():
        return None
    detail = hub.why_not_ready() or "the accepted rules have not been read yet"
    return problem_response(503, detail, headers={"Retry-After": "2"})


# ---- bodies


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


def _outcome_body(outcome: History) -> dict[str, Any]:
    shown = {name: getattr(outcome, name) for name in _SHOWN_OF_HISTORY}
    return {
        **shown,
        "errors": [{"field": one.get("place"), "problem": one.get("problem")} for one in outcome.faults],
    }


_SHOWN_OF_HISTORY = (
    *("id", "domain", "kind", "rule_id", "accepted", "conflict", "version"),
    *("author", "reason", "at_ms", "epoch", "offset"),
)


def _etag(version: int) -> dict[str, str]:
    return {"ETag": f'"{version}"', "Cache-Control": "no-cache"}
