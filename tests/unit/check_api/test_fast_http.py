"""One connection on the fast path: what is asked, when, and how it ends."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from regional_limiter.limiter import Done
from regional_limiter.model.decision import Answer, Check
from regional_limiter.store.base import Allowed
from services.check_api import fast_http, heads
from services.check_api.fast_http import PIPELINED_MOST, FastHttp
from services.check_api.heads import Head, Heads
from tests.unit.check_api.allowances import HASH, allowed_by
from tests.unit.check_api.fakes import FakeLimiter, answer_of, node_of, rule_verdict
from tests.unit.check_api.wire import Connection

HEAD = b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"


@dataclass
class WaitingLimiter(FakeLimiter):
    """Answers by callback, when the test says so."""

    waiting: list[tuple[Check, Done]] = field(default_factory=list)

    def submit(self, check: Check, done: Done) -> None:
        self.checks.append(check)
        self.waiting.append((check, done))

    def release(self, place: int = 0, outcome: Answer | Exception | None = None) -> None:
        check, done = self.waiting.pop(place)
        done(outcome or answer_of(rule_verdict(f"r-{check.attributes['client_key']}")))


def request(key: str, path: bytes = b"/v1/check") -> bytes:
    body = json.dumps({"client_key": key, "resource": "r"}).encode()
    return HEAD % (path, len(body)) + body


def batch(*keys: str) -> bytes:
    body = json.dumps({"checks": [{"client_key": key, "resource": "r"} for key in keys]}).encode()
    return HEAD % (b"/v1/check:batch", len(body)) + body


def connected(limiter: FakeLimiter, **options: Any) -> Connection:
    return Connection(node_of(limiter), FastHttp, **options)


def rules_named(said: bytes) -> list[str]:
    """The rule of each answer, in their order."""
    bodies = [part.partition(b"\r\n\r\n")[2] for part in said.split(b"HTTP/1.1 200 OK\r\n")[1:]]
    return [json.loads(body)["rule"] for body in bodies]


async def test_a_plain_check_and_a_plain_batch_never_become_asgi_requests() -> None:
    limiter = WaitingLimiter()
    connection = connected(limiter)
    connection.send(request("a") + batch("b", "c"))
    assert [check.attributes["client_key"] for check, _ in limiter.waiting] == ["a", "b", "c"]
    for _ in range(3):
        limiter.release()
    await connection.quiet()
    assert connection.said.count(b"HTTP/1.1 200 OK") == 2
    assert connection.protocol.cycle is None
    assert connection.state.total_requests == 2


async def test_answers_keep_the_order_of_requests_and_those_of_one_turn_leave_in_one_write() -> None:
    limiter = WaitingLimiter()
    connection = connected(limiter)
    connection.send(request("a") + request("b") + request("c"))
    limiter.release(2)
    await connection.quiet()
    assert connection.said == b""
    limiter.release(1)
    limiter.release(0)
    await connection.quiet()
    assert rules_named(connection.said) == ["r-a", "r-b", "r-c"]
    assert len(connection.transport.writes) == 1


async def test_one_connection_has_no_more_than_its_part_in_flight_and_loses_nothing() -> None:
    limiter = WaitingLimiter()
    connection = connected(limiter)
    keys = [f"k{number}" for number in range(3 * PIPELINED_MOST)]
    connection.send(b"".join(map(request, keys)))
    assert len(limiter.waiting) == PIPELINED_MOST
    assert connection.transport.paused
    while limiter.waiting:
        limiter.release()
        await connection.quiet()
        assert len(limiter.waiting) <= PIPELINED_MOST
    assert rules_named(connection.said) == [f"r-{key}" for key in keys]
    assert not connection.transport.paused


async def test_a_caller_that_does_not_read_its_answers_is_not_served_more() -> None:
    limiter = WaitingLimiter()
    connection = connected(limiter)
    connection.protocol.pause_writing()
    connection.send(request("a"))
    assert limiter.waiting == []
    assert connection.transport.paused
    connection.protocol.resume_writing()
    assert len(limiter.waiting) == 1


async def test_a_request_for_the_slow_path_waits_for_the_answers_before_it() -> None:
    limiter = WaitingLimiter()
    connection = connected(limiter)
    connection.send(request("a") + b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n" + request("b"))
    await connection.quiet()
    assert connection.said == b""
    limiter.release()
    await connection.quiet()
    first, live, last = connection.said.split(b"HTTP/1.1 200 OK\r\n")[1:]
    assert b'"rule":"r-a"' in first
    assert live.endswith(b'{"live":true}')
    assert b'"reason":"no_rule"' in last


async def test_a_caller_that_hangs_up_takes_nothing_with_it_but_its_answer() -> None:
    limiter = WaitingLimiter()
    node = node_of(limiter)
    gone, stays = Connection(node, FastHttp), Connection(node, FastHttp)
    gone.send(request("gone") + batch("gone too") + request("and")[:40])
    stays.send(request("stays"))
    await gone.hang_up()
    for _ in range(3):
        limiter.release()  # raises nothing into the reading of the store's replies
    await stays.quiet()
    assert gone.said == b""
    assert rules_named(stays.said) == ["r-stays"]
    assert gone.state.connections == set()


@pytest.mark.parametrize("late", [True, False])
async def test_an_error_that_nobody_foresaw_is_a_counted_500_and_the_connection_goes_on(late: bool) -> None:
    limiter = WaitingLimiter() if late else FakeLimiter(RuntimeError("secret"))
    connection = connected(limiter)
    connection.send(request("a"))
    if isinstance(limiter, WaitingLimiter):
        limiter.release(outcome=RuntimeError("secret"))
    await connection.quiet()
    assert connection.said.startswith(b"HTTP/1.1 500 ")
    assert b"secret" not in connection.said
    assert connection.protocol.node.counts.unexpected_errors == 1
    assert not connection.transport.closed


async def test_what_is_in_flight_at_the_end_is_answered_and_then_the_connection_is_closed() -> None:
    limiter = WaitingLimiter()
    connection = connected(limiter)
    connection.send(request("a") + request("b"))
    connection.protocol.shutdown()
    assert not connection.transport.closed
    limiter.release()
    await connection.quiet()
    limiter.release()
    await connection.quiet()
    first, last = connection.said.split(b"HTTP/1.1 200 OK\r\n")[1:]
    assert b"connection: close" not in first
    assert b"\r\nconnection: close\r\n" in last
    assert connection.transport.closed


async def test_a_request_that_is_half_here_at_the_end_is_still_answered() -> None:
    limiter = FakeLimiter()
    connection = connected(limiter)
    whole = request("a")
    connection.send(whole[:-5])
    connection.protocol.shutdown()
    assert not connection.transport.closed
    connection.send(whole[-5:])
    await connection.quiet()
    assert connection.said.startswith(b"HTTP/1.1 200 OK")
    assert connection.transport.closed


async def test_an_idle_connection_ends_at_once_when_the_node_leaves() -> None:
    connection = connected(FakeLimiter())
    connection.send(request("a"))
    connection.protocol.shutdown()
    assert connection.transport.closed


@pytest.mark.parametrize("path", [b"/v1/check", b"/v1/check?x=1"])
async def test_while_a_node_drains_the_last_answer_closes_its_connection(path: bytes) -> None:
    connection = connected(FakeLimiter())
    connection.send(request("a", path))
    await connection.quiet()
    assert not connection.transport.closed
    connection.protocol.node.draining = True
    connection.send(request("b", path))
    await connection.quiet()
    first, last = connection.said.split(b"HTTP/1.1 200 OK\r\n")[1:]
    assert (b"\r\nconnection: close\r\n" in first, b"\r\nconnection: close\r\n" in last) == (False, True)
    assert connection.transport.closed


async def test_while_a_node_drains_whatever_was_asked_together_is_answered() -> None:
    limiter = WaitingLimiter()
    connection = connected(limiter)
    connection.send(request("a") + request("b"))
    connection.protocol.node.draining = True
    limiter.release()
    await connection.quiet()
    assert not connection.transport.closed
    limiter.release()
    await connection.quiet()
    assert rules_named(connection.said) == ["r-a", "r-b"]
    assert connection.transport.closed


async def test_an_idle_connection_is_closed_and_a_busy_one_is_not() -> None:
    limiter = WaitingLimiter()
    connection = connected(limiter)
    protocol = connection.protocol
    connection.send(request("a"))
    protocol._answered_at_s = -1000.0
    protocol.timeout_keep_alive_handler()
    assert not connection.transport.closed  # it waits for an answer
    limiter.release()
    protocol.timeout_keep_alive_handler()
    assert not connection.transport.closed  # it has just had one
    protocol._answered_at_s = -1000.0
    protocol.timeout_keep_alive_handler()
    assert connection.transport.closed


async def test_a_request_in_two_parts_is_one_and_a_part_alone_goes_to_the_slow_path(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fast_http, "HOLD_S", 0.0)
    limiter = FakeLimiter()
    whole = request("a")
    connection = connected(limiter)
    connection.send(whole[:50])
    connection.send(whole[50:])
    assert connection.protocol.cycle is None
    connection.send(whole[:-1])
    while connection.protocol.cycle is None:  # noqa: ASYNC110 - the timer of no length sets no event
        await asyncio.sleep(0)
    connection.send(whole[-1:])
    await connection.quiet()
    assert connection.said.count(b"HTTP/1.1 200 OK") == 2


@pytest.mark.parametrize("part_bytes", [1_400, 65_536])
async def test_a_large_batch_in_many_parts_never_becomes_an_asgi_request(part_bytes: int) -> None:
    limiter = FakeLimiter()
    connection = connected(limiter)
    whole = batch(*(f"{number:0>120}" for number in range(1000)))
    assert len(whole) > 150_000
    for start in range(0, len(whole), part_bytes):
        connection.send(whole[start : start + part_bytes])
    await connection.quiet()
    assert connection.protocol.cycle is None
    assert [check.attributes["client_key"][-3:] for check in limiter.checks] == [f"{n:0>3}" for n in range(1000)]
    assert connection.said.count(b"HTTP/1.1 200 OK") == 1


async def test_a_large_batch_of_which_no_more_comes_goes_to_the_slow_path_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fast_http, "HOLD_S", 0.0)
    limiter = FakeLimiter()
    connection = connected(limiter)
    whole = batch(*(f"{number:0>120}" for number in range(1000)))
    for part in (whole[:1_000], whole[1_000:90_000], whole[90_000:140_000]):
        connection.send(part)
    while connection.protocol.cycle is None:  # noqa: ASYNC110 - the timer of no length sets no event
        await asyncio.sleep(0)
    connection.send(whole[140_000:] + request("a"))
    while connection.said.count(b"HTTP/1.1 200 OK") < 2:  # noqa: ASYNC110 - a large body is read in a thread
        await asyncio.sleep(0)
    assert len(limiter.checks) == 1001


async def test_too_many_connections_are_told_so_on_either_path() -> None:
    connection = connected(FakeLimiter(), limit_concurrency=0)
    connection.send(request("a"))
    await connection.quiet()
    assert connection.said.startswith(b"HTTP/1.1 503 ")
    assert b"application/problem+json" in connection.said


async def test_batches_that_find_no_room_are_503_and_their_connection_goes_on() -> None:
    connection = connected(WaitingLimiter())
    connection.protocol.node.batches._waiting_most = 0
    connection.send(batch("a"))
    await connection.quiet()
    assert connection.said.startswith(b"HTTP/1.1 503 ")
    assert not connection.transport.closed


# ---- what token leases decide


@dataclass
class LeasedLimiter(WaitingLimiter):
    """Knows the answer of keys that begin with "hot", and of "bug" only that it cannot be told."""

    def leased(self, check: Check) -> Allowed | None:
        key = check.attributes["client_key"]
        if key == "bug":
            raise KeyError(key)
        return allowed_by([(f"r-{key}", 100, None, HASH, True, 41, 876)]) if key.startswith("hot") else None


def leasing(limiter: LeasedLimiter) -> Connection:
    connection = connected(limiter)
    connection.protocol.node.leased = limiter.leased
    return connection


async def test_what_a_token_lease_decides_is_answered_before_anything_waits() -> None:
    limiter = LeasedLimiter()
    connection = leasing(limiter)
    connection.send(request("hot1") + request("hot2"))
    assert rules_named(connection.said) == ["r-hot1", "r-hot2"]
    assert limiter.waiting == []
    counts = connection.protocol.node.counts
    assert counts.checks == {("d", f"r-hot{n}", "allowed", "ok"): 1 for n in (1, 2)}
    assert sum(counts.durations["POST", "/v1/check", 200].counts) == 2
    assert connection.state.total_requests == 2


async def test_what_a_token_lease_decides_waits_for_the_answers_before_it() -> None:
    limiter = LeasedLimiter()
    connection = leasing(limiter)
    connection.send(request("hot1") + request("a") + request("hot2"))
    assert rules_named(connection.said) == ["r-hot1"]
    limiter.release(1)
    limiter.release(0)
    await connection.quiet()
    assert rules_named(connection.said) == ["r-hot1", "r-a", "r-hot2"]


async def test_a_token_lease_that_cannot_be_told_is_a_counted_500_and_asks_nobody() -> None:
    limiter = LeasedLimiter()
    connection = leasing(limiter)
    connection.send(request("bug") + request("hot"))
    assert connection.said.startswith(b"HTTP/1.1 500 ")
    assert rules_named(connection.said) == ["r-hot"]
    assert limiter.waiting == []
    assert connection.protocol.node.counts.unexpected_errors == 1


async def test_while_a_node_drains_a_token_leases_answer_closes_its_connection_too() -> None:
    limiter = LeasedLimiter()
    connection = leasing(limiter)
    connection.protocol.node.draining = True
    connection.send(request("hot"))
    limiter.release()
    await connection.quiet()
    assert b"\r\nconnection: close\r\n" in connection.said
    assert connection.transport.closed


# ---- heads


def test_a_head_is_read_once_and_the_memory_of_heads_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heads, "HEADS_MOST", 10)
    known = Heads(None)
    head = HEAD % (b"/v1/check", 3)
    assert known.find(head) is known.find(head)
    assert known.find(head) == Head("/v1/check", 3)
    for number in range(100):
        assert known.find(HEAD % (b"/v1/check", number)) == Head("/v1/check", number)
        assert len(known.known) <= 10


@pytest.mark.parametrize(
    "line",
    [
        b"Expect: 100-continue",
        b"Transfer-Encoding: chunked",
        b"Connection: close",
        b"Connection: upgrade\r\nUpgrade: h2c",
        b"Content-Length: 3",
        b"X: \n\r\n",
        b"X: " + b"x" * 5000,
        b"X",
    ],
)
def test_anything_out_of_the_ordinary_is_not_plain(line: bytes) -> None:
    head = HEAD % (b"/v1/check", 3)
    assert Heads(None).find(head) is not None
    assert Heads(None).find(head.replace(b"Host: x", line)) is None
    assert Heads("a-token-of-16-or-more").find(head) is None


@pytest.mark.parametrize("length", [b"64 KiB", b"-1", b"+1", b"65537", b"0" * 10, b""])
def test_a_length_that_is_none_or_too_large_is_not_plain(length: bytes) -> None:
    assert Heads(None).find(b"POST /v1/check HTTP/1.1\r\nContent-Length: " + length + b"\r\n\r\n") is None
