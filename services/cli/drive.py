"""Drives nodes with checks at a given rate, and remembers every answer.  [IO]

Open loop: checks are due at fixed instants whatever the answers do, and latency counts from when a check was
due, so a slow node cannot hide its slowness by slowing its callers down.  Everything is bounded: the rate, the
number of checks, the connections, and how many due checks may wait for a connection; one that finds no room
counts as ``unsent``.  Plain sockets with keep-alive and httptools cost a fraction of a client library's CPU.
"""

from __future__ import annotations

import asyncio
import ipaddress
import math
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from urllib.parse import urlsplit

import httptools
import msgspec

RATE_MOST = 50_000.0
CHECKS_MOST = 500_000
CONCURRENCY_MOST = 1_000
KEYS_MOST = 100_000
WAITING_PER_CONNECTION = 4
IDLE_S_MOST = 30.0
"""Servers close what has been idle for longer; a check must not meet that."""
ANSWER_BYTES_MOST = 64 * 1024


class CheckRecord(NamedTuple):
    """One check and what became of it.

    ``due_at``, ``sent_at``, ``answered_at``: seconds of ``time.monotonic()``.  ``target``: place in the targets;
    ``client``: place in the client keys.
    ``status``: 0 when no answer came.  ``error``: why there is no decision, None when there is one.  ``allowed`` is
    False for everything but an answer that says so.
    """

    due_at: float
    sent_at: float
    answered_at: float
    target: int
    status: int
    allowed: bool
    degraded: bool
    reason: str
    error: str | None
    cost: int
    client: int = 0


@dataclass
class LoadResult:
    """What a drive saw.  ``unsent``: checks that were due while no connection was free and the queue full."""

    targets: Sequence[str]
    rate: float
    started_s: float = 0.0
    ended_s: float = 0.0
    unsent: int = 0
    checks: list[CheckRecord] = field(default_factory=list)

    @property
    def sent(self) -> int:
        return len(self.checks)

    @property
    def allowed(self) -> int:
        return sum(check.allowed for check in self.checks)

    @property
    def denied(self) -> int:
        return sum(check.error is None and not check.allowed for check in self.checks)

    @property
    def degraded(self) -> int:
        return sum(check.degraded for check in self.checks)

    @property
    def errors(self) -> int:
        """Checks that got no answer, or one that was no decision."""
        return sum(check.error is not None for check in self.checks)

    def latency_ms(self, quantile: float) -> float:
        """The latency of answered checks, from when they were due; NaN if none was answered."""
        answered = sorted(check.answered_at - check.due_at for check in self.checks if check.status)
        if not answered:
            return math.nan
        return answered[min(len(answered) - 1, int(quantile * len(answered)))] * 1000

    def allowed_per_second(self) -> list[int]:
        """Checks allowed in each second since the start, by when their answer came."""
        allowed = Counter(int(check.answered_at - self.started_s) for check in self.checks if check.allowed)
        last = max((int(check.answered_at - self.started_s) for check in self.checks), default=-1)
        return [allowed[second] for second in range(last + 1)]

    def summary(self) -> dict[str, object]:
        """For people and for ``--json``: counts, latencies in milliseconds, allowed checks a second."""
        latencies = {f"p{name}": self.latency_ms(value) for name, value in (("50", 0.5), ("99", 0.99))}
        latencies["max"] = self.latency_ms(1.0)
        return {
            "targets": list(self.targets),
            "rate": self.rate,
            "seconds": round(self.ended_s - self.started_s, 3),
            "sent": self.sent,
            "unsent": self.unsent,
            "allowed": self.allowed,
            "denied": self.denied,
            "degraded": self.degraded,
            "errors": self.errors,
            "latency_ms": {k: None if math.isnan(v) else round(v, 3) for k, v in latencies.items()},
            "reasons": dict(Counter(check.reason for check in self.checks)),
            "allowed_per_second": self.allowed_per_second(),
        }


