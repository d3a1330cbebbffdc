"""One region in all its parts, asked of its nodes and its agent when somebody looks.  [IO]

However many look, a region is asked once a second at most.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from regional_limiter.model.keys import tag_of
from regional_limiter.store.topology import hash_slot_of
from regional_limiter.sub_buckets import sub_key
from services.clock import wall_ms
from services.probes import NodeLook, Probes

FRESH_S: Final = 0.9
_OF_AGENT: Final = (
    *("agent", "active", "at_ms", "epoch", "session", "deposed", "link_age_ms", "rules_version", "base_version"),
    *("bases", "floors", "reports_sent", "sends_failed", "records_read", "keys_refused", "malformed", "violations"),
    *("points", "nodes"),
)


KeyRate = Mapping[str, Any]
"""``key``, ``allowed_per_s`` and ``denied_per_s``; of a split one also ``parts`` and ``split``."""


class RegionLooks:
    def __init__(self, probes: Probes, regions: Collection[str]) -> None:
        self._probes = probes
        self._locks = {name: asyncio.Lock() for name in regions}
        self._found: dict[str, tuple[float, dict[str, Any]]] = {}

    async def look(self, name: str) -> dict[str, Any] | None:
        """None: there is no such region in the settings."""
        if name not in self._locks:
            return None
        async with self._locks[name]:
            at, found = self._found.get(name, (float("-inf"), {}))
            if time.monotonic() - at > FRESH_S:
                nodes, _ = await asyncio.gather(self._probes.look_into(name), self._probes.look_at_agent(name))
                probe = self._probes.last().get(name)
                found = {
                    "name": name,
                    "now_ms": wall_ms(),
                    "nodes": [_node(node) for node in nodes],
                    "agent": agent_shown(probe.agent if probe is not None else None, 0),
                }
                self._found[name] = time.monotonic(), found
        return found


def _node(look: NodeLook) -> dict[str, Any]:
    clock = {"clock_error_ms": look.clock_error_ms, "give_or_take_ms": look.give_or_take_ms}
    return {"url": look.url, "answers": look.view is not None, **clock, "view": look.view}


def hot_by_shard(
    keys: Iterable[KeyRate], nodes: Sequence[Mapping[str, Any]], most: int, split_of: Callable[[str], int]
) -> dict[str, list[KeyRate]]:
    """Point -> those of ``keys`` whose bucket it holds, by what the region's nodes say, the busiest first.

    Of a key that is split (``split_of``: into how many sub-buckets) a point is told the part that its own hold, as
    if nodes asked all alike, which they nearly do: ``parts`` of ``split``.
    """
    ranges = [
        (first, end, str(shard["point"]))
        for node in nodes
        for shard in (node["view"] or {}).get("shards", ())
        for first, end in shard.get("slots", ())
    ]

    def point_of(key: str) -> str | None:
        slot = hash_slot_of(tag_of(key))
        return next((point for first, end, point in ranges if first <= slot < end), None)

    found: dict[str, list[KeyRate]] = {}
    for one in keys:
        key = one["key"]
        if not key.startswith("rl:{"):
            continue
        split = split_of(key)
        buckets = [key] if split == 1 else [sub_key(key, split, place) for place in range(split)]
        for point, parts in Counter(map(point_of, buckets)).items():
            if point is not None:
                found.setdefault(point, []).append(one if split == 1 else _part(one, parts, split))
    return {point: sorted(held, key=_busiest_first)[:most] for point, held in found.items()}


def _part(one: KeyRate, parts: int, split: int) -> KeyRate:
    rates = {name: round(one[name] * parts / split, 1) for name in ("allowed_per_s", "denied_per_s")}
    return {**one, **rates, "parts": parts, "split": split}


def _busiest_first(one: KeyRate) -> tuple[float, str]:
    return -one["allowed_per_s"] - one["denied_per_s"], one["key"]


def agent_shown(view: Mapping[str, Any] | None, age_ms: int) -> dict[str, Any] | None:
    """Without its keys and totals, which the stream tells.  ``age_ms``: how old what it says is."""
    return None if view is None else {**{name: view.get(name) for name in _OF_AGENT}, "age_ms": age_ms}
