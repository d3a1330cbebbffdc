"""What a check costs an application: asked one by one, asked together, decided in the application itself.

    python -m tests.bench.clients [--checks 4000]

Fifty tasks of one event loop ask a node in another process, with its store in memory: processor time of the
application a check, in one run.  Then the decision from a lease alone, beside what nobody can do without.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import socket
import time
import timeit
from collections.abc import Awaitable, Callable

import uvloop
from apportion import Answer, AsyncClient, AsyncTokenLeases
from apportion._token_lease_table import Key

from regional_limiter.in_process import in_memory
from services.check_api.app import NodeOptions, create_app
from services.check_api.server import serve_node
from services.listening import bind

RULES = {"rules": [{"id": "hot", "match": {}, "capacity": 100_000_000, "refill": "1/s"}]}
TASKS = 50
MUCH = 1 << 50


def serve(listener: socket.socket) -> None:
    async def main() -> None:
        async with in_memory(RULES) as limiter:
            await serve_node(create_app(limiter, NodeOptions("local", "local-1")), listener, asyncio.Event())

    uvloop.run(main())


async def cost_us(check: Callable[[str, str], Awaitable[Answer]], checks: int) -> float:
    """Processor time of this process for one check."""

    async def ask() -> None:
        for turn in range(checks // TASKS):
            assert (await check("everybody", "hot")).decided
            if turn % 100 == 0:
                await asyncio.sleep(0)

    await asyncio.gather(*(ask() for _ in range(TASKS)))
    began_s = time.process_time()
    await asyncio.gather(*(ask() for _ in range(TASKS)))
    return (time.process_time() - began_s) / (checks // TASKS * TASKS) * 1e6


async def compare(url: str, checks: int) -> None:
    costs: dict[str, float] = {}
    async with AsyncClient(url, timeout_s=20, on_no_answer="raise") as client:
        costs["one by one"] = await cost_us(client.check, checks)
    async with AsyncClient(url, timeout_s=20, on_no_answer="raise", batching=True) as client:
        costs["batching"] = await cost_us(client.check, checks)
    async with (
        AsyncClient(url, timeout_s=20, on_no_answer="raise", batching=True) as client,
        AsyncTokenLeases(client) as leases,
    ):
        costs["token leases, and batching"] = await cost_us(leases.check, 100 * checks)
    first = costs["one by one"]
    print(f"{'the application, a check':<38}{'us':>8}{'ratio':>8}")
    for name, cost in costs.items():
        print(f"{name:<38}{cost:>8.1f}{cost / first:>8.3f}")


def decision_alone() -> None:
    key = Key(("everybody", "hot", ()))
    lent = {"tokens": MUCH, "ends_in_ms": MUCH // 1000, "lease": "1.a", "rule": "hot", "limit": 1, "remaining": 1}
    key.granted({**lent, "reset_after_ms": 1, "again_after_ms": 0}, 0, 1)
    names = {"known": {1: 1}, "monotonic": time.monotonic, "monotonic_ns": time.monotonic_ns, "spend": key.spend}
    floor = best_ns("known.get(1); monotonic()", names)
    ns = best_ns("spend(1, monotonic_ns())", names)
    print(f"\n{'decided in the application':<38}{'ns':>8}{'ratio':>8}")
    print(f"{'one dict look-up and time.monotonic()':<38}{floor:>8.0f}{1:>8.1f}")
    print(f"{'the decision':<38}{ns:>8.0f}{ns / floor:>8.1f}")


def best_ns(statement: str, names: dict[str, object]) -> float:
    timed = timeit.repeat(statement, timer=time.process_time, globals=names, number=100_000, repeat=9)
    return min(timed) / 100_000 * 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checks", type=int, default=4000)
    arguments = parser.parse_args()
    listener = bind("127.0.0.1", 0)
    node = multiprocessing.get_context("fork").Process(target=serve, args=(listener,), daemon=True)
    node.start()
    try:
        wait_for(listener)
        uvloop.run(compare(f"http://127.0.0.1:{listener.getsockname()[1]}", arguments.checks))
    finally:
        node.kill()
        node.join()
    decision_alone()


def wait_for(listener: socket.socket) -> None:
    """Until the node takes connections."""
    for _ in range(500):
        try:
            socket.create_connection(listener.getsockname(), 1).close()
        except OSError:
            time.sleep(0.02)
        else:
            return
    raise SystemExit("the node does not listen")


if __name__ == "__main__":
    main()
