"""How soon a page is told of a cut and of its end: the dashboard's own loops, by a clock that is given."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass

import httpx
import msgspec
import pytest

from global_sync import codec
from global_sync.protocol.messages import Beat, Mark
from global_sync.transport.base import LOG
from services import probes as probes_module
from services.dashboard import app
from services.dashboard.stream import Broadcaster
from services.probes import Probes
from services.settings import HubRegion
from tests.unit.dashboard.test_board import START_MS, World, key
from tests.unit.dashboard.virtual_loop import VirtualLoop

CUT_SHOWN_MS = 2_000
HEALED_SHOWN_MS = 5_000
BEAT_S = 0.35
SYNC = "http://127.0.0.1:1"


class Telling(World):
    """A region that tells once a second, ``phase_ms`` after the frames, whose link is cut and healed, and a leader
    that beats thrice a second.  Asked directly, its agent answers also while it is cut."""

    def __init__(self, phase_ms: int) -> None:
        self.probes_asked = Probes({"us-east": HubRegion(sync=SYNC)}, httpx.MockTransport(self.answer))
        super().__init__(self.probes_asked.last)
        self.phase_ms = phase_ms
        self.is_cut = False
        self.heard_ms = START_MS
        self.asked = 0
        self.rules()
        self.tell(LOG, codec.encode_records([Mark(1, "n", 1)]))

    def pass_to(self, now_s: float) -> None:
        self.now_ms = START_MS + round(now_s * 1000)

    async def regions(self) -> None:
        await asyncio.sleep(self.phase_ms / 1000)
        while True:
            if not self.is_cut:
                self.usage("us-east", {key("k"): (0, 0)})
            await asyncio.sleep(1)

    async def leader(self) -> None:
        while True:
            self.tell(LOG, codec.encode_records([Beat(1, self.now_ms * 1000, {})]))
            if not self.is_cut:
                self.heard_ms = self.now_ms
            await asyncio.sleep(BEAT_S)

    def answer(self, request: httpx.Request) -> httpx.Response:
        assert request.url.path == "/v1/region"
        self.asked += 1
        agent = {**self.view("us-east", {key("k"): (0, 0)}), "link_age_ms": self.now_ms - self.heard_ms}
        return httpx.Response(200, content=msgspec.json.encode({"agent": agent}))


@dataclass(frozen=True)
class Frame:
    at_ms: int
    link: str


class Page:
    """A tab: the frames that it was sent, and when."""

    def __init__(self, world: Telling, broadcaster: Broadcaster) -> None:
        self._world = world
        self._mine = broadcaster.subscribe()
        self.frames: list[Frame] = []

    async def read(self) -> None:
        while (event := await self._mine.get()) is not None:
            regions = json.loads(event.raw_data or "")["status"]["regions"]
            (link,) = (region["link"] for region in regions if region["name"] == "us-east")
            self.frames.append(Frame(self._world.now_ms, link))

    def first(self, link: str, since_ms: int) -> int:
        """How long after that a frame said so."""
        return next(
            frame.at_ms - since_ms for frame in self.frames if frame.at_ms >= since_ms and frame.link == link
        )


async def cut_and_healed(world: Telling) -> tuple[int, int]:
    """How long until the frame that shows it."""
    broadcaster = Broadcaster(world.board.tick, world.board.hello)
    page, probes = Page(world, broadcaster), world.probes_asked
    loops = (world.regions(), world.leader(), broadcaster.run(), page.read(),
             app._watch_links(world.board, probes, broadcaster))  # fmt: skip
    running = [asyncio.create_task(one) for one in loops]
    await asyncio.sleep(10 + world.phase_ms / 500)
    assert page.frames[-1].link == "linked"
    world.is_cut, cut_ms = True, world.now_ms
    await asyncio.sleep(20 + world.phase_ms / 1000)
    assert page.frames[-1].link == "cut"
    world.is_cut, healed_ms = False, world.now_ms
    await asyncio.sleep(10)
    assert page.frames[-1].link == "linked"
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    await probes.close()
    return page.first("cut", cut_ms), page.first("linked", healed_ms)


@pytest.mark.parametrize("phase_ms", range(0, 1000, 50))
def test_a_cut_is_in_a_frame_within_two_seconds_and_its_end_within_five(
    phase_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whenever in the second of a region's messages the link is cut."""
    world = Telling(phase_ms)
    monkeypatch.setattr(probes_module, "wall_ms", lambda: world.now_ms)
    loop = VirtualLoop(world.pass_to)
    try:
        cut_ms, healed_ms = loop.run_until_complete(cut_and_healed(world))
    finally:
        loop.close()
    assert cut_ms <= CUT_SHOWN_MS
    assert healed_ms <= HEALED_SHOWN_MS
    assert world.asked > 0, "an agent that is overdue is asked directly"
