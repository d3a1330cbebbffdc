"""The whole as one process can see it: shares, regions, leader, from the topics that it follows.

The one place that puts together what displays show; control API and dashboard have one each.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from global_sync import codec
from global_sync.transport.base import LOG, USAGE, Message
from regional_limiter.model.enforcement import BASE
from regional_limiter.model.keys import rule_of
from regional_limiter.model.share import SHARE_UNITS, ProtocolTimes, floor_of, window_static
from services.bases_seen import BasesSeen
from services.granted import Granted, without_released
from services.health import (
    APART_MS,
    CUT_MS,
    Heard,
    LeaderSeen,
    RegionHealth,
    RegionProbe,
    Sentence,
    region_health,
    sentences,
)
from services.share_history import Entry, ShareHistory

REGIONS_MOST = 100
UNHEARD_MS = 1_500
OBEYED_WITHIN_MS = 500
"""What a region has surely obeyed when it is heard: records this much older."""


class Picture:
    """Fed with every message of the log, reports and usage; ``regions`` are those of the configuration."""

    def __init__(self, regions: Iterable[str], times: ProtocolTimes) -> None:
        self._configured = list(regions)
        self._times = times
        self._usage: dict[str, tuple[Mapping[str, Any], int]] = {}
        self._since_ms: int | None = None
        self._granted = Granted()
        self._history = ShareHistory()
        self.bases = BasesSeen()
        self._lag_ms: int | None = None

    def take(self, message: Message, now_ms: int, *, live: bool = True) -> None:
        """``now_ms``: this process's wall clock.  Raises ValueError for what is malformed.

        ``live`` False: it waited in the topic before we came, so it is as old as the broker's stamp says.  The
        stamp counts only then: the broker's clock may be another than ours.
        """
        heard_ms = now_ms if live else min(now_ms, message.timestamp_ms)
        if message.topic == USAGE:
            self._take_usage(usage_document(message.value), heard_ms)
        elif message.topic == LOG:
            self._take_log(message, heard_ms, now_ms)

    def _take_usage(self, usage: Mapping[str, Any], heard_ms: int) -> None:
        region = str(usage["region"])
        if region in self._usage or len(self._usage) < REGIONS_MOST:
            self._usage[region] = usage, heard_ms

    def _take_log(self, message: Message, heard_ms: int, now_ms: int) -> None:
        for record in codec.decode_records(message.value):
            self._granted.take(record, heard_ms)
            self._history.take(record, heard_ms)
            self.bases.take(record)
        self._lag_ms = max(0, now_ms - message.timestamp_ms)

    # ---- regions and leader

    def usage_heard(self, region: str, now_ms: int) -> tuple[Mapping[str, Any] | None, int]:
        """A region's newest usage message, and for how long it has been here; None: there was none."""
        usage, heard_ms = self._usage.get(region, (None, now_ms))
        return usage, max(0, now_ms - heard_ms)

    def overdue(self, now_ms: int) -> list[str]:
        """Regions whose usage should have come by now: it is worth asking their agents."""
        return [region for region, (_, heard_ms) in self._usage.items() if now_ms - heard_ms >= APART_MS]

    def health(self, probes: Mapping[str, RegionProbe], now_ms: int) -> list[RegionHealth]:
        """Every region that is configured, or was heard of and has not been taken out or said to be destroyed."""
        heard = {region: Heard(usage, max(0, now_ms - at_ms)) for region, (usage, at_ms) in self._usage.items()}
        names = [*self._configured, *(name for name in sorted(heard) if name not in self._configured)]
        self._since_ms = min(now_ms, self._since_ms or now_ms)
        watched_ms = now_ms - self._since_ms
        log_age_ms = self.leader(now_ms).beat_age_ms
        found = [
            region_health(name, heard.get(name), probes.get(name), now_ms, watched_ms, log_age_ms) for name in names
        ]
        for health in found:
            if health.name in self.bases.gone:
                health.link = "gone"
        return [health for health in found if health.name in self._configured or not self._has_left(health)]

    def _has_left(self, health: RegionHealth) -> bool:
        """Whether nothing is to be expected of it any more: it is silent, and has no base."""
        return health.link in ("cut", "gone") and self.bases.version > 0 and not self.bases.base_of(health.name)

    def leader(
        self,
        now_ms: int,
        waiting_for: Mapping[str, Mapping[str, int]] | None = None,
        heard_of_gone: Sequence[str] | None = None,
        floors_wait_for: Mapping[str, Mapping[str, int]] | None = None,
    ) -> LeaderSeen:
        beat_ms = self._granted.beat_ms
        age_ms = None if beat_ms is None else max(0, now_ms - beat_ms)
        gone = tuple(heard_of_gone or ())
        return LeaderSeen(self._granted.epoch or None, age_ms, waiting_for or {}, gone, floors_wait_for or {})

    def leader_shown(self, probes: Mapping[str, RegionProbe], now_ms: int) -> dict[str, Any]:
        seen = self.leader(now_ms)
        leading = [name for name, probe in probes.items() if probe.leader and probe.leader.get("leading")]
        late = seen.beat_age_ms is None or seen.beat_age_ms * 1000 > 2 * self._times.beat_us
        return {
            "epoch": seen.epoch,
            "region": leading[0] if len(leading) == 1 else None,
            "beat_age_ms": seen.beat_age_ms,
            "late": late,
            "lag_ms": self._lag_ms,
        }

    def sentences(
        self,
        regions: Sequence[RegionHealth],
        kafka_silent_ms: int | None,
        newest_rules: int,
        now_ms: int,
        probes: Mapping[str, RegionProbe] | None = None,
    ) -> list[Sentence]:
        """``probes``: the leading region's tells what the leader waits for."""
        leading = [
            probe.leader for probe in (probes or {}).values() if probe.leader and probe.leader.get("leading")
        ]
        told = leading[0] if len(leading) == 1 else {}
        leader = self.leader(
            now_ms, told.get("waiting_for_bases"), told.get("heard_of_gone"), told.get("waiting_for_floors")
        )
        return sentences(regions, leader, kafka_silent_ms, newest_rules, self._times, now_ms)

    # ---- shares

    def shares(
        self,
        key: str,
        bases: Mapping[str, int],
        regions: Sequence[RegionHealth],
        *,
        adaptive: bool,
        now_ms: int,
        in_windows: bool = False,
    ) -> dict[str, int | None]:
        """The share of every region in a key, None where it is not known.  ``regions``: as ``health`` gives them.

        While the region's session lives: the lease as the log has granted it (the region follows within some
        hundred milliseconds); of a region that is not heard, the most that it may still be following.  After
        that what the region falls back to by itself, by the timers that its points last told.  ``in_windows``: an
        adaptive rule whose windows are in escrow: the static part, and what was granted of the present window.
        """
        if adaptive and in_windows:
            granted = self._granted.of_window(key, now_ms)
            return {one.name: window_static(bases.get(one.name, 0)) + granted.get(one.name, 0) for one in regions}
        if not adaptive:
            return {region.name: bases.get(region.name, 0) for region in regions}
        shares = {region.name: self._share(key, bases.get(region.name, 0), region) for region in regions}
        known = {name: share for name, share in shares.items() if share is not None}
        newest = {region.name: self._granted.newest(region.name, key) for region in regions if _in_session(region)}
        shares.update(without_released(known, {name: seq for name, seq in newest.items() if name in known}))
        for region in sorted(
            filter(_is_unheard, regions), key=lambda region: region.link_age_ms or 0, reverse=True
        ):
            heard_ms = 0 if region.link_age_ms is None else now_ms - region.link_age_ms
            base = bases.get(region.name, 0)
            most = self._granted.most(region.name, key, base, heard_ms - OBEYED_WITHIN_MS) or 0
            others = sum(share or 0 for name, share in shares.items() if name != region.name)
            # A grow is written only where there is room: if it would be more than the whole, then what was taken
            # back from this region has been acknowledged, though we have not heard so.
            if _in_session(region) and others + most <= SHARE_UNITS:
                shares[region.name] = most
        return shares

    def _share(self, key: str, base: int, region: RegionHealth) -> int | None:
        if not region.points:
            return None
        if _in_session(region):
            granted = self._granted.share(region.name, key)
            return base if granted == BASE else granted
        if any(point["consent_left_ms"] > 0 for point in region.points):
            return floor_of(base, region.floors.get(rule_of(key)[0], 0))
        return base

    def want(self, region: str, key: str, now_ms: int) -> int | None:
        """What the region said lately that it would use, in share units."""
        usage, heard_ms = self._usage.get(region, ({}, 0))
        if now_ms - heard_ms > CUT_MS:
            return None
        entry = usage["keys"].get(key)
        return entry.get("want") if entry else None

    def log_age_ms(self, region: str, now_ms: int) -> int | None:
        """For how long the region's agent has not read the log; None when that is not known."""
        usage, heard_ms = self._usage.get(region, ({}, 0))
        age_ms = usage.get("link_age_ms")
        return None if age_ms is None else int(age_ms) + now_ms - heard_ms

    def behind(self, region: str) -> Mapping[str, int] | None:
        """By topic, how many messages its sync service had not read yet when it was last heard; None: not known."""
        return self._usage.get(region, ({}, 0))[0].get("behind")

    def share_history(self, key: str) -> list[Entry]:
        """What the log granted of a key lately, the newest first."""
        return self._history.of(key)

    def keys_seen(self) -> list[str]:
        return sorted({key for usage, _ in self._usage.values() for key in usage["keys"]} | self._granted.keys())


def _is_unheard(region: RegionHealth) -> bool:
    return region.link == "cut" or (region.link_age_ms or 0) > UNHEARD_MS


def _in_session(region: RegionHealth) -> bool:
    return any(point["session_left_ms"] > 0 for point in region.points)


def usage_document(value: bytes) -> Mapping[str, Any]:
    """A usage message's content.  Raises ValueError."""
    try:
        document = msgspec.json.decode(value)
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from None
    if not isinstance(document, dict) or not {"region", "agent", "at_ms", "totals", "keys", "points"} <= set(
        document
    ):
        raise ValueError("not a usage message")
    return document
