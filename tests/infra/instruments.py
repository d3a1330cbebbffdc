"""The metrics that our services make: by the names that Prometheus sees, and as docs/telemetry.md tells them.

Instruments are noted where they are created, so that one which shows nothing yet (no lease, no fault) is known too.
``python -m tests.infra.instruments`` prints the tables of that page.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

from opentelemetry.exporter.prometheus._mapping import map_unit
from opentelemetry.sdk.metrics.export import Histogram, Sum

from global_sync.transport.base import Sends
from regional_limiter.durations import Durations
from regional_limiter.limiter import LimiterStatus, ShardStatus
from regional_limiter.shadow import ShadowCount
from regional_limiter.token_lease_table import LeaseCounts
from services.check_api.counts import Counts, StoreCalls
from services.check_api.metrics import Metrics
from services.control_api.metrics import hub_metrics
from services.dashboard.metrics import board_metrics
from services.sync_service.metrics import SyncMetrics
from services.telemetry import Exposition, add_sending


class Told(NamedTuple):
    """One metric of a service.  ``labels``: of its series, without ``region``."""

    name: str
    kind: str
    unit: str
    labels: tuple[str, ...]
    words: str

    @property
    def prometheus(self) -> str:
        """What Prometheus calls it: the unit is the exporter's own word, which has none for a ratio."""
        name = self.name.replace(".", "_") + "".join(f"_{unit}" for unit in [map_unit(self.unit)] if unit)
        return name + "_total" if self.kind == "counter" else name

    def row(self) -> str:
        """Of a table for people."""
        labels = ", ".join(f"`{label}`" for label in self.labels) or "-"
        return f"| `{self.name}` | {self.kind} | {self.unit or '-'} | {labels} | {self.words} |"


def _durations() -> Durations:
    durations = Durations()
    durations.record(0.001)
    return durations


def _node() -> Exposition:
    status = LimiterStatus(
        1,
        1,
        shards=[ShardStatus("127.0.0.1:7001/v", "closed")],
        degraded={"timeout": 1},
        shadows={"d/r": ShadowCount()},
        leases=LeaseCounts(),
        tables={"plans": (1, 2)},
    )
    counts = Counts()
    counts.count(("d", "r", "allowed", "ok"))
    counts.quota_events = {"granted": 1}
    counts.served("POST", "/v1/check", 200, 0.001)
    counts.called("/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit", 0, 0.001)
    calls = StoreCalls({"127.0.0.1:7001": _durations()}, {"127.0.0.1:7001": 1})
    return Metrics("eu", counts, lambda: status, calls=calls).exposition


def _sync() -> Exposition:
    totals = ("records_read", "reports_sent", "sends_failed", "keys_refused", "malformed", "violations")
    now = ("link_age_ms", "session", "epoch", "rules_version", "base_version")
    numbers = dict.fromkeys((*totals, *now), 1)
    point = {"point": "p", "session_left_ms": 1, "consent_left_ms": 1, "ok": True, "resets": 0}
    node = {"node": "n", "rules_version": 1, "age_ms": 1}
    view = {
        **numbers,
        "active": True,
        "behind": {"rl.log": 0},
        "bases": {"d": 3334},
        "keys": {},
        "nodes": [node],
        "points": [point],
    }
    agent = SimpleNamespace(
        region="eu",
        view=lambda: view,
        shares_by_rule=lambda: {("d", "r"): (5000, 1)},
        tables=lambda: {"keys": (1, 2)},
        leases_read={"grow": 1},
        sends_took={Sends("kafka", "rl.reports", error): _durations() for error in ("", "KafkaTimeoutError")},
    )
    led = ("epoch", "unacked", "longest_unacked_ms", "takeovers", "append_failures", "reports_taken", "malformed")
    leader = SimpleNamespace(
        view=lambda: {**dict.fromkeys(led, 1), "violations": 0, "leading": True},
        appended_by_kind={"beat": 1},
        side=SimpleNamespace(answered=_durations()),
    )
    return SyncMetrics(agent, leader).exposition  # type: ignore[arg-type]


def _feed() -> Any:
    topics = {"rl.rules": SimpleNamespace(malformed=0)}
    return SimpleNamespace(topics=topics, silent_ms=lambda _: 5, behind=lambda: {"rl.rules": 0})


