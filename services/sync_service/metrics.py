"""What Prometheus reads of a sync service: OpenTelemetry instruments that look at agent and leader when asked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from opentelemetry.metrics import CallbackOptions, Observation

from services.telemetry import Exposition

View = Callable[[], Mapping[str, Any]]


class SyncMetrics:
    """Exports what ``agent_view`` and ``leader_view`` say.  Series are bounded by points; no key is a label."""

    def __init__(self, region: str, agent_view: View, leader_view: View) -> None:
        self._agent_view, self._leader_view = agent_view, leader_view
        self._exposition = Exposition("sync-service", region)
        self._register()

    def text(self) -> bytes:
        return self._exposition.text()

    def close(self) -> None:
        self._exposition.close()

    def _register(self) -> None:
        meter = self._exposition.meter
        gauge, counter = meter.create_observable_gauge, meter.create_observable_counter
        gauge("ratelimit.agent.active", [self._agent("active")], "", "1 when this agent acts for its region")
        gauge("ratelimit.sync.lag", [self._agent("link_age_ms", 1e-3)], "s", "Since the log was last read")
        gauge("ratelimit.agent.session", [self._agent("session")], "", "Number of the region's session")
        gauge("ratelimit.agent.epoch", [self._agent("epoch")], "", "Epoch of the leader that is followed")
        gauge("ratelimit.rules.version", [self._agent("rules_version")], "", "Rules handed to the nodes")
        gauge("ratelimit.base.version", [self._agent("base_version")], "", "Bases in force or falling")
        gauge("ratelimit.session.left", [self._points("session_left_ms")], "s", "Left of the session, by point")
        gauge("ratelimit.consent.left", [self._points("consent_left_ms")], "s", "Left of the consent, by point")
        gauge("ratelimit.point.reached", [self._points("ok", 1.0)], "", "1 when the point answered its last write")
        counter("ratelimit.point.resets", [self._points("resets", 1.0)], "{reset}", "Variables lost, by point")
        gauge("ratelimit.region.lent_keys", [self._lent_keys], "{key}", "Keys of this region away from their base")
        counter("ratelimit.agent.records", [self._agent("records_read")], "{record}", "Records of the log read")
        counter("ratelimit.agent.reports", [self._agent("reports_sent")], "{report}", "Reports sent")
        counter(
            "ratelimit.agent.sends_failed", [self._agent("sends_failed")], "{record}", "Reports and usage not sent"
        )
        words = "Leases not taken, since the agent has as many keys as it may"
        counter("ratelimit.agent.keys_refused", [self._agent("keys_refused")], "{lease}", words)
        counter("ratelimit.records_refused", [self._leader("violations")], "{record}", "Refused by an invariant")
        gauge("ratelimit.leader.leading", [self._leader("leading")], "", "1 when this candidate leads")
        gauge("ratelimit.leader.epoch", [self._leader("epoch")], "", "Epoch that this candidate follows or leads")
        words = "Leases that their region has not acknowledged yet"
        gauge("ratelimit.leader.unacked", [self._leader("unacked")], "{lease}", words)
        words = "How long the oldest unacknowledged lease has waited"
        gauge("ratelimit.leader.longest_unacked", [self._leader("longest_unacked_ms", 1e-3)], "s", words)
        counter("ratelimit.leader.takeovers", [self._leader("takeovers")], "{try}", "Tries to take over")
        counter("ratelimit.leader.records", [self._leader("appended")], "{record}", "Records appended to the log")
        counter("ratelimit.leader.append_failures", [self._leader("append_failures")], "{batch}", "Not appended")

    def _agent(self, name: str, factor: float = 1.0) -> Callable[[CallbackOptions], Iterable[Observation]]:
        return lambda _: [Observation(self._agent_view()[name] * factor)]

    def _leader(self, name: str, factor: float = 1.0) -> Callable[[CallbackOptions], Iterable[Observation]]:
        return lambda _: [Observation(self._leader_view()[name] * factor)]

    def _points(self, name: str, factor: float = 1e-3) -> Callable[[CallbackOptions], Iterator[Observation]]:
        def observe(_: CallbackOptions) -> Iterator[Observation]:
            for point in self._agent_view()["points"]:
                yield Observation(point[name] * factor, {"point": point["point"]})

        return observe

    def _lent_keys(self, _: CallbackOptions) -> list[Observation]:
        keys = self._agent_view()["keys"].values()
        return [Observation(sum(key["share"] not in (None, -1) for key in keys))]
