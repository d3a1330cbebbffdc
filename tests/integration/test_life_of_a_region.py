"""Regions join, change weights, leave, are lost and come back, by the commands and under load: the bound holds.

The real limiters, agents and leaders of four regions in one process, with the control API in front; the commands
are processes of their own, as an operator's are.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from regional_limiter.model.decision import Check
from regional_limiter.model.share import ProtocolTimes
from services.control_api.app import create_app
from services.embedded import Embedded
from services.settings import ControlApiSettings, DashboardSettings, HubRegion, HubSettings, KafkaSettings
from tests.e2e.bound import worst_excess
from tests.quiet_collector import quiet_collector

REGIONS = ["us", "eu", "ap", "sa"]
AT_FIRST = ["us", "eu", "ap"]
BURST, RATE = 20, 100
SCALE = 0.3
"""D 6 s, D_c 9 s: a pause of 0.3 s is a gap."""
RULE = {"match": {}, "key": ["client_key"], "capacity": BURST, "refill": f"{RATE}/s", "scope": "global"}

pytestmark = pytest.mark.timeout(180)


def rules(domain: str) -> dict[str, Any]:
    return {"domain": domain, "regions": dict.fromkeys(AT_FIRST, 1), "rules": [{"id": "shared", **RULE}]}


class World:
    """``admitted``: (sent, answered) of every allowed check of domain "d"; ``failed``: those without an answer."""

    def __init__(self, system: Embedded, url: str) -> None:
        self.system, self.url = system, url
        self.admitted: list[tuple[float, float]] = []
        self.failed: list[BaseException] = []
        self.checks = 0
        self._load: dict[str, asyncio.Task[None]] = {}

    # ---- load

    def offer(self, region: str, rate: float) -> None:
        self._load[region] = asyncio.create_task(self._offer(region, rate))

    async def end_offer(self, *regions: str) -> None:
        tasks = [self._load.pop(region) for region in regions or list(self._load)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _offer(self, region: str, rate: float) -> None:
        began, number = time.monotonic(), 0
        check = Check("d", {"client_key": "c"})
        while True:
            number += 1
            await asyncio.sleep(max(0.0, began + number / rate - time.monotonic()))
            sent = time.monotonic()
            try:
                answer = await self.system.regions[region].limiter.check(check)
            except Exception as error:
                self.failed.append(error)
                continue
            self.checks += 1
            if answer.allowed:
                self.admitted.append((sent, time.monotonic()))

    # ---- the operator

    async def cli(self, *words: str) -> tuple[int, str, str]:
        command = [sys.executable, "-m", "services.cli.main", "region", *words, "--control", self.url]
        process = await asyncio.create_subprocess_exec(
            *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        out, err = await process.communicate()
        assert process.returncode is not None
        return process.returncode, out.decode(), err.decode()

    async def done(self, *words: str) -> dict[str, Any]:
        code, out, err = await self.cli(*words, "--json")
        assert code == 0, (words, out, err)
        document: dict[str, Any] = json.loads(out)
        return document

    async def bases(self, domain: str = "d") -> dict[str, int]:
        listed = await self.done("list")
        return {name: one["bases"][domain] for name, one in listed["regions"].items() if domain in one["bases"]}

    async def end(self, region: str) -> None:
        """Everything of the region is lost."""
        self.system.hub.cut(region)
        one = self.system.regions.pop(region)
        await one.limiter.stop()
        await one.agent.stop()
        await one.leader.stop()


@asynccontextmanager
async def living(tmp_path: Path) -> AsyncIterator[World]:
    times = ProtocolTimes.scaled(SCALE)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        system = Embedded(REGIONS, times, tmp_path)
        settings = HubSettings(
            time_scale=SCALE,
            kafka=KafkaSettings(bootstrap="127.0.0.1:1"),
            control_api=ControlApiSettings(port=port, state_dir=tmp_path / "control"),
            dashboard=DashboardSettings(port=port),
            regions={name: HubRegion() for name in REGIONS},
        )
        app = create_app(system.hub.transport("control"), settings, mode="embedded")
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False))
        await system.start()
        serving = asyncio.create_task(server.serve([listener]))
        try:
            for domain in ("d", "other"):
                await system.put_rules(rules(domain))
            async with asyncio.timeout(30):
                while not (server.started and all(_in_session(system, name) for name in AT_FIRST)):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            with quiet_collector():
                world = World(system, f"http://127.0.0.1:{port}")
                yield world
                await world.end_offer()
        finally:
            server.should_exit = True
            await asyncio.gather(serving, return_exceptions=True)
            await system.stop()


def _in_session(system: Embedded, name: str) -> bool:
    points = system.regions[name].agent.view()["points"]
    assert isinstance(points, list)
    ready = system.regions[name].limiter.ready
    return ready and bool(points) and all(point["session_left_ms"] > 0 for point in points)


async def test_a_region_joins_is_weighted_leaves_is_lost_and_restored_and_the_bound_holds(tmp_path: Path) -> None:
    async with living(tmp_path) as world:
        for region, rate in (("us", 80.0), ("eu", 30.0), ("ap", 30.0), ("sa", 30.0)):
            world.offer(region, rate)

        planned = await world.done("join", "sa", "--weight", "2", "--dry-run")
        assert [change["domain"] for change in planned["changes"]] == ["d", "other"]
        assert planned["changes"][0]["bases"]["after"] == {"us": 2000, "eu": 2000, "ap": 2000, "sa": 4000}
        assert (planned["waits_for"], planned["not_heard_of"]) == (["ap", "eu", "us"], [])

        joined = await world.done("join", "sa", "--weight", "2", "--reason", "grows")
        assert joined["changes"][0]["bases"]["before"] == {"us": 3334, "eu": 3333, "ap": 3333}, (
            "the dry run changed"
        )
        assert joined["in_force"]
        assert await world.bases("other") == {"us": 2000, "eu": 2000, "ap": 2000, "sa": 4000}
        assert (await world.done("join", "sa", "--weight", "2"))["changes"] == [], "a second time changes something"

        await world.done("reweight", "us=5", "sa=1", "--domain", "d")
        assert await world.bases() == {"us": 6250, "eu": 1250, "ap": 1250, "sa": 1250}

        left = await world.done("leave", "ap", "--reason", "moves")
        assert left["in_force"]
        assert set(world.system.regions["ap"].agent.side.bases.values()) == {0}

        # What the region is called is in its Redis: another one that runs takes its weights.
        renamed = await world.done("rename", "sa", "ap", "--domain", "other", "--reason", "a better name")
        assert renamed["in_force"]
        assert await world.bases("other") == {"us": 2500, "eu": 2500, "ap": 5000}

        await world.end_offer("eu")
        await world.end("eu")
        code, _, err = await world.cli("destroyed", "eu", "--reason", "burnt")
        assert (code, "--yes" in err, "is not used again" in err) == (2, True, True)
        await world.done("destroyed", "eu", "--yes", "--reason", "burnt")
        await world.done("destroyed", "eu", "--yes", "--reason", "burnt")  # once more: nothing happens
        listed = await world.done("list")
        assert (listed["regions"]["eu"]["gone"], listed["regions"]["eu"]["link"]) == (True, "gone")
        assert {name: one["bases"] for name, one in listed["regions"].items() if one["bases"]} == {
            "us": {"d": 8333, "other": 3333},
            "sa": {"d": 1667},
            "ap": {"other": 6667},
        }

        restored = await world.done("restore", "ap")
        (change,) = restored["changes"]
        assert (change["domain"], change["weights"]["after"]["ap"]) == ("d", 1)
        code, _, err = await world.cli("destroyed", "us", "--yes", "--reason", "a slip", "--wait", "0")
        assert (code, "it is not destroyed" in err) == (1, True), err
    assert world.failed == []
    assert world.checks > 500
    assert worst_excess(world.admitted, BURST, RATE, slack=0.001) <= 0
