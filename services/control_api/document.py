"""What FastAPI's document of the control API leaves out: headers that routes read themselves, and tokens."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from services.control_api.requests import WORDS_MOST

BEARER: Final = {
    "type": "http",
    "scheme": "bearer",
    "description": "A token as `POST /tokens` makes it. Where `control_api.token` is not set none is needed.",
}
_CHANGES: Final = ("put", "delete", "post")
_CHANGED: Final = re.compile(r"/(?:rules|rulesets|overrides|subjects|tokens|v1/regions)\b(?!.*:validate)")
_OF_A_VERSION: Final = re.compile(r"/(?:rules/|rulesets/|overrides|subjects/)(?!.*:validate)")
"""What is changed from one version to the next: the later of two changes from the same version is refused."""
_TELLS_ITS_VERSION: Final = re.compile(
    r"/(?:rules|rules/{rule_id}|rulesets/{domain}(?:/regions)?|overrides|subjects)"
)


def _header(name: str, description: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "in": "header", "required": False, "description": description, "schema": schema}


_WORDS: Final = {"type": "string", "maxLength": WORDS_MOST}
_ABOUT: Final = (
    _header("Apportion-Reason", "Why; it is kept in the history", {**_WORDS, "example": "as agreed on Monday"}),
    _header("Apportion-Author", "Who; with a token it is the token's name, whatever this says", _WORDS),
)
_IF: Final = (
    _header(
        "If-Match",
        "The ETag of the version that this is made from; `*`: whichever there is. 412 when somebody was first",
        {"type": "string", "pattern": r'^(?:"[0-9]{1,18}"|\*)$', "example": '"17"'},
    ),
    _header("If-None-Match", "`*`: only if there is none yet", {"type": "string", "enum": ["*"]}),
)
_ETAG: Final = {
    "ETag": {
        "description": "The version, as `If-Match` takes it",
        "schema": {"type": "string"},
        "example": '"17"',
    }
}


def completed(document: dict[str, Any]) -> dict[str, Any]:
    """``document`` itself, with what was left out."""
    document.setdefault("components", {})["securitySchemes"] = {"bearer": BEARER}
    document["security"] = [{}, {"bearer": []}]
    for path, method, operation in _operations(document):
        if method in _CHANGES and _CHANGED.match(path):
            operation.setdefault("parameters", []).extend(_ABOUT)
            if _OF_A_VERSION.match(path):
                operation["parameters"].extend(_IF)
        if method in ("get", "put") and _TELLS_ITS_VERSION.fullmatch(path):
            for status in {"200", "201"} & set(operation["responses"]):
                operation["responses"][status]["headers"] = _ETAG
    return document


def _operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield path, method, operation