def _control() -> Exposition:
    proposer = SimpleNamespace(pending=0, outcomes_read={True: 1}, audited={("put_rule", True): 1})
    transport = SimpleNamespace(
        took={Sends("kafka", "rl.proposals", error): _durations() for error in ("", "KafkaTimeoutError")}
    )
    hub = SimpleNamespace(
        feed=_feed(), transport=transport, book=SimpleNamespace(newest=lambda: 1), proposer=proposer
    )
    return hub_metrics(hub, {("GET", "/rules", 200): _durations()})  # type: ignore[arg-type]


def _dashboard() -> Exposition:
    board = mock.MagicMock()
    board.feed = _feed()
    board.nearness.return_value = {("d", "r"): 0.5}
    broadcaster = mock.MagicMock()
    broadcaster.__len__.return_value = 1
    broadcaster.dropped = 0
    return board_metrics(board, broadcaster)


SERVICES: dict[str, Callable[[], Exposition]] = {
    "A node": _node,
    "A sync service": _sync,
    "The control API": _control,
    "The dashboard": _dashboard,
}


@functools.cache
def told() -> dict[str, tuple[Told, ...]]:
    """Every metric by service."""
    return {service: tuple(_of(make())) for service, make in SERVICES.items()}


def _of(exposition: Exposition) -> Iterator[Told]:
    add_sending(exposition, lambda: {"sent": 1}, lambda: {"recorded": 1})
    exposition.look()
    data = exposition.collected()
    exposition.close()
    for scope in data.resource_metrics[0].scope_metrics:
        for metric in scope.metrics:
            kind = {Sum: "counter", Histogram: "histogram"}.get(type(metric.data), "gauge")
            labels = tuple({label: None for point in metric.data.data_points for label in point.attributes or {}})
            yield Told(metric.name, kind, metric.unit or "", labels, metric.description or "")


@functools.cache
def every_instrument() -> frozenset[str]:
    """The names of all that are made, whether or not they show anything, as Prometheus sees them."""
    notes: set[str] = set()

    class Notes:
        def create_observable_gauge(self, name: str, _callbacks: Any, unit: str = "", _words: str = "") -> None:
            notes.add(Told(name, "gauge", unit, (), "").prometheus)

        def create_observable_counter(self, name: str, _callbacks: Any, unit: str = "", _words: str = "") -> None:
            notes.add(Told(name, "counter", unit, (), "").prometheus)

    real = Exposition.__init__

    def noting(self: Exposition, *given: Any, **named: Any) -> None:
        real(self, *given, **named)
        self.meter = Notes()  # type: ignore[assignment]

    def histogram(_: Exposition, name: str, *__: Any) -> None:
        notes.add(Told(name, "histogram", "s", (), "").prometheus)

    with mock.patch.object(Exposition, "__init__", noting), mock.patch.object(Exposition, "histogram", histogram):
        for make in SERVICES.values():
            add_sending(make(), dict, dict)
    return frozenset(notes).union(one.prometheus for metrics in told().values() for one in metrics)


def shown(service: str) -> set[str]:
    """What the exporter itself calls what ``service`` shows."""
    exposition = SERVICES[service]()
    add_sending(exposition, lambda: {"sent": 1}, lambda: {"recorded": 1})
    exposition.look()
    text = exposition.text().decode()
    exposition.close()
    return set(re.findall(r"^# TYPE (\S+)", text, re.MULTILINE))


HEAD = "| metric | kind | unit | labels | what it says |\n| --- | --- | --- | --- | --- |"


def tables() -> str:
    """All of them, as docs/telemetry.md has them."""
    parts = []
    for service, metrics in told().items():
        rows = [metric.row() for metric in sorted(metrics) if metric.name not in COMMON]
        parts.append("\n".join([f"### {service}", "", HEAD, *rows]))
    common = sorted({metric for metrics in told().values() for metric in metrics if metric.name in COMMON})
    parts.append("\n".join(["### Every process", "", HEAD, *(metric.row() for metric in common)]))
    return "\n\n".join(parts) + "\n"


COMMON = ("process.cpu.time", "process.memory.usage", "ratelimit.telemetry.sendings", "ratelimit.telemetry.spans")


if __name__ == "__main__":
    print(tables())
