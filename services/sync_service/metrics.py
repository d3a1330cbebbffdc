"""What Prometheus and a collector read of a sync service: instruments that look at agent and leader when asked.

What is read in a thread was noted by ``look`` on the event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from opentelemetry.metrics import CallbackOptions, Observation

from global_sync.agent import Agent
from global_sync.leader import Leader
from regional_limiter.durations import Seen
from regional_limiter.model.share import SHARE_UNITS
from services.feed_metrics import BEHIND, SENDING, SENDING_WORDS, behind_of, sends_seen
from services.telemetry import Exposition, Labels, bounded_series


class SyncMetrics:
    """Exports how ``agent`` and ``leader`` stand.  Labels are points, rules and nodes, never keys."""

    def __init__(self, agent: Agent, leader: Leader) -> None:
        self._agent, self._leader = agent, leader
        self._agent_view: Mapping[str, Any] = {}
        self._leader_view: Mapping[str, Any] = {}
        self._shares: Mapping[tuple[str, str], tuple[int, int]] = {}
        self._tables: Mapping[str, tuple[int, int]] = {}
        self._leases_read: Mapping[str, int] = {}
        self._appended: Mapping[str, int] = {}
        self._answered: Sequence[tuple[Labels, Seen]] = ()
        self._sent: Sequence[tuple[Labels, Seen]] = ()
        self.exposition = Exposition("sync-service", agent.region, look=self.look)
        self._register_agent()
        self._register_leader()

    def look(self) -> None:
        """Note how everything stands.  On the event loop."""
        agent, leader = self._agent, self._leader
        self._agent_view, self._leader_view = agent.view(), leader.view()
        self._shares = agent.shares_by_rule()
        self._tables = agent.tables()
        self._leases_read = dict(agent.leases_read)
        self._appended = dict(leader.appended_by_kind)
        self._answered = [({}, leader.side.answered.seen())]
        self._sent = sends_seen(agent.sends_took)

    def close(self) -> None:
        self.exposition.close()

    def _register_agent(self) -> None:
        meter = self.exposition.meter
        gauge, counter = meter.create_observable_gauge, meter.create_observable_counter
        gauge("ratelimit.agent.active", [self._of_agent("active")], "", "1 when this agent acts for its region")
        gauge("ratelimit.sync.lag", [self._of_agent("link_age_ms", 1e-3)], "s", "Since the log was last read")
        gauge("ratelimit.topic.behind", [behind_of(lambda: self._agent_view["behind"])], "{record}", BEHIND)
        self.exposition.histogram(SENDING, SENDING_WORDS, lambda: self._sent)
        gauge("ratelimit.agent.session", [self._of_agent("session")], "", "Number of the region's session")
        gauge("ratelimit.agent.epoch", [self._of_agent("epoch")], "", "Epoch of the leader that is followed")
        gauge("ratelimit.rules.version", [self._of_agent("rules_version")], "", "Rules handed to the nodes")
        gauge("ratelimit.base.version", [self._of_agent("base_version")], "", "Bases in force or falling")
        words = "Rules in force at each node, as its last beat said"
        gauge("ratelimit.node.rules_version", [self._nodes("rules_version")], "", words)
        gauge("ratelimit.node.silence", [self._nodes("age_ms", 1e-3)], "s", "Since each node's last beat")
        gauge("ratelimit.session.left", [self._points("session_left_ms")], "s", "Left of the session, by point")
        gauge("ratelimit.consent.left", [self._points("consent_left_ms")], "s", "Left of the consent, by point")
        gauge("ratelimit.point.reached", [self._points("ok", 1.0)], "", "1 when the point answered its last write")
        counter("ratelimit.point.resets", [self._points("resets", 1.0)], "{reset}", "Variables lost, by point")
        gauge("ratelimit.region.lent_keys", [self._lent_keys], "{key}", "Keys of this region away from their base")
        words = "Share of the limit, 0 to 1, that the keys of a rule hold which are away from their base: the mean"
        gauge("ratelimit.region.share", [self._shares_by_rule], "1", words)
        words = "Share of the limit, 0 to 1, that this region holds of a domain's rules when nothing is moved"
        gauge("ratelimit.region.base", [self._bases], "1", words)
        words = "Records about this region's shares: grow and keep are hand-overs, base is a return"
        counter("ratelimit.agent.leases", [self._leases], "{record}", words)
        counter("ratelimit.agent.records", [self._of_agent("records_read")], "{record}", "Records of the log read")
        counter("ratelimit.agent.reports", [self._of_agent("reports_sent")], "{report}", "Reports sent")
        words = "Reports and usage not sent"
        counter("ratelimit.agent.sends_failed", [self._of_agent("sends_failed")], "{record}", words)
        words = "Leases not taken, since the agent has as many keys as it may"
        counter("ratelimit.agent.keys_refused", [self._of_agent("keys_refused")], "{lease}", words)
        counter("ratelimit.agent.malformed", [self._of_agent("malformed")], "{message}", "Messages not understood")
        gauge("ratelimit.table.entries", [self._filled(0)], "{entry}", "Entries of each of the agent's tables")
        words = "How many entries each of the agent's tables may have"
        gauge("ratelimit.table.entries_most", [self._filled(1)], "{entry}", words)

    def _register_leader(self) -> None:
        meter = self.exposition.meter
        gauge, counter = meter.create_observable_gauge, meter.create_observable_counter
        counter("ratelimit.records_refused", [self._violations], "{record}", "Refused by an invariant")
        gauge("ratelimit.leader.leading", [self._of_leader("leading")], "", "1 when this candidate leads")
        words = "Epoch that this candidate follows or leads"
        gauge("ratelimit.leader.epoch", [self._of_leader("epoch")], "", words)
        words = "Leases that their region has not acknowledged yet"
        gauge("ratelimit.leader.unacked", [self._of_leader("unacked")], "{lease}", words)
        words = "How long the oldest unacknowledged lease has waited"
        gauge("ratelimit.leader.longest_unacked", [self._of_leader("longest_unacked_ms", 1e-3)], "s", words)
        words = "From a record about a share until its region has said that it is in force there"
        self.exposition.histogram("ratelimit.convergence.duration", words, lambda: self._answered)
        counter("ratelimit.leader.takeovers", [self._of_leader("takeovers")], "{try}", "Tries to take over")
        words = "Records appended to the log, by kind"
        counter("ratelimit.leader.records", [self._records], "{record}", words)
        words = "Batches of records not appended"
        counter("ratelimit.leader.append_failures", [self._of_leader("append_failures")], "{batch}", words)
        counter("ratelimit.leader.reports", [self._of_leader("reports_taken")], "{report}", "Reports taken in")
        words = "Messages not understood: this candidate does not lead"
        counter("ratelimit.leader.malformed", [self._of_leader("malformed")], "{message}", words)

    def _of_agent(self, name: str, factor: float = 1.0) -> Callable[[CallbackOptions], Iterable[Observation]]:
        return lambda _: [Observation(self._agent_view[name] * factor)]

    def _of_leader(self, name: str, factor: float = 1.0) -> Callable[[CallbackOptions], Iterable[Observation]]:
        return lambda _: [Observation(self._leader_view[name] * factor)]

    def _violations(self, _: CallbackOptions) -> list[Observation]:
        """The leader's and the agent's: each refuses for itself."""
        sides = (("leader", self._leader_view), ("agent", self._agent_view))
        return [Observation(view["violations"], {"side": side}) for side, view in sides]

    def _points(self, name: str, factor: float = 1e-3) -> Callable[[CallbackOptions], Iterator[Observation]]:
        return lambda _: bounded_series(
            ({"point": point["point"]}, point[name] * factor) for point in self._agent_view["points"]
        )

    def _nodes(self, name: str, factor: float = 1.0) -> Callable[[CallbackOptions], Iterator[Observation]]:
        return lambda _: bounded_series(
            ({"node": node["node"]}, node[name] * factor) for node in self._agent_view["nodes"]
        )

    def _lent_keys(self, _: CallbackOptions) -> list[Observation]:
        keys = self._agent_view["keys"].values()
        return [Observation(sum(key["share"] not in (None, -1) for key in keys))]

    def _shares_by_rule(self, _: CallbackOptions) -> Iterator[Observation]:
        for place, ((domain, rule), (total, keys)) in enumerate(self._shares.items()):
            if place < SHARES_MOST:  # means do not add up to one of the others
                yield Observation(total / keys / SHARE_UNITS, {"domain": domain, "rule": rule})

    def _bases(self, _: CallbackOptions) -> Iterator[Observation]:
        bases = self._agent_view["bases"]
        for domain in list(bases)[:SHARES_MOST]:
            yield Observation(bases[domain] / SHARE_UNITS, {"domain": domain})

    def _leases(self, _: CallbackOptions) -> Iterator[Observation]:
        for kind, count in self._leases_read.items():
            yield Observation(count, {"kind": kind})

    def _records(self, _: CallbackOptions) -> Iterator[Observation]:
        for kind, count in self._appended.items():
            yield Observation(count, {"kind": kind})

    def _filled(self, place: int) -> Callable[[CallbackOptions], Iterable[Observation]]:
        return lambda _: [Observation(filled[place], {"table": table}) for table, filled in self._tables.items()]


SHARES_MOST = 1000
"""Rules whose shares are told."""
