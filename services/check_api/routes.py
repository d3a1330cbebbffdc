"""What FastAPI answers on a node: metrics, the node's own view, and the documentation of all routes."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import msgspec
from fastapi import FastAPI, Request, Response
from fastapi.openapi.utils import get_openapi

from regional_limiter.limiter_status import ShardStatus
from services.check_api.answers import AnswerBody, BatchAnswerBody, DetailedBody, ErrorBody, InspectBody
from services.check_api.bodies import BATCH_CHECKS_MOST, AcquireBody, BatchBody, CheckBody, IdentityBody, LeaseBody
from services.check_api.counts import StoreCalls
from services.check_api.lending import LentBody, TokenLeaseBody
from services.check_api.metrics import Metrics
from services.check_api.rls_document import SCHEMAS as RLS_SCHEMAS
from services.check_api.rls_document import rate_limit_path
from services.clock import wall_ms
from services.docs_page import app_with_docs
from services.errors import MEDIA_TYPE, install_problem_handlers

if TYPE_CHECKING:
    from services.check_api.app import NodeApp


_REQUESTS = (CheckBody, BatchBody, AcquireBody, LeaseBody, IdentityBody, TokenLeaseBody)
_ANSWERS = (AnswerBody, DetailedBody, BatchAnswerBody, ErrorBody, InspectBody, LentBody)


def build_web(node: NodeApp) -> FastAPI:
    """The FastAPI application that stands beside the raw path of ``node``."""
    web = app_with_docs(title="Apportion check API", version="1")
    install_problem_handlers(web, node.note_unexpected)

    metrics = Metrics(
        node.options.region,
        node.counts,
        node.limiter.status,
        node=node.options.node,
        calls=node.store_calls,
        own_tables=node.tables,
    )
    node.exposition = metrics.exposition

    @web.get("/metrics", tags=["probes"], response_class=Response)
    async def exposition(request: Request) -> Response:
        """Counters and durations as Prometheus reads them: as OpenMetrics where that is asked for."""
        told = await metrics.exposition.told(request.headers.get("accept", ""))
        return Response(told.text, media_type=told.media_type)

    @web.get("/v1/node", tags=["node"])
    async def view() -> dict[str, Any]:
        """This node's own view of its region."""
        status = node.limiter.status()
        return {
            "node": node.options.node,
            "region": node.options.region,
            "ready": node.limiter.ready and not node.draining,
            "draining": node.draining,
            "rules_version": status.rules_version,
            "base_version": status.base_version,
            "at_ms": wall_ms(),
            "shards": [_shard(shard, node.store_calls or StoreCalls()) for shard in status.shards],
            "leases": asdict(status.leases),
            "refused_domains": dict(status.refused_domains),
            "degraded": dict(status.degraded),
            "degraded_checks": node.counts.degraded_answers,
            "unexpected_errors": node.counts.unexpected_errors,
        }

    @web.get("/v1/shadow", tags=["operators"])
    async def shadow() -> dict[str, Any]:
        """What rules in shadow mode would have done on this node since it began, with the keys denied last."""
        counts = node.limiter.status().shadows
        return {
            "node": node.options.node,
            "region": node.options.region,
            "rules": {
                name: {
                    "would_allow": one.would_allow,
                    "would_deny": one.would_deny,
                    "would_deny_cost": one.would_deny_cost,
                    "undecided": one.undecided,
                    "examples": [{"key": key, "times": times} for key, times in reversed(one.examples.items())],
                }
                for name, one in sorted(counts.items())
            },
        }

    web.openapi = lambda: _openapi(web)  # type: ignore[method-assign]
    return web


def _shard(shard: ShardStatus, calls: StoreCalls) -> dict[str, Any]:
    """``took``: calls of checks by how long they took, since the start; ``unanswered``: those without a reply;
    ``slots``: half-open ranges of the hash slots that the server serves, empty where that is not known."""
    address = shard.point.partition("/")[0]
    took = calls.took.get(address)
    return {
        "point": shard.point,
        "breaker": shard.breaker,
        "answers": shard.answers,
        "unanswered": calls.unanswered.get(address, 0),
        "slots": [list(one) for one in calls.slots(address)],
        "took": None if took is None else {"bounds_s": list(took.bounds_s), "counts": list(took.counts)},
    }


