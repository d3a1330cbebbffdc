"""What gateways ask, on the fast path: which heads it takes, and what it remembers of them."""

from __future__ import annotations

import pytest

from services.check_api import authorize_heads
from services.check_api.authorize import AuthorizeOptions, Authorizer
from services.check_api.authorize_heads import AuthorizeHeads, begins, may_begin
from services.check_api.fast_http import FastHttp
from tests.unit.check_api.fakes import FakeLimiter, answer_of, node_of, rule_verdict
from tests.unit.check_api.wire import Connection

PEER = "127.0.0.1"
ASKED = (
    b"GET /v1/authorize?denied=403 HTTP/1.1\r\nHost: node\r\nX-Forwarded-For: 192.0.2.7\r\n"
    b"X-Forwarded-Method: GET\r\nX-Forwarded-Uri: /orders/7?page=2\r\n\r\n"
)
PREFIXED = b"POST /v1/authorize/orders/7?page=2 HTTP/1.1\r\nHost: shop\r\nContent-Length: 0\r\n\r\n"


def heads(token: str | None = None, **options: object) -> AuthorizeHeads:
    return AuthorizeHeads(Authorizer(AuthorizeOptions(**options)), token)  # type: ignore[arg-type]


@pytest.mark.parametrize(("asked", "method"), [(ASKED, "GET"), (PREFIXED, "POST")])
async def test_a_gateways_question_never_becomes_an_asgi_request(asked: bytes, method: str) -> None:
    node = node_of(FakeLimiter(answer_of(rule_verdict(remaining=4))))
    connection = Connection(node, FastHttp)
    said = await connection.talk([asked + asked])
    assert said.count(b"HTTP/1.1 200 OK\r\n") == 2
    assert said.endswith(b"content-length: 0\r\n\r\n")
    assert b"x-ratelimit-remaining: 4\r\n" in said
    assert connection.protocol.cycle is None
    assert list(node.counts.durations) == [(method, "/v1/authorize", 200)]


async def test_a_denial_has_the_status_that_the_operator_asks_for() -> None:
    node = node_of(FakeLimiter(answer_of(rule_verdict(allowed=False, remaining=0, retry_after_ms=1334))))
    connection = Connection(node, FastHttp)
    said = await connection.talk([ASKED, PREFIXED])
    assert [part[:3] for part in said.split(b"HTTP/1.1 ")[1:]] == [b"403", b"429"]
    assert connection.protocol.cycle is None


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"GET /", b"HEAD /"),
        (b"GET /", b"BREW /"),
        (b"?denied=403", b"?denied=200"),
        (b"HTTP/1.1", b"HTTP/1.0"),
        (b"Host: node", b"Connection: close"),
        (b"Host: node", b"Expect: 100-continue"),
        (b"Host: node", b"Content-Length: 1"),
        (b"Host: node", b"Content-Length: 0\r\nContent-Length: 0"),
        (b"Host: node", b"Transfer-Encoding: chunked"),
        (b"Host: node", b"X-Long: " + b"x" * 5000),
        (b"X-Forwarded-Uri", b"X-Original-Uri"),
    ],
)
def test_anything_out_of_the_ordinary_is_not_plain(old: bytes, new: bytes) -> None:
    changed = ASKED.replace(old, new)
    assert begins(ASKED)
    assert heads().find(ASKED, PEER) is not None
    assert not begins(changed) or heads().find(changed, PEER) is None


def test_only_who_bears_the_token_is_plain() -> None:
    token = "a-token-of-16-or-more"
    assert heads(token).find(ASKED, PEER) is None
    for line in (f"X-Apportion-Token: {token}", f"Authorization: Bearer {token}"):
        assert heads(token).find(ASKED.replace(b"Host: node", line.encode()), PEER) is not None


def test_two_peers_that_say_the_same_are_two() -> None:
    known = heads(trusted_proxies=["10.0.0.1"])
    trusted, stranger = (known.find(ASKED, peer) for peer in ("10.0.0.1", "198.51.100.9"))
    assert trusted is not None
    assert stranger is not None
    assert trusted.asked is not None
    assert stranger.asked is not None
    assert trusted.asked.check.attributes["ip"] == "192.0.2.7"
    assert stranger.asked.check.attributes["ip"] == "198.51.100.9"


def test_the_same_question_in_another_head_is_the_same_object() -> None:
    known = heads()
    first, second = (known.find(ASKED.replace(b"page=2", page), PEER) for page in (b"page=2", b"page=3"))
    other = known.find(ASKED.replace(b"denied=403", b"denied=401"), PEER)
    assert first is not None
    assert second is not None
    assert other is not None
    assert first.asked is second.asked
    assert first.asked is not other.asked


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authorize_heads, "HEADS_MOST", 10)
    monkeypatch.setattr(authorize_heads, "ASKED_MOST", 10)
    known = heads()
    assert known.find(ASKED, PEER) is known.find(ASKED, PEER)
    for number in range(100):
        assert known.find(ASKED.replace(b"/orders/7", b"/orders/%d" % number), PEER) is not None
        assert len(known.known) <= 10
        assert len(known._asked) <= 10
    before = len(known.known)
    assert known.find(ASKED.replace(b"/orders/7", b"/" + b"x" * 2000), PEER) is not None
    assert len(known.known) == before


def test_where_a_rule_looks_at_the_trace_every_question_takes_the_slow_path() -> None:
    """The fast path reads heads without it."""
    assert heads(attributes={"trace": "header:traceparent"}).find(ASKED, PEER) is None


def test_a_line_that_is_not_whole_may_become_one() -> None:
    for asked in (ASKED, PREFIXED):
        line = asked[: asked.index(b"\r\n") + 2]
        assert begins(line)
        assert all(may_begin(line[:length]) for length in range(1, len(line)))
        assert not any(begins(line[:length]) for length in range(len(line)))
    assert not begins(b"GET /v1/authorizer HTTP/1.1\r\n")
    assert not may_begin(b"GET /v1/check")
    assert not may_begin(b"GET /v1/authorize?" + b"x" * 5000)
