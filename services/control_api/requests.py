"""What the control API reads of a request: bounded bodies, preconditions, who and why."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from typing import Any

from fastapi import Request
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from regional_limiter.model.errors import Fault, InvalidRules
from regional_limiter.rules.text import Format, read_document
from services.control_api.guard import address_of, who
from services.patient_timer import patient_timeout

BODY_BYTES_MOST = 1024 * 1024
BODY_DEADLINE_S = 20
WORDS_MOST = 500
_ETAG = re.compile(r'(?:W/)?"(\d{1,19})"')


@dataclass(frozen=True, slots=True)
class Precondition:
    """``version``: what If-Match names; 0 from ``If-None-Match: *``; None without.  ``exists``: If-Match: *."""

    version: int | None = None
    exists: bool = False


def precondition(request: Request) -> Precondition:
    """Raises HTTPException 400 for what is neither ``*`` nor a version as GET gives it."""
    if_match, if_none_match = request.headers.get("if-match"), request.headers.get("if-none-match")
    if if_none_match is not None:
        if if_none_match.strip() != "*" or if_match is not None:
            raise HTTPException(400, "If-None-Match: only *, and not beside If-Match")
        return Precondition(version=0)
    if if_match is None:
        return Precondition()
    if if_match.strip() == "*":
        return Precondition(exists=True)
    found = _ETAG.fullmatch(if_match.strip())
    if found is None:
        raise HTTPException(400, 'If-Match: one ETag as GET gives it, such as "17", or *')
    return Precondition(version=int(found[1]))


def who_where_why(request: Request) -> dict[str, str]:
    """``author``, ``origin`` and ``reason`` of a change.

    The author is the name of the token; without tokens, or with the configured one, the caller's word.
    """
    principal = who(request)
    said = _printable(request.headers.get("apportion-author", ""))
    author = principal.name if principal.is_named else said or "unknown"
    return {
        "author": author,
        "origin": address_of(request),
        "reason": _printable(request.headers.get("apportion-reason", "")),
    }


async def read_body(request: Request) -> Any:
    """The document that the body writes, YAML or JSON.  Raises InvalidRules, HTTPException 400, 408, 413 or 415."""
    format = _format(request.headers.get("content-type", ""))
    body = bytearray()
    try:
        async with patient_timeout(BODY_DEADLINE_S):
            async for part in request.stream():
                body += part
                if len(body) > BODY_BYTES_MOST:
                    raise HTTPException(413, f"a body may have at most {BODY_BYTES_MOST:,} bytes")
    except TimeoutError:
        raise HTTPException(408, f"the body did not come whole within {BODY_DEADLINE_S} s") from None
    except ClientDisconnect:
        raise HTTPException(400, "the caller went away in the middle of the body") from None
    return await asyncio.to_thread(read_document, bytes(body), format)


async def read_mapping(request: Request) -> dict[str, Any]:
    document = await read_body(request)
    if not isinstance(document, dict):
        raise InvalidRules([Fault("body", "must be a mapping")])
    return document


async def read_list(request: Request) -> list[Any]:
    document = await read_body(request)
    if not isinstance(document, list):
        raise InvalidRules([Fault("body", "must be a list")])
    return document


def _format(content_type: str) -> Format | None:
    media = content_type.partition(";")[0].strip().lower()
    if media.endswith(("/json", "+json")):
        return "json"
    if media.endswith(("/yaml", "/x-yaml", "+yaml")):
        return "yaml"
    if media in ("", "text/plain", "application/octet-stream", "application/x-www-form-urlencoded"):
        return None  # curl's --data says nothing about what it sends
    raise HTTPException(415, f"{media} is neither JSON nor YAML")


def _printable(text: str) -> str:
    return "".join(c for c in text[:WORDS_MOST] if c.isprintable()).strip()
