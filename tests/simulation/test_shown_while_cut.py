"""What displays show of a region that is cut off, second by second: what it may still use, and no hole.

The world of ``test_convergence`` on its virtual clock; beside it a picture that reads the log and the usage as a
display does.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from global_sync import codec
from global_sync.protocol.messages import Kind, LeaseRecord
from global_sync.transport.base import LOG, USAGE, Message
from regional_limiter.model.share import SHARE_UNITS, floor_of
from services.picture import Picture
from tests.unit.test_convergence import BASES, KEY, SECOND, Load, World, hot

CUT = "ap-south"


@dataclass
class Shown:
    """A picture of ``world``.  The display is with the leader: it reads at once what is appended."""

    world: World
    read: int = 0
    usage_comes: bool = True
    picture: Picture = field(init=False)

    def __post_init__(self) -> None:
        self.picture = Picture(list(BASES), self.world.times)

    @property
    def now_ms(self) -> int:
        return self.world.now // 1000

    def watch(self, us: int, load: Load) -> tuple[dict[str, int | None], dict[str, int]]:
        """What is shown and what is in force after ``us`` more."""
        end = self.world.now + us
        while self.world.now < end:
            self.world.run(min(SECOND // 10, end - self.world.now), load)
            self._take_log()
            if self.usage_comes and self.world.now // (SECOND // 10) % 10 == 0:
                self._take_usage()
        health = self.picture.health({}, self.now_ms)
        shares = self.picture.shares(KEY, BASES, health, adaptive=True, now_ms=self.now_ms)
        return shares, self.world.shares()

    def _take_log(self) -> None:
        for record in self.world.log[self.read :]:
            self.picture.take(self._message(LOG, codec.encode_records([record])), self.now_ms)
        self.read = len(self.world.log)

    def _take_usage(self) -> None:
        for name, region in self.world.regions.items():
            if not region.cut:
                force = region.point.share(self.world.now, KEY, "default")
                left = {
                    "session_left_ms": force.session_left_us // 1000,
                    "consent_left_ms": force.consent_left_us // 1000,
                }
                view: dict[str, Any] = {
                    "region": name, "agent": "a", "at_ms": 0, "totals": {}, "keys": {},
                    "points": [{"point": "p", "ok": True, **left}],
                }  # fmt: skip
                self.picture.take(self._message(USAGE, msgspec.json.encode(view)), self.now_ms)

    def _message(self, topic: str, value: bytes) -> Message:
        return Message(topic, 0, None, value, self.now_ms)


@pytest.fixture
def shown() -> Shown:
    world = World()
    world.settle()
    shown = Shown(world)
    shown.watch(10 * SECOND, mostly(CUT))
    assert world.shares()[CUT] >= 6000
    return shown


def mostly(region: str) -> Load:
    return hot(region, others=180)


def test_a_region_that_is_cut_off_is_shown_with_its_lease_then_its_floor_then_its_base(shown: Shown) -> None:
    shown.world.regions[CUT].cut = True
    lease = shown.world.shares()[CUT]
    wrong, values = [], []
    for second in range(1, 41):
        shares, true = shown.watch(SECOND, mostly(CUT))
        values.append(shares[CUT])
        if shares[CUT] != true[CUT]:
            wrong.append((second, shares[CUT], true[CUT]))
        assert sum(share or 0 for share in shares.values()) <= SHARE_UNITS
    assert list(dict.fromkeys(values)) == [lease, floor_of(BASES[CUT]), BASES[CUT]]
    assert len(wrong) <= 2, wrong  # the seconds in which it turns


def test_what_is_taken_back_from_a_region_that_hears_nothing_is_shown_until_its_session_ends(shown: Shown) -> None:
    shown.world.regions[CUT].cut = True
    lease, read = shown.world.shares()[CUT], len(shown.world.log)
    shown.watch(3 * SECOND, mostly("us-east"))
    cuts = [one for one in shown.world.log[read:] if isinstance(one, LeaseRecord) and one.region == CUT]
    assert cuts
    assert all(one.kind is Kind.KEEP and one.value < lease for one in cuts), "nothing was taken back"
    for _ in range(14):
        shares, true = shown.watch(SECOND, mostly("us-east"))
        assert shares[CUT] == true[CUT] == lease


def test_what_a_region_gives_back_while_its_usage_is_late_is_not_shown_twice(shown: Shown) -> None:
    shown.usage_comes = False
    for _ in range(5):
        shares, true = shown.watch(SECOND, mostly("us-east"))
        assert sum(share or 0 for share in shares.values()) <= SHARE_UNITS
    assert shares == true


def test_a_silent_region_is_not_told_to_go_back_to_its_base_because_the_others_need_nothing(shown: Shown) -> None:
    shown.world.regions[CUT].cut = True
    read = len(shown.world.log)
    shown.watch(15 * SECOND, mostly(CUT))
    assert not [one for one in shown.world.log[read:] if isinstance(one, LeaseRecord) and one.region == CUT]


def test_once_the_session_of_the_silent_region_is_over_the_key_is_forgotten_all_the_same(shown: Shown) -> None:
    shown.world.regions[CUT].cut = True
    shares, _ = shown.watch(60 * SECOND, mostly(CUT))
    assert shares == BASES
    assert not list(shown.world.leader.keys)


def test_a_link_that_heals_within_the_session_leaves_the_lease_as_it_was(shown: Shown) -> None:
    lease = shown.world.shares()[CUT]
    shown.world.regions[CUT].cut = True
    shown.watch(15 * SECOND, mostly(CUT))
    shown.world.regions[CUT].cut = False
    for _ in range(5):
        shares, true = shown.watch(SECOND, mostly(CUT))
        assert shares[CUT] == true[CUT] >= lease
