"""What every middleware does: whose request it is, what is asked for it, and what a denial says.  Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Final

from apportion._types import Answer, Check
from apportion.addresses import Network, caller_of, grouped
from apportion.texts import fitting

QUOTA_EXCEEDED: Final = "https://iana.org/assignments/http-problem-types#quota-exceeded"
REDUCED_CAPACITY: Final = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"
WAIT_S_MOST: Final = 30.0
"""So long a middleware holds a request back at most for its turn in a queue."""

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
    body = json.dumps(problem).encode()
    own = [("content-type", "application/problem+json"), ("cache-control", "no-store")]
    own.append(("content-length", str(len(body))))
    return status, [*own, *limit_headers(answer)], body


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
