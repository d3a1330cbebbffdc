"""A dashboard of many regions and rules, without what is behind it."""

from __future__ import annotations

import asyncio
import json
import math
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from services.dashboard.app import STATIC
from services.dashboard.told import KEYS_A_RULE, KEYS_MOST
from tests.browser.synthetic_past import SyntheticPast

KEYED_RULES = KEYS_MOST // KEYS_A_RULE
"""Each with as many keys as the board tells of one."""
ROUNDS = 30


@dataclass(frozen=True)
class Size:
    regions: int
    rules: int

    def region_names(self) -> list[str]:
        return [f"region-{number:03}" for number in range(self.regions)]


MANY = Size(regions=100, rules=1_000)
USUAL = Size(regions=5, rules=200)


def rules(size: Size) -> list[dict[str, Any]]:
    return [
        {
            "name": f"default/limit-{number:04}",
            "domain": "default",
            "id": f"limit-{number:04}",
            "description": f"The synthetic limit number {number}.",
            "limit": "100 at once, then 100/s, for each client_key, over all regions",
            "rate_per_s": 100.0,
            "even_per_s": 100.0,
            "window_s": None,
            "mode": "enforce",
            "scope": "global",
            "distribution": "adaptive",
            "version": 1,
        }
        for number in range(size.rules)
    ]


def tick(size: Size, second: int) -> dict[str, Any]:
    """One frame; demand goes around the regions."""

    def wave(place: int, most: float) -> float:
        return round(most * (1.1 + math.sin(second / 5 + place)), 1)

    regions = [
        {
            "name": name,
            "link": "cut" if second % ROUNDS > 20 and place == 7 else "linked",
            "link_age_ms": 100,
            "since_ms": None,
            "session_left_ms": 19_000 - 300 * (second % 5),
            "consent_left_ms": 29_000,
            "session_whole_ms": 20_000,
            "consent_whole_ms": 30_000,
            "points": {"ok": 3, "total": 3},
            "nodes": {"ready": 2, "total": 2},
            "allowed_per_s": wave(place, 80),
            "denied_per_s": wave(place + 3, 9),
            "without_redis_per_s": 0.0,
            "at_floor_per_s": 0.0,
        }
        for place, name in enumerate(size.region_names())
    ]
    points: dict[str, Any] = {}
    for number in range(size.rules):
        name = f"default/limit-{number:04}"
        keys: list[Any] = []
        if (number + second) % size.rules < KEYED_RULES:
            keys = [
                [key_of(number, client), {"a": wave(number + client, 50), "d": wave(number, 5)}]
                for client in range(KEYS_A_RULE)
            ]
        points[name] = {
            "total": {"a": wave(number, 60), "d": wave(number, 6)},
            "keys": keys,
            "asked": [key_of(number, 0), wave(number, 55)],
        }
    return {
        "status": {
            "now_ms": 0,
            "mode": "kafka",
            "sentences": [],
            "leader": {"epoch": 3, "region": regions[0]["name"], "beat_age_ms": 120, "late": False, "lag_ms": 20},
            "regions": regions,
        },
        "points": points,
    }


def key_of(rule: int, client: int) -> str:
    return f"rl:{{t{rule}}}:default/limit-{rule:04}:client-{client}"


def hello(size: Size) -> dict[str, Any]:
    bases = dict.fromkeys(size.region_names(), 10_000 // size.regions)
    return {**tick(size, 0), "rules": rules(size), "bases": {"default": bases}}


class Synthetic:
    """``every_s``: between two frames."""

    def __init__(self, every_s: float, size: Size) -> None:
        self._every_s = every_s
        self._past = SyntheticPast(size.region_names(), [key_of(0, client) for client in range(KEYS_A_RULE)])
        self.over = threading.Event()
        self._hello = json.dumps(hello(size))
        self._ticks = [json.dumps(tick(size, second)) for second in range(ROUNDS)]

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/", lambda _: FileResponse(STATIC / "index.html")),
                Route("/events", self._events),
                Route("/control/whoami", lambda _: JSONResponse({"known": False, "status": 401, "detail": ""})),
                Mount("/static", StaticFiles(directory=STATIC)),
                *self._past.routes(),
            ]
        )

    async def _events(self, request: Request) -> Response:
        async def stream() -> AsyncIterator[str]:
            yield f"event: hello\ndata: {self._now(self._hello)}\n\n"
            second = 0
            while not self.over.is_set():
                await asyncio.sleep(self._every_s)
                second += 1
                yield f"event: tick\ndata: {self._now(self._ticks[second % ROUNDS])}\n\n"

        return StreamingResponse(stream(), media_type="text/event-stream", headers={"Cache-Control": "no-store"})

    def _now(self, frame: str) -> str:
        return frame.replace('"now_ms": 0', f'"now_ms": {int(time.time() * 1000)}', 1)


@contextmanager
def synthetic(every_s: float, size: Size = MANY) -> Iterator[str]:
    """The address of a page that is fed so."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    feed = Synthetic(every_s, size)
    server = uvicorn.Server(
        uvicorn.Config(feed.app(), port=port, log_level="warning", loop="asyncio", timeout_graceful_shutdown=5)
    )
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    end = time.monotonic() + 20
    while not server.started:
        assert time.monotonic() < end, "the page's server did not start"
        time.sleep(0.05)
    yield f"http://127.0.0.1:{port}"
    feed.over.set()
    server.should_exit = True
    thread.join(20)
