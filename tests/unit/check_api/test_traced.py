"""Requests that are traced: which, by either way through a node, and what their spans say."""

from __future__ import annotations

import json
from contextlib import nullcontext
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regional_limiter.model.errors import InvalidCheck, StoreUnavailable
from services.check_api.app import NodeApp, NodeOptions, create_app
from services.check_api.fast_http import FastHttp
from services.check_api.heads import Heads, without_trace
from services.check_api.home_wire import HOME_PATH
from services.tracing import Kind, Span, Tracer, working_at
from tests.unit.check_api.fakes import FakeLimiter, answer_of, rule_verdict
from tests.unit.check_api.wire import Connection

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SAMPLED, UNSAMPLED = (f"00-{TRACE}-{PARENT}-{flags}" for flags in ("01", "00"))
HASH = bytes(range(8))


def node_of(
    answer: Any = None, ratio: float = 0.0, tracer: Tracer | None = None, watched: Any = None, **options: Any
) -> NodeApp:
    limiter = FakeLimiter(answer or answer_of(rule_verdict(key_hash=HASH)))
    tracer = tracer or Tracer(ratio, 1000)
    return create_app(limiter, NodeOptions("us-east", "us-east-1", **options), tracer=tracer, watched=watched)


def next_after(passed: int) -> Tracer:
    """Traces one of so many and one more, always."""
    return Tracer(0.5, 1000, uniform=lambda: 1 - 0.5 ** (passed + 0.5))


def taken(node: NodeApp) -> list[Span]:
    assert node.tracing is not None
    return node.tracing.tracer.take()


def request(*headers: str, path: str = "/v1/check", key: str = "user:42") -> bytes:
    body: dict[str, Any] = {"client_key": key, "resource": "r"}
    text = json.dumps({"checks": [body, body]} if path.endswith("batch") else body)
    lines = [f"POST {path} HTTP/1.1", "Host: x", *headers, f"Content-Length: {len(text)}"]
    return ("\r\n".join(lines) + "\r\n\r\n" + text).encode()


async def said(node: NodeApp, *requests: bytes) -> bytes:
    return await Connection(node, FastHttp).talk(list(requests))


async def test_what_other_regions_ask_is_a_span_and_a_probe_is_none() -> None:
    node = node_of(token="of callers", home_token="of nodes")
    answer = await said(node, request(f"traceparent: {SAMPLED}", path=HOME_PATH))
    assert answer.startswith(b"HTTP/1.1 401")
    (span,) = taken(node)
    assert (span.attributes["http.route"], span.attributes["http.response.status_code"]) == (HOME_PATH, 401)
    probe = f"GET /livez HTTP/1.1\r\nHost: x\r\ntraceparent: {SAMPLED}\r\n\r\n"
    assert (await said(node, probe.encode())).startswith(b"HTTP/1.1 200")
    assert taken(node) == []


@pytest.mark.parametrize("path", ["/v1/check", "/v1/check?detail=1", "/v1/check:batch", "/v1/acquire"])
@pytest.mark.parametrize("name", ["traceparent", "Traceparent"])
async def test_a_sampled_request_is_a_span_under_its_callers(path: str, name: str) -> None:
    node = node_of()
    answer = await said(node, request(f"{name}: {SAMPLED}", "tracestate: a=b", path=path))
    assert answer.startswith(b"HTTP/1.1 200")
    (span,) = taken(node)
    plain = path.partition("?")[0]
    assert (span.name, span.kind) == (f"POST {plain}", Kind.SERVER)
    assert (f"{span.context.trace_id:032x}", f"{span.parent_id:016x}") == (TRACE, PARENT)
    assert span.attributes["http.route"] == plain
    assert span.attributes["http.response.status_code"] == 200
    assert 0 < span.started_ns <= span.ended_ns
    assert span.failed is None


@pytest.mark.parametrize("path", ["/v1/check", "/v1/check?detail=1"])
async def test_what_was_decided_is_in_the_span_and_the_key_is_not(path: str) -> None:
    node = node_of(answer_of(rule_verdict("burst", allowed=False, key_hash=HASH, retry_after_ms=5)))
    await said(node, request(f"traceparent: {SAMPLED}", path=path))
    (span,) = taken(node)
    told = {name: value for name, value in span.attributes.items() if name.startswith("ratelimit.")}
    assert told == {
        "ratelimit.domain": "default",
        "ratelimit.rule": "burst",
        "ratelimit.outcome": "denied",
        "ratelimit.reason": "limited",
        "ratelimit.degraded": False,
        "ratelimit.key": f"#{HASH.hex()[:12]}",
    }
    assert "user:42" not in str(span.attributes)