async def drive(
    targets: Sequence[str],
    rate: float,
    seconds: float,
    *,
    client_key: str | Sequence[str],
    resource: str,
    cost: int = 1,
    attributes: Mapping[str, str] | None = None,
    domain: str = "default",
    token: str | None = None,
    concurrency: int = 32,
    timeout_s: float = 2.0,
    anywhere: bool = False,
    stop: asyncio.Event | None = None,
    on_second: Callable[[LoadResult], None] | None = None,
) -> LoadResult:
    """Send ``rate`` checks a second for ``seconds`` seconds, in turn to every target and with every key.

    ``concurrency``: connections per target.  ``stop`` ends the drive early.  ``on_second`` sees the result as it
    grows.  Only loopback targets unless ``anywhere``.  Raises ValueError for what is out of bounds.
    """
    keys = [client_key] if isinstance(client_key, str) else list(client_key)
    _check_bounds(targets, rate, seconds, keys, concurrency)
    result = LoadResult(list(targets), rate)
    bodies = [
        msgspec.json.encode(
            {
                "client_key": key,
                "resource": resource,
                "cost": cost,
                "domain": domain,
                "attributes": dict(attributes or {}),
            }
        )
        for key in keys
    ]
    pools = []
    for index, url in enumerate(targets):
        host, port, head = _request_head(url, token, anywhere)
        pools.append(_Pool(host, port, head, index, result, cost, concurrency, timeout_s))
    try:
        await _pace(result, pools, bodies, rate, seconds, stop, on_second)
        await _drain(pools, timeout_s)
    finally:
        for pool in pools:
            pool.close()
        result.ended_s = time.monotonic()
    return result


async def _pace(
    result: LoadResult,
    pools: Sequence[_Pool],
    bodies: Sequence[bytes],
    rate: float,
    seconds: float,
    stop: asyncio.Event | None,
    on_second: Callable[[LoadResult], None] | None,
) -> None:
    total = round(rate * seconds)
    result.started_s = started_s = time.monotonic()
    issued, told = 0, 0
    while issued < total and not (stop is not None and stop.is_set()):
        now_s = time.monotonic()
        while issued < total and (due_s := started_s + issued / rate) <= now_s:
            # Every key meets every target, whatever their numbers are.
            turn = issued + issued // (len(pools) * len(bodies))
            client = turn % len(bodies)
            pools[issued % len(pools)].offer(_Due(due_s, client, bodies[client]))
            issued += 1
        if on_second is not None and now_s - started_s >= told + 1:
            told = int(now_s - started_s)
            result.ended_s = now_s
            on_second(result)
        await asyncio.sleep(max(0.001, started_s + issued / rate - time.monotonic()) if issued < total else 0)


async def _drain(pools: Sequence[_Pool], timeout_s: float) -> None:
    until_s = time.monotonic() + timeout_s
    while any(pool.busy for pool in pools) and time.monotonic() < until_s:  # noqa: ASYNC110 - once, at the end
        await asyncio.sleep(0.005)


class _Answer(msgspec.Struct):
    allowed: bool
    reason: str
    degraded: bool


_decode = msgspec.json.Decoder(_Answer).decode


class _Due(NamedTuple):
    """A check that is to be sent."""

    at_s: float
    client: int
    body: bytes


class _Pool:
    """The connections to one target, and the checks that wait for one."""

    def __init__(
        self,
        host: str,
        port: int,
        head: bytes,
        target: int,
        result: LoadResult,
        cost: int,
        connections_most: int,
        timeout_s: float,
    ) -> None:
        self._host, self._port, self._head = host, port, head
        self._target, self._result, self._cost = target, result, cost
        self._connections_most = connections_most
        self._waiting_most = connections_most * WAITING_PER_CONNECTION
        self.timeout_s = timeout_s
        self._connections: set[_Connection] = set()
        self._opening: set[asyncio.Task[None]] = set()
        self._idle: list[_Connection] = []
        self._waiting: deque[_Due] = deque()
        self._closed = False

    @property
    def busy(self) -> bool:
        return bool(self._waiting or self._opening or len(self._idle) < len(self._connections))

    def offer(self, due: _Due) -> None:
        """A check is due: send it now, or as soon as a connection is there."""
        while self._idle:
            connection = self._idle.pop()
            if time.monotonic() - connection.idle_since_s < IDLE_S_MOST:
                connection.send(due, self._request(due.body))
                return
            connection.close()
        if len(self._waiting) >= self._waiting_most:
            self._result.unsent += 1
            return
        self._waiting.append(due)
        if len(self._connections) + len(self._opening) < self._connections_most:
            task = asyncio.get_running_loop().create_task(self._open())
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    async def _open(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self.timeout_s):
                _, connection = await loop.create_connection(lambda: _Connection(self), self._host, self._port)
        except (OSError, TimeoutError) as error:
            if self._waiting:
                due = self._waiting.popleft()
                self.note(due, time.monotonic(), 0, None, f"connect: {type(error).__name__}")
            return
        self._connections.add(connection)
        self.free(connection)

    def free(self, connection: _Connection) -> None:
        """``connection`` can take the next check."""
        if self._closed or connection.lost:
            connection.close()
            return
        now_s = time.monotonic()
        while self._waiting:
            due = self._waiting.popleft()
            if now_s - due.at_s < self.timeout_s:
                connection.send(due, self._request(due.body))
                return
            self.note(due, now_s, 0, None, "waited too long")
        connection.idle_since_s = now_s
        self._idle.append(connection)

    def gone(self, connection: _Connection) -> None:
        self._connections.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)

    def note(self, due: _Due, sent_s: float, status: int, answer: _Answer | None, reason: str) -> None:
        """One check has ended."""
        allowed, degraded = (answer.allowed, answer.degraded) if answer is not None else (False, False)
        error = None if answer is not None else reason
        self._result.checks.append(
            CheckRecord(
                due.at_s,
                sent_s,
                time.monotonic(),
                self._target,
                status,
                allowed,
                degraded,
                reason,
                error,
                self._cost,
                due.client,
            )
        )

    def close(self) -> None:
        """End everything; what is still out counts as unanswered."""
        self._closed = True
        for task in self._opening:
            task.cancel()
        for connection in list(self._connections):
            connection.give_up("no answer at the end")
        while self._waiting:
            self.note(self._waiting.popleft(), time.monotonic(), 0, None, "never sent")

    def _request(self, body: bytes) -> bytes:
        return self._head % (len(body), body)


