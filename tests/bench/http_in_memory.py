"""Where a check's microseconds go, without sockets: one process, no system calls.  Not a test.

    python -m tests.bench.http_in_memory [--rounds 200]

Both servers of ``_node.py`` behind transports that keep nothing, and a Redis that says the same to every call; the
best of many rounds, since whatever else the machine does only adds.  Then the parts of a check, each by itself; the
rest of the whole is the way between them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from timeit import repeat
from typing import Any

import uvicorn
import uvloop
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from regional_limiter.limiter import Limiter
from regional_limiter.model.decision import ShareKind
from regional_limiter.model.share import ProtocolTimes
from regional_limiter.plan import answer_in_full
from regional_limiter.store.base import TokenLease
from regional_limiter.store.connection import ConnectionOptions, Server, _Wire
from regional_limiter.store.redis_cluster import RedisClusterStore
from regional_limiter.token_lease_table import Ask, TokenLeaseTable
from services.check_api.app import NodeApp, NodeOptions, create_app
from services.check_api.bodies import parse_check
from services.check_api.bounded_http import BoundedHttp, encode_reply
from services.check_api.fast_http import FastHttp
from services.check_api.server import settle_collector
from services.tracing import Tracer
from tests.bench._node import PATIENT, bare_app, rules
from tests.bench.http_checks import BATCH, CONNECTIONS, HOT, batches, singles

VERDICT = [-1 - 399_999_123, 876]
SECRET = b"0123456789abcdef"
DATE = (b"date", b"Mon, 30 Nov 2026 08:10:04 GMT")


class _Redis(asyncio.Transport):
    """Answers each FCALL with ``count`` verdicts in the next turn."""

    def __init__(self, count: int) -> None:
        super().__init__()
        numbers = VERDICT * count
        self._reply = b"*%d\r\n" % len(numbers) + b"".join(b":%d\r\n" % number for number in numbers)
        self.wire: _Wire | None = None

    def write(self, data: Any) -> None:
        assert self.wire is not None
        replies = self._reply * bytes(data).count(b"FCALL")
        asyncio.get_running_loop().call_soon(self.wire.data_received, replies)

    def abort(self) -> None:
        pass


class _Caller(asyncio.Transport):
    """Reads everything and keeps the last of it that was not empty."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)})
        self.last = b""

    def write(self, data: Any) -> None:
        self.last = data or self.last

    def is_closing(self) -> bool:
        return False


def _connected(count: int) -> Server:
    server = Server("10.0.0.1:1", ConnectionOptions())
    redis = _Redis(count)
    redis.wire = server.wire = _Wire(asyncio.get_running_loop(), 100_000, lambda wire, cause: None)
    redis.wire.connection_made(redis)
    return server


async def _ours(server: Server, directory: Path, tracer: Tracer | None = None) -> Any:
    own = directory / "node-n1"
    own.mkdir(parents=True)
    blob = {"version": 1, "sets": {"default": {"version": 1, "document": rules()}}}
    (own / "rules.json").write_text(json.dumps(blob))
    store = RedisClusterStore([server.address], ProtocolTimes(), PATIENT)
    store.cluster._servers[server.address] = server
    store.cluster._owners = [server.address] * 16384
    store.cluster._known.set()
    limiter = Limiter("us", store, SECRET, directory, ProtocolTimes(), node="n1")
    await limiter._rules.load()
    limiter._token_leases.table = TokenLeaseTable(leases_most=0)  # without time between them, all keys are hot
    return create_app(limiter, NodeOptions("us", "n1"), tracer=tracer, watched=store.cluster)


async def cpu_us(
    kind: str,
    requests: Sequence[bytes],
    checks: int,
    rounds: int,
    rules_met: int = 1,
    *,
    leased: bool = False,
    tracer: Tracer | None = None,
    expected: bytes = b'"allowed":true',
) -> float:
    """CPU time of a check in the best round.  ``kind``: bare, ours, or slow (ours, where every request goes through
    ASGI).  ``checks``: in each request.  ``leased``: a token lease decides.  ``expected``: in every response."""
    server = _connected(rules_met)
    with tempfile.TemporaryDirectory() as name:
        app = bare_app(server) if kind == "bare" else await _ours(server, Path(name), tracer)
    if leased:
        lease_for(app, requests[0])
    protocols = {"bare": HttpToolsProtocol, "ours": FastHttp, "slow": BoundedHttp}
    protocol_class: type[HttpToolsProtocol] = protocols[kind]
    config = uvicorn.Config(
        app, http=protocol_class, ws="none", loop="none", lifespan="off", log_config=None, access_log=False,
        proxy_headers=False, timeout_keep_alive=75,
    )  # fmt: skip
    config.load()
    state = ServerState()
    state.default_headers = [DATE]
    connections = []
    for _ in range(CONNECTIONS if checks == 1 else 2):
        protocol, caller = protocol_class(config, state, {}, asyncio.get_running_loop()), _Caller()
        protocol.connection_made(caller)
        connections.append((protocol, caller))
    settle_collector()
    best_s, sent = float("inf"), 0
    for number in range(rounds):
        began_s = time.process_time()
        for protocol, _ in connections:
            protocol.data_received(requests[sent % len(requests)])
            sent += 1
        for _ in range(8):
            await asyncio.sleep(0)
        if number > rounds // 4:
            best_s = min(best_s, time.process_time() - began_s)
    assert expected in connections[0][1].last
    return best_s / len(connections) / checks * 1e6


