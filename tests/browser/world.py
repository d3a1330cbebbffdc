"""Three regions as their messages tell of them: real bytes over the memory transport, invented demand."""

from __future__ import annotations

import asyncio
import math
import time
from dataclasses import dataclass, field
from typing import Any

import msgspec

from global_sync import codec
from global_sync.changes import PUT_SET, Proposal
from global_sync.protocol.messages import Beat, Kind, LeaseRecord, Mark, Record, Welcome
from global_sync.rulebook import Rulebook, encode_state
from global_sync.transport.base import LOG, RULES, USAGE
from global_sync.transport.memory import MemoryHub

REGIONS = ("us-east", "eu-west", "ap-south")
ACME = "rl:{00}:default/api-global:acme"
OTHER = "rl:{01}:default/api-global:user%3A42"
DOCUMENT: dict[str, Any] = {
    "domain": "default",
    "regions": {"us-east": 2, "eu-west": 1, "ap-south": 1},
    "rules": [
        {"id": "api-global", "match": {}, "capacity": 100, "refill": "100/s", "scope": "global",
         "description": "All reads of one client, over all regions together."},
        {"id": "logins", "match": {}, "algorithm": "fixed_window", "limit": 40, "window": "60s", "scope": "global",
         "distribution": "static"},
        {"id": "orders", "match": {}, "capacity": 20, "refill": "10/s"},
    ],
}  # fmt: skip


def shares_at(second: float) -> dict[str, int]:
    """Demand follows the sun; together never more than the whole."""
    weights = [1.2 + math.sin(second / 40 + phase) for phase in (0.0, 2.1, 4.2)]
    return {region: int(9_900 * weight / sum(weights)) for region, weight in zip(REGIONS, weights, strict=True)}


@dataclass
class World:
    """``cut`` regions publish nothing; ``broken``: (region, point) that does not answer; ``at_floor``: regions
    whose Redis decides all of ``orders`` at the floor; ``silent``: nobody tells anything.  ``totals`` is what was
    told last, ``first`` what was told first, by region and key or rule."""

    hub: MemoryHub
    cut: set[str] = field(default_factory=set)
    broken: set[tuple[str, str]] = field(default_factory=set)
    at_floor: set[str] = field(default_factory=set)
    totals: dict[tuple[str, str], list[int]] = field(default_factory=dict)
    first: dict[tuple[str, str], list[int]] = field(default_factory=dict)
    silent: bool = False
    n: int = 100

    async def begin(self) -> None:
        self.transport = self.hub.transport("world")
        book = Rulebook()
        outcome = book.decide(Proposal(id="1", domain="default", kind=PUT_SET, document=DOCUMENT), 0)
        assert outcome.accepted, outcome.faults
        for key, value in encode_state(book, "default", 1):
            await self.transport.send(RULES, [value], key=key)
        welcomes = [Welcome(7, n, region, f"agent-{region}", 1, 1, {}) for n, region in enumerate(REGIONS, 1)]
        await self.transport.send(LOG, [codec.encode_records([Mark(7, "nonce", 1), *welcomes])])

    async def second(self, now_s: float) -> None:
        """What is said in one second."""
        now_us = int(now_s * 1e6)
        renewals = {region: (1, now_us) for region in REGIONS if region not in self.cut}
        records: list[Record] = [Beat(7, now_us, renewals)]
        for key in (ACME, OTHER):
            for region, share in shares_at(now_s).items():
                self.n += 1
                records.append(LeaseRecord(7, self.n, key, region, 1, Kind.GROW, share))
        await self.transport.send(LOG, [codec.encode_records(records)])
        for region in REGIONS:
            document = self.usage(region, now_s)
            if region not in self.cut:
                await self.transport.send(USAGE, [msgspec.json.encode(document)], key=region.encode())

    def usage(self, region: str, now_s: float) -> dict[str, Any]:
        keys = {}
        for key, size in ((ACME, 1.0), (OTHER, 0.3)):
            share = shares_at(now_s)[region]
            offered = int(100 * size * share / 10_000 * 1.25)
            allowed = min(offered, int(100 * size * share / 10_000))
            keys[key] = {"share": share, "want": share * 5 // 4, "totals": self._add(region, key, offered, allowed)}
        rule = [sum(column) for column in zip(*(entry["totals"] for entry in keys.values()), strict=True)]
        points = [
            {"point": point, "ok": (region, point) not in self.broken, "accepted_age_ms": 80,
             "session_left_ms": 18_700, "consent_left_ms": 28_600}
            for point in ("127.0.0.1:7001", "127.0.0.1:7002", "127.0.0.1:7003")
        ]  # fmt: skip
        return {
            "v": 1, "region": region, "agent": f"agent-{region}", "at_ms": int(now_s * 1000), "seq": 1, "epoch": 7,
            "session": 1, "deposed": False, "link_age_ms": 100, "rules_version": 1, "base_version": 3,
            "behind": {"rl.log": 3},
            "bases": {"default": 5_000 if region == "us-east" else 2_500},
            "totals": {"default/api-global": rule, "default/orders": self._add(region, "orders", 14, 12)},
            "keys": keys,
            "nodes": [{"node": "1", "address": "127.0.0.1:8101", "age_ms": 300, "rules_version": 1}],
            "points": points,
        }  # fmt: skip

    def _add(self, region: str, name: str, offered: int, allowed: int) -> list[int]:
        totals = self.totals.setdefault((region, name), [0, 0, 0, 0, 0, 0])
        denied = offered - allowed
        floor = offered if region in self.at_floor and name == "orders" else 0
        for place, value in enumerate((allowed, denied, allowed, denied, floor, floor)):
            totals[place] += value
        self.first.setdefault((region, name), list(totals))
        return list(totals)

    async def run(self) -> None:
        await self.begin()
        while True:
            if not self.silent:
                await self.second(time.time())
            await asyncio.sleep(1)
