"""What every middleware does: whose request it is, what is asked for it, and what a denial says.  Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from http import HTTPStatus
from typing import Final

from apportion._types import Answer, Check, InvalidRequest
from apportion.addresses import Network, caller_of, grouped
from apportion.texts import fitting

QUOTA_EXCEEDED: Final = "https://iana.org/assignments/http-problem-types#quota-exceeded"
REDUCED_CAPACITY: Final = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"
WAIT_S_MOST: Final = 30.0
"""So long a middleware holds a request back at most for its turn in a queue."""

_OF_CALLERS: Final = ("client_key", "resource", "cost", "attributes", "body")
"""What of a check may come from whoever sent the request; domain, token and ids are the application's.

``body``: what all of these are together.
"""

Headers = list[tuple[str, str]]


def check_of(
    method: str,
    path: str,
    peer: str | None,
    forwarded: Sequence[str],
    trusted: Sequence[Network],
    *,
    resource: str | None = None,
    cost: int = 1,
) -> Check:
    """The check of a request: by the caller's address, which is also the attribute ``ip``.

    ``forwarded``: the lines of ``X-Forwarded-For``.  ``trusted``: the proxies that are believed.  ``resource``:
    what is asked for, method and path unless said.  IPv6 callers are told apart by their /64.
    """
    caller = caller_of(peer, forwarded, trusted)
    address = "" if caller is None else grouped(caller)
    attributes = {"ip": address, "full_ip": "" if caller is None else str(caller), "method": fitting(method)}
    return Check(address, fitting(resource or f"{method} {path}"), cost, attributes)


def fitted(check: Check | None) -> Check | None:
    """``check`` with texts of any length as a node takes them."""
    if check is None:
        return None
    attributes = check.attributes and {name: fitting(text) for name, text in check.attributes.items()}
    return replace(
        check, client_key=fitting(check.client_key), resource=fitting(check.resource), attributes=attributes
    )


def denial(answer: Answer) -> tuple[int, Headers, bytes]:
    """(status, headers, body) of a denied request: 429, or 503 where it could not be decided."""
    undecided = not answer.decided or answer.reason == "store_unavailable"
    status, kind, title = (
        (503, REDUCED_CAPACITY, "Temporarily reduced capacity")
        if undecided
        else (429, QUOTA_EXCEEDED, "Quota exceeded")
    )
    problem = {
        "type": kind,
        "title": title,
        "status": status,
        "violated-policies": [answer.rule] if answer.rule is not None else [],
        "retry_after_ms": answer.retry_after_ms,
        "reason": answer.reason,
    }
    headers, body = _problem(problem)
    return status, [*headers, *limit_headers(answer)], body


def refusal(error: InvalidRequest) -> tuple[int, Headers, bytes]:
    """(status, headers, body) of a request that no check can be made of, as its cost is -5: 422, naming the field.

    Raises ``error`` where that is no fault of who sent it: a token that is refused, a domain that is none.
    """
    listed = error.problem.get("errors")
    faults = [fault for fault in listed if isinstance(fault, dict)] if isinstance(listed, list) else []
    if error.status == 413:  # what the check says is together more than a node takes
        faults = [{"field": "body", "problem": str(error)}]
    elif error.status != 422 or any(
        str(fault.get("field")).partition(".")[0] not in _OF_CALLERS for fault in faults
    ):
        raise error
    status = 422
    problem = {
        "type": "about:blank",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": str(error),
        "errors": [{"field": str(fault.get("field")), "problem": str(fault.get("problem"))} for fault in faults],
    }
    return status, *_problem(problem)


def _problem(problem: dict[str, object]) -> tuple[Headers, bytes]:
    body = json.dumps(problem).encode()
    headers = [("content-type", "application/problem+json"), ("cache-control", "no-store")]
    return [*headers, ("content-length", str(len(body)))], body


def limit_headers(answer: Answer) -> Headers:
    """What to hand on of an answer; a denial has ``Retry-After`` where waiting helps: whole seconds, at least 1."""
    handed_on = [(name, value) for name, value in answer.headers if name != "retry-after"]
    if not answer.allowed and answer.retry_after_ms is not None:
        handed_on.append(("retry-after", str(max(1, -(-answer.retry_after_ms // 1000)))))
    return handed_on


def wait_s(answer: Answer) -> float:
    """How long to hold an allowed request back, so that what passes is even."""
    return min(answer.wait_ms / 1000, WAIT_S_MOST)


def fields_of(headers: Iterable[tuple[str, str]]) -> list[tuple[bytes, bytes]]:
    """Headers as ASGI takes them."""
    return [(name.encode("latin-1"), value.encode("latin-1", "replace")) for name, value in headers]