def lease_for(node: NodeApp, request: bytes) -> None:
    """Give the node a token lease that lasts."""
    check = node.bodies.read(request[request.index(b"\r\n\r\n") + 4 :])
    limiter: Any = node.limiter
    limiter.submit(check, lambda outcome: None)
    lease = TokenLease(2**40, 99, 2**50, 0, 10**6, 1000, 10_000, ShareKind.WHOLE, 0, 0)
    table = limiter._token_leases.table = TokenLeaseTable()
    now_us = time.monotonic_ns() // 1000
    table.granted(Ask(check.asking.calls[0], 1, (), 0), lease, now_us, now_us)


async def wholes(rounds: int) -> float:
    told = {
        "bare uvicorn": await cpu_us("bare", singles(), 1, rounds),
        "a check": await cpu_us("ours", singles(), 1, rounds),
        "a check that meets three rules": await cpu_us("ours", singles("three"), 1, rounds, 3),
        "a check of a hot key": await cpu_us("ours", HOT, 1, rounds, leased=True),
        f"a check in a batch of {BATCH}": await cpu_us("ours", batches(), BATCH, rounds),
        "in a batch: three rules": await cpu_us("ours", batches("three"), BATCH, rounds, 3),
    }
    print(f"{'in memory':<44}{'us a check':>11}{'ratio':>8}")
    for name, spent_us in told.items():
        print(f"{name:<44}{spent_us:>11.1f}{spent_us / told['bare uvicorn']:>8.2f}")
    return told["a check"]


async def parts(whole_us: float) -> None:
    """A check's parts, each by itself: what it needs is there, and what it would call does nothing."""
    server = _connected(1)
    with tempfile.TemporaryDirectory() as name:
        node: NodeApp = await _ours(server, Path(name))
    request = singles()[0]
    end = request.index(b"\r\n\r\n") + 4
    head, body = request[:end], request[end:]
    node.heads.find(head)
    check = node.bodies.read(body)
    told: list[Any] = []
    node.submit(check, told.append)
    for _ in range(8):
        await asyncio.sleep(0)
    (allowed,) = told
    limiter: Any = node.limiter
    deciding, store, prepared = limiter._deciding, limiter._calls, check.asking.prepared[0]
    cluster, kind = store._submitting.cluster, store._submitting._plain_checks
    way = cluster._ways[prepared.hash_slot]
    server.wire = _Nowhere()  # type: ignore[assignment]

    def nothing(outcome: object) -> None:
        pass

    def look_up() -> None:
        node.heads.known.get(request[:end])
        node.bodies.known.get(request[end:])

    def answered() -> None:
        cluster._answered(way, 0.0, prepared.command, prepared.hash_slot, kind, nothing, VERDICT)

    def in_full() -> None:
        encode_reply(node.told(answer_in_full(allowed), detail=False), b"")

    def count() -> None:
        node.counts.count(("default", "all", "ok"))
        node.counts.served("POST", "/v1/check", 200, 0.001)

    timed: dict[str, Callable[[], object]] = {
        "look up head and body": lambda: (
            node.heads.known.get(request[:end]),
            node.bodies.known.get(request[end:]),
        ),
        "ask the limiter: leases, denials, calls": lambda: deciding.ask_plainly(check.asking, nothing),
        "  of it the store: way, breaker, deadline": lambda: store.submit_plainly(prepared, nothing),
        "read the reply": answered,
        "note for leases, count the rule": lambda: deciding._decided_plainly(check.asking, 0, nothing, allowed),
        "count the answer and the request": count,
        "write the response": lambda: node.templates.response_to(allowed, b"date: x\r\n"),
    }
    print(f"\n{'parts of a check, each by itself':<44}{'us':>11}")
    left_us = whole_us
    for part_name, part in timed.items():
        spent_us = best_us(part)
        left_us -= 0 if part_name.startswith(" ") else spent_us
        print(f"{part_name:<44}{spent_us:>11.2f}")
    print(f"{'the rest: turns of the loop, order, queues':<44}{left_us:>11.2f}")
    calls, planner = check.asking.calls, limiter._planner
    for part_name, part in {
        "(a body that is new: more)": lambda: parse_check(body),
        "(a plan that is kept, for a new body: more)": lambda: planner.plan(check),
        "(a call that is not kept: more)": lambda: store.prepare(calls, None),
        "(an answer without a template: more)": lambda: encode_reply(
            node.told(answer_in_full(allowed), False), b""
        ),
    }.items():
        print(f"{part_name:<44}{best_us(part):>11.2f}")


class _Nowhere:
    def submit(self, *_: object) -> None:
        pass


def best_us(part: Callable[[], object]) -> float:
    return min(repeat(part, timer=time.process_time, number=500, repeat=200)) / 500 * 1e6


async def measure(rounds: int) -> None:
    await parts(await wholes(rounds))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    uvloop.run(measure(parser.parse_args().rounds))


if __name__ == "__main__":
    main()
