"""What a gateway's question costs a node, beside a check on the same (slow) path.

    python -m tests.bench.forward_auth

The ASGI application alone, without sockets and uvicorn, its store in memory; the best of many rounds in one run.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any

import uvloop

from regional_limiter.in_process import in_memory
from services.check_api.app import NodeApp, NodeOptions, create_app

RULES = {"rules": [{"id": "hot", "match": {}, "key": ["ip"], "capacity": 100_000_000, "refill": "1/s"}]}
BODY = b'{"client_key":"192.0.2.7","resource":"GET /orders/7","attributes":{"ip":"192.0.2.7"}}'
HEADERS = [
    (b"host", b"apportion"),
    (b"x-forwarded-for", b"192.0.2.7"),
    (b"x-forwarded-host", b"shop.example"),
    (b"x-forwarded-method", b"GET"),
    (b"x-forwarded-uri", b"/orders/7?page=2"),
]
ROUNDS, CALLS = 30, 500


def question(app: NodeApp, method: str, path: str, body: bytes) -> Callable[[], Awaitable[None]]:
    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        assert message.get("status", 200) == 200

    async def ask() -> None:
        scope = {
            "type": "http", "http_version": "1.1", "method": method, "scheme": "http", "path": path,
            "raw_path": path.encode(), "root_path": "", "query_string": b"denied=403", "headers": HEADERS,
            "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 2),
        }  # fmt: skip
        await app(scope, receive, send)

    return ask


async def best_us(ask: Callable[[], Awaitable[None]]) -> float:
    best = float("inf")
    for _ in range(ROUNDS):
        began_s = time.process_time()
        for _ in range(CALLS):
            await ask()
        best = min(best, (time.process_time() - began_s) / CALLS * 1e6)
    return best


async def main() -> None:
    async with in_memory(RULES) as limiter:
        app = create_app(limiter, NodeOptions("local", "local-1"))
        check = await best_us(question(app, "POST", "/v1/check", BODY))
        authorize = await best_us(question(app, "GET", "/v1/authorize", b""))
    print(f"{'the application, a question':<38}{'us':>8}{'ratio':>8}")
    print(f"{'POST /v1/check, slow path':<38}{check:>8.1f}{1:>8.2f}")
    print(f"{'GET /v1/authorize':<38}{authorize:>8.1f}{authorize / check:>8.2f}")


if __name__ == "__main__":
    uvloop.run(main())
