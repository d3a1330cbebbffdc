"""The whole as one process can see it: shares, regions, leader, from the topics that it follows.

The one place that puts together what displays show; control API and dashboard have one each.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

import msgspec

from global_sync.transport.base import USAGE, Message
from regional_limiter.model.share import ProtocolTimes
from services.health import Heard, LeaderSeen, RegionHealth, region_health, sentences
from services.probes import RegionProbe

REGIONS_MOST = 100


class Picture:
    """Fed with every message of the log, reports and usage; ``regions`` are those of the configuration."""

    def __init__(self, regions: Iterable[str], times: ProtocolTimes) -> None:
        self._configured = list(regions)
        self._times = times
        self._usage: dict[str, tuple[Mapping[str, Any], int]] = {}

    def take(self, message: Message, now_ms: int) -> None:
        """``now_ms``: this process's wall clock.  Raises ValueError for what is malformed."""
        if message.topic == USAGE:
            self._take_usage(msgspec.json.decode(message.value), now_ms)

    def _take_usage(self, usage: Any, now_ms: int) -> None:
        pass

    def health(self, probes: Mapping[str, RegionProbe], now_ms: int) -> list[RegionHealth]:
        heard = {region: Heard(usage, now_ms - at_ms) for region, (usage, at_ms) in self._usage.items()}
        names = [*self._configured, *(name for name in sorted(heard) if name not in self._configured)]
        return [region_health(name, heard.get(name), probes.get(name), now_ms) for name in names]

    def status(
        self, probes: Mapping[str, RegionProbe], kafka_silent_ms: int | None, newest_rules: int, now_ms: int
    ) -> dict[str, Any]:
        regions = self.health(probes, now_ms)
        said = sentences(regions, LeaderSeen(None, None), kafka_silent_ms, newest_rules, self._times, now_ms)
        return {
            "now_ms": now_ms,
            "sentences": [one.shown() for one in said],
            "regions": [asdict(r) for r in regions],
        }

    def usage(self) -> dict[str, Any]:
        return {}
