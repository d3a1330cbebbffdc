"""Requests that are traced: which, by either way through a node, and what their spans say."""

from __future__ import annotations

import json
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


def node_of(answer: Any = None, ratio: float = 0.0, **options: Any) -> NodeApp:
    limiter = FakeLimiter(answer or answer_of(rule_verdict(key_hash=HASH)))
    node = create_app(limiter, NodeOptions("us-east", "us-east-1", **options), tracer=Tracer(ratio, 1000))
    assert node.tracing is not None
    return node


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
    node = node_of()
    assert node.tracing is not None
    node.tracing.tracer.to_pass = 3
    for traced in (0, 0, 0, 1):
        await said(node, request())
        assert len(taken(node)) == traced
    node.tracing.tracer.to_pass = 1
    await said(node, request(f"traceparent: {SAMPLED}"), request(f"traceparent: {UNSAMPLED}"))
    assert (len(taken(node)), node.tracing.tracer.to_pass) == (1, 1), "those whose callers decide are not counted"


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
    node, calls = node_of(answer), Calls()
    assert node.tracing is not None
    node.tracing.calls = calls
    other = node.tracing.begin("POST", "/v1/check", SAMPLED.encode())
    assert other is not None
    assert calls.watch == node.tracing.watch
    await said(node, request(f"traceparent: {SAMPLED}", path=path))
    assert calls.watch == node.tracing.watch, "one is under way still"
    node.tracing.ended(other, "POST", "/v1/check", 200, 0.001)
    assert calls.watch is None


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