async def test_keys_are_told_where_a_setting_says_so() -> None:
    node = node_of(tells_keys=True)
    await said(node, request(f"traceparent: {SAMPLED}"))
    assert taken(node)[0].attributes["ratelimit.key"] == "user:42"


@pytest.mark.parametrize("ratio", [0.0, 1.0])
async def test_a_caller_that_does_not_keep_its_trace_is_not_traced(ratio: float) -> None:
    node = node_of(ratio=ratio)
    await said(
        node, request(f"traceparent: {UNSAMPLED}"), request(f"traceparent: {UNSAMPLED}", path="/v1/check?detail=1")
    )
    assert taken(node) == []


async def test_who_says_nothing_is_traced_by_the_ratio() -> None:
    node = node_of(ratio=1.0)
    await said(node, request() + request(), request(path="/v1/check?detail=1"))
    spans = taken(node)
    assert len({span.context.trace_id for span in spans}) == 3
    assert {span.parent_id for span in spans} == {0}
    assert node.counts.durations["POST", "/v1/check", 200].exemplars


async def test_the_fast_path_passes_by_as_many_as_are_not_to_be_traced() -> None:
    node = node_of(tracer=next_after(3))
    for traced in (0, 0, 0, 1, 0, 0, 0, 1):
        await said(node, request())
        assert len(taken(node)) == traced
    for traced in (0, 0, 0, 1):
        await said(node, request(f"traceparent: {SAMPLED}"), request(f"traceparent: {UNSAMPLED}"))
        assert len(taken(node)) == 1, "those whose callers decide are not counted"
        await said(node, request())
        assert len(taken(node)) == traced


@pytest.mark.parametrize("headers", [(), (f"traceparent: {SAMPLED}",)])
async def test_a_request_that_falls_to_the_slow_path_takes_one_place_in_the_bound(headers: tuple[str, ...]) -> None:
    """It was begun twice, and the second time there was no place for it."""
    tracer = Tracer(1.0, 1, now_s=lambda: 5.0)
    node = node_of(InvalidCheck("cost", "less"), tracer=tracer)
    answer = await said(node, request(*headers))
    assert answer.startswith(b"HTTP/1.1 422"), answer
    (span,) = taken(node)
    assert span.attributes["http.response.status_code"] == 422
    await said(node, request(*headers))
    assert taken(node) == [], "the bound is one"


async def test_a_request_that_falls_to_the_slow_path_is_drawn_once() -> None:
    """Drawn by either path, of five that were to be passed by only the first two were."""
    node = node_of(InvalidCheck("cost", "less"), tracer=next_after(5))
    for traced in (0, 0, 0, 0, 0, 1, 0):
        await said(node, request())
        assert len(taken(node)) == traced


NOTHING = "0" * 32


@pytest.mark.parametrize(
    "given",
    [
        f"00-{NOTHING}-{PARENT}-00",
        f"00-{TRACE}-{NOTHING[:16]}-00",
        f"ff-{TRACE}-{PARENT}-00",
        f"00-{TRACE.upper()}-{PARENT}-00",
        f"00_{TRACE}-{PARENT}-00",
        f"00-{'g' * 32}-{PARENT}-00",
        f"00-{TRACE}-{PARENT}-g0",
        "x" * 54 + "0",
    ],
)
@pytest.mark.parametrize("path", ["/v1/check", "/v1/check:batch", "/v1/acquire"])
async def test_a_traceparent_that_is_none_begins_a_trace_by_the_ratio(path: str, given: str) -> None:
    """Anything as long that ended in an even digit was taken for a caller that does not keep its trace."""
    node = node_of(ratio=1.0)
    await said(node, request(f"traceparent: {given}", path=path))
    (span,) = taken(node)
    assert (span.parent_id, span.context.trace_id != 0) == (0, True)
    untraced = node_of(ratio=0.0)
    await said(untraced, request(f"traceparent: {given}", path=path))
    assert taken(untraced) == []


async def test_one_that_is_none_and_falls_to_the_slow_path_is_drawn_once_too() -> None:
    node = node_of(InvalidCheck("cost", "less"), tracer=next_after(5))
    for traced in (0, 0, 0, 0, 0, 1, 0):
        await said(node, request(f"traceparent: 00-{NOTHING}-{PARENT}-01"))
        assert len(taken(node)) == traced


