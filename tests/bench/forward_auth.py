"""What a gateway's question costs a node, beside a check and beside the slow path.

    python -m tests.bench.forward_auth [--rounds 200]

As ``http_in_memory`` measures: whole connections of the node's own protocol, without sockets, before a Redis that
says the same to every call; the best of many rounds in one run.
"""

from __future__ import annotations

import argparse

import uvloop

from tests.bench.http_checks import singles
from tests.bench.http_in_memory import cpu_us

SHOPPERS = 500
NEW = 65_000
"""More than are asked in all rounds."""


def questions(count: int = SHOPPERS, callers: int = SHOPPERS) -> list[bytes]:
    """What a gateway asks: of so many requests of so many callers, again and again."""
    return [
        (
            "GET /v1/authorize?resource=one&denied=403 HTTP/1.1\r\nHost: apportion\r\n"
            f"X-Forwarded-For: 192.0.{number % callers // 256}.{number % callers % 256}\r\n"
            "X-Forwarded-Host: shop.example\r\nX-Forwarded-Method: GET\r\n"
            f"X-Forwarded-Uri: /orders/{number}?page=2\r\n\r\n"
        ).encode()
        for number in range(count)
    ]


async def measure(rounds: int) -> None:
    told = {"a check": await cpu_us("ours", singles(), 1, rounds)}
    for kind, path in (("ours", ""), ("slow", ", slow path")):
        for name, asked in (
            ("a question", questions()),
            ("a question, each of a new path", questions(NEW)),
            ("a question, each of a new caller", questions(NEW, NEW)),
        ):
            told[name + path] = await cpu_us(kind, asked, 1, rounds, expected=b"HTTP/1.1 200 OK")
    told["a check, slow path"] = await cpu_us("slow", singles(), 1, rounds)
    print(f"{'in memory':<44}{'us':>8}{'ratio':>8}")
    for name, spent_us in told.items():
        print(f"{name:<44}{spent_us:>8.1f}{spent_us / told['a check']:>8.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    uvloop.run(measure(parser.parse_args().rounds))


if __name__ == "__main__":
    main()
