"""A region in all its parts: what is asked of whom, and how often."""

from __future__ import annotations

import asyncio

import httpx
from pydantic import SecretStr

from services.clock import wall_ms
from services.dashboard.region_look import RegionLooks, hot_by_shard
from services.probes import NODES_LOOKED_INTO, Probes
from services.settings import HubRegion

AGENT = {"agent": "a", "epoch": 3, "link_age_ms": 40, "points": [], "nodes": [], "keys": {"k": 1}, "totals": {}}


class Answering:
    def __init__(self) -> None:
        self.asked: list[tuple[str, str | None]] = []
        self.ahead_ms = 0

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.asked.append((str(request.url), request.headers.get("authorization")))
        if request.url.host == "down":
            raise httpx.ConnectError("refused", request=request)
        if request.url.path == "/v1/region":
            return httpx.Response(200, json={"agent": AGENT, "leader": None})
        return httpx.Response(200, json={"node": "us-1", "at_ms": wall_ms() + self.ahead_ms})


def looks(answering: Answering, nodes: list[str]) -> RegionLooks:
    region = HubRegion(
        nodes=nodes, sync="http://sync", token=SecretStr("sync-token"), node_token=SecretStr("node-token")
    )
    regions = {"us": region}
    return RegionLooks(Probes(regions, httpx.MockTransport(answering)), regions)


async def test_nodes_and_agent_are_asked_with_their_own_tokens_and_keys_are_left_out() -> None:
    answering = Answering()
    answering.ahead_ms = 60_000
    found = await looks(answering, ["http://up", "http://down"]).look("us")
    assert found is not None
    assert ("http://up/v1/node", "Bearer node-token") in answering.asked
    assert ("http://sync/v1/region", "Bearer sync-token") in answering.asked
    up, down = found["nodes"]
    assert (up["answers"], up["view"]["node"]) == (True, "us-1")
    # Half of what the question took is not known; a minute is more than that on any machine.
    assert 50_000 < up["clock_error_ms"] < 70_000
    assert (down["answers"], down["view"], down["clock_error_ms"]) == (False, None, None)
    assert found["agent"]["epoch"] == 3
    assert not {"keys", "totals"} & set(found["agent"])


async def test_however_many_look_each_is_asked_once() -> None:
    answering = Answering()
    one = looks(answering, [f"http://n{number}" for number in range(NODES_LOOKED_INTO + 5)])
    await asyncio.gather(*(one.look("us") for _ in range(20)))
    assert len(answering.asked) == NODES_LOOKED_INTO + 1


def test_hot_keys_are_told_by_the_shard_that_holds_them() -> None:
    """The slots of these tags, by CLUSTER KEYSLOT: a 15495, b 3300, c 7365."""
    keys = [
        {"key": f"rl:{{{tag}}}:d/r:{number}", "allowed_per_s": 9.0 - number, "denied_per_s": 0.0}
        for number, tag in enumerate("abacaa")
    ]
    views = [
        {"view": {"shards": [{"point": "p1", "slots": [[0, 5000]]}, {"point": "p2", "slots": [[5000, 8000]]}]}},
        {"view": {"shards": [{"point": "p3", "slots": [[8000, 9000], [15_000, 16_384]]}]}},
        {"view": None},
        {"view": {"shards": [{"point": "of an older node"}]}},
    ]
    found = hot_by_shard([*keys, {"key": "no bucket"}], views, 3, lambda _: 1)
    assert {point: [one["key"][-1] for one in hot] for point, hot in found.items()} == {
        "p1": ["1"],
        "p2": ["3"],
        "p3": ["0", "2", "4"],
    }


def test_of_a_split_key_each_shard_is_told_the_part_that_it_holds() -> None:
    split, whole = "rl:{a}:d/split:x", "rl:{a}:d/whole:x"  # the tag's slot is 15495, so its parts begin there
    keys = [{"key": split, "allowed_per_s": 40.0, "denied_per_s": 8.0}]
    keys += [{"key": whole, "allowed_per_s": 20.0, "denied_per_s": 0.0}]
    shards = [{"point": "low", "slots": [[0, 8_192]]}, {"point": "high", "slots": [[8_192, 16_384]]}]
    views = [{"view": {"shards": shards}}]
    found = hot_by_shard(keys, views, 3, lambda key: 4 if key == split else 1)
    assert found["low"] == [{"key": split, "allowed_per_s": 20.0, "denied_per_s": 4.0, "parts": 2, "split": 4}]
    assert [one["key"] for one in found["high"]] == [split, whole]
    only = hot_by_shard(keys, [{"view": {"shards": shards[1:]}}], 1, lambda key: 8 if key == split else 1)
    assert [(one["key"], one["parts"]) for one in only["high"]] == [(split, 4)]


async def test_a_region_that_is_not_in_the_settings_is_not_looked_for() -> None:
    answering = Answering()
    assert await looks(answering, []).look("elsewhere") is None
    assert answering.asked == []