class Calls:
    """What calls Redis."""

    watch: Any = None


@pytest.mark.parametrize(
    ("path", "answer"),
    [
        *((path, None) for path in ("/v1/check", "/v1/check?detail=1", "/v1/check:batch")),
        ("/v1/check", InvalidCheck("cost", "less")),
        ("/v1/check", ValueError("of our own")),
    ],
)
async def test_calls_to_redis_are_watched_while_a_traced_request_is_under_way(path: str, answer: Any) -> None:
    calls = Calls()
    node = node_of(answer, watched=calls)
    assert node.tracing is not None
    other = node.tracing.begin("POST", "/v1/check", SAMPLED.encode())
    assert other is not None
    assert calls.watch == node.tracing.watch
    await said(node, request(f"traceparent: {SAMPLED}", path=path))
    assert calls.watch == node.tracing.watch, "one is under way still"
    node.tracing.ended(other, "POST", "/v1/check", 200, 0.001)
    assert calls.watch is None
    assert node.counts.unexpected_errors == (1 if isinstance(answer, ValueError) else 0)


async def test_a_request_that_ended_twice_is_counted_and_leaves_the_others_watched() -> None:
    calls = Calls()
    node = node_of(watched=calls)
    assert node.tracing is not None
    span = node.tracing.begin("POST", "/v1/check", SAMPLED.encode())
    assert span is not None
    for ends in (1, 2):
        node.tracing.ended(span, "POST", "/v1/check", 200, 0.001)
        assert node.counts.unexpected_errors == ends - 1
    await said(node, request(f"traceparent: {SAMPLED}"))
    assert calls.watch is None
    assert node.tracing.begin("POST", "/v1/check", SAMPLED.encode()) is not None
    assert calls.watch == node.tracing.watch, "below none, this one would have been no more than none"


async def test_a_batch_that_cannot_be_begun_is_answered_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Calls()
    node = node_of(watched=calls)

    def fails(*_: Any) -> bool:
        raise ValueError("of our own")

    monkeypatch.setattr(node.batches, "submit", fails)
    answer = await said(node, request(f"traceparent: {SAMPLED}", path="/v1/check:batch"))
    assert answer.startswith(b"HTTP/1.1 500")
    (span,) = taken(node)
    assert (span.failed, calls.watch) == ("answered 500", None)


async def test_probes_are_not_traced() -> None:
    node = node_of(ratio=1.0)
    await said(node, b"GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n")
    assert taken(node) == []


async def test_an_error_is_told_by_its_name_and_not_as_an_answer() -> None:
    node = node_of(KeyError("bug"))
    answer = await said(node, request(f"traceparent: {SAMPLED}"))
    assert answer.startswith(b"HTTP/1.1 500")
    (span,) = taken(node)
    assert (span.attributes["error.type"], span.failed) == ("KeyError", "answered 500")


async def test_an_answer_that_says_that_it_failed_is_an_error_by_its_status() -> None:
    node = node_of()
    node.limiter.ready = False  # type: ignore[misc]
    answer = await said(node, request(f"traceparent: {SAMPLED}"))
    assert answer.startswith(b"HTTP/1.1 503")
    (span,) = taken(node)
    assert (span.attributes["error.type"], span.failed) == ("503", "answered 503")


def scope_of(method: str = "POST") -> dict[str, Any]:
    headers = [(b"host", b"x"), (b"traceparent", SAMPLED.encode())]
    path = "/v1/check"
    return {
        "type": "http",
        "method": method,
        "path": path,
        "query_string": b"",
        "headers": headers,
        "scheme": "https",
    }


async def whole() -> dict[str, Any]:
    return {"type": "http.request", "body": b'{"client_key": "a", "resource": "r"}'}


async def gone() -> dict[str, Any]:
    return {"type": "http.disconnect"}


@pytest.mark.parametrize("receive", [whole, gone])
async def test_a_request_without_an_answer_did_not_go_well(receive: Any) -> None:
    """It was told as answered with 0, and as nothing that failed."""
    calls = Calls()
    node = node_of(watched=calls)

    async def send(_: Any) -> None:
        raise ConnectionResetError

    with pytest.raises(ConnectionResetError) if receive is whole else nullcontext():
        await node(scope_of(), receive, send)
    (span,) = taken(node)
    why = "ConnectionResetError" if receive is whole else "caller_gone"
    assert "http.response.status_code" not in span.attributes
    assert (span.attributes["error.type"], span.failed) == (why, f"not answered: {why}")
    assert calls.watch is None


