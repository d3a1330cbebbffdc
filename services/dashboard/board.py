"""What the page shows, put together once a second from everything that was read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from global_sync.transport.base import LOG, RULES, USAGE, Message, Transport
from regional_limiter.model.rule import Rule, Scope
from regional_limiter.rules.rule import is_in_escrow
from services.accepted_rules import Book
from services.clock import time_of_day, wall_ms
from services.dashboard.nearness import Asked, Asking, averaged, busiest
from services.dashboard.rates import Rate, UsageRates
from services.dashboard.rules import RuleShown, rules_shown
from services.dashboard.told import keys_told, rule_name
from services.feed import USAGE_BEFORE_END, Feed, Handler
from services.health import RegionHealth, RegionProbe
from services.picture import Picture, usage_document
from services.settings import HubSettings

KEYS_TRACKED = 2_000
SMOOTHING = 0.2
RULES_SHOWN = 1_000
DIRECT_AFTER_MS = 1_500


class Board:
    """``probes`` gives the last look at the regions; ``mode``: ``kafka`` or ``embedded``."""

    def __init__(
        self,
        transport: Transport,
        settings: HubSettings,
        probes: Callable[[], Mapping[str, RegionProbe]],
        mode: str = "kafka",
        now_ms: Callable[[], int] = wall_ms,
    ) -> None:
        self._probes = probes
        self._mode = mode
        self._now_ms = now_ms
        self._times = settings.times()
        self.picture = Picture(settings.regions, self._times)
        self.book = Book(sorted(settings.regions))
        self.rates = UsageRates()
        self._busy: dict[str, float] = {}
        self._asked: dict[str, Asked] = {}
        self._averaged_ms: int | None = None
        self._rules: list[RuleShown] = []
        self._rules_of: dict[str, int] = {}
        self._points: dict[str, Any] = {}
        self._status: dict[str, Any] = {}
        handlers: dict[str, Handler] = {RULES: self.take_rules, LOG: self.take, USAGE: self.take}
        self.feed = Feed(transport, handlers, {USAGE: USAGE_BEFORE_END})

    async def take_rules(self, message: Message) -> None:
        await self.book.take(message)
        self.take(message)

    def take(self, message: Message) -> None:
        now_ms = self._now_ms()
        if message.topic == USAGE:
            self.rates.take(usage_document(message.value), now_ms)
        self.picture.take(message, now_ms, live=self.feed.topics[message.topic].caught_up.is_set())

    def why_not_ready(self) -> str | None:
        """None when the accepted rules have been read and Kafka answered lately."""
        return self.feed.why_not_ready(RULES, "the accepted rules")

    # ---- frames

    def tick(self) -> str:
        """One frame; the rules are in it when they have changed."""
        now_ms = self._now_ms()
        changed = self._renew_rules()
        regions = self.picture.health(self._probes(), now_ms)
        self._ask_silent_ones(now_ms)
        names = [region.name for region in regions]
        self._status = self._status_frame(regions, now_ms)
        asked = self._asked_of_keys(names, now_ms)
        told = self._keys_told(asked)
        self._average(busiest(asked), now_ms)
        self._points = {rule.name: self._rule_frame(rule, told, asked, names, now_ms) for rule in self._rules}
        frame: dict[str, Any] = {"status": self._status, "points": self._points}
        if changed:
            frame |= self._rules_frame()
        return _text(frame)

    def hello(self) -> str:
        """Everything that a new tab needs."""
        if not self._status:
            self.tick()
        return _text({"status": self._status, "points": self._points, **self._rules_frame()})

    def busiest_of(self, region: str, most: int) -> list[dict[str, Any]]:
        """The keys of global rules that a region is asked for most, per second."""
        rates = self.rates.keys_of(region, self._now_ms())
        ordered = sorted(rates.items(), key=lambda one: (-sum(one[1]), one[0]))[:most]
        return [
            {"key": key, "allowed_per_s": rate[0], "denied_per_s": rate[1]} for key, rate in ordered if sum(rate)
        ]

    def split_of(self, key: str) -> int:
        """Over how many buckets the key's rule spreads it."""
        domain, _, name = rule_name(key).partition("/")
        rule = self._rule(domain, name)
        return 1 if rule is None else rule.split

    def nearness(self) -> dict[tuple[str, str], float]:
        """By domain and rule: what its busiest key asks for on average, by what the rule lets through for ever."""
        asked = self._asked  # both are replaced, not changed: this may be asked in a thread
        return {
            (rule.domain, rule.id): asked[rule.name].per_s / rule.even_per_s
            for rule in self._rules
            if rule.is_global and rule.even_per_s and rule.name in asked
        }

    def overdue(self) -> list[str]:
        return self.picture.overdue(self._now_ms())

    def links_changed(self) -> bool:
        """Whether a region's link is not what the last frame said."""
        shown = {region["name"]: region["link"] for region in self._status.get("regions", ())}
        return any(
            shown.get(region.name) != region.link for region in self.picture.health(self._probes(), self._now_ms())
        )

    # ---- for what is remembered

    def region_names(self) -> list[str]:
        """In the order in which they are shown."""
        return [region["name"] for region in self._status.get("regions", [])]

    def bases_of(self, domain: str) -> Mapping[str, int]:
        """Region -> what it holds of the domain's rules at rest; empty for a domain that has none."""
        known = self.book.get(domain)
        return known.rule_set.bases if known is not None else {}

    def in_windows(self, domain: str, rule: str) -> bool:
        """Whether the rule's windows are in escrow."""
        one = self._rule(domain, rule)
        return one is not None and one.scope is Scope.GLOBAL and is_in_escrow(one.algorithm, one.distribution)

    def _rule(self, domain: str, name: str) -> Rule | None:
        known = self.book.get(domain)
        return known.meant(name) if known is not None else None

    def sync_shown(self) -> dict[str, Any]:
        """Leader and regions, as the last frame tells them, with what they refused."""
        if not self._status:
            self.tick()
        refused = {}
        for region, probe in self._probes().items():
            agent, leader = probe.agent or {}, probe.leader or {}
            refused[region] = {"agent": agent.get("violations"), "leader": leader.get("violations")}
        return {
            "leader": self._status["leader"],
            "regions": self._status["regions"],
            "refused": refused,
            "behind": {name: self.picture.behind(name) for name in self.region_names()},
            "behind_here": self.feed.behind(),
            "log_age_ms": {name: self.picture.log_age_ms(name, self._now_ms()) for name in self.region_names()},
            "candidates": {region: probe.leader for region, probe in self._probes().items() if probe.leader},
        }

    # ---- parts of a frame

    def _rules_frame(self) -> dict[str, Any]:
        bases = {domain: dict(known.rule_set.bases) for domain, known in self.book.sets().items()}
        return {"rules": [rule.frame() for rule in self._rules], "bases": bases}

    def _average(self, busiest_of: Mapping[str, Asking], now_ms: int) -> None:
        """What the busiest key of each rule asks for.  A frame may come early, so by the time that has passed."""
        elapsed_s = 1.0 if self._averaged_ms is None else max(0, now_ms - self._averaged_ms) / 1000
        self._averaged_ms = now_ms
        averages = {}
        for rule in self._rules:
            before = self._asked.get(rule.name)
            found = averaged(before, busiest_of.get(rule.name), rule.window_s, elapsed_s)
            if found is not None:
                averages[rule.name] = found
        self._asked = averages

    def _ask_silent_ones(self, now_ms: int) -> None:
        """What a region counts while it is cut off from Kafka: its agent may still answer directly."""
        for region, probe in self._probes().items():
            silent_ms = self.rates.silent_ms(region, now_ms)
            if probe.agent is not None and (silent_ms is None or silent_ms > DIRECT_AFTER_MS):
                try:
                    self.rates.take(usage_document(msgspec.json.encode(probe.agent)), probe.at_ms)
                except ValueError:
                    continue  # another version's view

    def _renew_rules(self) -> bool:
        versions = {domain: known.version for domain, known in self.book.sets().items()}
        if versions == self._rules_of:
            return False
        self._rules_of = versions
        self._rules = rules_shown(self.book)[:RULES_SHOWN]
        return True

    def _status_frame(self, regions: Sequence[RegionHealth], now_ms: int) -> dict[str, Any]:
        said = self.picture.sentences(regions, self.feed.silent_ms(LOG), self.book.newest(), now_ms, self._probes())
        return {
            "now_ms": now_ms,
            "mode": self._mode,
            "sentences": [one.shown(time_of_day) for one in said],
            "leader": self.picture.leader_shown(self._probes(), now_ms),
            "regions": [self._region_frame(region, now_ms) for region in regions],
        }

    def _region_frame(self, region: RegionHealth, now_ms: int) -> dict[str, Any]:
        rate = self.rates.all_rules(region.name, now_ms)
        degraded = self.rates.degraded(region.name, now_ms)
        probed = [node["ready"] for node in region.node_urls]
        nodes = (
            {"ready": sum(1 for ready in probed if ready), "total": len(probed)}
            if probed
            else {"ready": region.nodes_alive, "total": len(region.nodes)}
        )
        return {
            "name": region.name,
            "link": region.link,
            "link_age_ms": region.link_age_ms,
            "since_ms": region.since_ms,
            "session_left_ms": region.session_left_ms,
            "consent_left_ms": region.consent_left_ms,
            "session_whole_ms": self._times.session_us // 1000,
            "consent_whole_ms": self._times.consent_us // 1000,
            "points": {"ok": region.points_ok, "total": len(region.points)},
            "nodes": nodes,
            "allowed_per_s": rate and round(rate[0], 1),
            "denied_per_s": rate and round(rate[1], 1),
            "without_redis_per_s": degraded and round(degraded[0], 1),
            "at_floor_per_s": degraded and round(degraded[1], 1),
        }

    def _rule_frame(
        self,
        rule: RuleShown,
        told: Mapping[str, Sequence[str]],
        asked: Mapping[str, Rate],
        regions: Sequence[str],
        now_ms: int,
    ) -> dict[str, Any]:
        rates = [self.rates.rule(region, rule.name, now_ms) for region in regions]
        known = [rate for rate in rates if rate is not None]
        frame: dict[str, Any] = {
            "total": _rate_frame(_summed(known) if known else None),
            "keys": [
                [key, _rate_frame(asked.get(key, (0.0, 0.0)) if known else None)] for key in told.get(rule.name, ())
            ],
        }
        if (average := self._asked.get(rule.name)) is not None:
            frame["asked"] = [average.key, round(average.per_s, 3)]
        return frame

    def _asked_of_keys(self, regions: Sequence[str], now_ms: int) -> dict[str, Rate]:
        """By key, of all regions together."""
        asked: dict[str, Rate] = {}
        for region in regions:
            for key, rate in self.rates.keys_of(region, now_ms).items():
                before = asked.get(key)
                asked[key] = rate if before is None else (before[0] + rate[0], before[1] + rate[1])
        return asked

    def _keys_told(self, asked: Mapping[str, Rate]) -> dict[str, list[str]]:
        """Rule -> those of its keys that are told; smoothed, so that two equal keys do not take turns."""
        offered = {key: sum(rate) for key, rate in asked.items()}
        for key in [*self._busy, *(key for key in offered if key not in self._busy)]:
            before = self._busy.get(key, offered.get(key, 0.0))
            self._busy[key] = before + SMOOTHING * (offered.get(key, 0.0) - before)
        ordered = sorted(self._busy, key=lambda key: (-self._busy[key], key))
        self._busy = {key: self._busy[key] for key in ordered[:KEYS_TRACKED] if self._busy[key] > 0.01}
        even = {rule.name: rule.even_per_s for rule in self._rules if rule.is_global}
        busy = {key: per_s for key, per_s in self._busy.items() if rule_name(key) in even}
        return keys_told(busy, even)


def _summed(rates: Sequence[Rate]) -> Rate:
    return sum(rate[0] for rate in rates), sum(rate[1] for rate in rates)


def _rate_frame(rate: Rate | None) -> dict[str, float | None]:
    return {"a": None, "d": None} if rate is None else {"a": round(rate[0], 1), "d": round(rate[1], 1)}


def _text(frame: Mapping[str, Any]) -> str:
    return msgspec.json.encode(frame).decode()
