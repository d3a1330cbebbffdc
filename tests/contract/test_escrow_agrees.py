"""Python is the specification and Lua what runs: windows in escrow, by the same random sequence.

Checks and refunds of adaptive fixed windows, what the agent tells of grants and bases, lost variables, lost counts,
clocks that stand still, jump and go back: verdicts, what is stored, what the points tell the agent must be equal.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from regional_limiter.model.enforcement import Write
from regional_limiter.model.escrow import GrantedWindow, WindowNews
from regional_limiter.model.rule import Algorithm, CalendarUnit, CalendarWindow
from regional_limiter.model.share import ProtocolTimes
from regional_limiter.store.base import BucketCall, Sharing, WindowsReply
from tests.contract.points import PythonPoint, RedisPoint, RequestIds, told, walk_through
from tests.contract.redis_server import RedisServer

START_US = 20_000 * 86_400_000_000
TIMES = ProtocolTimes.scaled(0.1)
STEPS = 1500
WINDOW_MS = 2000
HOURS = CalendarWindow(CalendarUnit.HOUR)
KEYS = ("rl:{tag}:default/rule:a", "rl:{tag}:default/rule:b", "rl:{tag}:mail/rule:a")


class Walk:
    def __init__(self, seed: int, points: tuple[PythonPoint, RedisPoint]) -> None:
        self.random = Random(seed)
        self.ids = RequestIds(self.random)
        self.points = points
        self.now_us = START_US + self.random.randrange(10**9)
        self.instance = ""
        self.version = 0
        self.base_version = 1
        self.base = 5000
        self.totals: dict[tuple[str, int], int] = {}
        self.in_hours = seed % 3 == 0

    def both(self, name: str, *arguments: object) -> object:
        ours, theirs = (told(point, name, self.now_us, *arguments) for point in self.points)
        if isinstance(ours, WindowsReply) and isinstance(theirs, WindowsReply):
            ours, theirs = (replace(one, uses=sorted(one.uses, key=lambda use: use.key)) for one in (ours, theirs))
        assert theirs == ours, f"{name} {arguments}"
        return ours

    def call(self) -> BucketCall:
        random = self.random
        key = random.choice(KEYS)
        return BucketCall(
            key,
            Algorithm.FIXED_WINDOW,
            random.choice((20, 20, 20, 3, 2, 0, 100_000)),
            None,
            None if self.in_hours else WINDOW_MS,
            random.choice((0, 1, 1, 1, 2, 5, 12, 21)),
            charge_denied=random.random() < 0.1,
            sharing=Sharing.ADAPTIVE,
            regions=2,
            largest_share=7500,
            domain=key.split(":")[2].split("/")[0],
            base_version=max(0, self.base_version - random.choice((0, 0, 0, 1))),
            base=self.base,
            calendar=HOURS if self.in_hours else None,
        )

    def step(self) -> None:
        random, turn = self.random, self.random.random()
        self.points[1].skew_ms = random.choice((0, 0, 0, 1, -1, 900, -WINDOW_MS))
        self.now_us += random.choice((0, 0, 1000, 10_000, 60_000))
        if random.random() < 0.02:
            self.now_us += random.choice((1, -1)) * random.choice((300_000, TIMES.gap_us + 5, 2_000_000, 7_000_000))
        self.points[0].purge(self.now_us)
        self.points[1].states(self.now_us)  # which drops what is due, too
        if turn < 0.55:
            calls = [self.call()]
            self.both("check", calls, self.ids.of_check(calls))
        elif turn < 0.6:
            self.both("refund", [self.call()], self.ids.of_refund(), None)
        elif turn < 0.72:
            self.tell()
        elif turn < 0.82:
            self.write()
        elif turn < 0.84:
            self.base, self.base_version = random.choice((0, 2000, 5000, 9000)), self.base_version + 1
        elif turn < 0.845:
            for point in self.points:
                point.lose()
        ours, theirs = (point.states(self.now_us) for point in self.points)
        assert theirs == ours

    def tell(self) -> None:
        random = self.random
        granted = []
        for key in random.sample(KEYS, random.choice((0, 1, 2))):
            now_ms = self.now_us // 1000
            length_ms = 3_600_000 if self.in_hours else WINDOW_MS
            start_ms = now_ms // length_ms * length_ms + random.choice((0, 0, 0, length_ms, -length_ms))
            window = start_ms if self.in_hours else start_ms // length_ms
            before = self.totals.get((key, window), 0)
            total = self.totals[key, window] = min(5000, before + random.choice((0, 1, 700, 3000)))
            granted.append(
                GrantedWindow(key, window, start_ms + length_ms, total, random.choice((0, before, before // 2)))
            )
        instance = self.instance if random.random() < 0.9 else "another"
        if random.random() < 0.5:
            news = WindowNews(instance, granted)
        else:
            since = {"default": random.choice((0, self.now_us // 1000 - 1500)), "mail": 0}
            news = WindowNews(instance, granted, max(0, self.base_version - random.choice((0, 0, 1))), since)
        self.both("windows", news)

    def write(self) -> None:
        self.version += 1
        bases = {"default": self.base, "mail": self.base // 2}
        write = Write(
            f"nonce{self.version}",
            self.instance,
            1,
            self.version,
            self.now_us + 500_000,
            True,
            {},
            True,
            self.base_version,
            bases,
        )
        reply = self.both("write", write)
        self.instance = reply.instance  # type: ignore[attr-defined]


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_same_sequence_gives_the_same_windows(server: RedisServer, seed: int) -> None:
    walk = Walk(seed, (PythonPoint(TIMES), RedisPoint(server, TIMES)))
    granted: list[bool] = []
    walk_through(walk, STEPS, seed, lambda: granted.append(bool(walk.totals)))
    assert sum(granted) > STEPS // 2