@pytest.mark.parametrize(("method", "told", "name"), [("POST", "POST", "POST"), ("BREW", "_OTHER", "HTTP")])
async def test_a_span_says_what_was_asked_as_the_conventions_want_it(method: str, told: str, name: str) -> None:
    node, sent = node_of(), []

    async def send(message: Any) -> None:
        sent.append(message)

    await node(scope_of(method), whole, send)
    (span,) = taken(node)
    assert span.name == f"{name} /v1/check"
    asked = {key: value for key, value in span.attributes.items() if key.startswith(("url.", "http.request."))}
    original = {"http.request.method_original": method} if method != told else {}
    assert asked == {"http.request.method": told, "url.path": "/v1/check", "url.scheme": "https", **original}
    assert sent
    await said(node, request(f"traceparent: {SAMPLED}"))
    (fast,) = taken(node)
    assert (fast.attributes["url.path"], fast.attributes["url.scheme"]) == ("/v1/check", "http")


async def test_what_a_gateway_was_asked_for_is_not_in_the_path_of_a_span() -> None:
    node = node_of()
    head = f"GET /v1/authorize/orders/secret?of=somebody HTTP/1.1\r\nHost: x\r\ntraceparent: {SAMPLED}\r\n\r\n"
    await said(node, head.encode())
    (span,) = taken(node)
    assert "secret" not in str(span.attributes)
    assert span.attributes["url.path"] == span.attributes["http.route"]


async def test_traced_callers_share_one_known_head() -> None:
    """A head that is new with every request was parsed with every request."""
    node = node_of()
    for number in range(1, 30):
        flags = "01" if number % 2 else "00"
        parent = f"00-{number:032x}-{number:016x}-{flags}"
        await said(node, request(f"traceparent: {parent}", f"tracestate: n={number}"))
    assert len(node.heads.known) == 1
    assert len(taken(node)) == 15


@given(
    st.lists(st.sampled_from([b"Traceparent", b"traceparent", b"TRACEPARENT", b"X-A", b"tracestate"]), max_size=4),
    st.data(),
)
def test_a_head_without_its_trace_is_read_as_with_it(names: list[bytes], data: st.DataObject) -> None:
    values = st.sampled_from([SAMPLED.encode(), UNSAMPLED.encode(), b"", b"00-", SAMPLED.encode() + b"x", b"a=b"])
    lines = [name + b": " + data.draw(values) for name in names]
    folded = data.draw(st.sampled_from([b"", b"\r\n folded"]))
    head = b"\r\n".join([b"POST /v1/check HTTP/1.1", b"Content-Length: 5", *lines]) + folded + b"\r\n\r\n"
    plain, traceparent = without_trace(head)
    assert Heads(None).find(plain) == Heads(None).find(head)
    if traceparent is not None:
        assert traceparent in (SAMPLED.encode(), UNSAMPLED.encode())
        assert len(plain) < len(head)


def test_a_call_to_redis_is_a_span_in_the_one_that_it_was_made_in() -> None:
    node = node_of()
    tracing = node.tracing
    assert tracing is not None
    heard: list[Any] = []
    assert tracing.watch("10.0.0.1:7001", heard.append) == heard.append, (
        "outside of a traced request nothing is done"
    )
    span = tracing.tracer.begin("outer", Kind.SERVER)
    with working_at(span):
        done = tracing.watch("10.0.0.1:7001", heard.append)
        lost = tracing.watch("[::1]:7002", heard.append)
        elsewhere = tracing.watch("", heard.append)
    done([1])
    lost(StoreUnavailable("timeout"))
    elsewhere(ValueError("no"))
    first, second, third = taken(node)
    assert {one.parent_id for one in (first, second, third)} == {span.context.span_id}
    assert (first.kind, first.failed, second.failed, third.failed) == (Kind.CLIENT, None, "timeout", "ValueError")
    assert (first.attributes["server.address"], first.attributes["server.port"]) == ("10.0.0.1", 7001)
    assert second.attributes["server.address"] == "::1"
    assert "server.address" not in third.attributes
    assert heard[0] == [1]
    assert len(heard) == 3
