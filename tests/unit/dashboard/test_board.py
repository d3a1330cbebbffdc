"""Frames from messages: the clock and every message are given, so every number is known."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import msgspec

from global_sync import codec
from global_sync.changes import PUT_SET, Proposal
from global_sync.protocol.messages import Kind, LeaseRecord, Mark, Welcome
from global_sync.rulebook import Rulebook, encode_state
from global_sync.transport.base import LOG, RULES, USAGE, Message
from global_sync.transport.memory import MemoryHub
from regional_limiter.model.rule import Rule
from services.dashboard.board import Board
from services.dashboard.told import KEYS_A_RULE
from services.health import RegionProbe
from tests.unit.control_api.conftest import hub_settings

START_MS = 1_800_000_000_000
DOCUMENT = {
    "domain": "d",
    "regions": {"us-east": 1, "eu-west": 1},
    "rules": [
        {"id": "g", "match": {}, "capacity": 100, "refill": "90/min", "scope": "global"},
        {"id": "w", "match": {}, "algorithm": "fixed_window", "limit": 5, "window": "60s", "key": []},
    ],
}


class World:
    """``looks``: as regions were seen last, in place of ``probes``."""

    def __init__(self, looks: Callable[[], Mapping[str, RegionProbe]] | None = None) -> None:
        self.now_ms = START_MS
        settings = hub_settings()
        self.probes: dict[str, RegionProbe] = {}
        self.board = Board(
            MemoryHub().transport("x"), settings, looks or (lambda: self.probes), now_ms=lambda: self.now_ms
        )
        for topic in self.board.feed.topics.values():
            topic.caught_up.set()
        self.seen = 0

    def tell(self, topic: str, value: bytes) -> None:
        message = Message(topic, self.seen, None, value, self.now_ms)
        if topic == RULES:
            asyncio.run(self.board.take_rules(message))
        else:
            self.board.take(message)
        self.seen += 1

    def rules(self, document: dict[str, Any] = DOCUMENT, offset: int = 0) -> None:
        book = Rulebook()
        outcome = book.decide(Proposal(id="1", domain="d", kind=PUT_SET, document=document), offset)
        assert outcome.accepted, outcome.faults
        for _, value in encode_state(book, "d", 1):
            self.tell(RULES, value)

    def usage(self, region: str, keys: dict[str, tuple[int, int]], *, session_ms: int = 10_000) -> None:
        self.tell(USAGE, msgspec.json.encode(self.view(region, keys, session_ms)))

    def view(self, region: str, keys: dict[str, tuple[int, int]], session_ms: int = 10_000) -> dict[str, Any]:
        totals = {key: [allowed, denied, allowed, denied, 0] for key, (allowed, denied) in keys.items()}
        rule = [sum(column) for column in zip(*totals.values(), strict=True)]
        point = {"point": "p", "ok": True, "session_left_ms": session_ms, "consent_left_ms": session_ms + 10_000}
        document = {
            "region": region, "agent": "a", "at_ms": self.now_ms, "totals": {"d/g": rule}, "nodes": [],
            "keys": {key: {"share": None, "want": 700, "totals": values} for key, values in totals.items()},
            "points": [point], "bases": {"d": 5000}, "rules_version": 1,
        }  # fmt: skip
        return document

    def tick(self) -> dict[str, Any]:
        frame: dict[str, Any] = json.loads(self.board.tick())
        return frame


def key(name: str) -> str:
    return f"rl:{{0}}:d/g:{name}"


def test_a_new_tab_is_told_what_was_asked_of_a_window_on_average() -> None:
    rule = {
        "id": "g", "match": {}, "algorithm": "fixed_window", "limit": 60_000, "window": "60s", "scope": "global",
    }  # fmt: skip
    world = World()
    world.rules({**DOCUMENT, "rules": [rule]})
    for second in range(400):
        world.now_ms = START_MS + second * 1000
        for region in ("us-east", "eu-west"):
            world.usage(region, {key("k"): (500 * second, 0)})
        world.tick()
    asked, per_s = json.loads(world.board.hello())["points"]["d/g"]["asked"]
    assert asked == key("k")
    assert 980 <= per_s <= 1000, "not what a tab would have that begins with nothing"
    world.rules({**DOCUMENT, "rules": []}, offset=1)
    world.tick()
    assert json.loads(world.board.hello())["points"] == {}


def test_of_a_rule_with_many_keys_the_busiest_counts_also_when_it_is_not_told() -> None:
    world = World()
    world.rules()
    for second in range(3):
        world.now_ms = START_MS + second * 1000
        steady = {key(f"k{n}"): (100 * second, 0) for n in range(KEYS_A_RULE)}
        world.usage("us-east", steady | {key("new"): ((0, 1, 151)[second], 0)})
        frame = world.tick()
    assert key("new") not in [name for name, _ in frame["points"]["d/g"]["keys"]]
    assert frame["points"]["d/g"]["asked"][0] == key("new")


def test_rules_are_in_a_frame_only_when_they_have_changed() -> None:
    world = World()
    world.rules()
    first = world.tick()
    assert first["bases"] == {"d": {"eu-west": 5000, "us-east": 5000}}
    assert [rule["limit"] for rule in first["rules"]] == [
        "100 at once, then 1.5/s, for each client_key, over all regions",
        "5 in 60 s, for all together",
    ]
    assert "rules" not in world.tick()
    world.rules({**DOCUMENT, "rules": []}, offset=1)
    frame = world.tick()
    assert (frame["rules"], frame["bases"]) == ([], {"d": {"eu-west": 5000, "us-east": 5000}})


def test_a_key_is_told_with_what_all_regions_counted_of_it() -> None:
    world = World()
    world.rules()
    for second in (0, 1):
        world.now_ms = START_MS + second * 1000
        world.usage("us-east", {key("k"): (100 * second, 10 * second)})
        world.usage("eu-west", {key("k"): (50 * second, 0)})
    entry = world.tick()["points"]["d/g"]
    assert entry["total"] == {"a": 150.0, "d": 10.0}
    assert entry["keys"] == [[key("k"), {"a": 150.0, "d": 10.0}]]
    assert entry["asked"] == [key("k"), 160.0]


def test_the_picture_has_the_shares_that_the_log_granted() -> None:
    world = World()
    world.tell(LOG, codec.encode_records([Mark(1, "n", 1)]))
    for n, region in enumerate(("us-east", "eu-west")):
        world.tell(LOG, codec.encode_records([Welcome(1, n + 1, region, f"agent-{region}", 1, 1, {})]))
        world.usage(region, {key("k"): (0, 0)})
    grant = LeaseRecord(1, 5, key("k"), "us-east", 1, Kind.KEEP, 1200)
    world.tell(LOG, codec.encode_records([grant]))
    assert _shares(world) == {"eu-west": 5000, "us-east": 1200}


def _shares(world: World) -> dict[str, int | None]:
    regions = world.board.picture.health({}, world.now_ms)
    bases = {"us-east": 5000, "eu-west": 5000}
    return world.board.picture.shares(key("k"), bases, regions, adaptive=True, now_ms=world.now_ms)


def test_a_region_whose_session_and_consent_are_over_is_at_base_and_its_rates_are_not_known() -> None:
    world = World()
    world.rules()
    for second in (0, 1):
        world.now_ms = START_MS + second * 1000
        world.usage("us-east", {key("k"): (100 * second, 0)})
        world.usage("eu-west", {key("k"): (50 * second, 0)}, session_ms=2_000)
    world.tick()
    world.now_ms += 9_000
    shares = _shares(world)
    assert shares["eu-west"] == 100, "2 % of the base: the floor while the consent lasts"
    world.now_ms += 4_000
    shares = _shares(world)
    assert shares["eu-west"] == 5000
    frame = world.tick()
    assert frame["points"]["d/g"]["total"] == {"a": None, "d": None}
    region = frame["status"]["regions"][0]
    assert (region["link"], region["allowed_per_s"], region["points"]["ok"]) == ("cut", None, None)


def test_many_keys_show_the_busiest_ones_and_equal_ones_do_not_take_turns() -> None:
    world = World()
    world.rules()
    order = []
    for second in range(6):
        world.now_ms = START_MS + second * 1000
        keys = {key(f"k{n:02}"): (second * (5 if n else 500), 0) for n in range(30)}
        world.usage("us-east", keys)
        order.append([name for name, _ in world.tick()["points"]["d/g"]["keys"]])
    assert len(order[-1]) == KEYS_A_RULE
    assert order[-1][0] == key("k00")
    assert order[-1] == order[-2]


def test_of_which_kind_a_rule_is_is_known_without_going_through_all_rules() -> None:
    """Pages ask it for each of hundreds of keys."""

    class Counted(tuple[Rule, ...]):
        gone_through = 0

        def __iter__(self) -> Iterator[Rule]:
            Counted.gone_through += 1
            return super().__iter__()

    world = World()
    rules = [
        {"id": f"g{n}", "match": {}, "capacity": 100, "refill": "90/min", "scope": "global"} for n in range(50)
    ]
    window = {"algorithm": "fixed_window", "limit": 5000, "window": "60s"}
    escrow = {"id": "e", "match": {}, **window, "scope": "global", "distribution": "adaptive"}
    split = {"id": "s", "match": {}, "capacity": 100, "refill": "90/min", "split": 4}
    world.rules({**DOCUMENT, "rules": [*rules, split, escrow]})
    known = world.board.book.sets()["d"]
    object.__setattr__(known, "rule_set", replace(known.rule_set, rules=Counted(known.rule_set.rules)))
    board = world.board
    assert [board.in_windows("d", name) for name in ("g7", "e", "none")] == [False, True, False]
    assert board.bases_of("d")["us-east"] == 5000
    assert (board.bases_of("none"), board.in_windows("none", "e")) == ({}, False)
    assert [board.split_of(f"rl:{{0}}:d/{name}:x") for name in ("s", "g7", "none")] == [4, 1, 1]
    assert Counted.gone_through == 0


def test_before_anything_is_known_a_new_tab_gets_a_whole_frame() -> None:
    hello = json.loads(World().board.hello())
    assert [region["link"] for region in hello["status"]["regions"]] == ["unknown", "unknown"]
    assert (hello["rules"], hello["points"]) == ([], {})


def test_a_region_that_is_cut_off_from_kafka_still_shows_what_it_counts_when_it_answers_directly() -> None:
    world = World()
    world.rules()
    world.usage("us-east", {key("k"): (0, 0)})
    for second in range(1, 12):
        world.now_ms = START_MS + second * 1000
        agent = world.view("us-east", {key("k"): (30 * second, 0)})
        world.probes = {"us-east": RegionProbe((), agent, None, world.now_ms)}
        frame = world.tick()
    region = frame["status"]["regions"][0]
    assert (region["name"], region["link"], region["allowed_per_s"]) == ("us-east", "cut", 30.0)
    assert frame["points"]["d/g"]["total"]["a"] == 30.0


def test_a_region_is_overdue_when_its_usage_should_have_come_and_a_changed_link_is_noticed() -> None:
    world = World()
    world.rules()
    world.usage("us-east", {"rl:{0}:d/g:a": (10, 0)})
    world.board.tick()
    assert (world.board.overdue(), world.board.links_changed()) == ([], False)
    world.now_ms += 1_300
    assert world.board.overdue() == ["us-east"]
    assert not world.board.links_changed()
    world.now_ms += 6_000
    assert world.board.links_changed()
    world.board.tick()
    assert not world.board.links_changed()
