"""What a node answers: a reply, and the ones that say what is wrong.  Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from regional_limiter.model.errors import Fault, InvalidCheck, RulesUnavailable
from services.check_api.bodies import Refused
from services.check_api.headers import Header, Lines, as_lines
from services.errors import MEDIA_TYPE, REDUCED_CAPACITY, problem_body

NO_STORE: Final = (b"cache-control", b"no-store")
JSON: Final = (b"content-type", b"application/json")
PROBLEM: Final = (b"content-type", MEDIA_TYPE.encode())
CLOSE: Final = (b"connection", b"close")

NO_RULES: Final = "no valid rule set has been in force here yet"


JSON_LINES: Final = as_lines(JSON, NO_STORE)
MSGPACK_LINES: Final = as_lines((b"content-type", b"application/msgpack"), NO_STORE)


class Reply(NamedTuple):
    """``lines``: its headers, without the length of the body."""

    status: int
    lines: Lines
    body: bytes


def ok(body: bytes, lines: Lines = b"") -> Reply:
    return Reply(200, lines + JSON_LINES, body)


def problem(status: int, detail: str, *headers: Header, faults: Sequence[Fault] = ()) -> Reply:
    return Reply(status, as_lines(PROBLEM, NO_STORE, *headers), problem_body(status, detail, faults=faults))


def unavailable(detail: str) -> Reply:
    body = problem_body(503, detail, type_uri=REDUCED_CAPACITY)
    return Reply(503, as_lines(PROBLEM, NO_STORE, (b"retry-after", b"1")), body)


def unauthorised() -> Reply:
    return problem(401, "a bearer token is needed", (b"www-authenticate", b"Bearer"))


def wrong_method(path: str, allowed: str) -> Reply:
    return problem(405, f"{path} answers {allowed}", (b"allow", allowed.encode()))


def told(error: Exception) -> Reply | None:
    """The reply to an error that is a request's own, None for one that nobody foresaw."""
    if isinstance(error, InvalidCheck):
        error = Refused(422, [Fault(error.field, error.expected)])
    if isinstance(error, Refused):
        return problem(error.status, str(error), faults=error.faults)
    if isinstance(error, RulesUnavailable):
        return unavailable(f"the rules of domain {error.domain} cannot be read here, and none are in force")
    return None


UNEXPECTED: Final = problem(500, "an unexpected error; it has been counted and logged")
