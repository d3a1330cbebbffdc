"""Problems as HTTP tells them (RFC 9457), one shape for every service.

A body is ``application/problem+json`` with ``type``, ``title``, ``status``, ``detail`` and, where fields of a
request are wrong, ``errors``: a list of ``{"field", "problem"}``.  FastAPI's own 422 gets the same shape.

FastAPI takes over a second to import, so only the functions that need it import it: a node answers checks before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import TYPE_CHECKING

import msgspec

from regional_limiter.model.errors import Fault

if TYPE_CHECKING:
    from fastapi import FastAPI, Request, Response

MEDIA_TYPE = "application/problem+json"

BLANK = "about:blank"
REDUCED_CAPACITY = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"

QUOTA_EXCEEDED = "https://iana.org/assignments/http-problem-types#quota-exceeded"

_TITLES = {REDUCED_CAPACITY: "Temporarily reduced capacity", QUOTA_EXCEEDED: "Quota exceeded"}


def problem_body(
    status: int,
    detail: str,
    *,
    type_uri: str = BLANK,
    faults: Iterable[Fault] = (),
    extra: dict[str, object] | None = None,
) -> bytes:
    """The JSON of a problem.  ``faults`` become ``errors``; ``extra`` holds further members by name."""
    document: dict[str, object] = {
        "type": type_uri,
        "title": _TITLES.get(type_uri) or _phrase(status),
        "status": status,
        "detail": detail,
    }
    errors = [{"field": fault.place, "problem": fault.problem} for fault in faults]
    if errors:
        document["errors"] = errors
    document.update(extra or {})
    return msgspec.json.encode(document)


def problem_response(
    status: int,
    detail: str,
    *,
    type_uri: str = BLANK,
    faults: Iterable[Fault] = (),
    extra: dict[str, object] | None = None,
    headers: dict[str, str] | None = None,
) -> Response:
    """A Starlette response of :func:`problem_body`; never stored by a cache."""
    from fastapi import Response

    return Response(
        problem_body(status, detail, type_uri=type_uri, faults=faults, extra=extra),
        status_code=status,
        media_type=MEDIA_TYPE,
        headers={"Cache-Control": "no-store", **(headers or {})},
    )


def install_problem_handlers(app: FastAPI, on_unexpected: Callable[[Exception], None] | None = None) -> None:
    """Every error that ``app`` answers becomes problem+json.

    ``on_unexpected`` is told of each exception that nobody foresaw (answered 500), to count and log it.
    """
    from fastapi.exceptions import RequestValidationError
    from starlette.exceptions import HTTPException

    async def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        detail = error.detail if isinstance(error.detail, str) else _phrase(error.status_code)
        if error.status_code == 404 and detail == _phrase(404):
            detail = "known here: " + ", ".join(_paths(request.app))
        return problem_response(error.status_code, detail, headers=dict(error.headers or {}))

    async def invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        faults = [Fault(_field(item["loc"]), str(item["msg"])) for item in error.errors()]
        if any(item["type"] == "json_invalid" for item in error.errors()):
            return problem_response(400, "the body is not valid JSON", faults=faults)
        return problem_response(422, _summary(faults), faults=faults)

    async def unexpected(request: Request, error: Exception) -> Response:
        if on_unexpected is not None:
            on_unexpected(error)
        return problem_response(500, "an unexpected error; it has been counted and logged")

    app.add_exception_handler(HTTPException, refused)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(Exception, unexpected)


def _paths(app: FastAPI) -> list[str]:
    """What a person may ask of ``app``: what its document names, where it has one."""
    if app.openapi_url is not None:
        return [*app.openapi()["paths"], "/docs", app.openapi_url]
    return [path for route in app.routes if (path := getattr(route, "path", ""))]


def _summary(faults: Iterable[Fault]) -> str:
    return "; ".join(f"{fault.place}: {fault.problem}" for fault in faults)


def _field(location: Iterable[object]) -> str:
    """A field's path as rule sets name places: ``rules[3].refill``."""
    path = ""
    for part in list(location)[1:]:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else str(part)
    return path or "body"


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Error"