def _openapi(web: FastAPI) -> dict[str, Any]:
    """FastAPI's document, and in it the routes that it never sees."""
    if web.openapi_schema is None:
        document = get_openapi(title=web.title, version=web.version, routes=web.routes)
        _, schemas = msgspec.json.schema_components(
            [*_REQUESTS, *_ANSWERS],
            ref_template="#/components/schemas/{name}",
        )
        document.setdefault("components", {}).setdefault("schemas", {}).update({**schemas, **RLS_SCHEMAS})
        document["components"]["securitySchemes"] = _SECURITY
        document["security"] = [{}, *({name: []} for name in _SECURITY)]
        document["paths"].update(_raw_paths())
        web.openapi_schema = document
    return web.openapi_schema


def _raw_paths() -> dict[str, Any]:
    answer = _content("The answer, allowed or denied; Retry-After when denied and waiting helps", "AnswerBody")
    answer["content"]["application/json"]["schema"] = {"oneOf": [_ref("AnswerBody"), _ref("DetailedBody")]}
    answers = _content("An answer, or an error in its place, for each check, in their order", "BatchAnswerBody")
    acquired = _content("The answer; lease_ms is null when no slot was taken", "AnswerBody")
    buckets = _content("Each bucket: its key, what is left, how long it is kept, the share in force", "InspectBody")
    detail = _query("detail", "1: with each rule's verdict, and `share` for global rules")
    identity = [
        _query("client_key", "Who asks", required=True),
        _query("resource", "What for", required=True),
        _query("domain", "The namespace of rules"),
        {
            **_query("attributes", "One parameter an attribute, as in attributes.tier=free"),
            "schema": {"type": "object", "additionalProperties": {"type": "string"}},
        },
    ]
    plain = {"content": {"application/json": {"schema": {"type": "object"}}}}
    live = {"responses": {"200": {"description": "Yes"}}}
    ready = {"responses": {"200": {"description": "Yes"}, **_problems("503")}}
    return {
        "/livez": {"get": {"tags": ["probes"], "summary": "Should the process go on?", **live}},
        "/readyz": {"get": {"tags": ["probes"], "summary": "Should traffic be sent here?", **ready}},
        "/v1/check": _post("checks", "May this happen now?", "CheckBody", answer, "64 KiB", parameters=[detail]),
        "/v1/check:batch": _post(
            "checks", f"Up to {BATCH_CHECKS_MOST:,} independent checks", "BatchBody", answers, "1 MiB"
        ),
        "/v1/authorize": _authorize(),
        "/json": rate_limit_path(_problems("400", "401", "408", "413", "503", limit="64 KiB")),
        "/v1/refund": _post(
            "checks",
            "Give tokens back in the region that charged them; with request_id once, never more than it charged",
            "CheckBody",
            {"description": "Given back", **plain},
        ),
        "/v1/acquire": _post(
            "slots",
            "A check that takes slots under lease_id; again under the same one it takes no more",
            "AcquireBody",
            acquired,
        ),
        "/v1/renew": _post(
            "slots", "A new lease for the slots of lease_id", "LeaseBody", _told("held", "Still held?")
        ),
        "/v1/release": _post(
            "slots", "Free the slots of lease_id", "LeaseBody", _told("released", "Was anything held?")
        ),
        "/v1/peek": _get(
            "checks", "A check of cost 0: creates nothing, renews nothing", answer, [*identity, detail]
        ),
        "/v1/token-lease": _post(
            "leases",
            "Tokens to spend without asking; an old lease is brought back in the same call",
            "TokenLeaseBody",
            _content("What was lent; tokens 0: nothing, ask again after again_after_ms", "LentBody"),
        ),
        "/v1/inspect": _get("operators", "How the buckets of one identity stand", buckets, identity),
        "/v1/explain": _get(
            "operators",
            "Which rules a check meets and why, how its buckets stand in this region, what it would be told now",
            {
                "description": "`next`: the answer to come; `rules`: those that apply; `others`: why they do not",
                **plain,
            },
            [*identity, _query("cost", "Tokens that the check would ask for; 1 unless given")],
        ),
        "/v1/reset": _post(
            "operators",
            "Make the buckets of one identity as if nothing had been used",
            "IdentityBody",
            {"description": "`reset`: the keys of the buckets", **plain},
        ),
    }