class _Connection(asyncio.Protocol):
    """One keep-alive connection, one check at a time."""

    def __init__(self, pool: _Pool) -> None:
        self._pool = pool
        self._parser = httptools.HttpResponseParser(self)
        self._body = b""
        self._out: tuple[_Due, float] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport | None = None
        self.lost = False
        self.idle_since_s = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def send(self, due: _Due, request: bytes) -> None:
        assert self._transport is not None
        self._out = (due, time.monotonic())
        self._timer = asyncio.get_running_loop().call_later(self._pool.timeout_s, self.give_up, "timeout")
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.give_up("not HTTP")

    def on_body(self, body: bytes) -> None:
        self._body += body
        if len(self._body) > ANSWER_BYTES_MOST:
            raise ValueError("the answer is too long")

    def on_message_complete(self) -> None:
        status, body, self._body = self._parser.get_status_code(), self._body, b""
        answer, reason = None, f"status {status}"
        if status == 200:
            try:
                answer = _decode(body)
                reason = answer.reason
            except msgspec.DecodeError:
                status, reason = 0, "not an answer"
        keeps = self._parser.should_keep_alive()
        self._end(status, answer, reason)
        if keeps:
            self._pool.free(self)
        else:
            self.close()

    def connection_lost(self, error: Exception | None) -> None:
        self.lost = True
        self._pool.gone(self)
        self._end(0, None, "connection lost")

    def give_up(self, reason: str) -> None:
        """No answer is expected any more: a late one must not be taken for the next check's."""
        self._end(0, None, reason)
        self.close()

    def close(self) -> None:
        self._pool.gone(self)
        if self._transport is not None:
            self._transport.abort()

    def _end(self, status: int, answer: _Answer | None, reason: str) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._out is not None:
            (due, sent_s), self._out = self._out, None
            self._pool.note(due, sent_s, status, answer, reason)


def _check_bounds(
    targets: Sequence[str], rate: float, seconds: float, keys: Sequence[str], concurrency: int
) -> None:
    if not targets:
        raise ValueError("at least one target is needed")
    if not 0 < rate <= RATE_MOST:
        raise ValueError(f"rate must be above 0 and at most {RATE_MOST:g} a second")
    if seconds <= 0 or rate * seconds > CHECKS_MOST:
        raise ValueError(f"seconds must be above 0, and rate x seconds at most {CHECKS_MOST:,} checks")
    if not 1 <= concurrency <= CONCURRENCY_MOST:
        raise ValueError(f"concurrency must be from 1 to {CONCURRENCY_MOST}")
    if not 1 <= len(keys) <= KEYS_MOST:
        raise ValueError(f"from 1 to {KEYS_MOST:,} client keys are needed")


def _request_head(url: str, token: str | None, anywhere: bool) -> tuple[str, int, bytes]:
    """(host, port, head of every request with places for length and body).  Raises ValueError."""
    parts = urlsplit(url)
    if parts.scheme != "http" or not parts.hostname or parts.query or parts.path not in ("", "/"):
        raise ValueError(f"{url}: a target looks like http://127.0.0.1:8101")
    if not anywhere and not _is_loopback(parts.hostname):
        raise ValueError(f"{url}: not this machine; add --anywhere if you may load it")
    bearer = f"Authorization: Bearer {token}\r\n" if token else ""
    if any(char in bearer.removesuffix("\r\n") for char in "\r\n"):
        raise ValueError("a token is one line")
    head = (
        f"POST /v1/check HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Type: application/json\r\n{bearer}"
    ).replace("%", "%%")
    return parts.hostname, parts.port or 80, head.encode() + b"Content-Length: %d\r\n\r\n%b"


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
