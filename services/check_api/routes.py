"""What FastAPI answers on a node: metrics, the node's own view, and the documentation of all routes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from fastapi import FastAPI, Response
from fastapi.openapi.utils import get_openapi

from services.check_api.answers import AnswerBody, DetailedBody
from services.check_api.bodies import CheckBody
from services.check_api.metrics import Metrics
from services.docs_page import app_with_docs
from services.errors import MEDIA_TYPE, install_problem_handlers
from services.telemetry import PROMETHEUS_TEXT

if TYPE_CHECKING:
    from services.check_api.app import NodeApp


def build_web(node: NodeApp) -> FastAPI:
    """The FastAPI application that stands beside the raw path of ``node``."""
    web = app_with_docs(title="Apportion check API", version="1")
    install_problem_handlers(web, node.note_unexpected)

    metrics = Metrics(node.options.region, node.counts, node.limiter.status)

    @web.get("/metrics", tags=["probes"], response_class=Response)
    async def exposition() -> Response:
        """Counters and durations in the exposition format of Prometheus."""
        return Response(metrics.text(), media_type=PROMETHEUS_TEXT)

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
            "shards": [
                {"point": shard.point, "breaker": shard.breaker, "answers": shard.answers}
                for shard in status.shards
            ],
            "refused_domains": dict(status.refused_domains),
            "degraded": dict(status.degraded),
            "degraded_checks": node.counts.degraded_answers,
            "unexpected_errors": node.counts.unexpected_errors,
        }

    web.openapi = lambda: _openapi(web)  # type: ignore[method-assign]
    return web


def _openapi(web: FastAPI) -> dict[str, Any]:
    """FastAPI's document, and in it the routes that it never sees."""
    if web.openapi_schema is None:
        document = get_openapi(title=web.title, version=web.version, routes=web.routes)
        _, schemas = msgspec.json.schema_components(
            [CheckBody, AnswerBody, DetailedBody], ref_template="#/components/schemas/{name}"
        )
        document.setdefault("components", {}).setdefault("schemas", {}).update(schemas)
        document["paths"].update(_raw_paths())
        web.openapi_schema = document
    return web.openapi_schema


def _raw_paths() -> dict[str, Any]:
    body = {"required": True, "content": {"application/json": {"schema": _ref("CheckBody")}}}
    answer = {
        "description": "The answer, allowed or denied; Retry-After when denied and waiting helps",
        "content": {"application/json": {"schema": {"oneOf": [_ref("AnswerBody"), _ref("DetailedBody")]}}},
    }
    problems = {
        status: {"description": words, "content": {MEDIA_TYPE: {"schema": {"type": "object"}}}}
        for status, words in {
            "400": "Not JSON",
            "413": "Larger than 64 KiB",
            "422": "A field is wrong; `errors` names it",
            "503": "Not ready, or not deliverable",
        }.items()
    }
    detail = _query("detail", "1: with each rule's verdict")
    identity = [
        _query("client_key", "Who asks", required=True),
        _query("resource", "What for", required=True),
        _query("domain", "The namespace of rules"),
        {
            **_query("attributes", "One parameter an attribute, as in attributes.tier=free"),
            "schema": {"type": "object", "additionalProperties": {"type": "string"}},
        },
    ]
    refunded = {"description": "Given back", "content": {"application/json": {"schema": {"type": "object"}}}}
    probe = {"200": {"description": "Yes"}}
    return {
        "/livez": {"get": {"tags": ["probes"], "summary": "Should the process go on?", "responses": probe}},
        "/readyz": {
            "get": {
                "tags": ["probes"],
                "summary": "Should traffic be sent here?",
                "responses": {**probe, "503": problems["503"]},
            }
        },
        "/v1/check": {
            "post": {
                "tags": ["checks"],
                "summary": "May this happen now?",
                "parameters": [detail],
                "requestBody": body,
                "responses": {"200": answer, **problems},
            }
        },
        "/v1/refund": {
            "post": {
                "tags": ["checks"],
                "summary": "Give tokens back in the region that charged them",
                "requestBody": body,
                "responses": {"200": refunded, **problems},
            }
        },
        "/v1/peek": {
            "get": {
                "tags": ["checks"],
                "summary": "A check of cost 0: changes nothing",
                "parameters": [*identity, detail],
                "responses": {"200": answer, **{k: v for k, v in problems.items() if k in ("422", "503")}},
            }
        },
    }


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
