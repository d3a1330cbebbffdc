"""What the dashboard remembers of a whole embedded system, beside what the test counted itself and what a plain
fold of the raw log says."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from global_sync.transport.base import LOG, Message
from regional_limiter.model.decision import Check
from regional_limiter.model.share import ProtocolTimes
from services.clock import wall_ms
from services.dashboard.app import create_app
from services.dashboard.past.cells import ALLOWED, DENIED, MINUTE_MS
from services.dashboard.past.recorder import Recorder
from services.embedded import Embedded
from services.feed import Feed
from services.settings import ControlApiSettings, DashboardSettings, HubRegion, HubSettings, KafkaSettings

REGIONS = ["eu", "us", "ap"]
BASES = {"eu": 3334, "us": 3333, "ap": 3333}
RULES = {
    "domain": "d",
    "regions": {"eu": 1, "us": 1, "ap": 1},
    "rules": [{"id": "r", "match": {}, "capacity": 60, "refill": "60/s", "scope": "global"}],
}


class RawLog:
    """Every message of the log as bytes and stamp: folded here by hand, by none of our code."""

    def __init__(self) -> None:
        self.seen: dict[int, tuple[int, Any]] = {}

    def take(self, message: Message) -> None:
        self.seen[message.offset] = message.timestamp_ms, msgspec.json.decode(message.value)

    def at(self, key: str, until_ms: int) -> dict[str, int]:
        """region -> lease; -1: base."""
        leases: dict[str, int] = {}
        sessions: dict[str, int] = {}
        epoch = 0
        for stamp_ms, message in (self.seen[offset] for offset in sorted(self.seen)):
            if stamp_ms > until_ms:
                break
            for kind, record in message["records"]:
                if kind == "mark":
                    epoch = max(epoch, record["epoch"])
                elif record["epoch"] != epoch:
                    continue
                elif kind == "welcome" and record["session"] > sessions.get(record["region"], 0):
                    sessions[record["region"]] = record["session"]
                    leases[record["region"]] = record["low"].get(key, -1)
                elif kind == "snapshot":
                    assert record["parts"] == 1, "one key does not need more"
                    for region, told in record["ledger"].get(key, {}).items():
                        leases[region] = sorted(told)[-1][1] if told else -1
                    for region in set(leases) - set(record["ledger"].get(key, {})):
                        leases[region] = -1
                elif kind == "lease" and record["key"] == key and record["session"] == sessions[record["region"]]:
                    known = leases[record["region"]]
                    least = record["kind"] == "keep" and known != -1
                    leases[record["region"]] = min(known, record["value"]) if least else record["value"]
        return leases

    def moments(self, key: str) -> list[int]:
        """When something was said of the key."""
        told = [
            stamp_ms
            for stamp_ms, message in self.seen.values()
            if any(kind == "lease" and record["key"] == key for kind, record in message["records"])
        ]
        return sorted(set(told))


@pytest.mark.timeout(120)
async def test_what_is_remembered_is_what_was_counted_and_what_the_log_says(tmp_path: Path) -> None:
    system = Embedded(REGIONS, ProtocolTimes.scaled(0.2), tmp_path)
    settings = HubSettings(
        time_scale=0.2,
        kafka=KafkaSettings(bootstrap="127.0.0.1:1"),
        control_api=ControlApiSettings(port=12190, state_dir=tmp_path),
        dashboard=DashboardSettings(port=12191, history=tmp_path / "past.db"),
        regions={region: HubRegion() for region in REGIONS},
    )
    app = create_app(system.hub.transport("dashboard"), settings)
    raw = RawLog()
    following = asyncio.create_task(Feed(system.hub.transport("test"), {LOG: raw.take}).run())
    begin_ms = wall_ms() - 1_000
    transport = httpx.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:12191") as client,
    ):
        await system.start()
        try:
            await system.put_rules(RULES)
            counted = await _ask_around(system)
            series = await _series(client, begin_ms, counted)
            totals = {region: (one["allowed"], one["denied"]) for region, one in series["totals"].items()}
            assert totals == {region: (counted[region, True], counted[region, False]) for region in REGIONS}
            assert totals == _by_minute(app.state.recorder)
            (key,) = (await _get(client, "/v1/keys", domain="d", rule="r", **{"from": begin_ms}))["keys"]
            await _compare_with_the_log(client, raw, key["key"])
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
            await system.stop()


async def _ask_around(system: Embedded) -> Counter[tuple[str, bool]]:
    """Demand that wanders from region to region; how many were allowed and denied, by region."""
    counted: Counter[tuple[str, bool]] = Counter()
    for _ in range(400):
        if (await system.regions["eu"].limiter.check(Check("d", {"client_key": "k"}))).rule:
            break
        await asyncio.sleep(0.05)
    counted["eu", True] += 1
    for turn in range(240):
        for region in REGIONS:
            for _ in range(5 if region == REGIONS[turn // 40 % 3] else 1):
                answer = await system.regions[region].limiter.check(Check("d", {"client_key": "k"}))
                if answer.rule is not None:
                    counted[region, answer.allowed] += 1
        await asyncio.sleep(0.03)
    return counted


async def _get(client: httpx.AsyncClient, path: str, **query: Any) -> dict[str, Any]:
    answer = await client.get(path, params=query)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def _series(client: httpx.AsyncClient, begin_ms: int, counted: Counter[tuple[str, bool]]) -> dict[str, Any]:
    """Once it tells as much as was counted; nodes and agents tell within seconds."""
    found: dict[str, Any] = {}
    for _ in range(200):
        found = await _get(client, "/v1/series", domain="d", rule="r", step=1_000, **{"from": begin_ms})
        if sum(one["allowed"] + one["denied"] for one in found["totals"].values()) >= counted.total():
            break
        await asyncio.sleep(0.1)
    return found


def _by_minute(recorder: Recorder) -> dict[str, tuple[int, int]]:
    """The same from the minutes, the last one too, which is not over yet."""
    sums: Counter[tuple[str, int]] = Counter()
    for region, _, cell in recorder.rollups.cells("d/r", MINUTE_MS, 0, 2**50):
        sums[region, ALLOWED] += cell[ALLOWED]
        sums[region, DENIED] += cell[DENIED]
    return {region: (sums[region, ALLOWED], sums[region, DENIED]) for region in REGIONS}


async def _compare_with_the_log(client: httpx.AsyncClient, raw: RawLog, key: str) -> None:
    """At every moment at which something was said, and between: the API and the raw log agree."""
    moments = raw.moments(key)
    assert len(moments) > 5, "the shares did not move"
    last_ms = moments[-1] + 1
    for _ in range(200):
        if (await _get(client, "/v1/sync"))["history"]["problem"] is None:
            steps = (await _get(client, "/v1/shares/steps", key=key))["steps"]
            if steps and max(one["at_ms"] for one in steps) >= moments[-1]:
                break
        await asyncio.sleep(0.1)
    compared = 0
    for before, after in zip(moments, [*moments[1:], last_ms], strict=True):
        held = (await _get(client, "/v1/shares/at", time=after - 1, key=key))["keys"][0]
        if any(one["session"] != "alive" for one in held["regions"].values()):
            continue
        leases = raw.at(key, after - 1)
        expected = {region: BASES[region] if units == -1 else units for region, units in leases.items()}
        found = {region: one["units"] for region, one in held["regions"].items()}
        over = sum(expected.values()) - 10_000
        if over <= 0:
            assert found == expected, (before, after)
        else:
            assert sum(found.values()) == 10_000
            assert all(found[region] <= units for region, units in expected.items())
        compared += 1
    assert compared > 5