_SECURITY = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "`check_api.token`, where it is set"},
    "gateway": {
        "type": "apiKey",
        "in": "header",
        "name": "X-Apportion-Token",
        "description": "The same token, where Authorization is the caller's caller's",
    },
}
_WHO = {"client_key": "user:42", "resource": "POST /orders"}
_EXAMPLES: dict[str, dict[str, Any]] = {
    "CheckBody": {**_WHO, "cost": 1, "attributes": {"tier": "free"}},
    "BatchBody": {"checks": [_WHO, {**_WHO, "client_key": "user:43", "cost": 2}]},
    "AcquireBody": {**_WHO, "lease_id": "job-1"},
    "LeaseBody": {**_WHO, "lease_id": "job-1"},
    "IdentityBody": _WHO,
    "TokenLeaseBody": {**_WHO, "want": 100},
}

_PROBLEMS = {
    "400": "Not JSON",
    "401": "A bearer token is needed",
    "408": "The body did not come in time",
    "413": "A body of more than ",
    "422": "A field is wrong; `errors` names it",
    "503": "Not ready, too busy, or not deliverable",
}


def _problems(*statuses: str, limit: str = "") -> dict[str, Any]:
    return {
        status: {
            "description": _PROBLEMS[status] + (limit if status == "413" else ""),
            "content": {MEDIA_TYPE: {"schema": {"type": "object"}}},
        }
        for status in statuses
    }


def _post(tag: str, summary: str, body: str, answer: dict[str, Any], limit: str = "64 KiB", **more: Any) -> Any:
    content = {"application/json": {"schema": _ref(body), "example": _EXAMPLES[body]}}
    request = {"required": True, "content": content}
    responses = {"200": answer, **_problems("400", "401", "408", "413", "422", "503", limit=limit)}
    return {"post": {"tags": [tag], "summary": summary, "requestBody": request, "responses": responses, **more}}


def _get(tag: str, summary: str, answer: dict[str, Any], parameters: list[dict[str, Any]]) -> Any:
    responses = {"200": answer, **_problems("401", "422", "503")}
    return {"get": {"tags": [tag], "summary": summary, "parameters": parameters, "responses": responses}}


def _authorize() -> Any:
    """Asked by any method, also with a path behind it; told once."""
    headers = {
        name: {"description": description, "required": name != "X-Forwarded-Host"}
        for name, description in (
            ("X-Forwarded-Method", "What the gateway was asked: the method"),
            ("X-Forwarded-Uri", "The path, with or without its query"),
            ("X-Forwarded-Host", "The host"),
        )
    }
    parameters = [
        {"name": name, "in": "header", "schema": {"type": "string"}, **told} for name, told in headers.items()
    ]
    parameters += [
        _query("domain", "The namespace of rules"),
        _query("resource", "In place of method and path"),
        _query("cost", "1 unless said"),
        _query("denied", "The status of every denial: 401, 403, 429 or 503"),
    ]
    denied = {MEDIA_TYPE: {"schema": {"type": "object"}}}
    responses = {
        "200": {"description": "May pass; with the rate limit headers, and without a body"},
        "429": {"description": "May not pass; Retry-After where waiting helps", "content": denied},
        **_problems("401", "422", "503"),
    }
    summary = "May the request pass that a gateway was asked?"
    return {"get": {"tags": ["gateways"], "summary": summary, "parameters": parameters, "responses": responses}}


def _content(description: str, schema: str) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": _ref(schema)}}}


def _told(name: str, description: str) -> dict[str, Any]:
    schema = {"type": "object", "required": [name], "properties": {name: {"type": "boolean"}}}
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def _query(name: str, description: str, *, required: bool = False) -> dict[str, Any]:
    return {
        "name": name,
        "in": "query",
        "required": required,
        "description": description,
        "schema": {"type": "string"},
    }


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}
