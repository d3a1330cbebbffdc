"""Envoy's messages, as ``POST /json`` takes and gives them, for the document of a node's paths.

They are written down here and not derived: ``services/rls/protojson.py`` reads them by hand.  Pure.
"""

from __future__ import annotations

from typing import Any, Final

from services.rls.messages import DESCRIPTORS_MOST, ENTRIES_MOST, UINT32_MOST, Unit

_TEXT: Final = {"type": "string"}
_UINT32: Final = {"type": "integer", "minimum": 0, "maximum": UINT32_MOST}
_UNIT: Final = {"type": "string", "enum": [unit.name for unit in Unit]}
_CODE: Final = {"type": "string", "enum": ["OK", "OVER_LIMIT"]}


def _object(properties: dict[str, Any], *required: str, more: bool = False) -> dict[str, Any]:
    said: dict[str, Any] = {"type": "object", "properties": properties, "additionalProperties": more}
    return {**said, "required": list(required)} if required else said


def _list_of(item: dict[str, Any], most: int, least: int = 1) -> dict[str, Any]:
    return {"type": "array", "items": item, "minItems": least, "maxItems": most}


_REQUEST: Final = {
    **_object(
        {
            "domain": {**_TEXT, "minLength": 1, "description": "The namespace of rules"},
            "descriptors": {
                **_list_of(
                    _object(
                        {
                            "entries": _list_of(
                                _object({"key": {**_TEXT, "minLength": 1}, "value": _TEXT}, "key"), ENTRIES_MOST
                            ),
                            "limit": {
                                **_object({"requestsPerUnit": _UINT32, "unit": _UNIT}, "unit"),
                                "description": "Stands in for the rules, as a window of its unit",
                            },
                            "hitsAddend": {
                                "description": "What it costs, in place of the request's; 0 only looks",
                                "oneOf": [_UINT32, {"type": "string", "pattern": "^[0-9]{1,10}$"}],
                            },
                            "isNegativeHits": {
                                "type": "boolean",
                                "description": "The hits are given back, never beyond the limit",
                            },
                        },
                        "entries",
                    ),
                    DESCRIPTORS_MOST,
                ),
                "description": "Each is a check: its entries are attributes. All are charged, or none",
            },
            "hitsAddend": {**_UINT32, "description": "What each descriptor costs that does not say; 0 is 1"},
        },
        "domain",
        "descriptors",
    ),
    "example": {
        "domain": "edge",
        "descriptors": [{"entries": [{"key": "user", "value": "ann"}, {"key": "method", "value": "POST"}]}],
    },
}

_RESPONSE: Final = _object(
    {
        "overallCode": _CODE,
        "statuses": _list_of(
            _object(
                {
                    "code": _CODE,
                    "currentLimit": _object({"name": _TEXT, "requestsPerUnit": _UINT32, "unit": _UNIT}),
                    "limitRemaining": _UINT32,
                    "durationUntilReset": {**_TEXT, "example": "0.500s"},
                },
                "code",
            ),
            DESCRIPTORS_MOST,
        ),
        "responseHeadersToAdd": {
            "type": "array",
            "items": _object({"key": _TEXT, "value": _TEXT}, "key", "value"),
            "description": "For the caller of the gateway",
        },
        "dynamicMetadata": {"type": "object", "description": "Where `grpc.dynamic_metadata` is set"},
    },
    "overallCode",
    "statuses",
)

SCHEMAS: Final[dict[str, Any]] = {"RateLimitRequest": _REQUEST, "RateLimitResponse": _RESPONSE}


def rate_limit_path(problems: dict[str, Any]) -> dict[str, Any]:
    """The item of the path; ``problems``: the responses that tell what was wrong."""
    answer = {"application/json": {"schema": {"$ref": "#/components/schemas/RateLimitResponse"}}}
    asked = {"application/json": {"schema": {"$ref": "#/components/schemas/RateLimitRequest"}}}
    return {
        "post": {
            "tags": ["gateways"],
            "summary": "Envoy's rate limit service without gRPC; what is zero is left out of the answer",
            "requestBody": {"required": True, "content": asked},
            "responses": {
                "200": {"description": "Every descriptor is within its limits", "content": answer},
                "429": {"description": "One of them is not; the statuses say which", "content": answer},
                **problems,
                "400": {**problems["400"], "description": "Not JSON, or a field is wrong: `detail` names it"},
            },
        }
    }
