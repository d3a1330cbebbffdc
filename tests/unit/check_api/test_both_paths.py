"""The fast and the slow path, driven with the same bytes: answers, and what the limiter is asked, are the same."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from regional_limiter.limiter import Done
from regional_limiter.model.decision import Answer, Check
from regional_limiter.model.errors import InvalidCheck, RulesUnavailable
from services.check_api import app, fast_http
from services.check_api.authorize import AuthorizeOptions
from services.check_api.bounded_http import BoundedHttp
from services.check_api.fast_http import FastHttp
from tests.unit.check_api.fakes import FakeLimiter, answer_of, node_of, rule_verdict
from tests.unit.check_api.wire import Connection

TOKEN = "a-token-of-16-or-more"


@pytest.fixture(autouse=True, scope="module")
def _without_log_lines_and_threads() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logging.getLogger("uvicorn.error"), "level", logging.CRITICAL)
        patch.setattr(app.NodeApp, "note_unexpected", lambda node, error: None)  # to write an error takes long
        patch.setattr(app, "PARSED_AT_ONCE_BYTES", 2**20)  # nothing here waits for a thread
        yield


class TellingLimiter(FakeLimiter):
    """Its answers tell of the check; some come at once, some a turn later, some are errors."""

    def _tell(self, check: Check) -> Answer:
        key = check.attributes["client_key"]
        if key == "bug":
            raise KeyError("bug")
        told = rule_verdict(f"r-{key[:9]}", allowed=key != "denied", remaining=check.cost, retry_after_ms=7)
        return answer_of(told)

    def _begin(self, check: Check) -> None:
        if check.attributes["client_key"] == "invalid":
            raise InvalidCheck("attributes", "fewer")
        if check.domain == "unreadable":
            raise RulesUnavailable("unreadable", "x")
        self.checks.append(check)

    async def check(self, check: Check) -> Answer:
        self._begin(check)
        await asyncio.sleep(0)
        return self._tell(check)

    def submit(self, check: Check, done: Done) -> None:
        self._begin(check)

        def tell() -> None:
            try:
                outcome: Answer | Exception = self._tell(check)
            except Exception as error:
                outcome = error
            done(outcome)

        if check.cost % 2:
            tell()
        else:
            asyncio.get_running_loop().call_soon(tell)


KEYS = st.sampled_from(["a", "b", "denied", "bug", "invalid", "é", 'q"', "x" * 300, "x" * 1025])
CHECKS = st.fixed_dictionaries(
    {"client_key": KEYS, "resource": st.just("r")},
    optional={
        "cost": st.sampled_from([0, 1, 2, 3, -1, "1", 2**31]),
        "attributes": st.dictionaries(st.sampled_from(["t", "client_key"]), KEYS, max_size=2),
        "domain": st.sampled_from(["shop", "No", "unreadable"]),
        "request_id": st.sampled_from(["r1", None, ""]),
        "costs": st.just(1),
    },
)
GARBAGE = st.binary(max_size=12) | st.sampled_from([b"\r\n", b"\n", b"\x00", b"POST ", b"GET / HTTP/1.1\r\n"])
JSON_BODIES = (
    CHECKS.map(lambda check: json.dumps(check).encode())
    | CHECKS.map(lambda check: json.dumps(check, ensure_ascii=False).encode())
    | st.lists(CHECKS, max_size=4).map(lambda checks: json.dumps({"checks": checks}).encode())
)
BODIES = (
    JSON_BODIES
    | GARBAGE
    | st.sampled_from([b"", b"{", b"[]", b'{"client_key":"a","client_key":"b","resource":"r"}'])
)
PATHS = st.sampled_from(
    ["/v1/check"] * 6
    + ["/v1/check:batch"] * 4
    + [
        "/v1/check?detail=1",
        "/v1/refund",
        "/v1/peek?client_key=a&resource=r",
        "/livez",
        "http://x/v1/check",
        "/v1/check/",
    ]
)
HEADERS = st.sampled_from(
    [
        b"Connection: keep-alive",
        b"Connection: close",
        b"Connection: Keep-Alive, TE",
        b"Expect: 100-continue",
        b"Upgrade: websocket\r\nConnection: Upgrade",
        b"Authorization: Bearer " + TOKEN.encode(),
        b"Authorization: Bearer wrong",
        b"X-Apportion-Token: " + TOKEN.encode(),
        b"X-Apportion-Token: wrong",
        b"Content-Length: 3",
        b"Content-Length: +3",
        b"Transfer-Encoding: identity",
        b"X-Folded: a\r\n b",
        b"X-Bad\x01: a",
        b"X-High: \xff",
        b"X-Long: " + b"x" * 5000,
        b"Content-Type: text/plain",
    ]
)


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    body = draw(BODIES)
    method = draw(st.sampled_from(["POST"] * 8 + ["GET", "post", "HEAD"]))
    version = draw(st.sampled_from(["HTTP/1.1"] * 8 + ["HTTP/1.0", "HTTP/2.0"]))
    headers = [b"Host: x", *draw(st.lists(HEADERS, max_size=1))]
    if draw(st.integers(0, 5)) > 0:
        headers.append(b"Authorization: Bearer " + TOKEN.encode())
    length = draw(st.sampled_from(["right"] * 8 + ["short", "long", "chunked", "none"]))
    if length == "chunked":
        headers.append(b"Transfer-Encoding: chunked")
        body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if body else b"0\r\n\r\n"
    elif length != "none":
        wrong = {"right": 0, "short": -1, "long": 1}[length]
        headers.append(b"content-length: %d" % max(0, len(body) + wrong))
    end = draw(st.sampled_from([b"\r\n"] * 9 + [b"\n"]))
    line = f"{method} {draw(PATHS)} {version}".encode()
    return end.join([line, *headers, b"", b""]) + body


def plain(body: bytes, path: str = "/v1/check") -> bytes:
    head = (
        f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


@st.composite
def nearly_plain(draw: st.DrawFn) -> bytes:
    """What the fast path would take, but for one header."""
    path = draw(st.sampled_from(["/v1/check", "/v1/check:batch"]))
    check = {"client_key": draw(st.sampled_from("abc")), "resource": "r", "cost": draw(st.integers(0, 3))}
    request = plain(json.dumps(check if path == "/v1/check" else {"checks": [check, check]}).encode(), path)
    if draw(st.booleans()):
        request = request.replace(b"Host: x", b"Host: x\r\n" + draw(HEADERS))
    return request


AUTHORIZE_LINES = st.sampled_from(
    [
        "GET /v1/authorize",
        "GET /v1/authorize?denied=403",
        "POST /v1/authorize?domain=shop&cost=2&attributes.action=login",
        "GET /v1/authorize?domain=unreadable",
        "GET /v1/authorize?resource=x&cost=2",
        "GET /v1/authorize?cost=-1",
        "GET /v1/authorize?nothing",
        "GET /v1/authorize?a#b",
        "GET /v1/authorize/orders/7?cost=9",
        "DELETE /v1/authorize/denied",
        "PUT /v1/authorize/a%2Fb%zz",
        "HEAD /v1/authorize/a",
        "TRACE /v1/authorize/a",
        "GET /v1/authorizer",
        "GET /v1/authorize%2Fa",
        "GET /v1/authorize?",
        "GET /v1/authorize/caf\u00e9",
    ]
)
AUTHORIZE_HEADERS = st.sampled_from(
    [
        b"X-Forwarded-For: 192.0.2.7",
        b"X-Forwarded-For: 192.0.2.8, 10.0.0.1",
        b"X-Forwarded-For: nobody",
        b"X-Forwarded-Method: PUT",
        b"X-Forwarded-Uri: /other?x=1",
        b"X-Forwarded-Uri: /\xc3\xa9/\xff",
        b"X-Api-Key: a",
        b"X-Api-Key: denied",
        b"X-Api-Key: bug",
        b"X-Api-Key: invalid",
        b"X-Apportion-Token: " + TOKEN.encode(),
        b"X-Apportion-Token: wrong",
        b"Content-Length: 0",
        b"Content-Length: 2",
        b"traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    ]
)
GATEWAYS = AuthorizeOptions(client_key=("header:x-api-key",), attributes={"trace": "header:x-trace"})


@st.composite
def questions(draw: st.DrawFn) -> bytes:
    """What gateways ask."""
    said = [b"X-Forwarded-Method: GET", b"X-Forwarded-Uri: /orders/7?page=2"]
    said = [line for line in said if draw(st.integers(0, 5))]
    said += draw(st.lists(AUTHORIZE_HEADERS | HEADERS, max_size=3))
    if draw(st.integers(0, 5)):
        said.append(b"Authorization: Bearer " + TOKEN.encode())
    line = f"{draw(AUTHORIZE_LINES)} HTTP/1.1".encode()
    return b"\r\n".join([line, b"Host: shop.example", *said, b"", b""])


@st.composite
def conversations(draw: st.DrawFn) -> list[bytes]:
    """Some requests with mistakes, cut anywhere."""
    one = nearly_plain() | nearly_plain() | questions() | questions() | requests() | GARBAGE
    some = st.lists(one, min_size=1, max_size=5)
    data = b"".join(draw(some))
    for _ in range(draw(st.integers(0, 3)) // 3):
        at = draw(st.integers(0, max(0, len(data) - 1)))
        data = data[:at] + draw(GARBAGE) + data[at + draw(st.integers(0, 1)) :]
    cuts = sorted(draw(st.lists(st.integers(0, len(data)), max_size=4)))
    return [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True) if end > start]


async def elsewhere(scope: Any, receive: Any, send: Any) -> None:
    """Stands for FastAPI, which both paths meet in the same way, and which takes long to make."""
    await send({"type": "http.response.start", "status": 404, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})


async def talked(kind: type[BoundedHttp], parts: list[bytes], patient: bool) -> tuple[bytes, bool, list[Check]]:
    limiter = TellingLimiter()
    node = node_of(limiter, token=TOKEN, authorize=GATEWAYS)
    node._web = elsewhere
    connection = Connection(node, kind)
    said = await connection.talk(parts, patient=patient)
    closed = connection.transport.closed
    checks = list(limiter.checks)
    await connection.hang_up()
    return said, closed, checks


A = plain(b'{"client_key":"a","resource":"r"}')
B = plain(b'{"client_key":"b","resource":"r","cost":2}')


Q = (
    f"GET /v1/authorize?denied=403 HTTP/1.1\r\nHost: x\r\nX-Apportion-Token: {TOKEN}\r\nX-Forwarded-Method: GET\r\n"
    "X-Forwarded-Uri: /orders/7?page=2\r\nX-Api-Key: denied\r\n\r\n"
).encode()


SLOW_HEAD = plain(A, "/v1/check?x=1").removesuffix(A)
CHUNKED_HEAD = b"POST /v1/check HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"


def same(fast: tuple[bytes, bool, list[Check]], slow: tuple[bytes, bool, list[Check]]) -> bool:
    """Whether both say the same.  A request whose body is no HTTP may have been asked for or answered before that
    was seen, or not: that depends on the turn of the loop in which it came."""
    if fast == slow or fast[1] != slow[1]:
        return fast == slow
    shorter, longer = sorted((fast[0].split(b"HTTP/1.1 "), slow[0].split(b"HTTP/1.1 ")), key=len)
    fewer, more = sorted((fast[2], slow[2]), key=len)
    told = shorter[-1].startswith(b"400 ") and shorter in (longer, longer[:-2] + longer[-1:])
    return told and fewer in (more, more[:-1])


@pytest.mark.timeout(300)
@given(conversations(), st.sampled_from([0.0, 60.0]), st.booleans())
@example([A + B + A], 60.0, True)
@example([B + A + b"\x00"], 60.0, True)
@example([B + A.replace(b"Host", b"Connection: close\r\nHost") + B], 60.0, True)
@example([A.replace(b"Host", b"Expect: 100-continue\r\nHost") + B], 60.0, True)
@example([A.replace(b"Host", b"Upgrade: websocket\r\nConnection: Upgrade\r\nHost"), B], 60.0, True)
@example([SLOW_HEAD, A, B], 60.0, True)  # a request within a body is none
@example([SLOW_HEAD.replace(TOKEN.encode(), b"wrong"), A, B], 60.0, True)  # nor after its answer
@example([SLOW_HEAD[:60], SLOW_HEAD[60:] + A + B], 60.0, True)
@example([A[:20], A[20:] + B[:50], B[50:]], 0.0, True)
@example([A + CHUNKED_HEAD, b"\x00" + B], 0.0, False)
@example([B + Q.replace(b"Host: x", b"Transfer-Encoding: identity")], 0.0, False)
@example([Q + A + Q, Q[:9], Q[9:30], Q[30:] + B + Q], 60.0, True)
@example([Q.replace(b"denied=403", b"cost=-1") + Q], 60.0, True)
@example([Q.replace(b"Key: denied", b"Key: invalid") + Q], 60.0, True)
@example([Q.replace(b"Key: denied", b"Key: bug") + Q], 60.0, True)
@settings(max_examples=1500, deadline=None)
def test_both_paths_say_the_same_to_the_same_bytes(parts: list[bytes], hold_s: float, patient: bool) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fast_http, "HOLD_S", hold_s)
        fast = asyncio.run(talked(FastHttp, parts, patient))
    slow = asyncio.run(talked(BoundedHttp, parts, patient))
    assert same(fast, slow)
