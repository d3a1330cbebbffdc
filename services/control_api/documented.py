"""What the OpenAPI document says of answers and bodies: examples, and the schemas that they have.  Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from services.errors import MEDIA_TYPE

Responses = dict[int | str, dict[str, Any]]


class Named(dict[str, Any]):
    """An example of a mapping whose names are data, such as rules by their ids."""


class Anything(dict[str, Any]):
    """An example of a mapping of which nothing more is said."""


def schema_of(example: Any) -> dict[str, Any]:
    """The schema of values that look like ``example``: a list's first item stands for all; None may be anything."""
    if example is None:
        return {}
    if isinstance(example, bool):
        return {"type": "boolean"}
    if isinstance(example, int):
        return {"type": "integer"}
    if isinstance(example, float):
        return {"type": "number"}
    if isinstance(example, str):
        return {"type": "string"}
    if isinstance(example, Sequence):
        return {"type": "array", "items": schema_of(example[0]) if example else {}}
    if isinstance(example, Anything):
        return {"type": "object"}
    if isinstance(example, Named):
        return {"type": "object", "additionalProperties": schema_of(next(iter(example.values())))}
    properties = {name: schema_of(value) for name, value in example.items()}
    return {"type": "object", "properties": properties, "required": list(example)}


def content(example: Any, media: Sequence[str] = ("application/json",)) -> dict[str, Any]:
    return {kind: {"schema": schema_of(example), "example": example} for kind in media}


def answer(description: str, example: Any) -> dict[str, Any]:
    return {"description": description, "content": content(example)}


def changed_or_tried(description: str, changed: Any, tried: Any) -> dict[str, Any]:
    """The answer to a change, and to its dry run."""
    examples = {"changed": {"value": changed}, "dry_run": {"value": tried}}
    shown = {"schema": {"type": "object"}, "examples": examples}
    return {"description": description, "content": {"application/json": shown}}


_PROBLEM = {
    "type": "about:blank",
    "title": "Unprocessable Entity",
    "status": 422,
    "detail": "refused whole: one fault",
}
_DESCRIPTIONS: Mapping[int, str] = {
    400: "A header or the query is wrong",
    401: "A bearer token is needed, or this one is not known",
    403: "The token's role does not reach so far",
    404: "There is none of that name",
    408: "The body did not come in time",
    409: "Somebody else's change came first: read the newest version and decide again",
    412: "If-Match names a version that is no longer the newest",
    413: "The body is too large",
    415: "Neither JSON nor YAML",
    422: "Refused whole, with every fault by its place",
    429: "Too much is asked, or too many wrong tokens came from this address",
    503: "Kafka does not answer, or its topics have not been read yet; a proposal may still be accepted",
    504: "No outcome in time; the proposal may still be accepted",
}
READING = (401, 403, 422, 429, 503)
CHANGING = (400, 401, 403, 404, 408, 409, 412, 413, 415, 422, 429, 503, 504)


def problems(*statuses: int) -> Responses:
    """Answers that are problems (RFC 9457)."""
    schema = {
        "type": "object",
        "properties": {
            "type": {"type": "string"},
            "title": {"type": "string"},
            "status": {"type": "integer"},
            "detail": {"type": "string"},
            "errors": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {"field": {"type": "string"}, "problem": {"type": "string"}},
                },
            },
        },
        "required": ["type", "title", "status", "detail"],
    }
    return {
        status: {
            "description": _DESCRIPTIONS[status],
            "content": {
                MEDIA_TYPE: {"schema": schema, "example": {**_PROBLEM, "status": status}},
            },
        }
        for status in statuses
    }


def answers(well: Mapping[int, Mapping[str, Any]], *statuses: int) -> Responses:
    """``responses`` of an address: those when all is well, and problems."""
    return {status: dict(said) for status, said in well.items()} | problems(*statuses)


def body(example: Any, *, yaml: bool = True) -> dict[str, Any]:
    """``openapi_extra`` of a request with a body like ``example``; what exactly it may say, the grammar tells."""
    kinds = ("application/json", "application/yaml") if yaml else ("application/json",)
    schema = {"type": "object"} if isinstance(example, Anything) else schema_of(example)
    return {
        "requestBody": {
            "required": True,
            "content": {kind: {"schema": schema, "example": example} for kind in kinds},
        }
    }
